"""Sparse matrices as plain lists of entries: cheap to stack, to join and to scale.

A small allocation builds a dozen matrices, and the checks and conversions of a general library would take longer than
the solver. Columns are sorted only once, when a solver needs them compressed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csc_matrix

Vector = NDArray[np.float64]
Places = NDArray[np.int64]


class Packed(NamedTuple):
    """A matrix column by column, with the attributes that solvers read from a SciPy matrix, but faster to build."""

    data: Any
    indices: Any
    indptr: Any
    shape: tuple[int, int]

    @property
    def has_canonical_format(self) -> bool:
        """Whether entries are sorted and unique; solvers check this."""
        return True

    def in_lists(self) -> Packed:
        """Return the matrix in lists of plain numbers, for a solver that reads them one by one."""
        return Packed(self.data.tolist(), self.indices.tolist(), self.indptr.tolist(), self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """A matrix with `value[i]` in row `row[i]` and column `column[i]`, each place at most once, and zeros elsewhere."""

    value: Vector
    row: Places
    column: Places
    shape: tuple[int, int]

    def __matmul__(self, x: Vector) -> Vector:
        return np.asarray(np.bincount(self.row, self.value * x[self.column], self.shape[0]), dtype=float)

    @property
    def T(self) -> Sparse:
        """The transposed matrix."""
        return Sparse(self.value, self.column, self.row, self.shape[::-1])

    def columns(self, chosen: Places) -> Sparse:
        """Return these columns, each at most once, in this order."""
        if len(chosen) == self.shape[1] and (chosen == np.arange(len(chosen))).all():
            return self
        place = np.full(self.shape[1], -1, dtype=np.int64)
        place[chosen] = np.arange(len(chosen))
        column = place[self.column]
        inside = column >= 0
        return Sparse(self.value[inside], self.row[inside], column[inside], (self.shape[0], len(chosen)))

    def rows(self, chosen: Places) -> Sparse:
        """Return these rows, each at most once, in this order."""
        return self.T.columns(chosen).T

    def scale_rows(self, factor: Vector) -> Sparse:
        """Return the matrix with each row multiplied by its factor."""
        return Sparse(self.value * factor[self.row], self.row, self.column, self.shape)

    def largest(self) -> Vector:
        """Return the greatest value of each row, at least 0."""
        greatest = np.zeros(self.shape[0])
        np.maximum.at(greatest, self.row, self.value)
        return greatest

    def packed(self) -> Packed:
        """Return the matrix column by column, as solvers need it."""
        m, k = self.shape
        order = _sorted_order(self.column, self.row, max(m, k))
        start = np.zeros(k + 1, dtype=np.int64)
        np.bincount(self.column, minlength=k).cumsum(out=start[1:])
        return Packed(self.value[order], self.row[order], start, self.shape)

    def compressed(self) -> csc_matrix[Any]:
        """Return the matrix as a SciPy matrix."""
        from scipy.sparse import csc_matrix

        packed = self.packed()
        return csc_matrix((packed.data, packed.indices, packed.indptr), shape=self.shape)

    def toarray(self) -> Vector:
        """Return the matrix as a dense array."""
        full = np.zeros(self.shape)
        full[self.row, self.column] = self.value
        return full


def _sorted_order(major: Places, minor: Places, size: int) -> Places:
    """Return the order by `major`, then by `minor`; all numbers are below `size`."""
    # NumPy sorts numbers of 16 bits faster.
    if size < 2**16:
        major, minor = major.astype(np.uint16), minor.astype(np.uint16)
    return np.lexsort((minor, major))


def from_entries(value: Vector, row: Places, column: Places, shape: tuple[int, int]) -> Sparse:
    """Return a matrix of entries in any order. Entries of the same place are added, always in the same order."""
    place = row * shape[1] + column
    if (place[1:] > place[:-1]).all():
        return Sparse(value, row, column, shape)
    order = _sorted_order(row, column, max(shape))
    value, row, column = value[order], row[order], column[order]
    start = np.flatnonzero(np.diff(place[order], prepend=-1))
    if len(start) < len(place):
        value, row, column = np.add.reduceat(value, start), row[start], column[start]
    return Sparse(value, row, column, shape)


def zeros(rows: int, columns: int) -> Sparse:
    """Return a matrix of zeros."""
    empty = np.zeros(0, dtype=np.int64)
    return Sparse(np.zeros(0), empty, empty, (rows, columns))


def identity(size: int, factor: float = 1.0) -> Sparse:
    """Return a matrix with a factor on its diagonal."""
    return diagonal(np.full(size, factor))


def diagonal(values: Vector) -> Sparse:
    """Return a matrix with these values on its diagonal."""
    place = np.arange(len(values))
    return Sparse(values, place, place, (len(values), len(values)))


def column(values: Vector) -> Sparse:
    """Return a matrix of one column."""
    return row(values).T


def row(values: Vector) -> Sparse:
    """Return a matrix of one row."""
    place = np.flatnonzero(values)
    return Sparse(values[place], np.zeros_like(place), place, (1, len(values)))


def dense(table: Vector) -> Sparse:
    """Return the nonzero values of a table as a matrix."""
    rows, columns = np.nonzero(table)
    return Sparse(table[rows, columns], rows, columns, (table.shape[0], table.shape[1]))


def stack(*blocks: Sparse) -> Sparse:
    """Put matrices one above the other."""
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
    """Put matrices side by side."""
    return stack(*(block.T for block in blocks)).T
