"""Two jobs on the same GPUs: at which rates, told by kinds of jobs and not by jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.core.effects import Pairs
from scheduler.core.state import Places, SchedulerState
from scheduler.model.bounds import TABLE_RATE
from scheduler.model.jobs import Job
from scheduler.model.throughput import RateKey

if TYPE_CHECKING:
    from scheduler.core.planning.kinds import Kinds

Asked = tuple[int, Places]  # a kind, and the places that its jobs are confined to
NOT_PACKABLE: Asked = (-1, ())


def pair_rates(
    state: SchedulerState, worker_type: str, first: str, second: str, gpus: int
) -> tuple[float, float] | None:
    """Steps per second of two packed jobs; None where no table and no measurement knows the pair."""
    book, settings = state.rates, state.settings
    told = book.pairs.get((worker_type, first, second, gpus))
    rate, other = told or (None, None)
    if settings.learn_rates:
        one, two = RateKey(first, gpus, worker_type, second), RateKey(second, gpus, worker_type, first)
        if told is None and not (one in book.measured and two in book.measured):
            return None
        rate = book.rate(one, rate, settings.trust_after_s)
        other = book.rate(two, other, settings.trust_after_s)
    if rate is None or other is None:
        return None
    return TABLE_RATE.nearest(rate), TABLE_RATE.nearest(other)


def pairs_of(state: SchedulerState, kinds: Kinds, jobs: list[Job], asked: list[Asked]) -> Pairs:
    """Pair rates between the kinds of these jobs, as they may be placed."""
    # two gangs would have to agree whose rank 0 starts where
    mine = [
        what if job.spec.packable and len(what[1]) < 2 else NOT_PACKABLE
        for job, what in zip(jobs, asked, strict=True)
    ]
    # numbered in order of the rows, so that the answer does not depend on which kinds came up before
    number = {k: i for i, k in enumerate(dict.fromkeys(k for k in mine if k is not NOT_PACKABLE))}
    present = list(number)
    first: list[int] = []
    second: list[int] = []
    blocks: list[np.ndarray] = []
    before, kinds.paired = kinds.paired, {}  # what is no longer present is forgotten
    for i, a in enumerate(present):
        for j, b in enumerate(present[i:], i):
            block = before.get((a, b))
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
        kind=np.array([number.get(k, -1) for k in mine], np.int64),
        first=np.repeat(np.array(first, np.int64), size),
        second=np.repeat(np.array(second, np.int64), size),
        worker_type=rows[:, 0].astype(np.int64),
        gpus=rows[:, 1].astype(np.int64),
        first_rate=rows[:, 2].copy(),
        second_rate=rows[:, 3].copy(),
    )


def _paired(state: SchedulerState, kinds: Kinds, a: Asked, b: Asked) -> np.ndarray:
    """(worker type, GPUs, rate of one, rate of the other) of two kinds: of one width, on types that both may use."""
    spec, other, here, there = kinds.specs[a[0]], kinds.specs[b[0]], a[1], b[1]
    rows: list[tuple[float, ...]] = []
    if spec.gpus == other.gpus and not (here and there and here != there):
        places = here or there
        for at, name in enumerate(kinds.worker_types):
            if places and all(node.spec.worker_type != name for node in kinds.at(places)):
                continue
            rates = pair_rates(state, name, spec.job_type, other.job_type, spec.gpus)
            if rates and min(rates) > 0 and spec.may_use(name) and other.may_use(name):
                rows.append((at, spec.gpus, *rates))
    return np.array(rows, float).reshape(-1, 4)
