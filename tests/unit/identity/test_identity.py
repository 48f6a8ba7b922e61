"""Key files, the text form, and a verifier that accepts nothing but the one signature."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from aicpnode import identity as identity_module
from aicpnode.errors import UserError
from aicpnode.identity import Identity, KeyFileExists, short, verify

IDENTITY = Identity(bytes(range(32)))
TEXT = "aicp-key-1:" + bytes(range(32)).hex() + "572c5807"

GROUP_ORDER = (1 << 252) + 27742317777372353535851937790883648493
SMALL_ORDER_POINTS = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
"""All points of order 1, 2, 4 and 8, and their encodings that are not canonical."""


@pytest.mark.parametrize(
    ("seed", "key", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
    ids=["RFC 8032 test 1", "RFC 8032 test 2"],
)
def test_signature_is_the_one_of_the_standard(seed: str, key: str, message: str, signature: str) -> None:
    identity = Identity(bytes.fromhex(seed))
    assert identity.key.hex() == key
    assert identity.sign(bytes.fromhex(message)).hex() == signature
    assert verify(identity.key, bytes.fromhex(message), bytes.fromhex(signature))


def test_every_flipped_bit_of_signature_or_key_is_refused() -> None:
    data = b"message"
    signature = IDENTITY.sign(data)
    for position in range(8 * 64):
        mutated = bytearray(signature)
        mutated[position // 8] ^= 1 << (position % 8)
        assert not verify(IDENTITY.key, data, bytes(mutated))
    for position in range(8 * 32):
        key = bytearray(IDENTITY.key)
        key[position // 8] ^= 1 << (position % 8)
        assert not verify(bytes(key), data, signature)


def test_case_C26_signature_with_another_scalar_of_the_same_class_is_refused() -> None:
    """S + L satisfies the equation too: accepting it would let anyone make a second signature."""
    signature = IDENTITY.sign(b"message")
    scalar = int.from_bytes(signature[32:], "little")
    for multiple in range(1, 9):
        malleated = signature[:32] + (scalar + multiple * GROUP_ORDER).to_bytes(32, "little")
        assert not verify(IDENTITY.key, b"message", malleated)


@pytest.mark.parametrize("point", SMALL_ORDER_POINTS)
def test_case_C26_small_order_keys_and_commitments_are_refused(point: str) -> None:
    """With such a key, S = 0 and R of small order fits every message in a lax verifier."""
    for commitment in SMALL_ORDER_POINTS:
        signature = bytes.fromhex(commitment) + bytes(32)
        for data in (b"", b"a", b"b", b"message"):
            assert not verify(bytes.fromhex(point), data, signature)
    assert not verify(IDENTITY.key, b"message", bytes.fromhex(point) + IDENTITY.sign(b"message")[32:])


@pytest.mark.parametrize(("key_bytes", "signature_bytes"), [(0, 64), (31, 64), (33, 64), (32, 0), (32, 63), (32, 65)])
def test_wrong_lengths_are_false(key_bytes: int, signature_bytes: int) -> None:
    assert not verify(bytes(key_bytes), b"data", bytes(signature_bytes))


def test_signature_followed_by_data_is_not_shifted() -> None:
    """signature | data is one string inside: a byte must not move from one to the other."""
    signature = IDENTITY.sign(b"ab")
    assert not verify(IDENTITY.key, b"b", signature + b"a")


def test_generated_identities_differ() -> None:
    assert Identity.generate().key != Identity.generate().key


def test_short_names_and_repr_hold_no_secret() -> None:
    assert short(IDENTITY.key) == "03a107bf"
    assert repr(IDENTITY) == "Identity(03a107bf)"


def test_text_form_is_the_golden_one_and_reads_back() -> None:
    assert IDENTITY.to_text() == TEXT
    assert Identity.from_text(f"  {TEXT}\n").key == IDENTITY.key


@pytest.mark.parametrize(
    "text",
    ["", "hello", "aicp-key-2:" + TEXT[11:], TEXT[:-1], TEXT + "0", TEXT[:-8], "aicp-key-1:", TEXT.replace("0a", "xx")],
)
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UserError) as caught:
        Identity.from_text(text)
    assert caught.value.advice


def test_every_mistyped_digit_is_refused() -> None:
    for place in range(len("aicp-key-1:"), len(TEXT)):
        mistyped = TEXT[:place] + ("1" if TEXT[place] != "1" else "2") + TEXT[place + 1 :]
        with pytest.raises(UserError, match="checksum"):
            Identity.from_text(mistyped)


def test_saved_file_is_private_and_loads(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"
    old_mask = os.umask(0)
    try:
        IDENTITY.save(path)
    finally:
        os.umask(old_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == TEXT + "\n"
    assert Identity.load(path).key == IDENTITY.key
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


def test_saving_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "key"
    IDENTITY.save(path)
    with pytest.raises(KeyFileExists, match="exists already"):
        Identity.generate().save(path)
    assert Identity.load(path).key == IDENTITY.key
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777])
def test_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    IDENTITY.save(path)
    path.chmod(mode)
    with pytest.raises(UserError, match="other users") as caught:
        Identity.load(path)
    assert "chmod 600" in caught.value.advice


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_private_modes_are_accepted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    IDENTITY.save(path)
    path.chmod(mode)
    assert Identity.load(path).key == IDENTITY.key


@pytest.mark.parametrize("content", [b"", b"\x00" * 32, b"\xff\xfe", TEXT.encode()[:40], TEXT.encode() * 2], ids=repr)
def test_damaged_file_says_so_and_what_to_do(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UserError, match="is damaged") as caught:
        Identity.load(path)
    assert str(path) in caught.value.message
    assert "backup" in caught.value.advice


def test_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no key file") as caught:
        Identity.load(tmp_path / "key")
    assert "key new" in caught.value.advice


def test_folder_in_place_of_the_file_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        Identity.load(tmp_path)
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        IDENTITY.save(blocker / "key")


def test_load_or_create_creates_once(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = Identity.load_or_create(path)
    assert Identity.load_or_create(path).key == first.key


def test_load_or_create_does_not_replace_a_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    with pytest.raises(UserError, match="damaged"):
        Identity.load_or_create(path)
    assert path.read_bytes() == b""


def test_racing_creators_end_with_one_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    start = threading.Barrier(8)
    keys: list[bytes] = []

    def create() -> None:
        start.wait()
        keys.append(Identity.load_or_create(path).key)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(identity_module.os, "fsync", no_space)
    with pytest.raises(UserError, match="No space left") as caught:
        IDENTITY.save(tmp_path / "key")
    assert "Free some space" in caught.value.advice
    assert list(tmp_path.iterdir()) == []
