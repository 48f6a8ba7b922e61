"""What waits to be handled by the replica: a fair, bounded queue for every peer, and the node's own inputs first.

Peers are served in turn, so that one that sends as fast as it can only delays itself; what exceeds its share is dropped
and counted, because everything that matters is sent again. The node's own inputs are never dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import trio

from consensus.events import Applied, Input, OperationReceived

INPUTS_PER_PEER_MAX = 512
"""A peer's own votes of a height are 4, an answer to a request for decisions has 64; the rest is relayed."""
PEERS_MAX = 256


class Inbox:
    """``put`` and ``put_from`` never block; ``take`` waits."""

    def __init__(self) -> None:
        self._own: deque[Input] = deque()
        self._by_peer: OrderedDict[bytes, deque[Input]] = OrderedDict()
        self._wakeup = trio.Event()
        self._is_interrupted = False
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._own) + sum(len(queue) for queue in self._by_peer.values())

    @property
    def holds_own_operation(self) -> bool:
        """Whether an operation of this node waits here, which the pool does not know yet."""
        return any(isinstance(event, OperationReceived) for event in self._own)

    def put(self, event: Input) -> None:
        """Of this node itself: timers, states, opinions, operations."""
        self._own.append(event)
        self._wakeup.set()

    def put_from(self, peer: bytes, event: Input) -> None:
        """Of the connection to ``peer``, whoever signed it."""
        queue = self._by_peer.get(peer)
        if queue is None:
            if len(self._by_peer) >= PEERS_MAX:
                self.dropped += 1
                return
            queue = self._by_peer[peer] = deque()
        if len(queue) >= INPUTS_PER_PEER_MAX:
            self.dropped += 1
            return
        queue.append(event)
        self._wakeup.set()

    def interrupt(self) -> None:
        """Let ``take`` return, with nothing if nothing is here."""
        self._is_interrupted = True
        self._wakeup.set()

    def forget_states(self) -> None:
        """Drop what says which state this node has: another one takes its place."""
        self._own = deque(event for event in self._own if not isinstance(event, Applied))

    async def take(self, most: int) -> list[Input]:
        """Up to ``most`` inputs, at least one unless interrupted: all own ones first, then one of each peer in turn."""
        while not self._own and not self._by_peer and not self._is_interrupted:
            self._wakeup = trio.Event()
            await self._wakeup.wait()
        self._is_interrupted = False
        taken: list[Input] = []
        while len(taken) < most:
            if self._own:
                taken.append(self._own.popleft())
            elif self._by_peer:
                peer, queue = self._by_peer.popitem(last=False)
                taken.append(queue.popleft())
                if queue:
                    self._by_peer[peer] = queue
            else:
                break
        return taken
