"""Three honest replicas and a liar, on whom Hypothesis does whatever it likes; the invariants hold all the same.

Deliveries in any order, losses, repetitions, any running timer, crashes between steps and inside one, opinions and
operations whenever; and a fourth member that signs any vote for any block in any view, completes certificates with its
own hidden votes, proposes old blocks again, and shows each member something else. ``Council`` checks invariants 1 to 5
and 7 of section 9, and that no honest member gives cause for amnesia evidence, after each step.

Some rules are whole passages (everybody of a group hears all that waits; a group's timers fire), because single
deliveries alone rarely lead anywhere in the steps of one example.
"""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from aicpnode.simulation.council import Council
from aicpnode.simulation.crypto import simulated_key
from consensus.events import BlockReceived, DecisionReceived, OperationReceived, Opinion, TimerKind
from consensus.messages import Ballot, BallotEntry, Commit, MessageKind, OperationKind, Prepare, SetMessage, Vote
from consensus.types import NIL, NO_VIEW

EXAMPLES = int(os.environ.get("AICP_STATEFUL_EXAMPLES", "250"))
STEPS = 50
TIMEOUTS = (TimerKind.PROPOSE, TimerKind.PREPARE, TimerKind.COMMIT)
PATIENCE = tuple(kind for kind in TimerKind if kind not in TIMEOUTS)
"""What fires in any case: leaders' timers, and those for repeating, fetching and asking."""

DISTURBANCES = (
    "deliver",
    "deliver",
    "lose",
    "repeat",
    "fire",
    "apply",
    "block",
    "decision",
    "crash",
    "crash inside a step",
)
PASSAGES = ("talk", "talk", "talk", "part", "wait", "wait", "judge", "time out")
"""A group hears all that waits for it; or what waits for the others is lost besides; it repeats itself and leaders wait
no longer; it is ready; it gives the view up."""
LIES = ("vote", "join in", "join in", "ballot", "fresh set", "fresh set", "repeated set", "repeated set")

seats = st.sampled_from((0, 1, 2))
"""Honest members, by their place among the honest."""
picks = st.integers(0, 255)
"""Which of however many there are."""
groups = st.sampled_from([(0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,)])
nearby = st.sampled_from([0, 0, 0, 1, -1, 3])
"""Views, relative to the one in which a member is."""

Group = tuple[int, ...]
Passages = list[tuple[str, Group]]
passages = st.lists(st.tuples(st.sampled_from(PASSAGES), groups), max_size=6)


