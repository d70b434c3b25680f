"""Workloads by name, for simulations, benchmarks and the command line.

    published-single, published-multi, published-multi-weighted     those of the published figures (published.py)
    mixed-day                                                       four teams on a mixed cluster of current GPUs

These workloads are endless; `generator.trace_of` makes a trace of the first jobs of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from heapq import merge

from msgspec import structs

from traces.errors import BadWorkload, nearest, show
from traces.generator import Duration, WorkloadSpec, generate
from traces.published import Kind, published_jobs
from traces.roofline import default_throughputs
from traces.throughputs import Throughputs
from traces.trace import TraceJob

MINUTE_S, HOUR_S = 60.0, 3600.0

# Typical teams that share a cluster. `rate_per_h` is a team's share of all jobs until a rate is given.
TEAMS = (
    # Many short trials by day, and a few long runs.
    WorkloadSpec(
        id_prefix="vision-",
        rate_per_h=0.40,
        job_types={"resnet50": 3, "resnet152": 1, "vit-b16": 3, "unet-diffusion": 1},
        widths={1: 0.75, 2: 0.12, 4: 0.10, 8: 0.03},
        durations=(Duration(0.8, 5 * MINUTE_S, 2 * HOUR_S), Duration(0.2, 2 * HOUR_S, 48 * HOUR_S)),
        tenants={"research/vision": 1},
        daily_swing=0.8,
    ),
    # Fewer, longer and wider jobs, some of them elastic.
    WorkloadSpec(
        id_prefix="language-",
        rate_per_h=0.20,
        job_types={"bert-large": 2, "t5-base": 2, "gpt2-124m": 3, "gpt2-1.5b": 2, "llama-7b-lora": 3},
        widths={1: 0.35, 2: 0.20, 4: 0.25, 8: 0.20},
        durations=(Duration(0.6, 0.5 * HOUR_S, 8 * HOUR_S), Duration(0.4, 8 * HOUR_S, 120 * HOUR_S)),
        tenants={"research/language": 1},
        elastic_share=0.3,
        daily_swing=0.5,
    ),
    # Models that a product retrains every night, by a deadline.
    WorkloadSpec(
        id_prefix="product-",
        rate_per_h=0.25,
        job_types={"dlrm": 4, "bert-base": 3, "wav2vec2": 1},
        widths={1: 0.6, 2: 0.2, 4: 0.2},
        durations=(Duration(1.0, 10 * MINUTE_S, 4 * HOUR_S),),
        weights={1: 0.7, 3: 0.3},
        tenants={"product/ads": 2, "product/search": 1},
        deadline_factors={1.5: 1, 3: 2, 10: 1},
        deadline_share=0.6,
        daily_swing=0.7,
        busiest_h=1,
    ),
    # Small jobs round the clock, for which any GPU is good enough.
    WorkloadSpec(
        id_prefix="classes-",
        rate_per_h=0.15,
        job_types={"lstm-lm": 2, "ppo-games": 3, "resnet50": 1},
        durations=(Duration(1.0, 5 * MINUTE_S, 6 * HOUR_S),),
        tenants={"teaching": 1},
        daily_swing=0.3,
        busiest_h=21,
    ),
)


def mixed_day(throughputs: Throughputs, rate_per_h: float, seed: int) -> Iterator[TraceJob]:
    """Return the jobs of four teams on one cluster, each with its own models, hours, widths and requirements.

    A job takes about 11 GPU-hours on V100, 6.6 on A100 or 3 on H100, so 10 jobs per hour keep about 66 A100 busy.
    """
    if rate_per_h == math.inf:
        # Mix the teams' jobs as at a finite rate, then let all arrive at once.
        return (structs.replace(job, arrival_s=0.0) for job in mixed_day(throughputs, 60.0, seed))
    if not rate_per_h > 0:
        raise BadWorkload(f"is {rate_per_h}", field="rate_per_h", hint="give jobs per hour, above 0")
    total = sum(team.rate_per_h for team in TEAMS)
    specs = [replace(team, rate_per_h=rate_per_h * team.rate_per_h / total) for team in TEAMS]
    streams = [generate(spec, throughputs, seed) for spec in specs]
    return merge(*streams, key=lambda job: job.arrival_s)


def _published(
    kind: Kind, throughputs: Throughputs, rate_per_h: float, seed: int, weighted: bool = False
) -> Iterator[TraceJob]:
    return published_jobs(kind, rate_per_h=rate_per_h, seed=seed, throughputs=throughputs, weighted=weighted)


WORKLOADS: dict[str, Callable[[Throughputs, float, int], Iterator[TraceJob]]] = {
    "published-single": partial(_published, "single"),
    "published-multi": partial(_published, "multi"),
    "published-multi-weighted": partial(_published, "multi", weighted=True),
    "mixed-day": mixed_day,
}


# These need the published throughput table.
PUBLISHED = tuple(name for name in WORKLOADS if name.startswith("published-"))


def workload(
    name: str, throughputs: Throughputs | None = None, *, rate_per_h: float, seed: int = 0
) -> Iterator[TraceJob]:
    """Return the jobs of a named workload, without end. Without `throughputs`, use our own throughput table."""
    if name not in WORKLOADS:
        raise BadWorkload(f"{show(name)} is not a workload", field="name", hint=nearest(name, WORKLOADS))
    return WORKLOADS[name](throughputs or default_throughputs(), rate_per_h, seed)
