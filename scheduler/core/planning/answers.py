"""Answers of the solver: whether they can be adopted, and in which form."""

from __future__ import annotations

import math
import operator
from itertools import repeat

import msgspec
import numpy as np

from scheduler.core.messages import Shares, Solved
from scheduler.core.state import SchedulerState
from scheduler.model.bounds import GPUS
from scheduler.rounds.inputs import NO_ROW


def fault_of(state: SchedulerState, message: Solved) -> str:
    """Return why an answer from the solver's process cannot be adopted; empty if it can."""
    shares = message.shares
    jobs, columns = len(shares.jobs), len(shares.share)
    if len(set(shares.jobs)) < jobs or not state.jobs.keys() >= set(shares.jobs):
        return "the answer names a job that does not exist, or one job twice"
    lengths = {len(shares.first), len(shares.second), len(shares.worker_type), len(shares.gpus)}
    if lengths != {columns} or len(shares.label) not in (0, columns) or len(shares.isolated_rate) > jobs:
        return "the parts of the answer differ in length"
    for rows, lowest, end in (
        (shares.first, 0, jobs),
        (shares.second, NO_ROW, jobs),
        (shares.worker_type, 0, len(shares.worker_types)),
        (shares.no_backfill, 0, columns),
        (shares.gpus, 1, GPUS.most + 1),
    ):
        if rows and not (lowest <= min(rows) and max(rows) < end):
            return "the answer refers to a job, type or column that it does not have"
    if any(map(operator.eq, shares.first, shares.second)):
        return "the answer packs a job with itself"
    pairs = [(a, b) if a > b else (b, a) for a, b in zip(shares.first, shares.second, strict=True)]
    ways = zip(pairs, shares.worker_type, shares.gpus, shares.label or repeat(""), strict=False)
    if len(set(ways)) < columns or len(set(shares.worker_types)) < len(shares.worker_types):
        return "the answer holds a column or a worker type twice"
    # A sum is finite only if all its terms are, and much faster to check than each of them.
    figures = (
        message.value or 0.0,
        sum(filter(None, shares.price)),
        sum(shares.share),
        sum(shares.isolated_rate),
    )
    if not all(map(math.isfinite, figures)):
        return "the answer holds numbers that are not finite"
    if shares.share and not 0 <= min(shares.share) <= max(shares.share) <= 1 + 1e-6:
        return "the answer holds shares outside 0 to 1"
    return ""


def quantised(message: Solved) -> Shares:
    """Round shares to millionths, so that the last digits of a solver decide nothing."""
    shares = message.shares
    return msgspec.structs.replace(shares, share=(np.round(shares.share, 6) + 0.0).tolist())
