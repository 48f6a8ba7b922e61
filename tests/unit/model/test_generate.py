from __future__ import annotations

import numpy as np
import pytest
import torch

from aicpnode.errors import UserError
from aicpnode.model.config import TransformerConfig
from aicpnode.model.generate import Sampling, choose, generate
from aicpnode.model.initial import initial_theta
from aicpnode.model.tokenizer import StreamDecoder, decode, encode
from aicpnode.model.transformer import Transformer

CONFIG = TransformerConfig(layers=2, heads=2, width=16, ffn_width=24, context=16)
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model() -> Transformer:
    result = Transformer(CONFIG)
    result.load_theta(initial_theta(CONFIG, seed=1) * np.float32(3))
    return result


def text(model: Transformer, prompt: bytes, tokens: int, sampling: Sampling) -> bytes:
    return b"".join(generate(model, prompt, tokens=tokens, sampling=sampling))


def test_greedy_equals_the_uncached_argmax(model: Transformer) -> None:
    history = list(b"abc")
    for _ in range(12):
        with torch.inference_mode():
            history.append(int(model(torch.tensor([history]))[0, -1].argmax()))
    assert text(model, b"abc", 12, GREEDY) == bytes(history[3:])


def test_a_full_context_goes_on_with_its_last_half(model: Transformer) -> None:
    written = text(model, b"abc", 40, GREEDY)
    assert len(written) == 40
    # The cache holds 16 positions, so the 14th new token was the last one to fit; then the last 8 are fed again.
    history = list(b"abc" + written)
    with torch.inference_mode():
        again = int(model(torch.tensor([history[9:17]]))[0, -1].argmax())
    assert again == history[17]


def test_a_long_prompt_is_cut_to_the_context(model: Transformer) -> None:
    prompt = bytes(range(100, 150))
    assert text(model, prompt, 1, GREEDY) == text(model, prompt[-16:], 1, GREEDY)


def test_an_empty_prompt_stands_for_the_start_of_a_file(model: Transformer) -> None:
    assert text(model, b"", 5, GREEDY) == text(model, b"\x00", 5, GREEDY)


def test_the_seed_decides_what_is_drawn(model: Transformer) -> None:
    hot = Sampling(temperature=1.5, seed=1)
    assert text(model, b"x", 20, hot) == text(model, b"x", 20, hot)
    assert text(model, b"x", 20, hot) != text(model, b"x", 20, Sampling(temperature=1.5, seed=2))


def test_generation_streams(model: Transformer) -> None:
    stream = generate(model, b"x", tokens=1_000_000, sampling=GREEDY)
    assert len(next(stream)) == 1


def draws(logits: list[float], sampling: Sampling, count: int = 300) -> set[int]:
    random = torch.Generator().manual_seed(0)
    return {choose(torch.tensor(logits), sampling, random) for _ in range(count)}


def test_top_k_keeps_the_k_most_likely() -> None:
    assert draws([0.0, 3.0, 1.0, 2.9], Sampling(temperature=1.0, top_k=2)) == {1, 3}
    assert draws([0.0, 3.0, 1.0, 2.9], Sampling(temperature=1.0)) == {0, 1, 2, 3}


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    logits = [float(np.log(p)) for p in (0.1, 0.5, 0.3, 0.1)]
    assert draws(logits, Sampling(temperature=1.0, top_p=0.7)) == {1, 2}
    assert draws(logits, Sampling(temperature=1.0, top_p=0.01)) == {1}


def test_temperature_zero_is_greedy_and_a_low_one_nearly() -> None:
    assert draws([1.0, 2.0, 1.9], Sampling(temperature=0.0)) == {1}
    assert draws([1.0, 2.0, 1.9], Sampling(temperature=0.005)) == {1}


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": 99.0}, {"top_k": -1}, {"top_p": 0.0}])
def test_senseless_sampling_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_negative_length_is_refused_at_once(model: Transformer) -> None:
    with pytest.raises(UserError):
        generate(model, b"", tokens=-1, sampling=GREEDY)


def test_tokens_are_bytes() -> None:
    assert decode(encode("naïve ✓")) == "naïve ✓".encode()
    assert encode(b"\x00\xff") == [0, 255]


def test_stream_decoder_holds_back_unfinished_characters() -> None:
    decoder = StreamDecoder()
    assert [decoder.feed(bytes([byte])) for byte in "é✓".encode()] == ["", "é", "", "", "✓"]
    assert decoder.feed(b"\xe2\x9c") == ""
    assert decoder.finish() == "�"
