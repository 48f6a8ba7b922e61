"""The inner learning rate: warm-up over an author's own steps, then decay over the agreed rounds.

Warm-up belongs to the optimizer's state (a node that joins late starts with empty moments and must warm up,
whatever the round), decay to the model's age (all authors of one round use the same rate). The decay is linear
to a floor, so that a run that goes on past its planned rounds still learns. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR = 0.1
"""Of the full rate, from the last planned round on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Learning rate: warm-up by this node's own steps, decay by the run's rounds."""

    peak: float
    """Full learning rate."""
    warmup_steps: int
    """Steps of the own optimizer until the full rate."""
    decay_rounds: int
    """Rounds until the floor; 0 means no decay."""

    def rate(self, *, own_step: int, round_number: int) -> float:
        """Both count from 0: ``own_step`` the steps that this optimizer has taken, ``round_number`` the rounds."""
        warm = min(1.0, (own_step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        if self.decay_rounds == 0:
            return self.peak * warm
        done = min(1.0, round_number / self.decay_rounds)
        return self.peak * warm * (1.0 - (1.0 - FLOOR) * done)