class ReplicasUnderAttack(RuleBasedStateMachine):
    """Rules are everything that can happen; the checks are the council's."""

    council: Council
    liar: int
    honest: list[int]

    @initialize(liar=st.integers(0, 3), ready=groups)
    def found(self, liar: int, ready: Group) -> None:
        self.liar, self.honest = liar, [index for index in range(4) if index != liar]
        self.council = Council(4, liars=(liar,))
        self._sequence = 0
        for seat, index in enumerate(self.honest):
            self._judge(index, ready=seat in ready, author=index)

    # ---- the network, time, and crashes

    @rule(passages=passages)
    def go_on(self, passages: Passages) -> None:
        """What goes on without anybody's fault but the network's, for a group at a time."""
        for what, group in passages:
            members = [self.honest[seat] for seat in group]
            match what:
                case "wait":
                    for index in members:
                        self._fire(index, PATIENCE)
                case "time out":
                    for index in members:
                        self._fire(index, TIMEOUTS)
                case "judge":
                    for index in members:
                        self._judge(index, ready=True, author=index)
                case "talk":
                    self.council.settle(*members)
                case "part":
                    self.council.settle(*members)
                    for index in set(self.honest) - set(members):
                        self.council.mail[index].clear()

    def _fire(self, index: int, kinds: tuple[TimerKind, ...]) -> None:
        for timer in [timer for timer in self.council.timers[index] if timer.kind in kinds]:
            self.council.fire_timer(index, timer)

    def _judge(self, index: int, *, ready: bool, author: int, accepted: bool = True) -> None:
        entries = (BallotEntry(author_index=author, digest=bytes([author]) * 32, accepted=accepted),)
        round_ = self.council.seats[index].ledger.round
        self.council.hear(index, Opinion(round=round_, ready=ready, entries=entries))

    @rule(seat=seats, pick=picks, what=st.sampled_from(DISTURBANCES), passages=passages)
    def disturb(self, seat: int, pick: int, what: str, passages: Passages) -> None:
        self._disturb(seat, pick, what)
        self.go_on(passages)

    def _disturb(self, seat: int, pick: int, what: str) -> None:
        index = self.honest[seat]
        mail, heard = self.council.mail[index], self.council.heard
        match what:
            case "deliver":
                self.council.deliver(index, pick)
            case "lose" if mail:
                del mail[pick % len(mail)]
            case "repeat" if heard:
                self.council.say(heard[pick % len(heard)], index)
            case "fire":
                self.council.fire(index, pick)
            case "apply":
                self.council.apply(index)
            case "crash":
                self.council.crash(index)
            case "crash inside a step" if mail:
                self.council.crash(index, losing=mail.pop(pick % len(mail)))
            case "block":
                if blocks := sorted(self.council.blocks):
                    self.council.hear(index, BlockReceived(block=self.council.blocks[blocks[pick % len(blocks)]]))
            case "decision":
                self._hand_over_decision(index, donor=self.honest[pick % 3], cut=pick & 1)

    def _hand_over_decision(self, index: int, donor: int, cut: int) -> None:
        """With all its votes, or one fewer."""
        height = self.council.seats[index].height
        for decided in self.council.seats[donor].decisions[height - 1 : height]:
            certificate = replace(decided.certificate, votes=decided.certificate.votes[cut:])
            self.council.hear(index, DecisionReceived(block=decided.block, certificate=certificate))

    # ---- the rest of a node

    @rule(seat=seats, ready=st.booleans(), author=st.integers(0, 3), accepted=st.booleans())
    def judge(self, seat: int, ready: bool, author: int, accepted: bool) -> None:
        self._judge(self.honest[seat], ready=ready, author=author, accepted=accepted)

    @rule(seat=seats)
    def operate(self, seat: int) -> None:
        self._sequence += 1
        table = self.council.seats[self.honest[seat]]
        operation = table.operation(table.me, OperationKind.CONTRIBUTE, 1 << 41, sequence=self._sequence)
        self.council.hear(table.me, OperationReceived(operation=operation, own=True))

    # ---- the liar

    def _slot(self, seat: int, offset: int) -> tuple[int, int]:
        replica = self.council.seats[self.honest[seat]].replica
        return replica.height, max(0, replica.view + offset)

    @rule(
        what=st.sampled_from(LIES),
        seat=seats,
        offset=nearby,
        pick=picks,
        group=groups,
        passages=passages,
    )
    def lie(self, what: str, seat: int, offset: int, pick: int, group: Group, passages: Passages) -> None:
        vote: Vote | None
        match what:
            case "vote":
                vote = self._any_vote(seat, offset, pick)
            case "join in":
                vote = self._joined_in(pick)
            case "ballot":
                vote = self._ballot(seat, offset, pick)
            case "fresh set":
                vote = self._fresh_set(seat, pick)
            case _:
                vote = self._repeated_set(seat, pick)
        if vote is not None:
            self.council.say(self.council.signed(vote), *(self.honest[place] for place in group))
        self.go_on(passages)

    def _any_vote(self, seat: int, offset: int, pick: int) -> Vote:
        (height, view), key = self._slot(seat, offset), simulated_key(self.liar)
        names = [NIL, *sorted(self.council.blocks), b"?" * 32]
        name = names[pick % len(names)]
        if pick & 128:
            return Commit(height=height, view=view, block_id=name, signer=key)
        return Prepare(height=height, view=view, block_id=name, valid_view=(pick >> 4) % 3 - 1, signer=key)

    def _joined_in(self, pick: int) -> Vote | None:
        """The same PREPARE or COMMIT as some honest member's, of late."""
        kind = MessageKind.PREPARE if pick & 1 else MessageKind.COMMIT
        votes = [v for v in self.council.heard if v.kind is kind and isinstance(v, Prepare | Commit)]
        if not votes:
            return None
        return replace(votes[-1 - (pick >> 1) % min(len(votes), 4)], signer=simulated_key(self.liar))

    def _ballot(self, seat: int, offset: int, pick: int) -> Vote:
        """Ready or not; with one of the certificates there are, or hiding them."""
        height, view = self._slot(seat, offset)
        known = [c for c in self.council.certificates(height) if c.view < view]
        certificate = None if pick & 1 or not known else known[(pick >> 2) % len(known)]
        table = self.council.seats[self.honest[seat]]
        return table.ballot(self.liar, view, ready=bool(pick & 2), certificate=certificate, height=height)

    def _fresh_set(self, seat: int, pick: int) -> Vote | None:
        """A block of real ballots of the view, all or all but one, and the liar's own."""
        height, view = self._leading(seat)
        table = self.council.seats[self.honest[seat]]
        ballots = {
            vote.signer: vote
            for vote in self.council.heard
            if isinstance(vote, Ballot) and (vote.height, vote.view, vote.valid_view) == (height, view, NO_VIEW)
        }
        own = self.council.signed(table.ballot(self.liar, view, ready=bool(pick & 1), height=height))
        block = self.council.forged_block(view, [*list(ballots.values())[pick >> 1 & 1 :], own])
        return None if block is None or block.height != height else table.fresh(block, view, signer=self.liar)

    def _repeated_set(self, seat: int, pick: int) -> Vote | None:
        """Any block of the height that can be proved to have been prepared; or of which a later view is claimed."""
        height, view = self._leading(seat)
        known = [c for c in self.council.certificates(height) if c.view < view]
        if not known:
            return None
        certificate = known[(pick >> 3) % len(known)]
        claimed = min(view - 1, certificate.view + (0, 0, 1, 2)[pick & 3])
        return SetMessage(
            height=height,
            view=view,
            valid_view=claimed,
            block_id=certificate.block_id,
            signer=simulated_key(self.liar),
            certificate=certificate if pick & 4 else replace(certificate, view=claimed),
        )

    def _leading(self, seat: int) -> tuple[int, int]:
        """The next slot in which the liar leads, from where a member is."""
        replica = self.council.seats[self.honest[seat]].replica
        key = simulated_key(self.liar)
        views = range(replica.view, replica.view + 4)
        return replica.height, next(view for view in views if replica.roster.leader(replica.height, view).key == key)


TestReplicasUnderAttack = ReplicasUnderAttack.TestCase
TestReplicasUnderAttack.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
