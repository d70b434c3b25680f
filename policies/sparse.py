"""Sparse matrices, as few kinds of them as we need: rows of coefficients, stacked and set side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Sparse = sp.csr_array[Any]
Vector = NDArray[np.float64]


def from_entries(
    values: Vector, rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> Sparse:
    """The matrix with these entries; entries of one place are added."""
    return sp.csr_array(sp.coo_array((values, (rows, columns)), shape=shape))


def zeros(rows: int, columns: int) -> Sparse:
    """Nothing but zeros."""
    return sp.csr_array((rows, columns))


def identity(size: int, factor: float = 1.0) -> Sparse:
    """A factor on the diagonal."""
    return diagonal(np.full(size, factor))


def diagonal(values: Vector) -> Sparse:
    """These values on the diagonal."""
    size = len(values)
    return sp.csr_array((values, np.arange(size), np.arange(size + 1)), shape=(size, size))


def column(values: Vector) -> Sparse:
    """One column."""
    return sp.csr_array(values[:, None])


def row(values: Vector) -> Sparse:
    """One row."""
    return sp.csr_array(values[None, :])


def scale_rows(factor: Vector, matrix: Sparse) -> Sparse:
    """Each row times its factor."""
    data = matrix.data * np.repeat(factor, np.diff(matrix.indptr))
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def stack(*blocks: Sparse) -> Sparse:
    """One above the other."""
    parts: Sequence[Any] = blocks
    return sp.csr_array(sp.vstack(parts, format="csr"))


def beside(*blocks: Sparse) -> Sparse:
    """Side by side."""
    parts: Sequence[Any] = blocks
    return sp.csr_array(sp.hstack(parts, format="csr"))
