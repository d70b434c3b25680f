"""Problems to try policies on: by hand, one line for each way to run something; at random, one switch per feature.

    by_hand({"v100": 2}, alone("a", "v100", 4.0), together(("a", "b"), "v100", (3.0, 2.0)))
    random_problem(7, jobs=12, kinds=4, pairs=True)

Random problems are made of *kinds*: jobs of one kind are interchangeable, so grouping can merge them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from policies.problem import ALONE, ANY_TYPE, JOBS, Columns, Ints, Jobs, Problem, Quotas, Tenant

TENANTS = (
    Tenant("lab", weight=2.0),
    Tenant("lab/vision", weight=1.0),
    Tenant("lab/speech", weight=3.0),
    Tenant("shop", weight=1.0, policy="fifo"),
)


class Way(NamedTuple):
    """One way of running something, with names in place of a column's numbers."""

    jobs: tuple[str, ...]
    worker_type: str
    rates: tuple[float, ...]
    gpus: int = 1
    label: str = ""
    cpus: float = 0.0


def alone(
    job: str, worker_type: str, rate: float, gpus: int = 1, label: str = "", *, cpus: float = 0.0
) -> Way:
    """One job on its own GPUs."""
    return Way((job,), worker_type, (rate,), gpus, label, cpus)


def together(
    jobs: tuple[str, str], worker_type: str, rates: tuple[float, float], gpus: int = 1, label: str = ""
) -> Way:
    """Two jobs sharing the same GPUs."""
    return Way(jobs, worker_type, rates, gpus, label)


def by_hand(capacity: dict[str, float], *ways: Way, ids: tuple[str, ...] = (), **facts: Any) -> Problem:
    """Return a problem with a column for each way; jobs are in the order of `ids`, else as they first appear.

    Other keywords are fields of the problem, if it has them, else of its jobs (`gpus=2`, `weight=[1, 5]`).
    """
    job_ids = ids or tuple(dict.fromkeys(job for way in ways for job in way.jobs))
    types = tuple(capacity)
    problem_fields = {key: facts.pop(key) for key in tuple(facts) if key in Problem.__dataclass_fields__}
    columns = Columns(
        first=np.array([job_ids.index(way.jobs[0]) for way in ways], dtype=np.int64),
        second=np.array(
            [job_ids.index(w.jobs[1]) if len(w.jobs) > 1 else ALONE for w in ways], dtype=np.int64
        ),
        worker_type=np.array([types.index(way.worker_type) for way in ways], dtype=np.int64),
        gpus=np.array([way.gpus for way in ways], dtype=np.int64),
        first_rate=np.array([way.rates[0] for way in ways], dtype=float),
        second_rate=np.array([way.rates[1] if len(way.rates) > 1 else 0.0 for way in ways], dtype=float),
        label=tuple(way.label for way in ways),
        cpus=np.array([way.cpus for way in ways], dtype=float),
    )
    return Problem(
        jobs=Jobs(job_ids, **facts),
        columns=columns,
        worker_types=types,
        capacity=np.array(list(capacity.values()), dtype=float),
        **problem_fields,
    )


def random_problem(
    seed: int,
    jobs: int = 8,
    *,
    types: int = 3,
    kinds: int | None = None,
    widths: tuple[int, ...] = (1, 2),
    zero_rates: bool = False,
    empty_type: bool = False,
    weights: bool = False,
    pairs: bool = False,
    variants: bool = False,
    tenants: bool = False,
    deadlines: bool = False,
    quotas: bool = False,
    cpus: bool = False,
    facts_by_kind: bool = True,
) -> Problem:
    """Return a problem with these features, the same for the same arguments. `kinds=None`: all jobs are different.

    Steps left, ages and prices are always known, so that every policy can read what it needs; with
    `facts_by_kind=False` steps and ages are drawn job by job.
    """
    rng = np.random.default_rng(seed)
    k = jobs if kinds is None else min(kinds, jobs)
    kind = np.concatenate([np.arange(k), rng.integers(0, max(k, 1), jobs - k)]).astype(np.int64)
    ids = tuple(f"job{i:02d}" for i in rng.permutation(jobs))
    names = tuple(f"type{j}" for j in range(types))
    rate = np.round(np.exp(rng.uniform(-1.0, 2.5, (k, types))), 3)
    if zero_rates:
        rate *= rng.random((k, types)) < 0.7
    capacity = rng.integers(1, 6, types).astype(float)
    if empty_type:
        capacity[rng.integers(types)] = 0.0
    gpus = rng.choice(widths, k)
    ways = [
        way
        for i in range(jobs)
        for way in _solo_ways(ids[i], names, rate[kind[i]], int(gpus[kind[i]]), variants)
    ]
    if pairs:
        ways += _pair_ways(rng, ids, names, rate, gpus, kind)
    row_of = kind if facts_by_kind else np.arange(jobs)
    job_fields: dict[str, Any] = {
        "gpus": gpus[kind],
        "weight": rng.choice([1.0, 2.0, 5.0], k)[kind] if weights else 1.0,
        "steps_left": np.round(rng.uniform(1e3, 1e5, jobs))[row_of],
        "waited_s": np.round(rng.uniform(0, 5e3, jobs))[row_of],
        "isolated_s": np.round(rng.uniform(0, 5e3, jobs))[row_of],
    }
    if tenants:
        leaves = ("lab/vision", "lab/speech", "shop")
        job_fields |= {"tenant": tuple(leaves[i] for i in rng.integers(0, 3, k)[kind]), "tenants": TENANTS}
    if deadlines:
        deadline_s = np.where(rng.random(jobs) < 0.6, np.round(rng.uniform(500.0, 1e5, jobs)), np.inf)
        job_fields["deadline_s"] = deadline_s[row_of]
    price = np.round(rng.uniform(0.5, 4.0, types), 2)
    if quotas:
        job_fields["quotas"] = _quotas(rng, kind, types)
    if cpus:
        per_gpu = rng.integers(2, 7, types)
        job_fields["cpus"] = capacity * per_gpu
        ways = _with_cpus(rng, ways, kind[np.argsort(ids)], dict(zip(names, per_gpu.tolist(), strict=True)))
    rows = dict(zip(names, capacity.tolist(), strict=True))
    return by_hand(rows, *ways, ids=ids, price_per_gpu_hour=price, seed=seed, **job_fields)


