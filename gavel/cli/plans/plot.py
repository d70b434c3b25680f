"""Plans as a picture: the memory of every stage beside the GPU's, and the timeline of an update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gavel.cli.plans.explanation import Explained
from gavel.cli.policies.plot import FAINT, INK, LABEL, PALETTE
from gavel.cli.simulation.plot_style import new_figure

if TYPE_CHECKING:
    from planner.simulate import Work

FORWARD, BACKWARD = PALETTE[0], PALETTE[1]
# Of longer updates, the beginning is drawn: so many times the first microbatch's way through the pipeline.
WAYS = 4
GB = 1e9


def draw_plans(explanations: list[Explained]) -> Figure:
    """Return the picture of plans, a row for each."""
    heights = [1.3 + 0.22 * len(each.works) for each in explanations]
    figure = new_figure(11.5, sum(heights))
    for row, each in zip(_rows(figure, heights), explanations, strict=True):
        _draw_memory(row[0], each)
        _draw_timeline(row[1], each)
    return figure


def _rows(figure: Figure, heights: list[float]) -> list[tuple[Axes, Axes]]:
    axes = figure.subplots(len(heights), 2, squeeze=False, width_ratios=(2, 6), height_ratios=heights)
    return [(row[0], row[1]) for row in axes]


def _draw_memory(axes: Axes, explanation: Explained) -> None:
    """Draw a bar per stage, a line at what plans may fill, and one at the memory of the GPU."""
    gpu, (plan, cost), *_ = explanation
    stages = range(1, plan.pipeline + 1)
    axes.barh(stages, cost.memory_bytes / GB, 0.7, color=PALETTE[2])
    axes.axvline(gpu.usable_bytes / GB, color=INK, linewidth=1, linestyle=":")
    axes.axvline(gpu.memory_bytes / GB, color=INK, linewidth=1)
    axes.set_xlim(0, gpu.memory_bytes / GB * 1.05)
    axes.set_xlabel("GB of each GPU; dotted: the limit of plans", **LABEL)
    axes.set_ylabel("stage", **LABEL)
    axes.set_title(f"{plan.label} on {plan.gpus} × {gpu.name}", loc="left", **LABEL)
    _finish(axes, plan.pipeline)


def _draw_timeline(axes: Axes, explanation: Explained) -> None:
    """Draw the computations of each GPU of a pipeline."""
    works, pipeline = explanation.works, explanation.priced.plan.pipeline
    end_s = max(row[-1].end_s for row in works)
    drawn_s = min(end_s, WAYS * max(_first_way_s(row) for row in works))
    for number, row in enumerate(works, start=1):
        for is_forward, colour in ((True, FORWARD), (False, BACKWARD)):
            spans = [
                (work.begin_s, work.end_s - work.begin_s)
                for work in row
                if work.is_forward is is_forward and work.begin_s < drawn_s
            ]
            axes.broken_barh(spans, (number - 0.35, 0.7), color=colour, edgecolor="white", linewidth=0.3)
    axes.set_xlim(0, drawn_s)
    rest = "" if drawn_s == end_s else f"; the first {drawn_s:.2g} of {end_s:.3g}"
    axes.set_xlabel(f"seconds{rest}", **LABEL)
    handles = [Patch(color=FORWARD, label="forward"), Patch(color=BACKWARD, label="backward")]
    axes.legend(
        handles=handles,
        fontsize=8,
        frameon=False,
        ncols=2,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        labelcolor=INK,
    )
    _finish(axes, pipeline)


def _first_way_s(row: list[Work]) -> float:
    """Return when a GPU has finished the first microbatch."""
    return next(work.end_s for work in row if not work.is_forward)


def _finish(axes: Axes, pipeline: int) -> None:
    axes.set_ylim(pipeline + 0.5, 0.5)
    axes.set_yticks(range(1, pipeline + 1, max(1, pipeline // 16)))
    axes.tick_params(colors=INK, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
