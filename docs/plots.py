"""The plots of docs/policies.md and docs/plans.md: `make docs-plots` draws them all into docs/images/.

Each policy has one plot: on the left, where each job of examples/four_jobs.yaml runs; on the right, the figures that
the policy compares, with a line at its value if that is one of these figures. Text is stored as text and the files
contain no date, so a plot changes only if an answer changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from examples.four_jobs import FOUR_JOBS, with_facts, with_gpus
from gavel.cli.plans.explanation import explained
from gavel.cli.plans.plot import draw_plans
from gavel.cli.policies.answer import Answer
from gavel.cli.policies.plot import FAINT, INK, color_of, draw_shares, finish
from gavel.plans import gpu_of
from planner.plan import read_plan
from planner.search import Allowed, evaluate
from planner.transformer import Transformer
from policies.engine.matching import shortest_schedule
from policies.problem import Problem
from policies.reference import best_rates, proportional_rates, rate_table
from policies.registry import resolve

IMAGES = Path(__file__).parent / "images"
PREFIX = "policy-"
REPRODUCIBLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gavel",
    "font.family": ["DejaVu Sans", "sans-serif"],
}
HOUR_S = 3600.0
SERIES = ("#c9ced6", "#0f6fb5", "#e08a1e", "#2a9d77")
Panel = Callable[[Axes, Answer], None]


def main() -> None:
    """Draw every plot."""
    for name in PLOTS:
        write(name, IMAGES / f"{PREFIX}{name}.svg")
    save(schedules, IMAGES / "plans.png")


def write(name: str, path: Path) -> None:
    """Draw one plot of a policy into a file."""
    save(PLOTS[name], path)


def save(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a plot into a file."""
    with matplotlib.rc_context(REPRODUCIBLE):
        draw().savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    if path.suffix == ".png":
        # 64 colours are enough for a drawing, and take a third of the bytes.
        with Image.open(path) as picture:
            colours = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
        colours.save(path, optimize=True)


# The model, batch and GPUs of the picture of docs/plans.md: 6.7 billion parameters on one node of A100s.
PLANNED = Transformer(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=51200)
PLANNED_LABELS = ("t2-p4-gpipe", "t2-p4", "t2-p4-v2", "t2-p4-2bw")
PLANNED_BATCH = 8


def schedules() -> Figure:
    """Draw four plans of one model: memory by stage, and the timeline of an update."""
    gpu = gpu_of("a100", 8)
    return draw_plans(
        [
            explained(
                PLANNED,
                gpu,
                evaluate(PLANNED, gpu, read_plan(label), PLANNED_BATCH),
                PLANNED_BATCH,
                Allowed(),
            )
            for label in PLANNED_LABELS
        ]
    )


def solve(spec: str, problem: Problem = FOUR_JOBS) -> Answer:
    """Return the answer of a policy to the example."""
    return Answer(problem, resolve(spec)(problem))


# ------------------------------------------------------------------------- panels: the figures that policies compare


def level(answer: Answer) -> np.ndarray:
    """Return g E / (w P) of each job: its rate relative to an average GPU of the cluster, per GPU and weight."""
    jobs = answer.problem.jobs
    return jobs.gpus * answer.effective_rate / (jobs.weight * proportional_rates(answer.problem))


def levels(axes: Axes, answer: Answer) -> None:
    """Draw the level of each job, and a line at the lowest."""
    _bars(axes, level(answer), "E / P of each job; line: the value")
    _line(axes, answer.allocation.value)


def tenants(axes: Axes, answer: Answer) -> None:
    """Draw the sum of E / P of each tenant's jobs, divided by the tenant's weight."""
    jobs = answer.problem.jobs
    standing = [
        level(answer)[np.array(jobs.tenant) == t.name].sum() / t.weight for t in answer.problem.tenants
    ]
    names = [f"{t.name} (weight {t.weight:g})" for t in answer.problem.tenants]
    _bars(axes, np.array(standing), "Σ E / P of each tenant, by weight", names)
    _line(axes, answer.allocation.value)


def lateness(axes: Axes, answer: Answer) -> None:
    """Draw ρ of each job: its time from arrival to end, over the same time in an equal slice of the cluster."""
    jobs, E, I = answer.problem.jobs, answer.effective_rate, answer.allocation.isolated_rate
    rho = (jobs.waited_s + jobs.steps_left / E) / (jobs.isolated_s + jobs.steps_left / I)
    _bars(axes, rho, "ρ of each job; line: the value")
    _line(axes, answer.allocation.value)


def ends(axes: Axes, answer: Answer) -> None:
    """Draw the hours until each job is done if the shares stay."""
    _bars(axes, _hours(answer), "hours until done, if the shares stay")


