"""CPUs beside GPUs: a column may need more than its fair share of them, if another needs less.

The *fair share* of a column are the CPUs of its type divided by the type's GPUs, times the column's own GPUs. Columns
within it can never use up the CPUs of a type before its GPUs. So CPUs become a rule only for types on which some column
needs more, and a problem in which none does has the same programs as a problem without CPUs.
"""

from __future__ import annotations

import numpy as np

from policies.engine.checks import derived
from policies.engine.sparse import Sparse, stack
from policies.engine.ways import ROUNDING, column_keys, way_codes, within_fair_cpus
from policies.problem import Bools, Floats, Ints, Problem


def scarce_types(problem: Problem) -> Ints:
    """Return the worker types whose CPUs can run out before their GPUs."""
    columns = problem.columns
    if not columns.cpus.any():
        return np.zeros(0, dtype=np.int64)
    beyond = ~within_fair_cpus(columns, problem.capacity, problem.cpus)
    return np.unique(columns.worker_type[beyond])


def cpu_rules(problem: Problem) -> tuple[Sparse, Floats]:
    """Return a row of the CPUs that columns need for each type whose CPUs can run out, and the limits of these rows."""
    types, columns = scarce_types(problem), problem.columns
    row = np.full(len(problem.worker_types), -1, dtype=np.int64)
    row[types] = np.arange(len(types))
    counted = np.flatnonzero((columns.cpus > 0) & (row[columns.worker_type] >= 0))
    use = Sparse(
        columns.cpus[counted], row[columns.worker_type[counted]], counted, (len(types), len(columns))
    )
    return use, problem.cpus[types]


def supply(problem: Problem) -> tuple[Sparse, Floats]:
    """Return what columns take and what the cluster has: GPUs of each type, then CPUs where they can run out."""
    if not problem.columns.cpus.any():
        return problem.occupancy, problem.capacity
    use, limit = cpu_rules(problem)
    return stack(problem.occupancy, use), np.concatenate([problem.capacity, limit])


def enough_cpus(problem: Problem) -> Bools:
    """Return a mask of the columns for which their worker type has CPUs, if nothing else runs there.

    A column that is wider than its type has enough within its fair share: it gets part of the time, as its GPUs permit.
    """
    columns = problem.columns
    fits = columns.cpus <= problem.cpus[columns.worker_type] * (1.0 + ROUNDING)
    return np.asarray(fits | within_fair_cpus(columns, problem.capacity, problem.cpus))


def has_fair_cpus(problem: Problem) -> Bools:
    """Return a mask of the columns with exactly the CPUs that belong to their GPUs, or whose CPUs do not count."""
    columns = problem.columns
    kind = columns.worker_type
    have, fair = columns.cpus * problem.capacity[kind], columns.gpus * problem.cpus[kind]
    is_fair = np.isinf(fair) | (np.abs(have - fair) <= ROUNDING * fair)
    return np.where(problem.capacity[kind] > 0, is_fair, columns.cpus == 0)


def fair_cpus(problem: Problem) -> Bools:
    """Return a mask with one column of those that differ only in their CPUs: the fastest within the fair share.

    If none is within the fair share, it is the column with the fewest CPUs.
    """
    columns = problem.columns
    if not columns.cpus.any():
        return np.ones(len(columns), dtype=bool)
    fair = within_fair_cpus(columns, problem.capacity, problem.cpus)
    alike = derived(columns, cpus=np.zeros(len(columns)))
    key = column_keys(alike, way_codes(alike, problem.label_code), len(problem.jobs))
    merit = np.where(fair, columns.first_rate, -columns.cpus)
    order = np.lexsort((-columns.cpus, merit, fair, key))
    chosen = np.zeros(len(columns), dtype=bool)
    chosen[order[np.append(key[order[1:]] != key[order[:-1]], True)]] = True
    return chosen