def _quotas(rng: np.random.Generator, kind: Ints, types: int) -> Quotas:
    """Return up to four quotas on all types, on one or on jobs; jobs of one kind are under the same quotas."""
    size = int(rng.integers(1, 5))
    members = rng.random((size, int(kind.max(initial=0)) + 1)) < 0.6
    quota, job = np.nonzero(members[:, kind])
    worker_type, limit = rng.integers(ANY_TYPE, types, size), rng.integers(0, 6, size)
    worker_type[rng.random(size) < 0.25] = JOBS
    return Quotas(
        names=tuple(f"quota{i}" for i in range(size)),
        worker_type=worker_type,
        gpus=limit.astype(float),
        quota=quota,
        job=job,
    )


def _solo_ways(job: str, names: tuple[str, ...], rate: np.ndarray, gpus: int, variants: bool) -> list[Way]:
    """Return a column per type; with `variants`, also one of twice the width and one that spreads over nodes."""
    ways = [alone(job, name, r, gpus) for name, r in zip(names, rate.tolist(), strict=True)]
    if variants:
        ways.append(alone(job, names[0], 1.7 * rate[0], 2 * gpus))
        ways.append(alone(job, names[-1], 0.8 * rate[-1], gpus, "unconsolidated"))
    return ways


def _with_cpus(rng: np.random.Generator, ways: list[Way], kind: Ints, per_gpu: dict[str, int]) -> list[Way]:
    """Return each way of one job with its fair share of CPUs, with half of it, and with twice as many.

    Some kinds of jobs need few CPUs, others run the faster the more they have. `kind`: in the order of the jobs' ids.
    """
    ids = sorted({job for way in ways for job in way.jobs})
    half, double = rng.uniform(0.4, 1.0, len(kind)), rng.uniform(1.0, 2.5, len(kind))
    half[rng.random(len(kind)) < 0.4] = 1.0
    out = []
    for way in ways:
        fair = float(way.gpus * per_gpu[way.worker_type])
        if len(way.jobs) > 1:
            out.append(way._replace(cpus=fair))
            continue
        own = kind[ids.index(way.jobs[0])]
        for cpus, speed in ((fair, 1.0), (fair / 2, half[own]), (2 * fair, double[own])):
            out.append(way._replace(cpus=cpus, rates=(way.rates[0] * speed,)))
    return out


def _pair_ways(
    rng: np.random.Generator,
    ids: tuple[str, ...],
    names: tuple[str, ...],
    rate: np.ndarray,
    gpus: np.ndarray,
    kind: np.ndarray,
) -> list[Way]:
    """For most pairs of kinds of equal width, pair each job of one kind with each of the other, on every type."""
    ways = []
    for c, d in combinations_with_replacement(range(len(gpus)), 2):
        if gpus[c] != gpus[d] or rng.random() < 0.3:
            continue
        slowed = rng.uniform(0.3, 1.0, (2, len(names)))
        if c == d:
            # Two jobs of one kind slow each other alike.
            slowed[1] = slowed[0]
        members = [(a, b) for a in np.flatnonzero(kind == c) for b in np.flatnonzero(kind == d)]
        for a, b in members:
            if c == d and a >= b:
                continue
            for j, name in enumerate(names):
                both = (slowed[0, j] * rate[c, j], slowed[1, j] * rate[d, j])
                ways.append(together((ids[a], ids[b]), name, both, int(gpus[c])))
    return ways


def shuffled(problem: Problem, seed: int) -> tuple[Problem, Ints, Ints]:
    """Return the problem with jobs and columns in random order, some pairs turned round; and the two orders."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(len(problem.jobs)), rng.permutation(len(problem.columns))
    other = problem.restrict(rows, columns)
    c = other.columns
    turn = c.is_pair & (rng.random(len(c)) < 0.5)
    turned = replace(
        c,
        first=np.where(turn, c.second, c.first),
        second=np.where(turn, c.first, c.second),
        first_rate=np.where(turn, c.second_rate, c.first_rate),
        second_rate=np.where(turn, c.first_rate, c.second_rate),
    )
    return replace(other, columns=turned), rows, columns
