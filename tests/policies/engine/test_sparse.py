"""Sparse matrices, as lists of entries, behave like dense tables."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from policies.engine.sparse import (
    Sparse,
    beside,
    column,
    dense,
    diagonal,
    from_entries,
    identity,
    row,
    stack,
    zeros,
)


def drawn(seed: int, rows: int, columns: int) -> np.ndarray:
    """A table of which a third is not zero."""
    draw = np.random.default_rng(seed)
    return np.where(draw.random((rows, columns)) < 0.3, draw.uniform(0.1, 9.0, (rows, columns)), 0.0)


def same(matrix: Sparse, table: np.ndarray) -> None:
    """The matrix equals the table in every form, and in products with vectors."""
    assert matrix.shape == table.shape
    assert matrix.toarray().tolist() == table.tolist()
    assert matrix.compressed().toarray().tolist() == table.tolist()
    x, y = np.arange(1.0, table.shape[1] + 1), np.arange(1.0, table.shape[0] + 1)
    assert np.allclose(matrix @ x, table @ x, rtol=1e-14)
    assert np.allclose(matrix.T @ y, table.T @ y, rtol=1e-14)


@given(seed=st.integers(0, 10**6), rows=st.integers(0, 6), columns=st.integers(0, 6))
def test_every_operation_agrees_with_a_table(seed: int, rows: int, columns: int) -> None:
    """Stacking, joining, scaling, and selecting rows and columns in any order give the same as for tables."""
    table, draw = drawn(seed, rows, columns), np.random.default_rng(seed)
    matrix = dense(table)
    same(matrix, table)
    same(stack(matrix, matrix.scale_rows(2.0 * np.ones(rows))), np.vstack([table, 2.0 * table]))
    same(
        beside(matrix, zeros(rows, 2), identity(rows, -1.0)),
        np.hstack([table, np.zeros((rows, 2)), -np.eye(rows)]),
    )
    some_rows = draw.permutation(rows)[: rows // 2 + 1]
    some_columns = draw.permutation(columns)[: columns // 2 + 1]
    same(matrix.rows(some_rows), table[some_rows])
    same(matrix.columns(some_columns), table[:, some_columns])
    same(matrix.columns(np.arange(columns)), table)
    assert matrix.largest().tolist() == table.max(axis=1, initial=0.0).tolist()


def test_vectors_as_matrices() -> None:
    """A vector can be a row, a column or a diagonal."""
    values = np.array([1.0, 0.0, 3.0])
    same(row(values), values[None, :])
    same(column(values), values[:, None])
    same(diagonal(values), np.diag(values))


@given(seed=st.integers(0, 10**6))
def test_entries_come_in_any_order(seed: int) -> None:
    """Entries of one place are added, and products are the same to the last bit whatever the order."""
    draw = np.random.default_rng(seed)
    rows, columns, values = draw.integers(4, size=12), draw.permutation(12), draw.uniform(0.1, 9.0, 12)
    x, order = draw.uniform(0.1, 9.0, 12), draw.permutation(12)
    first = from_entries(values, rows, columns, (4, 12))
    second = from_entries(values[order], rows[order], columns[order], (4, 12))
    assert (first @ x).tolist() == (second @ x).tolist()
    twice = from_entries(np.ones(3), np.array([1, 0, 1]), np.array([2, 0, 2]), (2, 3))
    same(twice, np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]]))


def test_large_matrices_are_sorted_as_small_ones_are() -> None:
    """Entries in columns beyond 16 bits are sorted and added in the same way."""
    far = 2**16
    entries = from_entries(
        np.array([1.0, 2.0, 4.0, 8.0]), np.array([1, 0, 1, 0]), np.array([far, far, far, 1]), (2, far + 1)
    )
    assert (entries.row.tolist(), entries.column.tolist()) == ([0, 0, 1], [1, far, far])
    packed = entries.packed()
    assert packed.data.tolist() == [8.0, 2.0, 5.0]
    assert (packed.indices.tolist(), packed.indptr[[1, 2, far, far + 1]].tolist()) == (
        [0, 0, 1],
        [0, 1, 1, 3],
    )
