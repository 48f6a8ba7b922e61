"""Signed messages and large bodies between nodes that do not trust each other, with no coordinator.

Reading order: framing (bytes and messages), session (who is there), connection (one peer), peers, discovery (whom to
dial), gossip (what was seen, whom to relay to), transfer and bodies (large bodies, pulled), reputation, mesh (all).
framing, session, discovery, gossip, transfer, reputation and handshakes are pure: no clock, no sockets, no randomness
of their own.
"""
