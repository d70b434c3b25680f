"""Why a plan is the best: its stages with their memory, its timeline, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gavel.cli.io.outputs import echo
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.wording import count_of
from gavel.cli.plans.plan_table import Rows
from gavel.cli.plans.timeline import ROWS_MAX, timeline_lines

if TYPE_CHECKING:
    from planner.cluster import Gpu
    from planner.explain import Pruned
    from planner.figures import Model
    from planner.search import Allowed, Priced
    from planner.simulate import Work

BAR = 24
# Of schedules that do not wait at updates, several are shown in a row.
CONTINUOUS_UPDATES = 3
# Smaller parts of a step are not worth words.
NOTABLE = 0.01
_PARTS = {
    "compute_s": "computing",
    "tensor_s": "exchanging in tensor groups",
    "pipeline_s": "exchanging between stages",
    "data_s": "exchanging gradients",
    "bubble_s": "waiting for the pipeline",
}
_LIMITS = {
    "memory": "memory: with any amount of it, the best step would be {} shorter",
    "network": "exchanges: without them, the step would be {} shorter",
    "bubble": "waits: without them, the step would be {} shorter",
}


class Explained(NamedTuple):
    """A plan, and what an explanation of it shows."""

    gpu: Gpu
    priced: Priced
    limits: dict[str, float]
    pruned: Pruned
    works: list[list[Work]]


def explained(model: Model, gpu: Gpu, priced: Priced, batch: int, allowed: Allowed) -> Explained:
    """Return a plan with its limits, the plans beside it, and its timeline."""
    from gavel.plans import simulator_for
    from gavel.training.parallel.actions import computations_of
    from planner.explain import limits, pruned
    from planner.simulate import timeline

    order = computations_of if priced.plan.flushes else partial(computations_of, updates=CONTINUOUS_UPDATES)
    works = timeline(*priced, priced.plan.microbatches(batch), order)
    return Explained(
        gpu,
        priced,
        limits(model, gpu, priced, batch, allowed),
        pruned(model, gpu, priced, batch, allowed, simulator_for(model)),
        works,
    )


def print_explanation(explanation: Explained) -> None:
    """Print the step and its limits, a bar of memory per stage, and the timeline."""
    from planner.cluster import gigabytes

    gpu, (plan, cost), *_ = explanation
    echo(f"{gpu.name} × {plan.gpus}: {plan.label}, {cost.step_s:.3g} s a step")
    for line in _reasons(explanation):
        echo(f"  {line}")
    echo("")
    columns = [
        Column("GPU", right=True),
        Column("layers"),
        Column(f"memory of {gpu.memory_bytes / 1e9:.3g} GB"),
    ]
    columns += [Column("GB", right=True), Column("forward ms", right=True), Column("backward ms", right=True)]
    rows = [
        [
            str(stage["gpu"]),
            ", ".join(
                f"{first + 1}–{end}" if end > first + 1 else f"{end}" for first, end in stage["layers"]
            ),
            _bar(stage["memory_bytes"], gpu),
            gigabytes(stage["memory_bytes"]),
            f"{1e3 * stage['forward_s']:.3g}",
            f"{1e3 * stage['backward_s']:.3g}",
        ]
        for stage in stages(explanation.priced)
    ]
    show_table(columns, rows[:ROWS_MAX])
    if len(rows) > ROWS_MAX:
        echo(f"and {len(rows) - ROWS_MAX} more")
    echo(f"a row is a stage: {plan.tensor * plan.data} GPUs; █ used, ░ free, ╳ not for plans")
    echo("")
    if not plan.flushes:
        echo(f"{CONTINUOUS_UPDATES} updates in a row, from an empty pipeline to an empty one")
    for line in timeline_lines(explanation.works):
        echo(line)


def stages(priced: Priced) -> list[dict[str, Any]]:
    """Return, by GPU of a pipeline, its ranges of layers, its memory, and its times for a microbatch."""
    plan, cost = priced
    forward_s, total_s = (
        times.reshape(plan.chunks, plan.pipeline).sum(axis=0)
        for times in (cost.times.forward_s, cost.times.total_s)
    )
    return [
        {
            "gpu": rank + 1,
            "layers": [
                [int(cost.borders[stage]), int(cost.borders[stage + 1])]
                for stage in range(rank, plan.stages, plan.pipeline)
            ],
            "memory_bytes": float(cost.memory_bytes[rank]),
            "forward_s": float(forward_s[rank]),
            "backward_s": float(total_s[rank] - forward_s[rank]),
        }
        for rank in range(plan.pipeline)
    ]


def as_data(explanation: Explained) -> dict[str, Any]:
    """Return the explanation as plain data; docs/plans.md describes the fields."""
    pruned = explanation.pruned
    return {
        "limits": explanation.limits,
        "plans_priced": pruned.priced,
        "plans_too_large": pruned.too_large,
        "second": None
        if pruned.second is None
        else {"label": pruned.second.plan.label, "step_s": pruned.second.cost.step_s},
        "stages": stages(explanation.priced),
        "timeline": [[work._asdict() for work in row] for row in explanation.works],
    }


def remarks(model: Model, rows: Rows, batch: int, allowed: Allowed) -> Iterator[str]:
    """Yield what limits the widest plan of each worker type, how it beats others, and what is not verified."""
    from gavel.plans import simulator_for
    from planner.explain import limits, pruned

    simulator = simulator_for(model)
    widest = {gpu.name: (gpu, priced) for gpu, priced in rows}
    for gpu, priced in widest.values():
        others = pruned(model, gpu, priced, batch, allowed, simulator)
        yield (
            f"{priced.plan.gpus} × {gpu.name} {limit_words(limits(model, gpu, priced, batch, allowed))}; "
            f"{_others(others, priced)}"
        )
    yield from honest_notes(list(widest))


def honest_notes(worker_types: Sequence[str]) -> Iterator[str]:
    """Yield what could not be verified about the figures of these worker types."""
    from planner.explain import CALIBRATED

    estimated = [name for name in worker_types if name not in CALIBRATED]
    if estimated:
        yield f"times of {', '.join(estimated)} are not fitted to runs on such GPUs"
    yield "no plan was run on several GPUs yet: docs/plans.md says what is not verified"


def limit_words(limits: dict[str, float]) -> str:
    """Return in words what a plan loses most time to, beside its arithmetic."""
    (name, part), *_ = limits.items()
    if part < NOTABLE:
        return "loses nothing to memory, exchanges and waits"
    return f"loses most to {_LIMITS[name].format(f'{100 * part:.0f} %')}"


def _reasons(explanation: Explained) -> Iterator[str]:
    _, (_, cost), limits, pruned, _ = explanation
    parts = {words: 100 * getattr(cost, field) / cost.step_s for field, words in _PARTS.items()}
    yield ", ".join(f"{words} {part:.0f} %" for words, part in parts.items() if part >= 0.5)
    yield limit_words(limits)
    yield _others(pruned, explanation.priced)


def _others(pruned: Pruned, best: Priced) -> str:
    words = f"{pruned.too_large} of {count_of(pruned.priced, 'plan')} need too much memory"
    if pruned.second is not None:
        slower = pruned.second.cost.step_s / best.cost.step_s - 1
        words += f"; next: {pruned.second.plan.label}, {100 * slower:.1f} % slower"
    return words


def _bar(memory_bytes: float, gpu: Gpu) -> str:
    """Return used, free and reserved memory as a bar."""
    used = min(BAR, max(1, round(BAR * memory_bytes / gpu.memory_bytes)))
    usable = max(used, round(BAR * gpu.usable_bytes / gpu.memory_bytes))
    return "█" * used + "░" * (usable - used) + "╳" * (BAR - usable)
