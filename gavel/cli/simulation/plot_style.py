"""The common style of pictures of runs: figures without pyplot, legends beside the data, files as PNG and as SVG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gavel.cli.policies.plot import INK, LABEL

DPI = 130
FORMATS = ("png", "svg")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def legend(axes: Axes) -> None:
    """Draw the legend to the right of the axes, where it covers no data; the layout makes room for it."""
    drawn = axes.legend(
        fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=INK
    )
    for text in drawn.get_texts():
        text.set_parse_math(False)


def empty(figure: Figure, axes: Axes, reason: str) -> Figure:
    """Write the reason into an empty picture."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", **LABEL)
    return figure


def save(figure: Figure, directory: str | Path, name: str) -> list[str]:
    """Write a picture in both formats, and return their paths."""
    paths = [Path(directory, f"{name}.{suffix}") for suffix in FORMATS]
    for path in paths:
        figure.savefig(path)
    return list(map(str, paths))
