"""The synthetic workload of the published figures (those of the Gavel paper), job for job.

Rules: the draws below are made in exactly this order, including those whose result is ignored, so that a seed gives
exactly the jobs of the published runs. Jobs, arrivals and deadlines have separate streams: the same jobs arrive at any
rate, with or without deadlines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Literal

from traces.errors import BadWorkload, show
from traces.throughputs import REFERENCE, Throughputs
from traces.trace import TraceJob

Kind = Literal["single", "multi"]


def _sizes(model: str, *batch_sizes: int) -> tuple[str, ...]:
    return tuple(f"{model} (batch size {size})" for size in batch_sizes)


JOB_TYPES = (
    *_sizes("ResNet-18", 16, 32, 64, 128, 256),
    *_sizes("ResNet-50", 16, 32, 64, 128),
    *_sizes("Transformer", 16, 32, 64, 128, 256),
    *_sizes("LM", 5, 10, 20, 40, 80),
    *_sizes("Recommendation", 512, 1024, 2048, 4096, 8192),
    "A3C",
    "CycleGAN",
)
SINGLE_GPU_ONLY = frozenset(
    name for name in JOB_TYPES if name.startswith(("Recommendation", "A3C", "CycleGAN"))
)
# A draw below the first number of a pair gives the second number as the deadline factor. The first such pair counts.
DEADLINE_FACTORS = ((0.33, 1.2), (0.67, 2.0), (math.inf, 10.0))


def published_jobs(
    kind: Kind = "single",
    *,
    rate_per_h: float,
    seed: int,
    throughputs: Throughputs,
    weighted: bool = False,
    deadlines: bool = False,
) -> Iterator[TraceJob]:
    """Return the jobs, without end; at an infinite rate all of them arrive at 0."""
    if kind not in ("single", "multi"):
        raise BadWorkload(f"{show(kind)} is not a published workload", hint="choose 'single' or 'multi'")
    if not rate_per_h > 0:
        raise BadWorkload(f"is {rate_per_h}", field="rate_per_h", hint="give jobs per hour, above 0")
    _check_table(kind, throughputs)
    return _jobs(kind, rate_per_h, seed, throughputs, weighted, deadlines)


def _jobs(
    kind: Kind, rate_per_h: float, seed: int, throughputs: Throughputs, weighted: bool, deadlines: bool
) -> Iterator[TraceJob]:
    draws, arrivals, deadline_draws = Random(seed + 2), Random(seed + 3), Random(seed + 6)
    number, arrival_s = 0, 0.0
    while True:
        width = _width(draws.uniform(0, 1))
        gpus = width if kind == "multi" else 1
        low, high = (3.0, 4.0) if draws.random() >= 0.8 else (1.5, 3.0)
        duration_s = 60 * 10 ** draws.uniform(low, high)
        job_type = draws.choice(JOB_TYPES)
        while gpus > 1 and job_type in SINGLE_GPU_ONLY:
            job_type = draws.choice(JOB_TYPES)
        weight = 5.0 if weighted and draws.uniform(0, 1) <= 0.2 else 1.0
        yield TraceJob(
            id=str(number),
            arrival_s=arrival_s,
            job_type=job_type,
            gpus=gpus,
            steps=duration_s * throughputs.rate(job_type, gpus, REFERENCE),
            duration_s=duration_s,
            weight=weight,
            deadline_s=_deadline_factor(deadline_draws.random()) * duration_s if deadlines else None,
        )
        number += 1
        arrival_s += -math.log(1 - arrivals.random()) * 3600 / rate_per_h


def _width(draw: float) -> int:
    """Return the number of GPUs for a draw between 0 and 1."""
    if draw < 0.7:
        return 1
    return 2 if draw <= 0.8 else 4 if draw <= 0.95 else 8


def _deadline_factor(draw: float) -> float:
    return next(factor for below, factor in DEADLINE_FACTORS if draw < below)


def _check_table(kind: Kind, throughputs: Throughputs) -> None:
    """Refuse a table that lacks a rate, on the reference type, for a job that can be drawn."""
    for job_type in JOB_TYPES:
        widths = (1,) if kind == "single" or job_type in SINGLE_GPU_ONLY else (1, 2, 4, 8)
        for gpus in widths:
            if throughputs.rate(job_type, gpus, REFERENCE) <= 0:
                table = throughputs.source or "the table"
                raise BadWorkload(
                    f"{table} has no rate of {show(job_type)} on {gpus} × {REFERENCE}",
                    field="throughputs",
                    hint="give the published table, or take a workload that fits yours, such as 'mixed-day'",
                )
