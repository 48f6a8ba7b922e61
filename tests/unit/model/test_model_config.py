from __future__ import annotations

import dataclasses

import pytest

from aicpnode.errors import UserError
from aicpnode.genesis import ModelSpec
from aicpnode.model.config import TransformerConfig

SMALL = TransformerConfig(layers=2, heads=4, kv_heads=2, width=32, ffn_width=48, context=16)


def test_layout_is_contiguous_and_ends_at_the_parameter_count() -> None:
    position = 0
    for tensor in SMALL.layout:
        assert tensor.start == position
        position = tensor.stop
    assert position == SMALL.parameters


def test_parameters_follow_the_formula() -> None:
    kv_width = 16
    block = 2 * 32 * 32 + 2 * kv_width * 32 + 3 * 32 * 48 + 2 * 32
    assert SMALL.parameters == 256 * 32 + 2 * block + 32
    untied = dataclasses.replace(SMALL, tied=False)
    assert untied.parameters == SMALL.parameters + 256 * 32


def test_all_matrices_stand_before_all_gains() -> None:
    for config in (SMALL, dataclasses.replace(SMALL, tied=False)):
        for tensor in config.layout:
            assert (tensor.start < config.matrix_parameters) == (len(tensor.shape) == 2)


def test_layout_hash_is_pinned() -> None:
    # Another value means that nodes of two versions would cut one vector differently.
    assert SMALL.layout_hash.hex() == "e766c79c8975321b263f80b206f2bce481d1414af48d5fcd991886e30e78bd1e"
    assert dataclasses.replace(SMALL, tied=False).layout_hash != SMALL.layout_hash


def test_from_spec_takes_every_value_of_the_genesis() -> None:
    spec = ModelSpec(
        layers=3,
        heads=4,
        kv_heads=2,
        width=64,
        ffn_width=96,
        context=32,
        rope_theta=5000,
        tied=False,
        norm_eps_nano=2000,
        vocab=300,
    )
    config = TransformerConfig.from_spec(spec)
    for field in dataclasses.fields(config):
        assert getattr(config, field.name) == getattr(spec, field.name), field.name
    assert config.norm_eps == pytest.approx(2e-6)


@pytest.mark.parametrize(
    "change",
    [{"layers": 0}, {"width": 30}, {"heads": 3}, {"kv_heads": 3}, {"context": 0}, {"vocab": -1}, {"width": 4}],
)
def test_an_impossible_shape_is_refused_with_advice(change: dict[str, int]) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(SMALL, **change)
    assert caught.value.advice
