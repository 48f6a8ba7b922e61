"""The database against a model of dictionaries, through transactions, failures and reopening."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aicpnode.storage.database import Database
from aicpnode.storage.faults import SlotConflict

heights = st.integers(1, 4)
kinds = st.integers(3, 6)
contents = st.binary(max_size=20)
names = st.text("abc", min_size=1, max_size=2)


class DatabaseModel(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.database = Database.open(self.directory)
        self.votes: dict[tuple[int, int, int], bytes] = {}
        self.meta: dict[str, bytes] = {}
        self.ledger: list[bytes] = []
        self.safety: bytes | None = None

    @rule(kind=kinds, height=heights, view=st.integers(0, 2), raw=contents)
    def put_vote(self, kind: int, height: int, view: int, raw: bytes) -> None:
        kept = self.votes.setdefault((height, kind, view), raw)
        try:
            self.database.put_vote(kind, height, view, raw)
        except SlotConflict:
            assert kept != raw
        else:
            assert kept == raw

    @rule(below=heights)
    def prune_votes(self, below: int) -> None:
        self.database.prune_votes(below)
        self.votes = {slot: raw for slot, raw in self.votes.items() if slot[0] >= below}

    @rule(name=names, value=contents, safety=contents, fails=st.booleans())
    def transaction(self, name: str, value: bytes, safety: bytes, fails: bool) -> None:
        try:
            with self.database.transaction():
                self.database.set_meta(name, value)
                self.database.put_safety(safety)
                assert self.database.get_meta(name) == value
                if fails:
                    raise KeyError(name)
        except KeyError:
            return
        self.meta[name] = value
        self.safety = safety

    @rule(block=contents)
    def decide(self, block: bytes) -> None:
        self.ledger.append(block)
        height = len(self.ledger)
        self.database.put_decision(height, height.to_bytes(32, "big"), block, b"c")

    @rule()
    def reopen(self) -> None:
        self.database.close()
        self.database = Database.open(self.directory)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "database"):
            return
        for height in range(1, 5):
            expected = [raw for slot, raw in sorted(self.votes.items()) if slot[0] == height]
            assert self.database.votes(height) == expected
        assert self.database.head() == len(self.ledger)
        assert [block for _, block, _ in self.database.decisions(1, 1 << 20)] == self.ledger
        assert self.database.safety() == self.safety
        for name, value in self.meta.items():
            assert self.database.get_meta(name) == value

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
            shutil.rmtree(self.directory)


TestDatabaseModel = DatabaseModel.TestCase
TestDatabaseModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
