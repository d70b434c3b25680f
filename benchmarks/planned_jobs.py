"""A day of jobs on a mixed cluster, some of which train GPTs by plans, and the plans that they are given.

Of all jobs, a quarter train a GPT of one of six shapes, with 256 samples of 2,048 tokens in an update. The others are
jobs on one GPU of the table that Gavel ships. Four groups use each shape; measurements of one group say nothing about
another's. The plans of a job follow one of these ways of working:

    joint       the scheduler may use every plan that an allocation can need, at all widths and on all types
    per type    the user chooses the number of GPUs; the job has the best plan for it on each type
    one plan    the user chooses the number of GPUs and the best plan on A100s, and uses it wherever it fits
    data        neither layers nor the model are split: copies only, at all widths

The width that a user chooses is 4, 8, 16 or 32, at random among those at which the model fits on A100s.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import takewhile
from random import Random
from typing import NamedTuple

from msgspec import structs

from gavel.plans import gpu_of
from planner.cluster import Gpu
from planner.columns import columns
from planner.costs import cost_of
from planner.errors import PlanError
from planner.search import ALLOWED, Priced, best_plan, evaluate, fits, plans
from planner.transformer import Transformer
from traces.generator import Duration, WorkloadSpec, generate
from traces.plans import Plan
from traces.roofline import default_throughputs
from traces.throughputs import Throughputs
from traces.trace import TraceJob

CLUSTER = {"v100": 32, "a100": 32, "h100": 32}
GPUS_PER_NODE = 8
WIDTHS = (1, 2, 4, 8, 16, 32)
CHOSEN_WIDTHS = (4, 8, 16, 32)
CHOSEN_TYPE = "a100"
BATCH = 256
SEQUENCE, VOCABULARY = 2048, 51200
GROUPS = 4
WAYS = ("joint", "per type", "one plan", "data")


class Shape(NamedTuple):
    """The shape of a GPT, and how often it is trained."""

    layers: int
    hidden: int
    heads: int
    chance: float


SHAPES = {
    "gpt-350m": Shape(24, 1024, 16, 2),
    "gpt-760m": Shape(24, 1536, 16, 2),
    "gpt-1.3b": Shape(24, 2048, 16, 3),
    "gpt-2.7b": Shape(32, 2560, 32, 2),
    "gpt-6.7b": Shape(32, 4096, 32, 2),
    "gpt-13b": Shape(40, 5120, 40, 1),
}
# Shapes of which no GPU of the cluster can hold a copy.
LARGE = ("gpt-6.7b", "gpt-13b")
PLANNED_PART = 0.25
# The work of a GPT job, in hours of a single A100 of a node with 8 of them: log-uniform between these.
WORK_H = (4.0, 64.0)
OTHERS = WorkloadSpec(
    rate_per_h=1.0,
    job_types={"resnet50": 2, "vit-b16": 2, "bert-base": 2, "gpt2-124m": 1, "lstm-lm": 1, "ppo-games": 1},
    durations=(Duration(0.7, 600, 7_200), Duration(0.3, 7_200, 43_200)),
    daily_swing=0.5,
)
DAY_S = 86_400.0


def jobs(rate_per_h: float, seed: int) -> list[TraceJob]:
    """Return the jobs that arrive in a day, each GPT job with the width that its user chooses."""
    rng = Random(f"planned/{seed}")
    stream = generate(replace(OTHERS, rate_per_h=rate_per_h), default_throughputs(), seed)
    return [_drawn(rng, job) for job in takewhile(lambda job: job.arrival_s < DAY_S, stream)]


def _drawn(rng: Random, job: TraceJob) -> TraceJob:
    """Return the job, or a GPT job in its place."""
    is_planned = rng.random() < PLANNED_PART
    shape = rng.choices(list(SHAPES), [shape.chance for shape in SHAPES.values()])[0]
    group = rng.randrange(GROUPS)
    widths = [gpus for gpus in CHOSEN_WIDTHS if gpus in {p.gpus for p in _plans("joint", shape, CHOSEN_TYPE)}]
    gpus = rng.choice(widths)
    work_h = WORK_H[0] * (WORK_H[1] / WORK_H[0]) ** rng.random()
    if not is_planned:
        return job
    rate = next(1 / p.cost.step_s for p in _best(shape, CHOSEN_TYPE) if p.plan.gpus == 8)
    steps = work_h * 3600 * rate / 8
    return structs.replace(job, job_type=f"{shape}-{group}", gpus=gpus, steps=steps, duration_s=None)


def shape_of(job_type: str) -> str | None:
    """Return the shape that a job of this type trains; None if it is no GPT job."""
    shape = job_type.rpartition("-")[0]
    return shape if shape in SHAPES else None


def as_worked(way: str, job: TraceJob) -> TraceJob:
    """Return the job with the widths at which it may run."""
    if shape_of(job.job_type) is None or way in ("per type", "one plan"):
        return job
    return structs.replace(job, gpus_min=WIDTHS[0], gpus_max=WIDTHS[-1])


@cache
def table(way: str) -> Throughputs:
    """Return the rates of all jobs on the cluster, with the plans of GPT jobs."""
    rows = [
        structs.replace(plan, job_type=f"{shape}-{group}")
        for shape in SHAPES
        for kind in CLUSTER
        for plan in _plans(way, shape, kind)
        for group in range(GROUPS)
    ]
    planned = {(plan.job_type, plan.gpus, plan.worker_type): plan for plan in rows}
    return replace(default_throughputs().restrict(CLUSTER), plans=planned)


@cache
def _plans(way: str, shape: str, kind: str) -> tuple[Plan, ...]:
    """Return the plans of a shape on a worker type."""
    priced = {"one plan": _same, "data": _copies}.get(way, _best)(shape, kind)
    if way == "joint":
        kept = {column.gpus for column in columns(kind, priced)}
        priced = tuple(p for p in priced if p.plan.gpus in kept)
    return tuple(
        Plan(
            job_type=shape,
            worker_type=kind,
            gpus=p.plan.gpus,
            label=p.plan.label,
            rate=1 / p.cost.step_s,
            gpus_together=p.plan.tensor,
        )
        for p in priced
    )


@cache
def _best(shape: str, kind: str) -> tuple[Priced, ...]:
    """Return the best plan for each number of GPUs on which the model fits."""
    priced = []
    for gpus in WIDTHS:
        with suppress(PlanError):
            priced.append(best_plan(_model(shape), _gpu(kind), gpus, BATCH))
    return tuple(priced)


def _same(shape: str, kind: str) -> tuple[Priced, ...]:
    """Return the best plans on the type that users have in mind, as they run here, where they fit."""
    model, gpu = _model(shape), _gpu(kind)
    priced = (evaluate(model, gpu, p.plan, BATCH) for p in _best(shape, CHOSEN_TYPE))
    return tuple(p for p in priced if fits(p.cost, gpu))


def _copies(shape: str, kind: str) -> tuple[Priced, ...]:
    """Return the best plans that split neither layers nor the model."""
    model, gpu = _model(shape), _gpu(kind)
    priced = (
        Priced(plan, cost_of(model, gpu, plan, BATCH))
        for gpus in WIDTHS
        for plan in plans(model, gpu, gpus, BATCH, ALLOWED)
        if plan.tensor == plan.pipeline == 1
    )
    best: dict[int, Priced] = {}
    for p in priced:
        if fits(p.cost, gpu) and (p.plan.gpus not in best or p.cost.step_s < best[p.plan.gpus].cost.step_s):
            best[p.plan.gpus] = p
    return tuple(best.values())


def _model(shape: str) -> Transformer:
    layers, hidden, heads, _ = SHAPES[shape]
    return Transformer(layers=layers, hidden=hidden, heads=heads, sequence=SEQUENCE, vocabulary=VOCABULARY)


def _gpu(kind: str) -> Gpu:
    return gpu_of(kind, GPUS_PER_NODE)
