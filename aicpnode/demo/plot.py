"""The demo's picture: training and validation loss by round with the bigram model's loss as a reference line."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from aicpnode.demo.chart import Series, chart
from aicpnode.demo.result import DemoResult
from aicpnode.errors import UserError

PICTURE_NAME = "loss.png"


def in_terminal(result: DemoResult, *, width: int) -> Text:
    """The losses as a chart of characters."""
    rounds = [number for number, _ in (*result.training_loss, *result.validation_loss)] or [0.0]
    bigram = tuple((number, result.bigram_loss) for number in (min(rounds), max(rounds)))
    return chart(
        [
            Series(name="bigram model", style="red", points=bigram),
            Series(name="training", style="cyan", points=result.training_loss),
            Series(name="validation", style="green", points=result.validation_loss),
        ],
        width=width,
    )


def save_picture(result: DemoResult, folder: Path) -> Path:
    """Write the losses as a PNG into ``folder``. Raises ``UserError`` if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "The picture needs matplotlib.", advice="Install it with: pip install 'aicp-node[train]'"
        ) from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for points, name, style in (
        (result.training_loss, "training, mean of the nodes", "-"),
        (result.validation_loss, "validation", "o-"),
    ):
        axes.plot([x for x, _ in points], [y for _, y in points], style, label=name, markersize=3)
    axes.axhline(result.bigram_loss, color="tab:red", linestyle="--", label=f"bigram model {result.bigram_loss:.2f}")
    verdict = "one model, bit for bit" if result.equal else "DIFFERENT models"
    axes.set_title(
        f"{result.options.nodes} nodes, {result.options.rounds} rounds, {result.seconds:.0f} s: {verdict}, "
        f"validation {result.final_loss:.3f} nats a byte"
    )
    axes.set_xlabel("round")
    axes.set_ylabel("loss (nats a byte)")
    axes.legend()
    axes.grid(alpha=0.3)
    path = folder / PICTURE_NAME
    figure.savefig(path, dpi=120)
    return path
