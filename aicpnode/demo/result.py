"""What a demo found out: losses by round, hashes, costs, and the verdict. Numbers here, pictures in ``plot``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aicpnode.demo.options import DemoOptions
from aicpnode.interfaces.control import JsonObject

FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The outcome of a demo that did all its rounds.

    Losses are in nats a byte, as points (round, loss), measured on the model that the round started from. The last one
    of ``validation_loss`` was measured at the end, on the whole validation text. ``hashes`` are model hashes in hex by
    node index, None if a node (a Byzantine one) did not tell.
    """

    options: DemoOptions
    seconds: float
    training_loss: tuple[tuple[float, float], ...]
    validation_loss: tuple[tuple[float, float], ...]
    bigram_loss: float
    hashes: tuple[str | None, ...]
    accepted: int
    refused: int
    decision_ms_p50: float | None
    wire_bytes_per_round: float
    parameters: int
    rss_mb: tuple[float | None, ...]
    training_share: float | None

    @property
    def final_loss(self) -> float:
        """Validation loss at the end, in nats a byte."""
        return self.validation_loss[-1][1]

    @property
    def equal(self) -> bool:
        """Whether all honest nodes hold the same model."""
        honest = [self.hashes[index] for index in self.options.honest]
        return honest[0] is not None and len(set(honest)) == 1

    @property
    def dense_bytes(self) -> int:
        """What a ring all-reduce of the dense float32 vector among as many nodes would send in a round, in all."""
        return 2 * (self.options.nodes - 1) * FLOAT32_BYTES * self.parameters

    def to_json(self) -> dict[str, Any]:
        """The demo's JSON object; ``val_loss`` is by round and ends with the full validation."""
        return {
            "nodes": self.options.nodes,
            "rounds": self.options.rounds,
            "seconds": round(self.seconds, 3),
            "val_loss": [loss for _, loss in self.validation_loss],
            "bigram_loss": self.bigram_loss,
            "state_hashes": [self.hashes[index] for index in self.options.honest],
            "accepted": self.accepted,
            "refused": self.refused,
            "decision_ms_p50": self.decision_ms_p50,
            "wire_bytes_per_round": round(self.wire_bytes_per_round),
            "dense_bytes": self.dense_bytes,
            "rss_mb": list(self.rss_mb),
            "training_share": self.training_share,
            "equal": self.equal,
            "byzantine": self.options.byzantine,
        }


def summarise(
    options: DemoOptions,
    *,
    seconds: float,
    statuses: Mapping[int, JsonObject],
    rounds: Sequence[Sequence[JsonObject]],
    evaluation: JsonObject,
    parameters: int,
) -> DemoResult:
    """Put together what the nodes told at the end: ``statuses`` by index, ``rounds`` a list for each honest node."""
    witness = (statuses[options.honest[0]].get("proposals")) or {}
    honest = [statuses[index] for index in options.honest]
    final_loss = float(evaluation["val_loss"])
    decision_ms = _known(status.get("decision_ms_p50") for status in honest)
    shares = _known((status.get("training") or {}).get("share") for status in honest)
    sent = sum(_known(status.get("wire_bytes_sent") for status in statuses.values()))
    nodes = [statuses.get(index, {}) for index in range(options.nodes)]
    return DemoResult(
        options=options,
        seconds=seconds,
        training_loss=by_round(rounds, "loss"),
        validation_loss=(*by_round(rounds, "val_loss"), (float(options.rounds), final_loss)),
        bigram_loss=float(evaluation["bigram_loss"]),
        hashes=tuple(node.get("model_hash") for node in nodes),
        accepted=int(witness.get("accepted") or 0),
        refused=int(witness.get("refused") or 0),
        decision_ms_p50=statistics.median(decision_ms) if decision_ms else None,
        wire_bytes_per_round=sent / options.rounds,
        parameters=parameters,
        rss_mb=tuple(node.get("rss_mb") for node in nodes),
        training_share=statistics.fmean(shares) if shares else None,
    )


def by_round(rounds: Sequence[Sequence[JsonObject]], key: str) -> tuple[tuple[float, float], ...]:
    """The mean over the nodes that know ``key`` for a round, as points (round, value)."""
    values: dict[int, list[float]] = {}
    for entries in rounds:
        for entry in entries:
            if isinstance(entry.get(key), int | float):
                values.setdefault(int(entry["round"]), []).append(float(entry[key]))
    return tuple((float(number), statistics.fmean(found)) for number, found in sorted(values.items()))


def _known(values: Any) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]
