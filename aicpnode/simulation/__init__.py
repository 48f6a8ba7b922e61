"""A seeded, deterministic network of production replicas under virtual time, with adversaries and checkers."""
