"""What ``aicp-node demo`` runs: several real node processes on this machine, watched through their control sockets."""
