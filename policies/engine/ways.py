"""The ways to run a job, as numbers that are equal only for equal ways."""

from __future__ import annotations

import numpy as np

from policies.engine.tables import ALONE, Bools, Columns, Floats, Ints

# CPUs beyond the fair share by less than this fraction are rounding.
ROUNDING = 1e-9


def label_codes(columns: Columns) -> Ints:
    """Return the label of each column as a number, in the order of the names."""
    names = sorted(set(columns.label))
    if len(names) <= 1:
        return np.zeros(len(columns), dtype=np.int64)
    code = {name: i for i, name in enumerate(names)}
    return np.fromiter((code[name] for name in columns.label), np.int64, len(columns))


def way_codes(columns: Columns, label_code: Ints) -> Ints:
    """Return worker type, GPUs, label and CPUs of each column as one number: the way to run its job."""
    if not len(columns):
        return np.zeros(0, dtype=np.int64)
    labels = int(label_code.max()) + 1
    widths = int(columns.gpus.max()) + 1
    way = (columns.worker_type * widths + columns.gpus) * labels + label_code
    if not columns.cpus.any():
        return way
    amounts, cpus = np.unique(columns.cpus, return_inverse=True)
    if int(way.max() + 1) * len(amounts) >= 2**63:
        way = np.unique(way, return_inverse=True)[1]
    return np.asarray(way * len(amounts) + cpus)


def column_keys(columns: Columns, way: Ints, jobs: int) -> Ints:
    """Return a number for each column, equal only for equal columns. Its order is the canonical order of columns."""
    low, high = columns.first, columns.second
    pair = columns.is_pair
    if pair.any():
        low, high = np.where(pair, np.minimum(low, high), low), np.where(pair, np.maximum(low, high), ALONE)
    ways = int(way.max()) + 1 if len(columns) else 1
    if (jobs + 1) ** 2 * ways >= 2**63:
        # These numbers would not fit 63 bits, so number only the ways that occur.
        ways, way = len(np.unique(way)), np.unique(way, return_inverse=True)[1]
    return np.asarray((low * (jobs + 1) + high + 1) * ways + way)


def within_fair_cpus(columns: Columns, capacity: Floats, cpus: Floats) -> Bools:
    """Return a mask of the columns with at most their GPUs' share of the CPUs of their type."""
    kind = columns.worker_type
    return np.asarray(columns.cpus * capacity[kind] <= columns.gpus * cpus[kind] * (1.0 + ROUNDING))
