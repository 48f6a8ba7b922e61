"""Round trips of all values, and no other bytes for any of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicpnode.envelop.codec import (
    CONSENSUS_KINDS,
    COUNTER_MAX,
    INT_MAX,
    INT_MIN,
    Envelop,
    Kind,
    Value,
    decode,
    encode,
    pack,
    unpack,
)
from aicpnode.envelop.signing import seal, verify
from aicpnode.errors import MalformedError
from aicpnode.identity import Identity

IDENTITY = Identity(bytes(range(32)))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
scalars = st.none() | st.booleans() | st.integers(INT_MIN, INT_MAX) | st.binary(max_size=300) | texts
values: st.SearchStrategy[Value] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5).map(tuple), max_leaves=20
)
counters = st.integers(0, COUNTER_MAX)
hashes = st.binary(min_size=32, max_size=32)


@st.composite
def envelops(draw: st.DrawFn) -> Envelop:
    kind = draw(st.sampled_from(Kind))
    free = kind not in CONSENSUS_KINDS
    schedules = st.tuples(st.text("abc", min_size=1, max_size=8), scalars)
    apart = draw(st.booleans())
    return Envelop(
        network_id=draw(hashes),
        kind=kind,
        sender=IDENTITY.key,
        seq=draw(counters) if free else 0,
        height=draw(counters),
        route=draw(st.none() | hashes | schedules) if free else None,
        body=None if apart else draw(values.filter(lambda value: value is not None)),
        body_digest=draw(hashes) if apart else None,
        body_size=draw(counters) if apart else None,
    )


def types(value: Value) -> object:
    return tuple(types(item) for item in value) if isinstance(value, tuple) else type(value)


@given(values)
def test_value_round_trips_with_its_types(value: Value) -> None:
    decoded = unpack(pack(value))
    assert decoded == value
    assert types(decoded) == types(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_are_the_encoding_of_what_they_mean(data: bytes) -> None:
    try:
        value = unpack(data)
    except MalformedError:
        return
    assert pack(value) == data


@given(values, st.data())
def test_no_mutation_is_a_second_encoding(value: Value, data: st.DataObject) -> None:
    encoded = pack(value)
    place = data.draw(st.integers(0, len(encoded) - 1))
    other = data.draw(st.binary(max_size=9).filter(lambda piece: piece != encoded[place : place + 1]))
    mutated = encoded[:place] + other + encoded[place + 1 :]
    try:
        decoded = unpack(mutated)
    except MalformedError:
        return
    assert pack(decoded) == mutated
    assert (decoded, types(decoded)) != (value, types(value))


@given(values, st.binary(min_size=1, max_size=5))
def test_trailing_bytes_are_refused(value: Value, trailing: bytes) -> None:
    with pytest.raises(MalformedError):
        unpack(pack(value) + trailing)


@given(values)
def test_cut_bytes_are_refused(value: Value) -> None:
    encoded = pack(value)
    for end in range(len(encoded)):
        with pytest.raises(MalformedError):
            unpack(encoded[:end])


@given(envelops(), st.binary(max_size=400))
def test_envelop_round_trips(envelop: Envelop, attachment: bytes) -> None:
    sealed = seal(IDENTITY, envelop)
    decoded, carried = decode(encode(sealed, attachment))
    assert (decoded, carried) == (sealed, attachment)
    assert decoded.identity == envelop.identity
    assert verify(decoded)


@given(envelops())
def test_every_flipped_bit_is_refused_or_does_not_verify(envelop: Envelop) -> None:
    attachment = b"\x01\x02"
    encoded = encode(seal(IDENTITY, envelop), attachment)
    attachment_start = len(encoded) - len(attachment)
    step = max(1, len(encoded) * 8 // 400)
    for position in range(0, len(encoded) * 8, step):
        mutated = bytearray(encoded)
        mutated[position // 8] ^= 1 << (position % 8)
        try:
            decoded, carried = decode(bytes(mutated))
        except MalformedError:
            continue
        assert encode(decoded, carried) == mutated
        assert verify(decoded) == (position // 8 >= attachment_start)


@given(st.binary(max_size=300))
def test_any_bytes_are_no_envelop_and_raise_nothing_else(data: bytes) -> None:
    with pytest.raises(MalformedError):
        decode(data)


def test_every_byte_of_a_signed_message_matters() -> None:
    """All 255 other values of every byte, not a sample."""
    message = Envelop(network_id=bytes(32), kind=Kind.COMMIT, sender=IDENTITY.key, height=5, body=(0, None))
    sealed = seal(IDENTITY, message)
    encoded = encode(sealed)
    for place in range(len(encoded)):
        for other in range(256):
            if other == encoded[place]:
                continue
            mutated = encoded[:place] + bytes([other]) + encoded[place + 1 :]
            try:
                decoded, carried = decode(mutated)
            except MalformedError:
                continue
            assert encode(decoded, carried) == mutated
            assert not carried
            if place < len(encoded) - 66 or place % 8 == 0:  # signatures are sampled: verifying all takes 1 s
                assert not verify(decoded)
