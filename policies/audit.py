"""Audits of an answer: does it keep the rules, and could a job get more without another getting less?

The checks share no code with the policies, so that both cannot have the same fault. The first question is answered by
plain sums over columns, the second by a linear program that no policy uses.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from policies.engine.cpus import supply
from policies.engine.quotas import not_too_wide
from policies.engine.sparse import stack
from policies.errors import InvalidAnswer, name_some
from policies.problem import ANY_TYPE, JOBS, Allocation, Bools, Floats, Problem

TOLERANCE = 1e-6
# The scheduler's journal keeps the notes of foreign code.
NOTES_MAX, NOTE_CHARS_MAX = 100, 1000


def as_answer(problem: Problem, allocation: Allocation) -> Allocation:
    """Return the answer of foreign code with clean arrays, or raise InvalidAnswer with the rule that it breaks."""
    sizes = {
        "time_share": (len(problem.columns), "columns"),
        "price": (len(problem.worker_types), "worker types"),
        "isolated_rate": (len(problem.jobs), "rows of jobs"),
        "backfill": (len(problem.columns), "columns"),
    }
    arrays: dict[str, Any] = {}
    for field, (size, rows) in sizes.items():
        array = arrays[field] = np.asarray(getattr(allocation, field))
        if array.dtype.kind not in "bfiu":
            raise InvalidAnswer(f"{field} must be an array of numbers, but has the type {array.dtype}")
        if array.shape != (size,):
            raise InvalidAnswer(
                f"{field} must have an entry for each of the {size} {rows}, but has the shape {array.shape}"
            )
    share = arrays["time_share"].astype(float)
    # Solvers return a little less than 0 where they mean 0.
    arrays["time_share"] = np.where((share < 0) & (share > -TOLERANCE), 0.0, share)
    arrays["backfill"] = arrays["backfill"].astype(bool)
    if not np.isfinite(arrays["isolated_rate"]).all():
        raise InvalidAnswer("isolated_rate must be finite; `isolated_rates(problem)` computes it")
    if not isinstance(allocation.value, int | float | np.number) or math.isnan(allocation.value):
        raise InvalidAnswer(f"value must be a number, but is {allocation.value!r}")
    notes = tuple(str(note)[:NOTE_CHARS_MAX] for note in tuple(allocation.notes)[:NOTES_MAX])
    clean = replace(allocation, **arrays, notes=notes)
    if faults := audit(problem, clean):
        raise InvalidAnswer(faults[0])
    return clean


def audit(problem: Problem, allocation: Allocation) -> list[str]:
    """Return each fault of an answer as a sentence; empty if there are none."""
    share, columns = np.asarray(allocation.time_share), problem.columns
    faults = _shapes(problem, allocation)
    if faults:
        return faults
    if not np.isfinite(share).all():
        column = int(np.flatnonzero(~np.isfinite(share))[0])
        return [f"share of {problem.describe(column)} is {share[column]}"]
    count = problem.jobs.count
    # The smaller of the two rows limits a column; a pair within one row needs two of its jobs at a time.
    limit = count[columns.first].astype(float)
    limit = np.where(columns.is_pair, np.minimum(limit, count[columns.second]), limit)
    limit = np.where(columns.first == columns.second, count[columns.first] / 2.0, limit)
    for column in np.flatnonzero((share < 0) | (share > limit * (1 + TOLERANCE)))[:5].tolist():
        faults.append(
            f"share of {problem.describe(column)} is {share[column]:.9g}, outside 0 to {limit[column]:g}"
        )
    idle = (columns.first_rate == 0) | (columns.is_pair & (columns.second_rate == 0))
    for column in np.flatnonzero(idle & (share > TOLERANCE))[:5].tolist():
        faults.append(f"{problem.describe(column)} has share {share[column]:.9g} but rate 0")
    gpus_in_use = np.zeros(len(problem.worker_types))
    np.add.at(gpus_in_use, columns.worker_type, share * columns.gpus)
    for kind in np.flatnonzero(gpus_in_use > problem.capacity * (1 + TOLERANCE) + TOLERANCE).tolist():
        name = problem.worker_types[kind]
        faults.append(f"{name}: {gpus_in_use[kind]:.9g} GPUs allocated of {problem.capacity[kind]:g}")
    cpus_in_use = np.zeros(len(problem.worker_types))
    np.add.at(cpus_in_use, columns.worker_type, share * columns.cpus)
    for kind in np.flatnonzero(cpus_in_use > problem.cpus * (1 + TOLERANCE) + TOLERANCE).tolist():
        name = problem.worker_types[kind]
        faults.append(f"{name}: {cpus_in_use[kind]:.9g} CPUs allocated of {problem.cpus[kind]:g}")
    in_use = gpus_by_quota(problem, share)
    for quota in np.flatnonzero(in_use > problem.quotas.gpus * (1 + TOLERANCE) + TOLERANCE)[:5].tolist():
        name, most = problem.quotas.names[quota], problem.quotas.gpus[quota]
        unit = "jobs" if problem.quotas.worker_type[quota] == JOBS else "GPUs"
        faults.append(f"quota '{name}': {in_use[quota]:.9g} {unit} allocated of {most:g}")
    busy = _time_shares(problem, share)
    too_long = np.flatnonzero(busy > count * (1 + TOLERANCE))
    if too_long.size:
        row = int(too_long[0])
        faults.append(
            f"job '{problem.jobs.ids[row]}' has a time share of {busy[row]:.9g}, above {count[row]}"
        )
    if (
        allocation.optimal
        and allocation.policy.startswith("hierarchical")
        and "blind" not in allocation.policy
    ):
        no_cpus_left = cpus_in_use > problem.cpus * (1 - 1e-4) - 1e-4
        can_start = ~no_cpus_left[columns.worker_type] | (columns.cpus == 0)
        faults += _idle_beside_waiting(problem, gpus_in_use, busy, in_use, can_start)
    return faults


def _shapes(problem: Problem, allocation: Allocation) -> list[str]:
    expected = {
        "time_share": len(problem.columns),
        "backfill": len(problem.columns),
        "price": len(problem.worker_types),
        "isolated_rate": len(problem.jobs),
    }
    shapes = {field: np.shape(getattr(allocation, field)) for field in expected}
    return [
        f"{field} has shape {shapes[field]}, expected ({size},)"
        for field, size in expected.items()
        if shapes[field] != (size,)
    ]


def gpus_by_quota(problem: Problem, share: Floats) -> Floats:
    """Return the GPUs that the jobs under each quota use, or how many of these jobs run, on average over time."""
    quotas, columns = problem.quotas, problem.columns
    used = np.zeros(len(quotas))
    for quota in range(len(quotas)):
        members = np.zeros(len(problem.jobs) + 1, dtype=bool)
        members[quotas.job[quotas.quota == quota]] = True
        # The last entry is for the missing second job of a column.
        if quotas.worker_type[quota] == JOBS:
            running = members[columns.first].astype(float) + members[columns.second]
            used[quota] = (share * running).sum()
            continue
        counts = members[columns.first] | members[columns.second]
        if quotas.worker_type[quota] != ANY_TYPE:
            counts &= columns.worker_type == quotas.worker_type[quota]
        used[quota] = (share * columns.gpus)[counts].sum()
    return used


def _time_shares(problem: Problem, share: Floats) -> Floats:
    columns, busy = problem.columns, np.zeros(len(problem.jobs))
    np.add.at(busy, columns.first, share)
    pair = columns.is_pair
    np.add.at(busy, columns.second[pair], share[pair])
    return busy


def _idle_beside_waiting(
    problem: Problem, gpus_in_use: Floats, busy: Floats, in_use: Floats, can_start: Bools
) -> list[str]:
    """Return a fault if a tenant has a waiting job although GPUs on which it could run are idle.

    `in_use` are the GPUs in use under each quota; `can_start` [k] are the columns for which CPUs are left.
    """
    columns = problem.columns
    idle = gpus_in_use < problem.capacity * (1 - 1e-4) - 1e-4
    waiting = busy < problem.jobs.count * (1 - 1e-4)
    wasted = idle[columns.worker_type] & waiting[columns.first] & ~columns.is_pair & (columns.first_rate > 0)
    full = in_use > problem.quotas.gpus * (1 - 1e-4) - 1e-4
    # No quota admits a column that is wider than it, however little of it is in use.
    wasted &= not_too_wide(problem) & can_start
    wasted &= ~(problem.quota_use.T @ full.astype(float)).astype(bool)
    tenants = sorted({problem.jobs.tenant[row] for row in columns.first[wasted].tolist()})
    return [f"tenant {name_some(tenants)} has jobs waiting beside idle GPUs"] if tenants else []


def could_gain(problem: Problem, allocation: Allocation, tolerance: float = 1e-5) -> list[str]:
    """Return a sentence for each job that could get more without another getting less; empty if there are none."""
    # Imported here, because all modules of `policies` are imported to list the policies.
    from scipy.optimize import linprog

    rates, (use, limits) = problem.rates, supply(problem)
    rate = rates @ allocation.time_share
    best_rate = np.maximum(rates.largest() * problem.jobs.count, 1e-300)
    # The tolerance is relative to each job's own rate, so that a slow job keeps its rate, too.
    unit = np.maximum(rate, 1e-6 * best_rate)
    # The type is hidden because the stubs of SciPy require dense constraints.
    solver: Any = linprog
    # Every job keeps its rate: first up to rounding, then up to the tolerance of the solver.
    for slack in (0.0, 1e-9, 1e-7):
        result = solver(
            -(rates.T @ (1.0 / best_rate)),
            A_ub=stack(
                problem.membership, use, problem.quota_use, rates.scale_rows(-1.0 / unit)
            ).compressed(),
            b_ub=np.concatenate(
                [problem.jobs.count, limits, problem.quotas.gpus, -rate / unit * (1 - slack)]
            ),
            method="highs",
        )
        if result.x is not None:
            break
    if result.x is None:
        return [f"HiGHS finds no answer that keeps the rate of every job: {result.message}"]
    gain = (rates @ result.x - rate) / best_rate
    if gain.sum() <= tolerance:
        return []
    rows = np.flatnonzero(gain > tolerance / len(gain))
    return [
        f"job '{problem.jobs.ids[row]}' could have {rate[row] + gain[row] * best_rate[row]:.6g} "
        f"instead of {rate[row]:.6g}"
        for row in rows
    ]
