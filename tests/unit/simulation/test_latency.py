"""The eight regions: published round trips halved, jitter from the seed, bytes that wait for each other."""

from __future__ import annotations

import random

import pytest

from aicpnode.simulation import latency


def test_one_way_is_half_the_published_round_trip_and_symmetric() -> None:
    members = range(2 * len(latency.REGIONS))
    for one in members:
        for other in members:
            assert latency.one_way_ms(one, other) == latency.one_way_ms(other, one)
    assert latency.one_way_ms(3, 4) == 6.5
    assert (latency.region(3), latency.region(12)) == ("london", "frankfurt")
    assert latency.one_way_ms(3, 12) == 6.5, "members are spread over the regions in join order"


def test_regions_are_far_from_each_other_and_near_to_themselves() -> None:
    count = len(latency.REGIONS)
    assert {len(row) for row in latency.ROUND_TRIPS_MS} == {count} == {len(latency.ROUND_TRIPS_MS)}
    for one in range(count):
        others = [latency.one_way_ms(one, other) for other in range(count) if other != one]
        assert latency.one_way_ms(one, one) == 1.0 < min(others)


def test_delay_is_never_below_the_average_way_nor_beyond_the_jitter() -> None:
    rng = random.Random(7)
    delays = [latency.delay_ms(0, 7, rng) for _ in range(2_000)]
    assert min(delays) >= 93.0 and max(delays) <= 93.0 * 1.3
    assert max(delays) > 93.0 * 1.2
    assert sorted(delays)[1_000] < 93.0 * 1.03


def test_the_same_seed_gives_the_same_delays() -> None:
    first, again, other = (
        [latency.delay_ms(index, 2, random.Random(seed)) for index in range(8)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_messages_wait_for_each_other_on_a_line() -> None:
    line = latency.Line(mbit_s=8.0)
    packet = 1460 + 66
    assert line.pass_ms(10.0, 1460) == pytest.approx(10.0 + packet / 1000)
    assert line.pass_ms(10.0, 1460) == pytest.approx(10.0 + 2 * packet / 1000), "behind the first"
    assert line.pass_ms(50.0, 1461) == pytest.approx(50.0 + (packet + 67) / 1000), "two packets, on a free line"
    assert line.passed_bytes == 3 * packet + 67
