"""The one message of the system: encoded canonically, signed once, named by its hash.

Reading order: codec (values and Envelops as bytes), signing, merkle, records (dataclasses as values),
kinds (the consensus messages as Envelops).
"""
