"""SIGKILL of a random node at 20 random moments, each started again: nobody ever signs one slot twice."""

from __future__ import annotations

import random
import time

import pytest

SEED = 20
KILLS = 20
ROUNDS_AT_THE_END = 3
BEFORE_KILL_S = (0.1, 2.5)
BEFORE_RESTART_S = (0.0, 1.0)


@pytest.mark.slow
def test_no_slot_is_signed_twice_through_twenty_kills_and_all_hashes_are_equal(found, observe) -> None:
    moments = random.Random(SEED)
    cluster = found(4)
    cluster.start()
    cluster.until_round(1)
    observer = observe(cluster)
    for _ in range(KILLS):
        victim = moments.choice(cluster.nodes)
        # These are the random moments themselves, not waits for anything.
        time.sleep(moments.uniform(*BEFORE_KILL_S))
        victim.kill()
        observer.note_stored([raw for (raw,) in victim.rows("SELECT raw FROM votes")])
        time.sleep(moments.uniform(*BEFORE_RESTART_S))
        victim.start()
        for node in cluster.nodes:
            assert node.running.poll() is None, f"{node.name} ended by itself"
    target = max(node.status().get("round", 0) for node in cluster.nodes) + ROUNDS_AT_THE_END
    cluster.until_round(target)
    cluster.assert_equal_rounds(target - 1)
    assert [node.status()["equivocations"] for node in cluster.nodes] == [0] * 4
    assert not any(node.status()["diverged"] for node in cluster.nodes)
    for node in cluster.nodes:
        assert node.terminate() == 0
        observer.note_stored([raw for (raw,) in node.rows("SELECT raw FROM votes")])
    assert observer.signers() == {founder.key for founder in cluster.genesis.roster}
    assert observer.contradictions == []
