"""What ``aicp-node bench`` measures: this build on this machine, against the bars of the design."""
