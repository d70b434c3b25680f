"""Rates of two jobs that share GPUs, by kinds of jobs rather than by jobs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.core.effects import Pairs
from scheduler.core.planning.pair_estimates import estimates_of
from scheduler.core.state import SchedulerState, Stores
from scheduler.model.bounds import TABLE_RATE
from scheduler.model.jobs import Job, JobSpec
from scheduler.model.lease import Bundle
from scheduler.model.throughput import RateKey

if TYPE_CHECKING:
    from scheduler.core.planning.kinds import Kinds

# A kind of job, and the stores to which its jobs are confined.
ConfinedKind = tuple[int, Stores]
# The source of a rate that neither the table nor a measurement has.
ESTIMATED = "estimated"
NOT_PACKABLE: ConfinedKind = (-1, ())


class PairRate(NamedTuple):
    """The steps per second of two packed jobs, and where they come from."""

    first: float
    second: float
    # table, measured or estimated.
    source: str
    # The standard deviations of both rates; 0 unless they are estimated.
    first_sd: float = 0.0
    second_sd: float = 0.0


class PackedRate(NamedTuple):
    """The steps per second of one job beside another, where they come from, and their standard deviation."""

    rate: float
    # table, measured or estimated.
    source: str
    # 0 unless it is estimated.
    sd: float


def pair_rate(state: SchedulerState, worker_type: str, first: str, second: str, gpus: int) -> PairRate | None:
    """Return the rates of two packed jobs: of the table, measured, or estimated from similar pairs; None without any.

    Estimated rates are lowered by their uncertainty, because a policy counts on them.
    """
    book, settings = state.rates, state.settings
    table_rates = book.pairs.get((worker_type, first, second, gpus))
    key = RateKey(first, gpus, worker_type, second)
    partner_key = RateKey(second, gpus, worker_type, first)
    measured = [settings.learn_rates and each in book.measured for each in (key, partner_key)]
    first_sd = second_sd = 0.0
    rate: float | None = None
    other: float | None = None
    if table_rates is not None:
        source, (rate, other) = "measured" if any(measured) else "table", table_rates
    elif all(measured):
        source = "measured"
    else:
        estimates = estimates_of(book, settings, gpus)
        estimate = estimates.of(worker_type, first, second)
        alone = estimates.alone(first, worker_type), estimates.alone(second, worker_type)
        if estimate is None or not all(alone):
            return None
        part, other_part = estimate.cautious
        source, rate, other = ESTIMATED, part * alone[0], other_part * alone[1]
        first_sd, second_sd = estimate.first_sd * alone[0], estimate.second_sd * alone[1]
    if settings.learn_rates:
        rate = book.rate(key, rate, settings.trust_after_s)
        other = book.rate(partner_key, other, settings.trust_after_s)
    if rate is None or other is None:
        return None
    return PairRate(TABLE_RATE.nearest(rate), TABLE_RATE.nearest(other), source, first_sd, second_sd)


def packed_rate(state: SchedulerState, bundle: Bundle, job: str) -> PackedRate | None:
    """Return the rate of a job beside the other one of its bundle; None if it runs alone, or if nothing tells it."""
    if len(bundle.jobs) < 2:
        return None
    first, second = (state.jobs[name].spec.job_type for name in bundle.jobs)
    rates = pair_rate(state, bundle.worker_type, first, second, bundle.gpus)
    if rates is None:
        return None
    if bundle.jobs[0] == job:
        return PackedRate(rates.first, rates.source, rates.first_sd)
    return PackedRate(rates.second, rates.source, rates.second_sd)


def pair_rates(
    state: SchedulerState, worker_type: str, first: str, second: str, gpus: int
) -> tuple[float, float] | None:
    """Return the steps per second of two packed jobs; None if nothing tells them."""
    rates = pair_rate(state, worker_type, first, second, gpus)
    return None if rates is None else (rates.first, rates.second)


def fit_together(state: SchedulerState, worker_type: str, first: JobSpec, second: JobSpec) -> bool:
    """Whether the memory of some GPU of this type has room for both jobs, as far as jobs and nodes state it."""
    needed_gb = first.gpu_memory_gb + second.gpu_memory_gb
    if not (first.gpu_memory_gb and second.gpu_memory_gb):
        return True
    sizes = [node.spec.gpu_memory_gb for node in state.usable_nodes() if node.spec.worker_type == worker_type]
    return any(size is None or size >= needed_gb for size in sizes)


def pairs_of(state: SchedulerState, kinds: Kinds, jobs: list[Job], confined: list[ConfinedKind]) -> Pairs:
    """Return the pair rates between the kinds of these jobs. Jobs confined to different stores have none."""
    # Two gangs with checkpoints in several stores cannot share GPUs: each needs its own rank 0 on a certain node. Plans
    # count on all of the memory of their GPUs.
    packable = [
        kind if job.spec.packable and not job.spec.plans and len(kind[1]) < 2 else NOT_PACKABLE
        for job, kind in zip(jobs, confined, strict=True)
    ]
    # Kinds are numbered in the order of these jobs, so that the answer does not depend on kinds of earlier jobs.
    number = {k: i for i, k in enumerate(dict.fromkeys(k for k in packable if k is not NOT_PACKABLE))}
    present = list(number)
    first: list[int] = []
    second: list[int] = []
    blocks: list[np.ndarray] = []
    # The new cache drops kinds that are no longer present.
    old_blocks, kinds.paired = kinds.paired, {}
    for i, a in enumerate(present):
        for j, b in enumerate(present[i:], i):
            block = old_blocks.get((a, b))
            if block is None:
                block = _paired(state, kinds, a, b)
            kinds.paired[a, b] = block
            if len(block):
                first.append(i)
                second.append(j)
                blocks.append(block)
    size = [len(block) for block in blocks]
    rows = np.concatenate(blocks) if blocks else np.zeros((0, 4))
    return Pairs(
        kind=np.array([number.get(k, -1) for k in packable], np.int64),
        first=np.repeat(np.array(first, np.int64), size),
        second=np.repeat(np.array(second, np.int64), size),
        worker_type=rows[:, 0].astype(np.int64),
        gpus=rows[:, 1].astype(np.int64),
        first_rate=rows[:, 2].copy(),
        second_rate=rows[:, 3].copy(),
    )


def _paired(state: SchedulerState, kinds: Kinds, a: ConfinedKind, b: ConfinedKind) -> np.ndarray:
    """Return rows (worker type, GPUs, both rates) of two kinds; no rows if their widths or their stores differ."""
    spec, other, stores_a, stores_b = kinds.specs[a[0]], kinds.specs[b[0]], a[1], b[1]
    rows: list[tuple[float, ...]] = []
    if spec.gpus == other.gpus and not (stores_a and stores_b and stores_a != stores_b):
        stores = stores_a or stores_b
        for type_row, name in enumerate(kinds.worker_types):
            granule = math.lcm(spec.granule(spec.gpus, name), other.granule(spec.gpus, name))
            if stores and all(node.spec.worker_type != name for node in kinds.reaching(stores)):
                continue
            if granule > 1 and kinds.in_groups(name, granule) < spec.gpus:
                continue
            if not (spec.may_use(name) and other.may_use(name)):
                continue
            rates = pair_rate(state, name, spec.job_type, other.job_type, spec.gpus)
            if rates is None or min(rates.first, rates.second) <= 0:
                continue
            if rates.source != ESTIMATED or fit_together(state, name, spec, other):
                rows.append((type_row, spec.gpus, rates.first, rates.second))
    return np.array(rows, float).reshape(-1, 4)
