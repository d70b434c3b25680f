"""The input and the output of every policy: a table of columns, and a share of time for each.

A *column* is one way to run something: which job (or pair of jobs), on which worker type, on how many GPUs, at which
rates. A policy answers with one number per column, the share of wall-clock time in which that column runs. Packing,
elastic width, placement variants and parallelism plans are columns too, so a policy is written once for all of them.

A problem is checked when it is built: an error names the job, the field and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from policies.engine.checks import check_values, derived, floats, strings
from policies.engine.sparse import Sparse, from_entries, zeros
from policies.engine.tables import (
    ALONE,
    ANY_TYPE,
    JOBS,
    Bools,
    Columns,
    Floats,
    Ints,
    Jobs,
    Quotas,
    Tenant,
    per_row,
    store,
)
from policies.engine.ways import column_keys, label_codes, way_codes, within_fair_cpus
from policies.errors import ProblemError, name_some

__all__ = [
    "ALONE",
    "ANY_TYPE",
    "JOBS",
    "Allocation",
    "Bools",
    "Columns",
    "Floats",
    "Ints",
    "Jobs",
    "Policy",
    "Problem",
    "Quotas",
    "Tenant",
]

NO_QUOTAS = Quotas()


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Jobs, the ways to run them, and the cluster. It contains no clock and no machines."""

    jobs: Jobs
    columns: Columns
    worker_types: tuple[str, ...]
    capacity: Floats
    # The CPUs of each type; infinite if they are not limited.
    cpus: Floats = per_row(np.inf)
    price_per_gpu_hour: Floats = per_row(np.nan)
    tenants: tuple[Tenant, ...] = ()
    quotas: Quotas = NO_QUOTAS
    now_s: float = 0.0
    seed: int = 0
    # After grouping: the ids of all jobs before it, and the row into which each job was merged.
    merged_from: tuple[tuple[str, ...], Ints] | None = None

    def __post_init__(self) -> None:
        types = strings("problem", "worker_types", self.worker_types, None)
        store(self, "worker_types", types)
        if len(set(types)) != len(types):
            raise ProblemError(f"worker_types: a name appears twice in {list(types)}")

        def where(row: int) -> str:
            return f"worker type '{types[row]}'"

        store(self, "capacity", floats("problem", "capacity", self.capacity, len(types)))
        check_values(self.capacity, "capacity", where, least=0.0)
        store(self, "cpus", floats("problem", "cpus", self.cpus, len(types)))
        check_values(self.cpus, "cpus", where, least=0.0, infinite_ok=True)
        price = floats("problem", "price_per_gpu_hour", self.price_per_gpu_hour, len(types))
        store(self, "price_per_gpu_hour", price)
        check_values(price, "price_per_gpu_hour", where, least=0.0, nan_ok=True)
        if not np.isfinite(self.now_s):
            raise ProblemError(f"problem: now_s is {self.now_s}, must be a finite number")
        store(self, "tenants", tuple(self.tenants))
        self._check_columns()
        self._check_tenants()
        self._check_quotas()

    def _check_columns(self) -> None:
        columns, n, t = self.columns, len(self.jobs), len(self.worker_types)
        for field, rows, size, kind in (
            ("first", columns.first, n, "job row"),
            ("second", columns.second, n, "job row"),
            ("worker_type", columns.worker_type, t, "worker type"),
        ):
            least = ALONE if field == "second" else 0
            if len(rows) and not least <= rows.min() <= rows.max() < size:
                bad = np.flatnonzero((rows >= size) | (rows < least))
                job_name = "" if field != "worker_type" else f" ('{self.jobs.ids[columns.first[bad[0]]]}')"
                raise ProblemError(
                    f"column {bad[0]}{job_name}: {field} is {rows[bad[0]]}, "
                    f"but there are {size} {kind}s (0 to {size - 1})"
                )
        for field in ("first_rate", "second_rate", "cpus"):
            check_values(getattr(columns, field), field, self.describe, least=0.0)
        with_itself = (columns.second == columns.first) if self.any_pairs else np.zeros(0, bool)
        if with_itself.any() and (with_itself := with_itself & (self.jobs.count[columns.first] < 2)).any():
            k = int(with_itself.argmax())
            raise ProblemError(
                f"column {k}: pairs job '{self.jobs.ids[columns.first[k]]}' with itself, "
                "which only a row that stands for two or more jobs can do"
            )
        stray = (columns.second == ALONE) & (columns.second_rate != 0)
        if stray.any():
            k = int(stray.argmax())
            raise ProblemError(
                f"column {k}, {self.describe(k)}: second_rate is {columns.second_rate[k]}, but second is -1"
            )
        if not self.in_order:
            key = self.column_key
            order = np.argsort(key, kind="stable")
            repeats = np.flatnonzero(np.diff(key[order]) == 0)
            if repeats.size:
                a, b = int(order[repeats[0]]), int(order[repeats[0] + 1])
                raise ProblemError(f"columns {a} and {b} are the same: {self.describe(b)}")

    def _check_tenants(self) -> None:
        names = {tenant.name for tenant in self.tenants}
        if len(names) != len(self.tenants):
            raise ProblemError(f"tenants: duplicate name in {sorted(t.name for t in self.tenants)}")
        for path in dict.fromkeys(self.jobs.tenant):
            if names and path not in names:
                job, known = self.jobs.ids[self.jobs.tenant.index(path)], name_some(sorted(names))
                raise ProblemError(f"job '{job}': tenant '{path}' is not among the tenants ({known})")

    def _check_quotas(self) -> None:
        quotas = self.quotas
        for field, rows, size, kind in (
            ("worker_type", quotas.worker_type, len(self.worker_types), "worker type"),
            ("job", quotas.job, len(self.jobs), "job row"),
        ):
            if len(rows) and rows.max() >= size:
                raise ProblemError(f"quotas: {field} is {rows.max()}, but there are {size} {kind}s")

    # The properties below are computed from the fields on first use.

    @cached_property
    def any_pairs(self) -> bool:
        """Whether any column is a pair."""
        return bool((self.columns.second != ALONE).any())

    @cached_property
    def label_code(self) -> Ints:
        """[k] The label of each column as a number, in the order of the names."""
        return label_codes(self.columns)

    @cached_property
    def way(self) -> Ints:
        """[k] Worker type, GPUs, label and CPUs of each column as one number: the way to run its job."""
        return way_codes(self.columns, self.label_code)

    @cached_property
    def column_key(self) -> Ints:
        """[k] A number for each column, equal only for equal columns. Its order is the canonical order of columns."""
        return column_keys(self.columns, self.way, len(self.jobs))

    @cached_property
    def in_order(self) -> bool:
        """Whether the columns are in canonical order, without duplicates."""
        key = self.column_key
        return bool((key[1:] > key[:-1]).all())

    @cached_property
    def solo_column(self) -> Ints:
        """[n × t] The column whose rate is T_mj, the rate of a job on a type; -1 if the job cannot run there.

        It is the solo column at the requested width with an empty label. If there is none, it is the best solo column
        of that width; if no solo column has that width, it is the one with the best rate per GPU. Columns that need no
        more CPUs than the fair share of their GPUs come before all others.
        """
        columns, shape = self.columns, (len(self.jobs), len(self.worker_types))
        chosen = np.full(shape, ALONE, dtype=np.int64)
        works = columns.first_rate > 0
        solo = np.flatnonzero(works & ~columns.is_pair if self.any_pairs else works)
        as_wide = columns.gpus[solo] == self.jobs.gpus[columns.first[solo]]
        labelled, many_cpus = any(columns.label), bool(columns.cpus.any())
        if labelled or many_cpus or not as_wide.all():
            # The last column written remains, so the worst is written first.
            plain = np.fromiter((not name for name in columns.label), bool, len(columns))[solo]
            merit = np.where(as_wide & plain, 2, np.where(as_wide, 1, 0))
            if many_cpus:
                merit = merit + 3 * within_fair_cpus(columns, self.capacity, self.cpus)[solo]
            solo = solo[np.lexsort((-solo, columns.first_rate[solo] / columns.gpus[solo], merit))]
        chosen[columns.first[solo], columns.worker_type[solo]] = solo
        return chosen

    @cached_property
    def solo_rate(self) -> Floats:
        """[n × t] T_mj, the rate of the whole job m on type j at its requested width, 0 if it cannot run there."""
        solo, columns = self.solo_column, self.columns
        if not len(columns):
            return np.zeros(solo.shape)
        rate = columns.first_rate[solo] * (self.jobs.gpus[:, None] / columns.gpus[solo])
        return np.where(solo == ALONE, 0.0, rate)

    @cached_property
    def rates(self) -> Sparse:
        """[n × k] The steps per second that each column gives to each row."""
        columns, (rows, entry_columns) = self.columns, self._entries
        values = columns.first_rate
        if self.any_pairs:
            values = np.concatenate([values, columns.second_rate[columns.is_pair]])
        return from_entries(values, rows, entry_columns, (len(self.jobs), len(columns)))

    @cached_property
    def membership(self) -> Sparse:
        """[n × k] How many jobs of a row a column occupies: 1, or 2 for a pair within one row."""
        rows, entry_columns = self._entries
        return from_entries(np.ones(len(rows)), rows, entry_columns, (len(self.jobs), len(self.columns)))

    @cached_property
    def _entries(self) -> tuple[Ints, Ints]:
        """The rows and columns of the nonzero `rates`: first of all first jobs, then of their partners."""
        columns, k = self.columns, np.arange(len(self.columns))
        if not self.any_pairs:
            return columns.first, k
        pair = columns.is_pair
        return np.concatenate([columns.first, columns.second[pair]]), np.concatenate([k, k[pair]])

    @cached_property
    def occupancy(self) -> Sparse:
        """[t × k] The GPUs of each type that a column occupies while it runs."""
        columns, k = self.columns, np.arange(len(self.columns))
        shape = (len(self.worker_types), len(columns))
        return Sparse(columns.gpus.astype(float), columns.worker_type, k, shape)

    @cached_property
    def quota_use(self) -> Sparse:
        """[q × k] The GPUs or the jobs that a column has under each quota.

        The GPUs of a pair count once if either job is under the quota.
        """
        quotas, columns, k = self.quotas, self.columns, len(self.columns)
        if not len(quotas) or not k:
            return zeros(len(quotas), k)
        rows, entry_columns = self._entries
        # The quotas of each job are a slice of `of_job`.
        of_job = quotas.quota[np.argsort(quotas.job, kind="stable")]
        size = np.bincount(quotas.job, minlength=len(self.jobs))
        start, repeats = np.cumsum(size) - size, size[rows]
        place_in_slice = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        quota = of_job[np.repeat(start[rows], repeats) + place_in_slice]
        column = np.repeat(entry_columns, repeats)
        kind = quotas.worker_type[quota]
        counts = (kind < 0) | (kind == columns.worker_type[column])
        place = quota[counts] * k + column[counts]
        jobs = np.ones(len(place), dtype=np.int64)
        if self.any_pairs:
            # Both jobs of a pair may be under the same quota.
            place, jobs = np.unique(place, return_counts=True)
        value = np.where(quotas.worker_type[place // k] == JOBS, jobs, columns.gpus[place % k])
        return Sparse(value.astype(float), place // k, place % k, (len(quotas), k))

    def names_of(self, rows: Ints) -> list[str]:
        """Return the ids of the jobs in these rows, before grouping."""
        if self.merged_from is None:
            return [self.jobs.ids[row] for row in rows.tolist()]
        ids, row_of = self.merged_from
        return [ids[job] for job in np.flatnonzero(np.isin(row_of, rows)).tolist()]

    def describe(self, column: int) -> str:
        """Return a column as text, for errors and audits: `'a' + 'b' on 2 × v100`."""
        columns = self.columns
        jobs = [self.jobs.ids[columns.first[column]]]
        if columns.second[column] != ALONE:
            jobs.append(self.jobs.ids[columns.second[column]])
        label = f" ({columns.label[column]})" if columns.label[column] else ""
        cpus = f" with {columns.cpus[column]:g} CPUs" if columns.cpus[column] else ""
        kind = self.worker_types[columns.worker_type[column]]
        return f"{' + '.join(repr(j) for j in jobs)} on {columns.gpus[column]} × {kind}{cpus}{label}"

    def restrict(self, rows: Ints, columns: Ints) -> Problem:
        """Return the problem restricted to these rows of jobs and these columns, in this order."""
        if _all_of(rows, len(self.jobs)) and _all_of(columns, len(self.columns)):
            return self
        new_row = np.full(len(self.jobs) + 1, ALONE, dtype=np.int64)
        new_row[rows] = np.arange(len(rows))
        part = self.columns.take(columns)
        part = derived(part, first=new_row[part.first], second=new_row[part.second])
        return derived(self, jobs=self.jobs.take(rows), columns=part, quotas=self.quotas.of_jobs(new_row))

    @classmethod
    def from_rates(
        cls,
        rates: ArrayLike,
        gpus: ArrayLike = 1,
        capacity: ArrayLike = (),
        *,
        ids: Sequence[str] | None = None,
        worker_types: Sequence[str] | None = None,
        price_per_gpu_hour: ArrayLike = np.nan,
        tenants: Sequence[Tenant] = (),
        quotas: Quotas = NO_QUOTAS,
        now_s: float = 0.0,
        seed: int = 0,
        **job_facts: Any,
    ) -> Problem:
        """Build a problem without pairs from `rates[job, type]` in steps per second, 0 if a job cannot run on a type.

        Columns are numbered job by job, so that `allocation.time_share.reshape(n, t)` is the share matrix.
        """
        table = np.asarray(rates, dtype=float)
        if table.ndim != 2:
            raise ProblemError(
                f"rates: expected a table of jobs × worker types, got {table.ndim} dimension(s)"
            )
        n, t = table.shape
        jobs = Jobs(
            tuple(ids) if ids is not None else tuple(f"{i:0{len(str(n))}d}" for i in range(n)),
            gpus=cast(Ints, gpus),
            **job_facts,
        )
        types = tuple(worker_types) if worker_types is not None else tuple(f"type{j}" for j in range(t))
        if len(types) != t:
            raise ProblemError(f"rates: {t} columns, but {len(types)} worker types")
        if len(jobs) != n:
            raise ProblemError(f"rates: {n} rows, but {len(jobs)} ids")
        check_values(
            table.ravel(), "rate", lambda k: f"job '{jobs.ids[k // t]}' on '{types[k % t]}'", least=0.0
        )
        return cls(
            jobs=jobs,
            columns=Columns(
                np.repeat(np.arange(n), t), np.tile(np.arange(t), n), np.repeat(jobs.gpus, t), table.ravel()
            ),
            worker_types=types,
            capacity=cast(Floats, capacity),
            price_per_gpu_hour=cast(Floats, price_per_gpu_hour),
            tenants=tuple(tenants),
            quotas=quotas,
            now_s=now_s,
            seed=seed,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """The answer of a policy: the share of time in which each column should run, and the value of these shares."""

    policy: str
    # By column.
    time_share: Floats
    # What the policy optimises, in its own unit.
    value: float
    # [t] By how much one more GPU of each type would change the value; NaN if unknown.
    price: Floats
    # [n] The rate of each job alone in an equal slice of the cluster.
    isolated_rate: Floats
    # [k] Whether a column may take GPUs that would otherwise be idle.
    backfill: Bools
    # Whether the shares are proven optimal.
    optimal: bool = True
    solve_s: float = 0.0
    notes: tuple[str, ...] = ()


Policy = Callable[[Problem], Allocation]


def _all_of(rows: Ints, size: int) -> bool:
    """Return whether `rows` contains every row, in order."""
    return len(rows) == size and bool((rows == np.arange(size)).all())
