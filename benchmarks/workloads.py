"""Random problems of a given size for benchmarks, with fixed seeds."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from policies.problem import Floats, Ints, Jobs, Problem, Tenant

TYPES = ("k80", "p100", "v100")
SPEED = np.array([1.0, 3.0, 5.0])
PRICE = np.array([0.135, 0.43, 0.74])
PUBLISHED = Path(__file__).parents[2] / "shared" / "data" / "throughputs" / "gavel_throughputs.csv"
RateDraw = Callable[[np.random.Generator, int], Floats]


def random_rates(draw: np.random.Generator, n: int) -> Floats:
    """Return the rates of n kinds of jobs, over as wide a range as real rates."""
    return 10.0 ** draw.uniform(-1, 2, (n, 1)) * SPEED * draw.uniform(0.4, 1.6, (n, len(TYPES)))


def published_rates(draw: np.random.Generator, n: int) -> Floats:
    """Return n random rows of the published table, each changed by up to 2 %, so that no two are equal."""
    with PUBLISHED.open() as lines:
        rates_by_kind: dict[tuple[str, str], dict[str, float]] = {}
        for row in csv.DictReader(lines):
            if (
                row["source"] == "simulation"
                and row["placement"] == "consolidated"
                and row["gpu_type"] in TYPES
            ):
                rate = float(row["throughput_steps_per_s"])
                rates_by_kind.setdefault((row["job_type"], row["scale_factor"]), {})[row["gpu_type"]] = rate
    table = np.array([[rates.get(kind, 0.0) for kind in TYPES] for rates in rates_by_kind.values()])
    table = table[table.max(axis=1) > 0]
    return table[draw.integers(len(table), size=n)] * draw.uniform(0.98, 1.02, (n, 1))


def cluster(
    n: int,
    kinds: int | None,
    *,
    load: float = 4.0,
    single_gpu: bool = False,
    tenants: int = 0,
    rates: RateDraw = random_rates,
    seed: int = 0,
) -> Problem:
    """Return a problem of n jobs that together ask for `load` times its GPUs. `kinds`: None if all jobs differ."""
    draw = np.random.default_rng(seed)
    k = n if kinds is None else kinds
    kind: Ints = np.arange(n) % k
    width = np.ones(k) if single_gpu else draw.choice([1.0, 2.0, 4.0, 8.0], k, p=[0.7, 0.1, 0.15, 0.05])
    weight = draw.choice([1.0, 5.0], k, p=[0.8, 0.2])
    table = rates(draw, k)
    owner = draw.integers(tenants, size=k) if tenants else np.zeros(k, dtype=int)
    gpus = width[kind].astype(np.int64)
    per_type = max(1.0, np.round(gpus.sum() / load / len(TYPES)))
    solo = table[kind]
    steps = solo.max(axis=1) * 10.0 ** draw.uniform(2, 5, n)
    names = [f"tenant-{number:02d}" for number in range(tenants)]
    return Problem.from_rates(
        solo,
        gpus,
        np.full(len(TYPES), per_type),
        ids=[f"job-{number:06d}" for number in range(n)],
        worker_types=TYPES,
        price_per_gpu_hour=PRICE,
        tenants=[Tenant(name, 1.0 + number % 3) for number, name in enumerate(names)],
        weight=weight[kind],
        tenant=[names[o] for o in owner[kind]] if tenants else "",
        waited_s=draw.uniform(0, 1e5, n),
        isolated_s=draw.uniform(0, 1e4, n),
        steps_left=steps,
    )


def add_pairs(problem: Problem, partners: int | None, seed: int = 0) -> Problem:
    """Add pairs of jobs of equal width on every type, at 0.3 to 0.9 of their solo rates.

    `partners`: about how many partners each job gets; None for all possible pairs.
    """
    draw = np.random.default_rng(seed + 1)
    jobs, t = problem.jobs, len(problem.worker_types)
    first, second = _all_pairs(jobs) if partners is None else _some_pairs(draw, jobs, partners)
    solo = np.where(problem.solo_column >= 0, problem.columns.first_rate[problem.solo_column], 0.0)
    first_factor = draw.uniform(0.3, 0.9, (len(first), 1))
    second_factor = np.where(
        (first == second)[:, None], first_factor, draw.uniform(0.3, 0.9, (len(first), 1))
    )
    columns = problem.columns
    pairs = len(first) * t
    return replace(
        problem,
        columns=replace(
            columns,
            first=np.concatenate([columns.first, np.repeat(first, t)]),
            second=np.concatenate([columns.second, np.repeat(second, t)]),
            worker_type=np.concatenate([columns.worker_type, np.tile(np.arange(t), len(first))]),
            gpus=np.concatenate([columns.gpus, np.repeat(jobs.gpus[first], t)]),
            first_rate=np.concatenate([columns.first_rate, (solo[first] * first_factor).ravel()]),
            second_rate=np.concatenate([columns.second_rate, (solo[second] * second_factor).ravel()]),
            label=columns.label + ("",) * pairs,
            cpus=np.concatenate([columns.cpus, np.zeros(pairs)]),
        ),
    )


def _all_pairs(jobs: Jobs) -> tuple[Ints, Ints]:
    a, b = np.triu_indices(len(jobs))
    compatible = (jobs.gpus[a] == jobs.gpus[b]) & ((a != b) | (jobs.count[a] > 1))
    return a[compatible].astype(np.int64), b[compatible].astype(np.int64)


def _some_pairs(draw: np.random.Generator, jobs: Jobs, partners: int) -> tuple[Ints, Ints]:
    pairs: set[tuple[int, int]] = set()
    for width in np.unique(jobs.gpus):
        rows = np.flatnonzero(jobs.gpus == width)
        if len(rows) < 2:
            continue
        for row in rows.tolist():
            for other in draw.choice(rows, min(partners // 2, len(rows) - 1), replace=False).tolist():
                if other != row:
                    pairs.add((min(row, other), max(row, other)))
    a, b = np.array(sorted(pairs), dtype=np.int64).T
    return a, b