def last_end(axes: Axes, answer: Answer) -> None:
    """Draw the hours until each job is done if the shares stay, and a line at the makespan."""
    _bars(axes, _hours(answer), "hours until done; line: the value")
    _line(axes, answer.allocation.value / HOUR_S)


def work(axes: Axes, answer: Answer) -> None:
    """Draw E / T^best of each job: how many GPUs of its fastest type would do the same work."""
    _bars(axes, answer.effective_rate / best_rates(answer.problem), "E / T_best; the value is the sum")


def steps_bought(axes: Axes, answer: Answer) -> None:
    """Draw how much each job adds to Σ rate × share / price."""
    columns = answer.problem.columns
    bought = columns.first_rate * answer.allocation.time_share
    bought = bought / answer.problem.price_per_gpu_hour[columns.worker_type]
    bought_by_job = np.bincount(columns.first, bought, minlength=len(answer.problem.jobs))
    _bars(axes, bought_by_job, "rate × share / price; the value is the sum")


def costs(axes: Axes, answer: Answer) -> None:
    """Draw what a million steps of each job cost on each type, and the most that the job pays."""
    problem = answer.problem
    cost = 1e6 / HOUR_S * problem.price_per_gpu_hour / rate_table(problem)
    rows = np.arange(len(problem.jobs))
    for kind in range(len(problem.worker_types)):
        axes.scatter(cost[:, kind], rows, s=30, color=color_of(kind), zorder=2)
    # `min_cost` has a premium of 0.1 by default.
    for row, highest_cost in enumerate(1.1 * cost.min(axis=1)):
        axes.plot([highest_cost, highest_cost], [row - 0.35, row + 0.35], color=INK, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_xticks([50, 100, 200], ["50", "100", "200"])
    axes.set_xticks([], minor=True)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(rows, problem.jobs.ids)
    finish(axes, "price of 1e6 steps by type; bar: the most it pays")


def queue(axes: Axes, answer: Answer) -> None:
    """Draw how long each job has waited, which decides the order of the queue."""
    _bars(axes, answer.problem.jobs.waited_s / HOUR_S, "hours waited: the order of the queue")


def discounts(axes: Axes, answer: Answer) -> None:
    """Draw E / P of each job after the discounts; the title has the mean discount."""
    # The value is Σ log E of X*, so only the product of all fair rates is known here.
    fair = np.exp(answer.allocation.value)
    rate = answer.effective_rate
    discount = (rate.prod() / fair) ** (1.0 / len(rate))
    _bars(
        axes, rate / proportional_rates(answer.problem), f"E / P of each job: {discount:.2f} of X* on average"
    )


def timetable(axes: Axes, answer: Answer) -> None:
    """Draw the schedule that AlloX computes; the jobs at its beginning are those that run now."""
    problem = answer.problem
    time_h = problem.jobs.steps_left[:, None] / rate_table(problem) / HOUR_S
    schedule = shortest_schedule(time_h, problem.capacity.astype(int))
    for kind in range(len(problem.worker_types)):
        starts_h = 0.0
        for row in sorted(np.flatnonzero(schedule.kind == kind), key=lambda row: -schedule.position[row]):
            axes.barh(kind, time_h[row, kind], 0.6, starts_h, color=color_of(kind), edgecolor="white")
            middle = starts_h + time_h[row, kind] / 2
            axes.text(
                middle, kind, problem.jobs.ids[row], ha="center", va="center", fontsize=8, color="white"
            )
            starts_h += time_h[row, kind]
    axes.set_ylim(len(problem.worker_types) - 0.4, -0.6)
    axes.set_yticks(range(len(problem.worker_types)), problem.worker_types)
    finish(axes, "the schedule behind it, in hours")


# ------------------------------------------------------------------------------------------------ whole plots


def of_policy(spec: str, panel: Panel) -> Callable[[], Figure]:
    """Return a function that draws the policy's shares on the left and this panel on the right."""

    def draw() -> Figure:
        answer = solve(spec)
        figure = Figure(figsize=(8.6, 2.0), dpi=110, layout="constrained")
        shares, figures = figure.subplots(1, 2)
        draw_shares(shares, answer)
        _legend(shares, answer.problem)
        panel(figures, answer)
        return figure

    return draw


def compared(specs: tuple[str, ...], problem: Problem, title: str) -> Figure:
    """Draw E / P of every job under several policies, side by side."""
    figure = Figure(figsize=(8.6, 2.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    n, width = len(problem.jobs), 0.8 / len(specs)
    for i, spec in enumerate(specs):
        positions = np.arange(n) + (i - (len(specs) - 1) / 2) * width
        axes.bar(positions, level(solve(spec, problem)), 0.92 * width, color=SERIES[i], label=spec)
    axes.set_xticks(range(n), problem.jobs.ids)
    finish(axes, title)
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def deadlines() -> Figure:
    """Draw when each job ends under `max_throughput`, without deadlines and with a deadline of lstm in 4 h."""
    due = with_facts(deadline_s={"lstm": 4 * HOUR_S})
    figure = Figure(figsize=(8.6, 2.0), dpi=110, layout="constrained")
    for axes, problem, words in zip(
        figure.subplots(1, 2), (FOUR_JOBS, due), ("no deadline", "lstm due in 4 h"), strict=True
    ):
        answer = solve("max_throughput(raw=true)", problem)
        _bars(axes, _hours(answer), f"hours until done, {words}")
        axes.set_xlim(0, 10)
        _line(axes, 4.0)
    return figure


def overview() -> Figure:
    """Draw a table of the rate of every job under every policy, relative to its isolated rate."""
    rows = [solve(spec).times_isolated for spec in OVERVIEW]
    table = np.array(rows)
    figure = Figure(figsize=(8.6, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    colours = axes.imshow(
        np.clip(np.log2(np.maximum(table, 0.25)), -2, 2), cmap="BrBG", vmin=-2.4, vmax=2.4, aspect="auto"
    )
    colours.set_interpolation("nearest")
    for i, row in enumerate(table):
        for j, times in enumerate(row):
            extreme = not 0.4 < times < 2.5
            text = "waits" if times < 1e-6 else f"{times:.2f}"
            axes.text(j, i, text, ha="center", va="center", fontsize=8.5, color="white" if extreme else INK)
    axes.set_xticks(range(len(FOUR_JOBS.jobs)), FOUR_JOBS.jobs.ids)
    axes.set_yticks(range(len(OVERVIEW)), OVERVIEW)
    finish(axes, "rate of each job against an equal slice of the cluster (×)")
    axes.spines["bottom"].set_visible(False)
    return figure


OVERVIEW = (
    *("isolated", "las+blind", "las", "las+packing", "hierarchical", "ftf", "makespan"),
    *(
        "sjf",
        "max_throughput",
        "throughput_per_cost",
        "min_cost",
        "fifo",
        "allox",
        "gandiva",
        "strategy_proof",
    ),
)
PLOTS: dict[str, Callable[[], Figure]] = {
    "overview": overview,
    "max_min_fairness": of_policy("las", levels),
    "water_filling": lambda: compared(
        ("las", "water_filling"), with_gpus(v100=1, k80=3), "E / P of each job, one V100 and three K80s"
    ),
    "hierarchical": of_policy("hierarchical", tenants),
    "finish_time_fairness": of_policy("ftf", lateness),
    "makespan": of_policy("makespan", last_end),
    "shortest_job_first": of_policy("sjf", ends),
    "max_throughput": of_policy("max_throughput", work),
    "throughput_per_cost": of_policy("throughput_per_cost", steps_bought),
    "min_cost": of_policy("min_cost", costs),
    "deadlines": deadlines,
    "fifo": of_policy("fifo", queue),
    "isolated": of_policy("isolated", levels),
    "strategy_proof": of_policy("strategy_proof", discounts),
    "allox": of_policy("allox", timetable),
    "gandiva": of_policy("gandiva", work),
    "modifiers": lambda: compared(("las+blind", "las", "las+packing"), FOUR_JOBS, "E / P of each job"),
}


def _hours(answer: Answer) -> np.ndarray:
    rate = answer.effective_rate
    waits = rate <= 1e-6
    return np.where(waits, np.nan, answer.problem.jobs.steps_left / np.where(waits, 1.0, rate)) / HOUR_S


def _bars(axes: Axes, values: np.ndarray, title: str, names: list[str] | None = None) -> None:
    """Draw a bar for each value, with its figure beside it. A job that does not run has the word "waits" instead.

    `names`: the labels of the bars; by default the ids of the four jobs.
    """
    names = names or list(FOUR_JOBS.jobs.ids)
    rows = np.arange(len(values))
    axes.barh(rows, np.nan_to_num(values), 0.62, color="#8a8f98")
    for row, value in enumerate(values):
        text = " waits" if np.isnan(value) else f" {value:.2f}"
        axes.text(np.nan_to_num(value), row, text, va="center", fontsize=8, color=INK)
    axes.set_yticks(rows, names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.18 * max(float(np.nan_to_num(values).max()), 1e-9))
    finish(axes, title)


def _line(axes: Axes, value: float) -> None:
    axes.axvline(value, color="#b5452c", linewidth=1.2)


def _legend(axes: Axes, problem: Problem) -> None:
    for kind, name in enumerate(problem.worker_types):
        axes.barh([0], [0], color=color_of(kind), label=name)
    legend = axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.0
    )
    legend.get_frame().set_edgecolor(FAINT)


if __name__ == "__main__":
    main()
