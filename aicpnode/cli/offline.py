"""Generation from a checkpoint file, without a node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aicpnode.interfaces.control import JsonObject


def generate_from_checkpoint(path: Path, wanted: JsonObject, show: Callable[[JsonObject], None]) -> dict[str, Any]:
    """Continue ``wanted["prompt"]`` with the model in ``path``; the same result as a node's ``generate``.

    ``show`` gets an event for each piece of text. Raises ``UserError`` for a file that is no checkpoint.
    """
    from aicpnode.model.generate import Sampling, generate
    from aicpnode.model.tokenizer import StreamDecoder
    from aicpnode.model.transformer import Transformer
    from aicpnode.training.checkpoint import read_checkpoint

    sampling = Sampling(
        temperature=wanted["temperature"], top_k=wanted["top_k"], top_p=wanted["top_p"], seed=wanted["seed"]
    )
    checkpoint = read_checkpoint(path)
    model = Transformer(checkpoint.config)
    model.load_theta(checkpoint.theta)
    decoder = StreamDecoder()
    began = time.perf_counter()
    text = ""
    for piece in generate(model, str(wanted["prompt"]).encode(), tokens=wanted["tokens"], sampling=sampling):
        if decoded := decoder.feed(piece):
            show({"text": decoded})
            text += decoded
    if rest := decoder.finish():
        show({"text": rest})
        text += rest
    return {
        "text": text,
        "tokens_per_s": wanted["tokens"] / max(time.perf_counter() - began, 1e-9),
        "model_hash": checkpoint.model_hash.hex(),
        "round": checkpoint.round_number,
    }
