"""The tables of a problem, checked when they are built: jobs, columns, tenants, quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.engine.checks import check_values, derived, floats, integers, strings, take_rows
from policies.errors import ProblemError, name_some

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
ALONE = -1
# The worker type of a quota that counts the GPUs of all types.
ANY_TYPE = -1
# In place of the worker type of a quota: it counts jobs, not GPUs.
JOBS = -2


def per_row(value: Any) -> Any:
    """Return the default of a field for all rows: a scalar, which becomes an array when the table is built."""
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """One row per job, or per group of `count` interchangeable jobs."""

    ids: tuple[str, ...]
    count: Ints = per_row(1)
    # The GPUs that each job asks for.
    gpus: Ints = per_row(1)
    weight: Floats = per_row(1.0)
    # The path of the job's tenant; empty if it has none.
    tenant: tuple[str, ...] = per_row("")
    # Seconds since the job arrived.
    waited_s: Floats = per_row(0.0)
    # Infinite if unknown.
    steps_left: Floats = per_row(np.inf)
    # Seconds that the finished part of the job would have taken in an equal slice of the cluster.
    isolated_s: Floats = per_row(0.0)
    # Seconds from now, negative if the deadline is past; infinite without a deadline.
    deadline_s: Floats = per_row(np.inf)

    def __post_init__(self) -> None:
        ids = strings("jobs", "id", self.ids, None)
        store(self, "ids", ids)
        n = len(ids)
        if len(set(ids)) != n:
            duplicates = [name for name, count in Counter(ids).items() if count > 1]
            raise ProblemError(f"jobs: duplicate id {name_some(duplicates)}")

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
        return derived(self, **{f: take_rows(getattr(self, f), rows) for f in self.__slots__})


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """One row per way to run a job, or two jobs together."""

    # The row of the job, or of the first of two jobs.
    first: Ints
    worker_type: Ints
    gpus: Ints
    # Rates in steps per second.
    first_rate: Floats
    # The row of the second of two jobs.
    second: Ints = per_row(ALONE)
    second_rate: Floats = per_row(0.0)
    # A name that distinguishes ways to run a job with the same type and GPUs.
    label: tuple[str, ...] = per_row("")
    # The CPUs that the column needs beside its GPUs; 0 if they do not matter.
    cpus: Floats = per_row(0.0)

    def __post_init__(self) -> None:
        first = integers("columns", "first", self.first, None)
        store(self, "first", first)
        k = len(first)
        for field, least in (("worker_type", None), ("gpus", 1), ("second", ALONE)):
            store(self, field, integers("columns", field, getattr(self, field), k, least=least))
        for field in ("first_rate", "second_rate", "cpus"):
            store(self, field, floats("columns", field, getattr(self, field), k))
        store(self, "label", strings("columns", "label", self.label, k))

    def __len__(self) -> int:
        return len(self.first)

    @property
    def is_pair(self) -> Bools:
        """[k] Whether each column runs two jobs on the same GPUs."""
        return np.asarray(self.second != ALONE)

    def take(self, rows: Ints | Bools) -> Columns:
        """Return these rows, in this order."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, dtype=np.int64)
        return derived(self, **{f: take_rows(getattr(self, f), chosen) for f in self.__slots__})


@dataclass(frozen=True, slots=True)
class Tenant:
    """A node of the tenant tree. Its name is a path: "org/team" is a child of "org"."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Quotas:
    """One row per limit on the GPUs that certain jobs hold together, or on these jobs, and the jobs under each quota.

    Job `job[i]` is under the quota `quota[i]`. A job may be under several quotas, or under none.
    """

    names: tuple[str, ...] = ()
    # A row of the worker types, ANY_TYPE, or JOBS for a limit on how many of the jobs run at once.
    worker_type: Ints = per_row(ANY_TYPE)
    # The limit; in a row of JOBS, of jobs.
    gpus: Floats = per_row(0.0)
    # Rows of this table, and rows of jobs, both of the same length.
    quota: Ints = per_row(())
    job: Ints = per_row(())

    def __post_init__(self) -> None:
        names = strings("quotas", "name", self.names, None)
        store(self, "names", names)
        store(
            self,
            "worker_type",
            integers("quotas", "worker_type", self.worker_type, len(names), least=JOBS),
        )
        store(self, "gpus", floats("quotas", "gpus", self.gpus, len(names)))
        check_values(self.gpus, "gpus", lambda row: f"quota '{names[row]}'", least=0.0)
        store(self, "quota", integers("quotas", "quota", np.asarray(self.quota, np.int64), None, least=0))
        store(
            self, "job", integers("quotas", "job", np.asarray(self.job, np.int64), len(self.quota), least=0)
        )
        if len(self.quota) and self.quota.max() >= len(names):
            raise ProblemError(f"quotas: quota is {self.quota.max()}, but there are {len(names)} quotas")
        if len(np.unique(np.stack([self.quota, self.job]), axis=1).T) < len(self.quota):
            raise ProblemError("quotas: a job is under the same quota twice")

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Ints) -> Quotas:
        """Return these quotas, in this order."""
        new_row = np.full(len(self), -1, dtype=np.int64)
        new_row[rows] = np.arange(len(rows))
        kept = new_row[self.quota] >= 0
        return derived(
            self,
            **{field: take_rows(getattr(self, field), rows) for field in ("names", "worker_type", "gpus")},
            quota=new_row[self.quota[kept]],
            job=self.job[kept],
        )

    def under(self, worker_type: int) -> Ints:
        """Return the rows of the jobs that quotas of this worker type count, perhaps several times."""
        rows: Ints = self.job[self.worker_type[self.quota] == worker_type]
        return rows

    def of_jobs(self, new_row: Ints) -> Quotas:
        """Return the quotas after jobs changed their rows; `new_row` is negative for a job that is left out."""
        if not len(self):
            return self
        job = new_row[self.job]
        return derived(self, quota=self.quota[job >= 0], job=job[job >= 0])


def store(table: object, field: str, value: object) -> None:
    """Set a field of a frozen table while it is built."""
    object.__setattr__(table, field, value)
