"""Checks 1 to 3, one fault at a time."""

from dataclasses import replace

import numpy as np
import pytest

from aicpnode.gradients.judge import YES, Expectation, Reason, Ruling, Verdict, abstention, judge, refusal
from aicpnode.gradients.proposal import body_root, build_package, encode_proposal, split_package
from aicpnode.gradients.state import RoundParameters
from kernels.codec import CHUNK

PARAMETERS = RoundParameters(k=205, bits=2)
CHUNKS = 2


@pytest.fixture(scope="module")
def package():
    delta = (np.random.default_rng(0).standard_normal(CHUNKS * CHUNK) * 1e-3).astype(np.float32)
    encoded = encode_proposal(
        delta,
        np.zeros_like(delta),
        parameters=PARAMETERS,
        network_id=b"n" * 32,
        round=7,
        base_hash=b"b" * 32,
        author=b"a" * 32,
        offsets_hash=b"o" * 32,
        tokens=1,
    )
    return encoded.package


def expectation(package, **changes):
    base = Expectation(
        network_id=b"n" * 32,
        round=7,
        base_hash=b"b" * 32,
        author=b"a" * 32,
        size=len(package),
        chunks=CHUNKS,
        parameters=PARAMETERS,
    )
    return replace(base, **changes)


def remade(package, *, body=None, **changes):
    """The package with another header or body, its Merkle root right."""
    header, _, old = split_package(package)
    body = bytes(old) if body is None else body
    header = replace(header, **{"body_root": body_root(body, PARAMETERS.layout), **changes})
    return build_package(header.encode(), body)


def reason_of(package, expected=None):
    verdict = judge(package, expectation=expectation(package) if expected is None else expected)
    assert verdict.ruling is Ruling.NO
    assert verdict.detail
    return verdict.reason


def test_sound_proposal_gets_a_yes(package):
    assert judge(package, expectation=expectation(package)) == YES


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 6}, Reason.STALE),
        ({"round": 8}, Reason.STALE),
        ({"base_hash": b"c" * 32}, Reason.STALE),
        ({"network_id": b"m" * 32}, Reason.MALFORMED),
        ({"author": b"z" * 32}, Reason.MALFORMED),
        ({"k": 410}, Reason.MALFORMED),
        ({"bits": 4}, Reason.MALFORMED),
        ({"chunks": 3}, Reason.MALFORMED),
        ({"version": 2}, Reason.MALFORMED),
        ({"tokens": 1 << 40}, Reason.MALFORMED),
        ({"body_root": bytes(32)}, Reason.MALFORMED),
    ],
)
def test_header_that_does_not_fit_is_refused(package, change, reason):
    assert reason_of(remade(package, **change)) is reason


def test_body_of_another_length_is_refused(package):
    _, _, body = split_package(package)
    assert reason_of(remade(package, body=bytes(body)[:-1])) is Reason.MALFORMED


def test_package_of_another_size_than_committed_is_refused(package):
    assert reason_of(package, expectation(package, size=len(package) + 1)) is Reason.MALFORMED


def test_body_that_is_not_canonical_is_refused(package):
    body = bytearray(split_package(package)[2])
    body[PARAMETERS.layout.upper_start - 1] |= 0x80  # a padding bit
    assert reason_of(remade(package, body=bytes(body))) is Reason.MALFORMED


def test_body_above_the_bound_is_refused(package):
    body = bytearray(split_package(package)[2])
    body[0:2] = (13 << 11 | 1024).to_bytes(2, "little")
    assert reason_of(remade(package, body=bytes(body))) is Reason.BOUNDS


def test_zero_proposal_is_refused(package):
    body = bytearray(split_package(package)[2])
    record = PARAMETERS.layout.record_bytes
    body[0:4] = body[record : record + 4] = bytes(4)
    assert reason_of(remade(package, body=bytes(body))) is Reason.BOUNDS


def test_bytes_that_are_no_package_are_refused():
    for junk in (b"", b"\xff" * 40, bytes(1000)):
        assert reason_of(junk, expectation(junk)) is Reason.MALFORMED


def test_score_is_asked_last(package):
    seen = []

    def score(header, proposal):
        seen.append((header.round, proposal.chunks))
        return refusal(Reason.LOSS, "the loss rises")

    assert judge(package, expectation=expectation(package), score=score).reason is Reason.LOSS
    judge(remade(package, round=6), expectation=expectation(package), score=score)
    assert seen == [(7, CHUNKS)]


def test_verdict_has_a_reason_exactly_when_it_is_no():
    assert abstention("late").reason is None
    with pytest.raises(AssertionError):
        Verdict(ruling=Ruling.NO)
    with pytest.raises(AssertionError):
        Verdict(ruling=Ruling.YES, reason=Reason.STALE)
