"""The protocol by which members agree on blocks: PBFT's phases under Tendermint's locking rule.

Standard library only, and neither clock nor randomness nor I/O: ``Replica.handle(event)`` returns effects, and
whoever runs it (the trio driver, the simulator) carries them out. Reading order: ``types``, ``messages``,
``membership``, ``events``, ``replica``.
"""
