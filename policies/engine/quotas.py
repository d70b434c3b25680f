"""Quotas: which of them a program needs, and how rules that solve no program keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from policies.engine.checks import derived
from policies.engine.cpus import cpu_rules, supply
from policies.engine.sparse import Sparse, stack
from policies.problem import Bools, Floats, Ints, Problem, Quotas

# A quota that is exceeded by less than this fraction is kept: solvers are not more exact.
TOLERANCE = 1e-9
Result = TypeVar("Result")


def add_as_exceeded(
    problem: Problem,
    solve: Callable[[Problem], Result],
    exceeded: Callable[[Result], Ints],
    *,
    all_at_once: bool = False,
) -> Result:
    """Solve a problem with few of its quotas: with none, then with those that the result exceeds.

    With each come the other quotas on the same jobs, because jobs that are stopped on one type turn to others.
    An optimum without a quota that keeps the quota is an optimum under it, so the result is as good as with all quotas.
    If no quota binds, it is exactly the result without quotas, and jobs of all tenants are merged as before.
    `all_at_once` is for results that are no optimum themselves: all quotas that can bind count from the start.
    """
    added: Ints = _can_bind(problem) if all_at_once else np.zeros(0, dtype=np.int64)
    while True:
        result = solve(
            derived(problem, quotas=problem.quotas.take(added)) if len(problem.quotas) else problem
        )
        missing = np.setdiff1d(exceeded(result), added) if len(problem.quotas) else added[:0]
        if not missing.size:
            return result
        same_jobs = _by_jobs(problem.quotas)
        added = np.union1d(added, np.flatnonzero(np.isin(same_jobs, same_jobs[missing])))


def _by_jobs(quotas: Quotas) -> Ints:
    """Return a number for each quota, equal for quotas over the same jobs."""
    order = np.lexsort((quotas.job, quotas.quota))
    ends = np.cumsum(np.bincount(quotas.quota, minlength=len(quotas)))
    numbers: dict[bytes, int] = {}
    jobs = np.split(quotas.job[order], ends[:-1]) if len(ends) else []
    return np.array([numbers.setdefault(own.tobytes(), len(numbers)) for own in jobs], np.int64)


def _can_bind(problem: Problem) -> Ints:
    """Return the quotas that their jobs exceed if all of them run at their widest, on a cluster with room for them."""
    quotas, columns = problem.quotas, problem.columns
    widest = np.zeros(len(problem.jobs))
    np.maximum.at(widest, columns.first, columns.gpus)
    np.maximum.at(widest, columns.second[columns.is_pair], columns.gpus[columns.is_pair])
    most = np.bincount(quotas.quota, (widest * problem.jobs.count)[quotas.job], len(quotas))
    return np.flatnonzero(most > quotas.gpus * (1.0 + TOLERANCE))


def exceeded(problem: Problem, time_share: Floats) -> Ints:
    """Return the quotas that these shares exceed."""
    quotas = problem.quotas
    if not len(quotas):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(problem.quota_use @ time_share > quotas.gpus * (1.0 + TOLERANCE))


def not_too_wide(problem: Problem) -> Bools:
    """Return a mask of the columns that are not wider than a quota. Among them, no quota stops a job that is alone."""
    fits = np.ones(len(problem.columns), dtype=bool)
    if len(problem.quotas):
        use = problem.quota_use
        fits[use.column[use.value > problem.quotas.gpus[use.row]]] = False
    return fits


def gpu_rules(problem: Problem) -> tuple[Sparse, Floats]:
    """Return a row for the GPUs of each type, for CPUs that can run out and for each quota, and the rows' limits."""
    rows, limits = supply(problem)
    if not len(problem.quotas):
        return rows, limits
    return stack(rows, problem.quota_use), np.concatenate([limits, problem.quotas.gpus])


def _more_rules(problem: Problem) -> tuple[Sparse, Floats]:
    """Return a row for each quota, and for the CPUs of each type that can run out, and the limits of these rows."""
    use, limit = cpu_rules(problem)
    return stack(problem.quota_use, use), np.concatenate([problem.quotas.gpus, limit])


def within(problem: Problem, time_share: Floats) -> Floats:
    """Return these shares; jobs that exceed a quota or the CPUs of a type together are scaled down until they fit."""
    use, limit = _more_rules(problem)
    used = use @ time_share
    if not (used > limit * (1.0 + TOLERANCE)).any():
        return time_share
    fits = np.divide(limit, used, out=np.ones(len(used)), where=used > limit)
    fit = np.ones(len(time_share))
    np.minimum.at(fit, use.column, fits[use.row])
    return np.asarray(time_share * fit)


class Tally:
    """The rest of each quota, and of CPUs that can run out, for a rule that starts whole jobs one by one.

    The CPUs of a type count as one more quota.
    """

    def __init__(self, problem: Problem) -> None:
        use, limit = _more_rules(problem)
        self._left: list[float] = limit.tolist()
        # By column: the quotas that count it, with what it uses of them. A column that no quota counts is absent.
        self._of: dict[int, dict[int, float]] = {}
        if self._left:
            for quota, column, used in zip(
                use.row.tolist(), use.column.tolist(), use.value.tolist(), strict=True
            ):
                self._of.setdefault(column, {})[quota] = used

    def of(self, column: int) -> frozenset[int]:
        """Return the quotas that count a column."""
        return frozenset(self._of.get(column, ()))

    def of_any(self, columns: Iterable[int]) -> frozenset[int]:
        """Return the quotas that count at least one of these columns."""
        return frozenset().union(*map(self.of, columns)) if self._of else frozenset()

    def times(self, column: int, most: int = 1, instead_of: int | None = None) -> int:
        """Return how many jobs, up to `most`, may start in a column; `instead_of`: a column that makes way for it."""
        free = self._of.get(instead_of, {}) if instead_of is not None else {}
        for quota, used in self._of.get(column, {}).items():
            more = used - free.get(quota, 0.0)
            if more > 0:
                most = min(most, int((self._left[quota] + TOLERANCE) // more))
        return most

    def take(self, column: int, times: int = 1) -> None:
        """Count jobs that start in a column; `times` is negative for jobs that end."""
        for quota, used in self._of.get(column, {}).items():
            self._left[quota] -= times * used
