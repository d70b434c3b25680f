"""Does an answer keep what always holds? And could somebody have had more at nobody's cost?

Independent of the way answers are found: plain sums over columns, and another solver for the second
question. The planner's own checks would share its blind spots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linprog

from policies.engine.sparse import stack
from policies.errors import name_some
from policies.problem import Allocation, Floats, Problem

TOLERANCE = 1e-6


def audit(problem: Problem, allocation: Allocation) -> list[str]:
    """Everything that is wrong with an answer, in words; empty when nothing is."""
    share, columns = np.asarray(allocation.time_share), problem.columns
    faults = _shapes(problem, allocation)
    if faults:
        return faults
    if not np.isfinite(share).all():
        column = int(np.flatnonzero(~np.isfinite(share))[0])
        return [f"share of {problem.describe(column)} is {share[column]}"]
    count = problem.jobs.count
    # Whichever job of a column has the fewest members bounds it; a pair within one row needs two of them at a time.
    most = count[columns.first].astype(float)
    most = np.where(columns.is_pair, np.minimum(most, count[columns.second]), most)
    most = np.where(columns.first == columns.second, count[columns.first] / 2.0, most)
    for column in np.flatnonzero((share < 0) | (share > most * (1 + TOLERANCE)))[:5].tolist():
        faults.append(
            f"share of {problem.describe(column)} is {share[column]:.9g}, outside 0 to {most[column]:g}"
        )
    idle = (columns.first_rate == 0) | (columns.is_pair & (columns.second_rate == 0))
    for column in np.flatnonzero(idle & (share > TOLERANCE))[:5].tolist():
        faults.append(f"{problem.describe(column)} has share {share[column]:.9g} but rate 0")
    held = np.zeros(len(problem.worker_types))
    np.add.at(held, columns.worker_type, share * columns.gpus)
    for kind in np.flatnonzero(held > problem.capacity * (1 + TOLERANCE) + TOLERANCE).tolist():
        name = problem.worker_types[kind]
        faults.append(f"{held[kind]:.9g} GPUs of {name} given out, there are {problem.capacity[kind]:g}")
    busy = _time_of(problem, share)
    over = np.flatnonzero(busy > count * (1 + TOLERANCE))
    if over.size:
        row = int(over[0])
        faults.append(
            f"job '{problem.jobs.ids[row]}' runs {busy[row]:.9g} of its {count[row]} times all the time"
        )
    if (
        allocation.optimal
        and allocation.policy.startswith("hierarchical")
        and "blind" not in allocation.policy
    ):
        faults += _idle_beside_waiting(problem, held, busy)
    return faults


def _shapes(problem: Problem, allocation: Allocation) -> list[str]:
    wanted = {
        "time_share": len(problem.columns),
        "backfill": len(problem.columns),
        "price": len(problem.worker_types),
        "isolated_rate": len(problem.jobs),
    }
    found = {field: np.shape(getattr(allocation, field)) for field in wanted}
    return [
        f"{f} has shape {found[f]}, expected ({size},)" for f, size in wanted.items() if found[f] != (size,)
    ]


def _time_of(problem: Problem, share: Floats) -> Floats:
    columns, busy = problem.columns, np.zeros(len(problem.jobs))
    np.add.at(busy, columns.first, share)
    pair = columns.is_pair
    np.add.at(busy, columns.second[pair], share[pair])
    return busy


def _idle_beside_waiting(problem: Problem, held: Floats, busy: Floats) -> list[str]:
    """No tenant may have a job waiting beside idle GPUs that it could run on."""
    columns = problem.columns
    idle = held < problem.capacity * (1 - 1e-4) - 1e-4
    waiting = busy < problem.jobs.count * (1 - 1e-4)
    wasted = idle[columns.worker_type] & waiting[columns.first] & ~columns.is_pair & (columns.first_rate > 0)
    tenants = sorted({problem.jobs.tenant[row] for row in columns.first[wasted].tolist()})
    return [f"tenant {name_some(tenants)} has jobs waiting beside idle GPUs"] if tenants else []


def could_gain(problem: Problem, allocation: Allocation, tolerance: float = 1e-5) -> list[str]:
    """Jobs that could have more without anybody having less, found by HiGHS; empty when the answer is undominated."""
    rates = problem.rates
    had = rates @ allocation.time_share
    size = np.maximum(rates.largest() * problem.jobs.count, 1e-300)
    unit = np.maximum(had, 1e-6 * size)  # a job with little is held to its little, not to a part of its best
    solver: Any = linprog  # whose stubs do not know that constraints may be sparse
    for slack in (0.0, 1e-9, 1e-7):  # what everybody has is held but for rounding, and for that of the solver
        found = solver(
            -(rates.T @ (1.0 / size)),
            A_ub=stack(problem.membership, problem.occupancy, rates.scale_rows(-1.0 / unit)).compressed(),
            b_ub=np.concatenate([problem.jobs.count, problem.capacity, -had / unit * (1 - slack)]),
            method="highs",
        )
        if found.x is not None:
            break
    if found.x is None:
        return [f"HiGHS finds no feasible answer that keeps what everybody has: {found.message}"]
    gain = (rates @ found.x - had) / size
    if gain.sum() <= tolerance:
        return []
    who = np.flatnonzero(gain > tolerance / len(gain))
    return [
        f"job '{problem.jobs.ids[row]}' could have {had[row] + gain[row] * size[row]:.6g} instead of {had[row]:.6g}"
        for row in who
    ]
