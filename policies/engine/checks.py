"""Turn a caller's values into clean arrays, or raise an error that names the invalid one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policies.errors import ProblemError

# Returns the name of a row for error messages.
Where = Callable[[int], str]
Table = TypeVar("Table")


def floats(table: str, field: str, values: ArrayLike, size: int | None) -> NDArray[np.float64]:
    """Return an array of floats with one entry for each row; a scalar counts for every row."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ProblemError(f"{table}: {field} must be numbers ({error})") from None
    return _sized(table, field, array, size)


def integers(
    table: str,
    field: str,
    values: ArrayLike,
    size: int | None,
    where: Where | None = None,
    least: int | None = None,
) -> NDArray[np.int64]:
    """Return an array of whole numbers of at least `least`, or raise an error."""
    row_name = where or f"{table}, row {{}}".format
    raw = np.asarray(values)
    if raw.dtype.kind in "iu":
        array = _sized(table, field, raw, size).astype(np.int64, copy=False)
    else:
        exact = floats(table, field, values, size)
        bad = np.flatnonzero(~(np.isfinite(exact) & (exact == np.round(exact)) & (np.abs(exact) < 2**53)))
        if bad.size:
            raise ProblemError(f"{row_name(int(bad[0]))}: {field} is {exact[bad[0]]}, must be a whole number")
        array = exact.astype(np.int64)
    if least is not None and array.size and array.min() < least:
        row = int((array < least).argmax())
        raise ProblemError(f"{row_name(row)}: {field} is {array[row]}, must be at least {least}")
    return array


def strings(table: str, field: str, values: Sequence[str] | str, size: int | None) -> tuple[str, ...]:
    """Return a tuple of strings with one entry for each row; a single string counts for every row."""
    if isinstance(values, str):
        if size is None:
            raise ProblemError(f"{table}: {field} must be a list of names, not the one string '{values}'")
        return (values,) * size
    names = tuple(values)
    if size is not None and len(names) != size:
        raise ProblemError(f"{table}: {field} has {len(names)} entries for {size} rows")
    if not set(map(type, names)) <= {str}:
        row = next(i for i, name in enumerate(names) if type(name) is not str)
        if not isinstance(names[row], str):
            raise ProblemError(f"{table}: {field} of row {row} is {names[row]!r}, must be a string")
        names = tuple(map(str, names))
    return names


def check_values(
    values: NDArray[np.float64],
    field: str,
    where: Where,
    *,
    least: float | None = None,
    above: float | None = None,
    infinite_ok: bool = False,
    nan_ok: bool = False,
) -> None:
    """Raise an error that names the first value outside its bounds, if there is one."""
    if not len(values):
        return
    # If any value is NaN, `low` and `high` are NaN, and then `low == low` is false.
    low, high = float(values.min()), float(values.max())
    within = (least is None or low >= least) and (above is None or low > above)
    if within and (low == low if infinite_ok else -np.inf < low and high < np.inf):
        return
    good = np.ones(len(values), dtype=bool)
    expected = "a number" if infinite_ok else "a finite number"
    if least is not None and least > -np.inf:
        good &= values >= least
        expected += f" of at least {least:g}"
    if above is not None:
        good &= values > above
        expected += f" above {above:g}"
    if not infinite_ok:
        good &= np.isfinite(values)
    elif not nan_ok:
        good &= ~np.isnan(values)
    if nan_ok:
        good |= np.isnan(values)
    bad = np.flatnonzero(~good)
    if bad.size:
        row = int(bad[0])
        raise ProblemError(f"{where(row)}: {field} is {values[row]}, must be {expected}")


def derived(table: Table, **fields: Any) -> Table:
    """Return a copy of a checked table with these fields replaced, without checking them.

    The new fields must be derived from checked fields.
    """
    copy = object.__new__(type(table))
    for name in cast(Any, table).__dataclass_fields__:
        object.__setattr__(copy, name, fields[name] if name in fields else getattr(table, name))
    return copy


def take_rows(values: Any, rows: NDArray[np.int64]) -> Any:
    """Return `values[rows]`, for an array or a tuple."""
    if isinstance(values, tuple):
        return tuple(map(values.__getitem__, rows.tolist()))
    return values[rows]


def _sized(table: str, field: str, array: NDArray[Any], size: int | None) -> NDArray[Any]:
    if array.ndim == 0 and size is not None:
        return np.full(size, array[()])
    if array.ndim != 1:
        raise ProblemError(f"{table}: {field} must be one-dimensional, got shape {array.shape}")
    if size is not None and len(array) != size:
        raise ProblemError(f"{table}: {field} has {len(array)} entries for {size} rows")
    return array
