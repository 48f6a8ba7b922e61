"""Signed messages and large bodies between nodes that do not trust each other, with no coordinator.

Reading order: framing (bytes and messages), session (who is there), connection (one peer), handshakes and admission
(whom we let in), peers and discovery (whom to dial), dialer, gossip and router (Envelops: seen, relayed, delivered),
transfer, body_server and bodies (large bodies, pulled), reputation, mesh (all of it put together).
framing, session, gossip, router, transfer, reputation, the dial schedule and the rules of handshakes are pure: no
clock, no sockets, no randomness of their own.
"""
