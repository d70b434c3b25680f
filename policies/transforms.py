"""Transforms of a problem that hide something from a policy, and convert its answer back.

A variant of a policy is that policy on a transformed problem: n policies and m transforms give n × m.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from policies.engine.checks import derived
from policies.engine.cpus import enough_cpus
from policies.engine.quotas import gpu_rules, not_too_wide
from policies.engine.solvers import run_clarabel, zero_and_nonnegative
from policies.engine.sparse import Sparse, identity, stack
from policies.errors import ProblemError, SolverFailure
from policies.problem import ALONE, Bools, Floats, Ints, Problem
from policies.reference import rate_table


def runnable(problem: Problem) -> tuple[Ints, Ints]:
    """Return the rows of jobs that can run, sorted by id, and the columns that can run, in canonical order.

    A column wider than a quota, or with more CPUs than its type has, cannot run. So neither a quota nor a lack of CPUs
    stops a job that is alone in the cluster.
    """
    columns = problem.columns
    works = (columns.first_rate > 0) & (problem.capacity[columns.worker_type] > 0) & not_too_wide(problem)
    works &= enough_cpus(problem)
    # A job with rates only in pairs is left out, because fairness needs its rate alone.
    can_run = np.zeros(len(problem.jobs), dtype=bool)
    if problem.any_pairs:
        pair = columns.is_pair
        works &= ~pair | (columns.second_rate > 0)
        can_run[columns.first[works & ~pair]] = True
        works &= can_run[columns.first] & (~pair | can_run[columns.second])
    else:
        can_run[columns.first[works]] = True
    rows, usable = np.flatnonzero(can_run), np.flatnonzero(works)
    ids = problem.jobs.ids
    if all(map(str.__lt__, ids, ids[1:])):
        return rows, usable if problem.in_order else usable[np.argsort(problem.column_key[usable])]
    rows = np.array(sorted(rows.tolist(), key=ids.__getitem__), dtype=np.int64)
    new_row = np.zeros(len(ids) + 1, dtype=np.int64)
    new_row[rows] = np.arange(len(rows))
    new_row[ALONE] = ALONE
    a, b = new_row[columns.first[usable]], new_row[columns.second[usable]]
    low, high = np.where(b == ALONE, a, np.minimum(a, b)), np.where(b == ALONE, ALONE, np.maximum(a, b))
    return rows, usable[np.lexsort((problem.way[usable], high, low))]


def without_pairs(problem: Problem) -> Bools:
    """Return a mask of the columns of one job."""
    return np.asarray(~problem.columns.is_pair)


def with_pairs(problem: Problem) -> Bools:
    """Return a mask of the columns of one job, or of a pair that does more together than by taking turns."""
    columns, table = problem.columns, rate_table(problem)
    second = np.where(columns.is_pair, columns.second, columns.first)
    alone_first = table[columns.first, columns.worker_type]
    alone_second = table[second, columns.worker_type]
    with np.errstate(divide="ignore", invalid="ignore"):
        together = columns.first_rate / alone_first + columns.second_rate / alone_second
    return np.asarray(~columns.is_pair | (together > 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Blind:
    """The heterogeneity-agnostic baseline: all types count as equally fast."""

    problem: Problem

    @classmethod
    def of(cls, problem: Problem, reference: str | None = None) -> Blind:
        """Return the problem with the rates of one type on all types; by default, of the type fastest for most jobs."""
        table = np.where(problem.capacity > 0, rate_table(problem), 0.0)
        if reference is None:
            fastest = np.bincount(table.argmax(axis=1), weights=problem.jobs.count, minlength=table.shape[1])
            kind = int(fastest.argmax())
        elif reference in problem.worker_types:
            kind = problem.worker_types.index(reference)
            table = np.where(table.any(axis=1, keepdims=True), rate_table(problem), 0.0)
        else:
            known = ", ".join(problem.worker_types)
            raise ProblemError(f"blind: reference type '{reference}' is not one of {known}")
        rate = np.where(table[:, kind] > 0, table[:, kind], table.max(axis=1))
        return cls(_level(problem, table, kind, rate))

    def spread(self, grouped: Problem, time_share: Floats) -> Floats:
        """Return shares with each job's time spread over its types in proportion to their GPUs.

        If these shares exceed a capacity or a quota, return the nearest feasible shares.
        """
        columns = grouped.columns
        bundle = _bundles(grouped)
        size = grouped.capacity[columns.worker_type]
        total, among = np.bincount(bundle, time_share)[bundle], np.bincount(bundle, size)[bundle]
        target = total * size / among
        rows, limit = gpu_rules(grouped)
        if np.all(rows @ target - limit <= 1e-9 * np.maximum(limit, 1.0)):
            return target
        return _nearest(grouped, target, bundle, np.bincount(bundle, time_share).astype(float), time_share)


def _bundles(problem: Problem) -> Ints:
    """Return a number for each column, equal for columns that differ only in their worker type."""
    columns = problem.columns
    low, high = np.minimum(columns.first, columns.second), np.maximum(columns.first, columns.second)
    way = columns.gpus * (int(problem.label_code.max(initial=0)) + 1) + problem.label_code
    key = (low * (len(problem.jobs) + 1) + high) * (int(way.max(initial=0)) + 1) + way
    return np.asarray(np.unique(key, return_inverse=True)[1])


def _level(problem: Problem, table: Floats, kind: int, solo_rate: Floats) -> Problem:
    """Return the problem with the same rate for all columns of a bundle: its rate on type `kind`, if it has one.

    Otherwise the rate of its first column is scaled by `solo_rate` / the job's solo rate on that column's type.
    """
    columns, bundle = problem.columns, _bundles(problem)
    order = np.lexsort((columns.worker_type, columns.worker_type != kind, bundle))
    model = order[np.unique(bundle[order], return_index=True)[1]][bundle]

    def rate(job: Ints, own: Floats) -> Floats:
        alone = table[job, columns.worker_type[model]]
        ratio = np.divide(own, alone, out=np.ones_like(own), where=alone > 0)
        return np.where(columns.worker_type[model] == kind, own, ratio * solo_rate[job])

    swapped = columns.first[model] != columns.first
    first = np.where(swapped, columns.second_rate[model], columns.first_rate[model])
    second = np.where(swapped, columns.first_rate[model], columns.second_rate[model])
    partner = np.where(columns.is_pair, columns.second, columns.first)
    return derived(
        problem,
        columns=derived(
            columns,
            first_rate=rate(columns.first, first),
            second_rate=np.where(columns.is_pair, rate(partner, second), 0.0),
        ),
    )


def _nearest(problem: Problem, target: Floats, bundle: Ints, total: Floats, time_share: Floats) -> Floats:
    """Solve min |x - target|² with the same total for each bundle of columns, within every capacity and quota."""
    k = len(target)
    same = Sparse(np.ones(k), bundle, np.arange(k), (len(total), k))
    gpu_rows, gpu_limit = gpu_rules(problem)
    rows = stack(same, gpu_rows, identity(k, -1.0))
    limit = np.concatenate([total, np.maximum(gpu_limit, gpu_rows @ time_share), np.zeros(k)])
    cones = zero_and_nonnegative(len(total), len(limit) - len(total))
    try:
        solution = run_clarabel(-target, rows, limit, cones, quadratic=identity(k))
    except SolverFailure:
        return time_share
    return np.asarray(np.maximum(np.asarray(solution.x), 0.0))
