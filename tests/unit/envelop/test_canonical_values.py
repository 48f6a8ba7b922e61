"""One value, one encoding: golden bytes, and everything that must be refused."""

from __future__ import annotations

import hashlib
import tracemalloc
from enum import IntEnum

import pytest

from aicpnode.envelop.codec import MAX_DEPTH, Packable, Value, content_id, digest, pack, unpack
from aicpnode.errors import PENALTY_MALFORMED, MalformedError

GOLDEN: list[tuple[Value, str]] = [
    (None, "c0"),
    (False, "c2"),
    (True, "c3"),
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (256, "cd0100"),
    (65536, "ce00010000"),
    (1 << 32, "cf0000000100000000"),
    ((1 << 64) - 1, "cfffffffffffffffff"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-129, "d1ff7f"),
    (-32769, "d2ffff7fff"),
    (-(1 << 63), "d38000000000000000"),
    (b"", "c400"),
    (b"\x01\x02", "c4020102"),
    ("", "a0"),
    ("aé", "a361c3a9"),
    ((), "90"),
    ((1, (b"a", "a", None)), "920193c40161a161c0"),
    (tuple(range(16)), "dc0010000102030405060708090a0b0c0d0e0f"),
]


@pytest.mark.parametrize(("value", "encoded"), GOLDEN, ids=[encoded for _, encoded in GOLDEN])
def test_value_has_its_golden_encoding(value: Value, encoded: str) -> None:
    assert pack(value).hex() == encoded
    decoded = unpack(bytes.fromhex(encoded))
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("encoded", "what"),
    [
        ("", "nothing"),
        ("cc7f", "an integer in 2 bytes that fits 1"),
        ("cd00ff", "an integer in 3 bytes that fits 2"),
        ("ce0000ffff", "an integer in 5 bytes that fits 3"),
        ("cf00000000ffffffff", "an integer in 9 bytes that fits 5"),
        ("d001", "a positive integer in a signed form"),
        ("d0e0", "a small negative integer in a long form"),
        ("d9026162", "a short string in a long form"),
        ("da000161", "a short string in a longer form"),
        ("c5000161", "short bytes in a long form"),
        ("dc000101", "a short array in a long form"),
        ("dd0000000101", "a short array in the longest form"),
        ("ca3f800000", "a 32-bit float"),
        ("cb3ff0000000000000", "a 64-bit float"),
        ("80", "an empty map"),
        ("8101c0", "a map"),
        ("de000101c0", "a map in a long form"),
        ("9180", "a map within an array"),
        ("d40100", "an extension"),
        ("c70005", "an empty extension"),
        ("c7010500", "an extension of one byte"),
        ("d6ff00000000", "a timestamp of 4 bytes"),
        ("d7ff0000000000000000", "a timestamp of 8 bytes"),
        ("91c70005", "an empty extension within an array, which msgpack returns as a tuple"),
        ("c1", "the byte that msgpack never uses"),
        ("a1ff", "a string that is not UTF-8"),
        ("a3eda080", "a surrogate"),
        ("a2c080", "an overlong zero"),
        ("0000", "a second value"),
        ("9101c0", "bytes after an array"),
        ("92", "an array without its items"),
        ("9201", "an array with one item missing"),
        ("c402", "bytes without content"),
        ("c40201", "bytes cut short"),
        ("cd01", "an integer cut short"),
    ],
)
def test_other_encodings_are_refused(encoded: str, what: str) -> None:
    with pytest.raises(MalformedError) as caught:
        unpack(bytes.fromhex(encoded))
    assert caught.value.penalty == PENALTY_MALFORMED
    assert caught.value.reason


def test_nesting_up_to_the_limit_is_a_value_and_beyond_it_is_not() -> None:
    deepest: Packable = 7
    for _ in range(MAX_DEPTH):
        deepest = (deepest,)
    assert unpack(pack(deepest)) == deepest
    with pytest.raises(ValueError, match="nested deeper"):
        pack((deepest,))
    for depth in (MAX_DEPTH + 1, 500, 1023, 1024, 5000, 100_000):
        with pytest.raises(MalformedError):
            unpack(b"\x91" * depth + b"\x00")


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\x0f\xff\xff\xff" * 1000,
        b"\xdd\x00\x0f\xff\xf0" * 1000 + b"\xc0" * 900_000,
        b"\xdc\xff\xff" * 1000 + b"\xc0" * 60_000,
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\x7f\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\x91" * 1_000_000,
    ],
    ids=["array", "arrays", "nested arrays", "short arrays", "bytes", "string", "map", "extension", "depth"],
)
def test_announced_lengths_allocate_nothing(bomb: bytes) -> None:
    """1000 nested arrays of a million items each would be 8 GB if their headers were believed."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            unpack(bomb)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * len(bomb) + 100_000


def test_length_is_limited_before_parsing() -> None:
    encoded = pack(b"x" * 1000)
    assert unpack(encoded, max_bytes=len(encoded)) == b"x" * 1000
    with pytest.raises(MalformedError, match="at most"):
        unpack(encoded, max_bytes=len(encoded) - 1)
    with pytest.raises(MalformedError, match="at most"):
        unpack(pack(b"x" * (1 << 20)))


@pytest.mark.parametrize(
    "value",
    [1.0, {}, {1: 2}, {1}, bytearray(b"a"), memoryview(b"a"), object(), (1, [2.0]), 1 << 64, -(1 << 63) - 1, "\ud800"],
    ids=lambda value: type(value).__name__,
)
def test_own_values_without_an_encoding_are_our_fault(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        pack(value)  # type: ignore[arg-type]


def test_lists_and_int_enums_encode_as_what_they_stand_for() -> None:
    class Number(IntEnum):
        FIVE = 5

    assert pack([1, [Number.FIVE]]) == pack((1, (5,)))


def test_bool_and_int_and_bytes_and_str_stay_apart() -> None:
    assert len({pack(value) for value in (1, True, b"\x01", "\x01", (1,), 0, False, None, b"", "", ())}) == 11


def test_digest_and_content_id_are_the_golden_ones() -> None:
    assert digest(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    expected = hashlib.sha256(b"aicp/test\x00" + bytes.fromhex("9201c4020102")).digest()
    assert content_id("aicp/test", (1, b"\x01\x02")) == expected
    assert expected.hex() == "bd4828863684ad540efd07b62ad122a7ba6919e66eea6f7a62782a42fd2810f1"


def test_content_ids_of_two_domains_differ() -> None:
    assert content_id("aicp/a", None) != content_id("aicp/b", None)
