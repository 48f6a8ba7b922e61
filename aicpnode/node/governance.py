"""Commands about who is a member and what the members change together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aicpnode.interfaces.control import JsonObject
from aicpnode.replication.governance import Governance

if TYPE_CHECKING:
    from aicpnode.node.node import Node


class GovernanceCommands:
    """Registers everything on the node's surface."""

    def __init__(self, node: Node) -> None:
        self._node = node
        surface = node.surface
        surface.register("blacklist", self._blacklist, help="banned members, and why")
        surface.register("changes", self._changes, help="run-wide changes that wait for endorsements")
        surface.register("propose", self._propose, help="propose a run-wide change")
        surface.register("endorse", self._endorse, help="endorse a run-wide change")
        surface.register("invite", self._invite, help="invite the holder of a key")
        surface.register("leave", self._leave, help="give up this node's membership")

    @property
    def _governance(self) -> Governance:
        node = self._node
        return Governance(node.driver, key=node.identity.key, network_id=node.network_id, name_of=node.name_of)

    async def _blacklist(self, args: JsonObject) -> JsonObject:
        return self._governance.blacklist()

    async def _changes(self, args: JsonObject) -> JsonObject:
        return self._governance.changes()

    async def _propose(self, args: JsonObject) -> JsonObject:
        return await self._governance.propose(_text(args, "kind"), _text(args, "value"), _text(args, "reason"))

    async def _endorse(self, args: JsonObject) -> JsonObject:
        return await self._governance.endorse(_text(args, "id"))

    async def _invite(self, args: JsonObject) -> JsonObject:
        return self._governance.invite(_text(args, "key"))

    async def _leave(self, args: JsonObject) -> JsonObject:
        return await self._governance.leave()


def _text(args: JsonObject, name: str) -> str:
    value = args.get(name)
    return value if isinstance(value, str) else ""
