"""Packages and own proposals on a real disk: what survives, what is dropped, what is never half there."""

import numpy as np
import pytest

from aicpnode.gradients.grad import sealed_grad
from aicpnode.gradients.packages import Packages
from aicpnode.gradients.proposal import encode_proposal
from aicpnode.gradients.residual import ROUNDS_KEPT, OwnProposals
from aicpnode.gradients.state import RoundParameters
from aicpnode.identity import Identity
from aicpnode.storage.blobs import Blobs
from aicpnode.storage.database import Database
from aicpnode.storage.faults import MissingBlob

IDENTITY = Identity.generate()
SIZE = 4096


@pytest.fixture
def disk(tmp_path):
    with Database.open(tmp_path) as database, Blobs.open(tmp_path / "blobs") as blobs:
        yield database, blobs


def name(number):
    return bytes([number]) * 32


def test_packages_survive_a_restart(disk):
    packages = Packages(*disk)
    packages.put(3, name(1), b"first")
    packages.put(4, name(2), b"second")
    again = Packages(*disk)
    assert again.find(name(1)).round == 3
    assert again.read(name(2)) == b"second"
    assert again.find(name(9)) is None
    with pytest.raises(MissingBlob):
        again.read(name(9))


def test_decided_packages_stay_and_the_others_go(disk):
    packages = Packages(*disk)
    for round, number in ((1, 1), (2, 2), (2, 3), (3, 4)):
        packages.put(round, name(number), b"package %d" % number)
    packages.decide(2, [name(2)])
    for found in (packages, Packages(*disk)):
        assert [found.find(name(number)) is not None for number in (1, 2, 3, 4)] == [False, True, False, True]
    assert len(list(disk[1].digests())) == 2


def test_forgotten_rounds_leave_nothing_on_the_disk(disk):
    packages = Packages(*disk)
    for round in range(1, 5):
        packages.put(round, name(round), b"package %d" % round)
        packages.decide(round, [name(round)])
    packages.put(5, name(5), b"undecided")
    assert packages.forget(3) == 2
    assert packages.forget(3) == 0
    for found in (packages, Packages(*disk)):
        assert [found.find(name(number)) is not None for number in range(1, 6)] == [False, False, True, True, True]
    assert len(list(disk[1].digests())) == 3
    assert disk[0].meta_names("package/") == [f"package/{name(number).hex()}" for number in (3, 4)]


def test_deciding_again_changes_nothing(disk):
    packages = Packages(*disk)
    packages.put(2, name(2), b"package")
    for _ in range(2):
        packages.decide(2, [name(2), name(7)])
    assert packages.read(name(2)) == b"package"


def test_decision_that_could_not_be_stored_can_be_repeated(disk, monkeypatch):
    database, blobs = disk
    packages = Packages(database, blobs)
    packages.put(2, name(2), b"package")
    packages.put(2, name(3), b"refused")

    def fail(row, value):
        raise OSError

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(database, "set_meta", fail)
        packages.decide(2, [name(2)])
    assert packages.find(name(3)) is not None
    packages.decide(2, [name(2)])
    assert packages.read(name(2)) == b"package"
    assert packages.find(name(3)) is None


def test_damaged_package_is_not_sound_and_goes(disk):
    packages = Packages(*disk)
    packages.put(1, name(1), b"package")
    assert packages.is_sound(name(1))
    blob = packages.find(name(1)).blob
    (disk[1].directory / blob.hex()[:2] / blob.hex()).write_bytes(b"rotten!")
    assert not packages.is_sound(name(1))
    assert packages.find(name(1)) is None
    packages.put(1, name(1), b"package")
    assert packages.is_sound(name(1))


def make(round, residual=None):
    delta = (np.random.default_rng(round).standard_normal(SIZE) * 1e-3).astype(np.float32)
    encoded = encode_proposal(
        delta,
        np.zeros(SIZE, dtype=np.float32) if residual is None else residual,
        parameters=RoundParameters(k=64, bits=2),
        network_id=bytes(32),
        round=round,
        base_hash=bytes(32),
        author=IDENTITY.key,
        offsets_hash=bytes(32),
        tokens=1,
    )
    size = len(encoded.package)
    grad = sealed_grad(IDENTITY, network_id=bytes(32), round=round, digest=encoded.digest, size=size)
    return grad, encoded


def test_own_proposal_is_there_after_a_restart_with_its_residual(disk):
    own = OwnProposals(*disk, Packages(*disk))
    grad, encoded = make(4)
    own.store(grad, encoded)
    packages = Packages(*disk)
    again = OwnProposals(*disk, packages)
    assert again.latest_round == 4
    assert again.stored(4) == grad
    assert again.stored(4).signed_part() == grad.signed_part()
    assert packages.read(encoded.digest) == encoded.package
    residual, note = again.residual(5, SIZE)
    assert residual.tobytes() == encoded.residual.tobytes()
    assert note == ""


def test_own_proposal_is_stored_whole_or_not_at_all(disk, monkeypatch):
    database, blobs = disk
    packages = Packages(database, blobs)
    own = OwnProposals(database, blobs, packages)
    own.store(*make(1))
    before = database.latest_proposal()

    def crash(**_):
        raise KeyboardInterrupt

    grad, encoded = make(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(database, "put_proposal", crash)
        own.store(grad, encoded)
    packages = Packages(database, blobs)
    again = OwnProposals(database, blobs, packages)
    assert database.latest_proposal() == before
    assert again.latest_round == 1
    assert packages.find(encoded.digest) is None
    again.store(grad, encoded)
    assert again.stored(2) == grad


def test_no_own_proposal_for_an_earlier_round(disk):
    own = OwnProposals(*disk, Packages(*disk))
    own.store(*make(4))
    for round in (4, 3):
        with pytest.raises(AssertionError, match="one proposal a round"):
            own.store(*make(round))


def test_only_the_last_residual_and_grads_are_kept(disk):
    database, blobs = disk
    packages = Packages(database, blobs)
    own = OwnProposals(database, blobs, packages)
    for round in range(12):
        _, encoded = made = make(round)
        own.store(*made)
        packages.decide(round, [encoded.digest])
    assert [round for round in range(12) if own.stored(round)] == list(range(12 - ROUNDS_KEPT, 12))
    assert len(list(blobs.digests())) == 12 + 1  # all decided packages, one residual


@pytest.mark.parametrize(("round", "is_kept"), [(5, True), (8, True), (9, False), (100, False)])
def test_residual_is_dropped_after_more_than_three_missed_rounds(disk, round, is_kept):
    own = OwnProposals(*disk, Packages(*disk))
    own.store(*make(4))
    residual, note = own.residual(round, SIZE)
    assert bool(residual.any()) is is_kept
    assert (note == "") is is_kept


def test_lost_or_foreign_residual_starts_from_zero_and_says_so(disk):
    database, blobs = disk
    own = OwnProposals(database, blobs, Packages(database, blobs))
    assert own.residual(0, SIZE)[1] == ""
    own.store(*make(4))
    residual, note = own.residual(5, 2 * SIZE)
    assert (residual.size, residual.any(), "another size" in note) == (2 * SIZE, False, True)
    blobs.delete(database.latest_proposal().residual_digest)
    residual, note = own.residual(5, SIZE)
    assert not residual.any()
    assert "lost" in note
