"""Estimates of how fast two jobs run on the same GPUs, from the pairs that are known.

A *fraction* n(a, b, w) is the rate of a job of type a beside one of type b on worker type w, divided by its rate alone
there. NaN is unknown, and 0 does not fit. Each known pair states two numbers about a: what a loses, and what a costs b.
So the *row* of a type has n(a, b, w) and n(b, a, w) for every b and w.

The types that are known best are the *references*. The row of another type is completed from theirs in two ways:
by the references that resemble it in the known entries, and by regression on these entries (kriging); the estimate is
the mean of both. Pairs that do not fit are treated as unknown: that two jobs do not fit is a matter of memory, and
says little about their speeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
# The fractions of a row or a matrix, and their standard deviations.
Row = tuple[Floats, Floats]

# Without so many references, nothing is estimated: the spread of fewer says little.
REFERENCES_MIN = 3
# A reference knows at least this part of the entries that the best known type knows.
WELL_KNOWN = 0.5
# The width of the kernel that weighs references by their resemblance. It narrows as more entries are compared.
KERNEL, KERNEL_ENTRIES, KERNEL_ENTRIES_MAX = 0.05, 4, 8
# Kriging: how much the covariance of the references counts against their variances alone, and the noise of an entry.
SHRINK, NOISE = 0.85, 0.03
# Estimates are rounded, so that they do not depend on the order in which a processor adds.
DIGITS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """The fractions of all pairs of types, with known entries as they were."""

    # [type, partner, worker type]; NaN where nothing can be estimated.
    fraction: Floats
    # The standard deviations, 0 for known entries.
    sd: Floats
    # [type] Whether any pair of the type is known to fit. Otherwise its entries are the mean of the references.
    probed: Bools


def cleaned(fraction: Floats) -> Floats:
    """Return the fractions within [0, 1]. Negative and infinite ones are unknown."""
    usable = np.isfinite(fraction) & (fraction >= 0)
    return np.where(usable, np.minimum(np.where(usable, fraction, 0.0), 1.0), np.nan)


def complete(fraction: Floats) -> Estimates:
    """Estimate the unknown entries of a matrix of fractions, [type, partner, worker type]."""
    known = cleaned(fraction)
    is_known = ~np.isnan(known)
    fits = known > 0
    filled, sd = known.copy(), np.where(is_known, 0.0, np.nan)
    estimates = Estimates(filled, sd, np.asarray(fits.any((1, 2)) | fits.any((0, 2))))
    references = _references(is_known)
    if is_known.all() or references.size < REFERENCES_MIN:
        return estimates
    others = np.setdiff1d(np.arange(len(known)), references)
    # First the entries of references, then those between other types, whose rows these complete.
    table = _imputed(_rows(known, references, references))
    own = _rows(known, references, references)
    _fill_between(
        (filled, sd),
        references,
        [
            _estimate(np.delete(table, i, axis=0), row) if np.isnan(row).any() else (row, row)
            for i, row in enumerate(own)
        ],
    )
    for a in others:
        row = _rows(known, np.array([a]), references)[0]
        _fill_row((filled, sd), a, references, _estimate(table, row))
    if np.isnan(filled[np.ix_(others, others)]).any():
        every = np.concatenate([others, references])
        table, own = _imputed(_rows(filled, references, every)), _rows(known, others, every)
        _fill_between((filled, sd), others, [_estimate(table, row) for row in own])
    np.copyto(filled, known, where=is_known)
    sd[is_known] = 0.0
    np.copyto(filled, np.round(filled, DIGITS), where=~is_known)
    np.copyto(sd, np.round(sd, DIGITS), where=~is_known)
    return estimates


def _references(is_known: Bools) -> Ints:
    """Return the types that are known best. Their order does not matter: only counts do."""
    both = is_known & is_known.transpose(1, 0, 2)
    count = both.sum((1, 2))
    return np.flatnonzero(count >= max(1, np.ceil(WELL_KNOWN * count.max(initial=0))))


def _rows(fraction: Floats, types: Ints, partners: Ints) -> Floats:
    """Return the rows of these types over these partners: what each type loses, then what it costs the partners."""
    loses = fraction[np.ix_(types, partners)]
    costs = fraction[np.ix_(partners, types)].transpose(1, 0, 2)
    return np.concatenate([loses.reshape(len(types), -1), costs.reshape(len(types), -1)], axis=1)


def _imputed(rows: Floats) -> Floats:
    """Return the rows with entries that are unknown, or that do not fit, from the means of their column and row."""
    usable = rows > 0
    if usable.all():
        return rows
    total = usable.sum()
    mean = np.where(usable, rows, 0.0).sum() / total if total else 0.5
    by_column = usable.sum(0)
    column = np.where(by_column > 0, np.where(usable, rows, 0.0).sum(0) / np.maximum(by_column, 1), mean)
    rest = np.where(usable, rows - column, 0.0).sum(1) / np.maximum(usable.sum(1), 1)
    return np.where(usable, rows, np.clip(column + rest[:, None], 0.0, 1.0))


def _estimate(table: Floats, row: Floats) -> Row:
    """Return a row completed from those of the references, and the standard deviation of each entry."""
    observed = np.flatnonzero(row > 0)
    centre = table.mean(0)
    deviation = table - centre
    freedom = max(len(table) - 1, 1)
    variance = (deviation**2).sum(0) / freedom
    if not observed.size:
        return centre, np.sqrt(variance)
    beside = deviation[:, observed]
    cross = SHRINK / freedom * (deviation.T @ beside)
    cross[observed, np.arange(observed.size)] += (1 - SHRINK) * variance[observed]
    among = cross[observed] + NOISE**2 * np.eye(observed.size)
    gains = np.linalg.solve(among, cross.T).T
    kriged = np.clip(centre + gains @ (row[observed] - centre[observed]), 0.0, 1.0)
    distance = ((table[:, observed] - row[observed]) ** 2).mean(1)
    width = KERNEL * np.sqrt(KERNEL_ENTRIES / min(observed.size, KERNEL_ENTRIES_MAX))
    weight = np.exp((distance.min() - distance) / (2 * width**2))
    nearest = weight @ table / weight.sum()
    left = np.maximum(variance - (gains * cross).sum(1), 0.0)
    return (nearest + kriged) / 2, np.sqrt(left)


def _fill_row(into: Row, a: int, partners: Ints, row: Row) -> None:
    """Enter the completed row of a type where nothing is known: fractions, then standard deviations."""
    for matrix, values in zip(into, row, strict=True):
        loses, costs = values.reshape(2, len(partners), -1)
        matrix[a, partners] = np.where(np.isnan(matrix[a, partners]), loses, matrix[a, partners])
        matrix[partners, a] = np.where(np.isnan(matrix[partners, a]), costs, matrix[partners, a])


def _fill_between(into: Row, types: Ints, rows: list[Row]) -> None:
    """Enter the pairs of these types where nothing is known: the mean of what the rows of both say.

    Each row begins with the partners in the order of `types`.
    """
    block, count = np.ix_(types, types), len(types)
    for part, matrix in enumerate(into):
        views = np.empty((2, *matrix[block].shape))
        for i, row in enumerate(rows):
            loses, costs = row[part].reshape(2, -1, matrix.shape[2])[:, :count]
            views[0, i], views[1, :, i] = loses, costs
        matrix[block] = np.where(np.isnan(matrix[block]), views.mean(0), matrix[block])
