"""Runs of a scenario that somebody wrote down: the file's members, network and schedule on the seeded cluster."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from aicpnode.simulation.cluster import Cluster, Faults, Observer
from aicpnode.simulation.member import Behaviour, SimulatedMember
from aicpnode.simulation.record import Lane
from aicpnode.simulation.scenario import Outcome
from aicpnode.simulation.scenario_file import Action, ScenarioFile, ScenarioStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What the file says, for any seed: the seed draws delays, losses and what liars do at random."""

    file: ScenarioFile
    path: str

    def lanes(self, seed: int) -> tuple[Lane, ...]:
        return tuple(
            Lane(name=member.name, behaviour=member.behaviour.value, joins=member.joins_at_ms is not None)
            for member in (*self.file.founders, *self.file.joiners)
        )

    def title(self, seed: int) -> str:
        return f"{self.path}, seed {seed}"

    def command(self, seed: int) -> str:
        return shlex.join(["aicp-node", "simulate", "--scenario", self.path, "--seeds", str(seed), "--trace", "-"])

    def play(self, seed: int, observer: Observer | None = None) -> Outcome:
        """Raises Violation if an invariant breaks. Undecided only if the file names heights that were not reached."""
        cluster = self._cluster(seed, observer)
        heights = self.file.heights

        def is_enough() -> bool:
            return heights is not None and min(cluster.heights()) >= heights

        reached = cluster.run(until=is_enough, limit_ms=self.file.until_ms)
        return Outcome(seed=seed, decided=reached or heights is None, cluster=cluster)

    def _cluster(self, seed: int, observer: Observer | None) -> Cluster:
        file, network = self.file, self.file.network
        cluster = Cluster(
            seed=seed,
            behaviours=[member.behaviour for member in file.founders],
            joiners=[member.behaviour for member in file.joiners],
            names=[member.name for member in (*file.founders, *file.joiners)],
            faults=Faults(
                delay_ms=network.delay_ms,
                wide_area=network.wide_area,
                loss=network.loss,
                duplication=network.duplication,
                late_share=network.late,
                quiet_after_ms=file.until_ms if network.quiet_after_ms is None else network.quiet_after_ms,
            ),
            observer=observer,
        )
        members = {member.name: member for member in cluster.members.values()}
        cluster.start(absent={members[member.name].key for member in file.joiners})
        for joiner in file.joiners:
            if joiner.behaviour is not Behaviour.SILENT and joiner.joins_at_ms is not None:
                cluster.schedule(joiner.joins_at_ms, members[joiner.name].start)
        stage = _Stage(cluster, members)
        for step in file.schedule:
            cluster.schedule(step.at_ms, stage.action(step))
        return cluster


class _Stage:
    """Carries out steps. A step that finds nothing to do, such as the restart of a member that is up, does nothing."""

    def __init__(self, cluster: Cluster, members: dict[str, SimulatedMember]) -> None:
        self._cluster = cluster
        self._members = members
        self._islands: list[frozenset[bytes]] = []

    def action(self, step: ScenarioStep) -> Callable[[], None]:
        island = frozenset(self._members[name].key for name in step.named)
        if step.action is Action.PART:
            return functools.partial(self._part, island)
        if step.action is Action.HEAL:
            return functools.partial(self._heal, island)
        assert step.member is not None
        member = self._members[step.member]
        match step.action:
            case Action.CRASH:
                return member.crash
            case Action.LOSE_DISK:
                return member.lose_disk
            case Action.RESTART:
                return member.start
        assert step.wish is not None
        return functools.partial(member.wish, step.wish)

    def _part(self, island: frozenset[bytes]) -> None:
        self._islands.append(island)
        self._cluster.part(island)

    def _heal(self, island: frozenset[bytes]) -> None:
        """Of everything if no island is named."""
        for parted in [other for other in self._islands if not island or other == island]:
            self._islands.remove(parted)
            self._cluster.heal(parted)


__all__ = ["Staging"]
