"""Sparse matrices as plain lists of entries: cheap to stack, to set side by side and to scale.

A small allocation builds a dozen of them, and what a general library checks and converts each time would take
longer than the solver does. Only where a solver wants its columns compressed are they sorted, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Places = NDArray[np.int64]


class Packed(NamedTuple):
    """A matrix column by column, under the names that solvers look for; that of a library takes as long as a solve."""

    data: Any
    indices: Any
    indptr: Any
    shape: tuple[int, int]

    @property
    def has_canonical_format(self) -> bool:
        """Whether places come in order, each of them once."""
        return True

    def in_lists(self) -> Packed:
        """Plain numbers, for a solver that reads them one by one."""
        return Packed(self.data.tolist(), self.indices.tolist(), self.indptr.tolist(), self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """`value[i]` stands in row `row[i]` and column `column[i]`, one value in a place; the rest is zero."""

    value: Vector
    row: Places
    column: Places
    shape: tuple[int, int]

    def __matmul__(self, x: Vector) -> Vector:
        return np.asarray(np.bincount(self.row, self.value * x[self.column], self.shape[0]), dtype=float)

    @property
    def T(self) -> Sparse:
        """Rows and columns exchanged."""
        return Sparse(self.value, self.column, self.row, self.shape[::-1])

    def columns(self, kept: Places) -> Sparse:
        """These columns, each at most once, in this order."""
        if len(kept) == self.shape[1] and (kept == np.arange(len(kept))).all():
            return self
        place = np.full(self.shape[1], -1, dtype=np.int64)
        place[kept] = np.arange(len(kept))
        column = place[self.column]
        found = column >= 0
        return Sparse(self.value[found], self.row[found], column[found], (self.shape[0], len(kept)))

    def rows(self, kept: Places) -> Sparse:
        """These rows, each at most once, in this order."""
        return self.T.columns(kept).T

    def scale_rows(self, factor: Vector) -> Sparse:
        """Each row times its factor."""
        return Sparse(self.value * factor[self.row], self.row, self.column, self.shape)

    def largest(self) -> Vector:
        """The greatest value of each row, 0 where there is none above it."""
        most = np.zeros(self.shape[0])
        np.maximum.at(most, self.row, self.value)
        return most

    def packed(self) -> Packed:
        """Column by column, as solvers want it."""
        m, k = self.shape
        order = _in_turn(self.column, self.row, max(m, k))
        start = np.zeros(k + 1, dtype=np.int64)
        np.bincount(self.column, minlength=k).cumsum(out=start[1:])
        return Packed(self.value[order], self.row[order], start, self.shape)

    def compressed(self) -> sp.csc_matrix[Any]:
        """The same for those who calculate with it."""
        packed = self.packed()
        return sp.csc_matrix((packed.data, packed.indices, packed.indptr), shape=self.shape)

    def toarray(self) -> Vector:
        """With all its zeros."""
        full = np.zeros(self.shape)
        full[self.row, self.column] = self.value
        return full


def _in_turn(major: Places, minor: Places, size: int) -> Places:
    """The order by one number, then by another, both below `size`: numbers of 16 bits are sorted at a glance."""
    if size < 2**16:
        major, minor = major.astype(np.uint16), minor.astype(np.uint16)
    return np.lexsort((minor, major))


def from_entries(value: Vector, row: Places, column: Places, shape: tuple[int, int]) -> Sparse:
    """Entries in any order, those of one place added; sums over them come out the same to the last bit."""
    place = row * shape[1] + column
    if (place[1:] > place[:-1]).all():
        return Sparse(value, row, column, shape)
    order = _in_turn(row, column, max(shape))
    value, row, column = value[order], row[order], column[order]
    start = np.flatnonzero(np.diff(place[order], prepend=-1))
    if len(start) < len(place):
        value, row, column = np.add.reduceat(value, start), row[start], column[start]
    return Sparse(value, row, column, shape)


def zeros(rows: int, columns: int) -> Sparse:
    """Nothing but zeros."""
    none = np.zeros(0, dtype=np.int64)
    return Sparse(np.zeros(0), none, none, (rows, columns))


def identity(size: int, factor: float = 1.0) -> Sparse:
    """A factor on the diagonal."""
    return diagonal(np.full(size, factor))


def diagonal(values: Vector) -> Sparse:
    """These values on the diagonal."""
    place = np.arange(len(values))
    return Sparse(values, place, place, (len(values), len(values)))


def column(values: Vector) -> Sparse:
    """One column."""
    return row(values).T


def row(values: Vector) -> Sparse:
    """One row."""
    place = np.flatnonzero(values)
    return Sparse(values[place], np.zeros_like(place), place, (1, len(values)))


def dense(table: Vector) -> Sparse:
    """What is not zero in a table."""
    rows, columns = np.nonzero(table)
    return Sparse(table[rows, columns], rows, columns, (table.shape[0], table.shape[1]))


def stack(*blocks: Sparse) -> Sparse:
    """One above the other."""
    height, rows = 0, []
    for block in blocks:
        rows.append(block.row + height if height else block.row)
        height += block.shape[0]
    return Sparse(
        np.concatenate([block.value for block in blocks]),
        np.concatenate(rows),
        np.concatenate([block.column for block in blocks]),
        (height, blocks[0].shape[1]),
    )


def beside(*blocks: Sparse) -> Sparse:
    """Side by side."""
    return stack(*(block.T for block in blocks)).T
