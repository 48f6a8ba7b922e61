"""Which implementation is picked."""

import pytest

from kernels import dispatch


def test_pick_by_size_takes_the_most_special_one(monkeypatch):
    numpy_set = dispatch.pick(0)
    loaded = []

    def load():
        loaded.append("big")
        return numpy_set

    implementations = (*dispatch.IMPLEMENTATIONS, dispatch.Implementation(name="big", coordinates_min=10, load=load))
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", implementations)
    dispatch.pick(9)
    assert loaded == []  # a small model never pays for a large one's implementation
    dispatch.pick(10)
    assert loaded == ["big"]


def test_pick_by_name():
    assert dispatch.pick(1 << 30, name="numpy").name == "numpy"
    with pytest.raises(ValueError, match="there are: numpy"):
        dispatch.pick(0, name="abacus")
