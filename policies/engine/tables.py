"""The tables of a problem, checked when they are built: jobs, columns, tenants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.engine.checks import at, check_values, derived, floats, integers, strings
from policies.errors import ProblemError, name_some

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
ALONE = -1


def every(value: Any) -> Any:
    """Return a default for every row: a scalar here, an array once the table is built."""
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """One row per job, or per group of interchangeable jobs (`count` of them)."""

    ids: tuple[str, ...]
    count: Ints = every(1)
    gpus: Ints = every(1)
    weight: Floats = every(1.0)
    tenant: tuple[str, ...] = every("")
    waited_s: Floats = every(0.0)
    steps_left: Floats = every(np.inf)
    isolated_s: Floats = every(0.0)
    deadline_s: Floats = every(np.inf)

    def __post_init__(self) -> None:
        ids = strings("jobs", "id", self.ids, None)
        store(self, "ids", ids)
        n = len(ids)
        if len(set(ids)) != n:
            twice = [name for name, count in Counter(ids).items() if count > 1]
            raise ProblemError(f"jobs: duplicate id {name_some(twice)}")

        def where(row: int) -> str:
            return f"job '{ids[row]}'"

        for field in ("count", "gpus"):
            store(self, field, integers("jobs", field, getattr(self, field), n, where, least=1))
        for field in ("weight", "waited_s", "steps_left", "isolated_s", "deadline_s"):
            store(self, field, floats("jobs", field, getattr(self, field), n))
        store(self, "tenant", strings("jobs", "tenant", self.tenant, n))
        check_values(self.weight, "weight", where, above=0.0)
        check_values(self.waited_s, "waited_s", where, least=0.0)
        check_values(self.steps_left, "steps_left", where, above=0.0, infinite_ok=True)
        check_values(self.isolated_s, "isolated_s", where, least=0.0)
        check_values(self.deadline_s, "deadline_s", where, least=-np.inf, infinite_ok=True)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Ints) -> Jobs:
        """Return these rows, in this order."""
        return derived(self, **{f: at(getattr(self, f), rows) for f in self.__slots__})


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One row per way to run a job, or two jobs together."""

    first: Ints
    worker_type: Ints
    gpus: Ints
    first_rate: Floats
    second: Ints = every(ALONE)
    second_rate: Floats = every(0.0)
    label: tuple[str, ...] = every("")

    def __post_init__(self) -> None:
        first = integers("columns", "first", self.first, None)
        store(self, "first", first)
        k = len(first)
        for field, least in (("worker_type", None), ("gpus", 1), ("second", ALONE)):
            store(self, field, integers("columns", field, getattr(self, field), k, least=least))
        for field in ("first_rate", "second_rate"):
            store(self, field, floats("columns", field, getattr(self, field), k))
        store(self, "label", strings("columns", "label", self.label, k))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_pair(self) -> Bools:
        """[k] Whether two jobs share the GPUs of a column."""
        return np.asarray(self.second != ALONE)

    def take(self, rows: Ints | Bools) -> Columns:
        """Return these rows, in this order."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, dtype=np.int64)
        return derived(self, **{f: at(getattr(self, f), chosen) for f in self.__slots__})


@dataclass(frozen=True, slots=True)
class Tenant:
    """A node of the tenant tree, by path ("org/team"). Children are the tenants below its path."""

    name: str
    weight: float = 1.0
    policy: str = "fairness"

    def __post_init__(self) -> None:
        if not self.name:
            raise ProblemError("tenant: the name is empty")
        if not (np.isfinite(self.weight) and self.weight > 0):
            raise ProblemError(f"tenant '{self.name}': weight is {self.weight}, must be a positive number")
        if self.policy not in ("fairness", "fifo"):
            raise ProblemError(
                f"tenant '{self.name}': policy is '{self.policy}', must be 'fairness' or 'fifo'"
            )


def store(table: object, field: str, value: object) -> None:
    """Set a field of a frozen table while it is built."""
    object.__setattr__(table, field, value)
