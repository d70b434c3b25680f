"""The matrix: recent GPU time that jobs or tenants were due and received, by worker type. Changes nothing."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.state import SchedulerState
from scheduler.live.observe.job_filter import is_of_tenant
from scheduler.model.jobs import Job
from scheduler.model.shares import Floats, Ints

# GPU time below this is rounding.
TINY_S = 1e-3


class Place(NamedTuple):
    """The position of a row: how far it is behind in GPU seconds, and a number that orders rows with the same gap."""

    behind_s: float
    tie: float


class Matrix:
    """All rows of a matrix, those furthest behind first."""

    def __init__(self, state: SchedulerState, tenant: str, *, by_tenant: bool) -> None:
        """Take the sums from the state. `tenant`: only this one and those below it; all if it is empty."""
        self._by_tenant = by_tenant
        self._count(state, tenant)
        self._behind_s = (self._due_s - self._received_s).sum(axis=1)
        is_used = (np.maximum(self._due_s, self._received_s) > TINY_S) | (self._gpus > 0)
        rows = np.flatnonzero(is_used.any(axis=1))
        self._order = rows[np.lexsort((self._ties[rows], -self._behind_s[rows]))]

    def _count(self, state: SchedulerState, tenant: str) -> None:
        """Set the names and worker types of the rows and columns, and their sums."""
        table = state.shares
        running = [holding for holding in state.leases.values() if holding.started_s is not None]
        jobs = list(dict.fromkeys((*table.jobs, *(holding.lease.job for holding in running))))
        self._types = list(dict.fromkeys((*table.types, *(entry.bundle.worker_type for entry in running))))
        row_of: dict[str, int] = {}
        # Of each row: its first job, and how many it has.
        firsts, self._members = list[Job](), list[int]()
        # The row of each job; -1 for those that are left out.
        rows = np.full(len(jobs), -1, np.int64)
        for number, name in enumerate(jobs):
            job = state.active.get(name)
            if job is not None and is_of_tenant(job.spec.tenant, tenant):
                rows[number] = row = row_of.setdefault(self._row_name(job), len(row_of))
                if row == len(firsts):
                    firsts.append(job)
                    self._members.append(0)
                self._members[row] += 1
        # Read now, because later the jobs change.
        self._ids, self._specs = [job.id for job in firsts], [job.spec for job in firsts]
        self._ties = np.array([self._tie(job) for job in firsts], float)
        shape = len(firsts), len(self._types)
        self._due_s, self._received_s = np.zeros(shape), np.zeros(shape)
        self._gpus = np.zeros(shape, np.int64)
        for members in (table.first, table.second):
            self._add(self._due_s, rows, members, table.worker_type, table.entitled_s * table.gpus)
            self._add(self._received_s, rows, members, table.worker_type, table.received_s * table.gpus)
        job_row = {name: row for name, row in zip(jobs, rows.tolist(), strict=True) if row >= 0}
        column_of = {name: column for column, name in enumerate(self._types)}
        for holding in running:
            row = job_row.get(holding.lease.job, -1)
            if row >= 0:
                self._gpus[row, column_of[holding.bundle.worker_type]] += holding.bundle.gpus

    @staticmethod
    def _add(sums: Floats, rows: Ints, members: Ints, worker_types: Ints, times_s: Floats) -> None:
        """Add the times of columns to the rows of their first, or second, jobs. `members`: -1 if there is no job."""
        row = np.where(members >= 0, rows[members], -1)
        kept: NDArray[np.bool_] = row >= 0
        np.add.at(sums, (row[kept], worker_types[kept]), times_s[kept])

    def _row_name(self, job: Job) -> str:
        return job.spec.tenant if self._by_tenant else job.id

    def _tie(self, job: Job) -> int:
        return zlib.crc32(job.spec.tenant.encode()) if self._by_tenant else job.order

    def rows(self, after: Place | None) -> Iterator[tuple[Place, pb.Matrix.Row]]:
        """Yield the rows that come after this place, or all rows, with their places."""
        for row in self._order.tolist():
            place = Place(float(self._behind_s[row]), float(self._ties[row]))
            if after is None or (-place.behind_s, place.tie) > (-after.behind_s, after.tie):
                yield place, self._wire(row)

    def _wire(self, row: int) -> pb.Matrix.Row:
        spec = self._specs[row]
        wire = pb.Matrix.Row(tenant=spec.tenant, jobs=self._members[row])
        if not self._by_tenant:
            wire.job, wire.name = self._ids[row], spec.name
        for column, kind in enumerate(self._types):
            due_s, received_s = float(self._due_s[row, column]), float(self._received_s[row, column])
            gpus = int(self._gpus[row, column])
            if max(due_s, received_s) > TINY_S or gpus:
                wire.cells.add(worker_type=kind, due_s=due_s, received_s=received_s, gpus=gpus)
        return wire
