"""aicp-node: machines that do not trust each other train one transformer and end each round with the same bits.

A tour, in the order in which one training round passes through the rooms:

* ``envelop``: the one signed message; ``identity``: who signs. ``genesis``: what a run agrees on, by hash.
* ``network``: Envelops over trio. Votes are pushed to everyone; bodies are announced and pulled by hash.
* ``training`` (the only room with torch, besides ``model``) takes a round's agreed model and makes a difference of it.
* ``gradients`` encodes the difference, commits to it, reveals it when all have committed, judges what others reveal,
  and applies the agreed set: integers only, so that every node gets the same bits. ``kernels`` does the arithmetic.
* ``consensus`` (a package of its own, standard library only) decides which proposals enter the round: a pure state
  machine, ``Replica.handle(event) -> effects``. ``replication`` runs it: persist, then send; and keeps the ledger.
* ``storage``: what a crash must not take away. ``simulation``: the same replicas under a seeded network and liars.
* ``node`` puts it all together; ``interfaces``, ``cli``, ``demo`` and ``bench`` are how people meet it.

Public API, imported when it is first used::

    async with Node(NodeConfig.full("ada")) as node:
        print(node.stats(), node.health())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aicpnode.config import NodeConfig
    from aicpnode.node import Node

__all__ = ["Node", "NodeConfig"]


def __getattr__(name: str) -> Any:
    """Import ``Node`` and ``NodeConfig`` only when somebody asks for them: most commands need neither."""
    if name == "Node":
        from aicpnode.node import Node

        return Node
    if name == "NodeConfig":
        from aicpnode.config import NodeConfig

        return NodeConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
