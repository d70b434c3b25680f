"""The outcome of each job in compact columns: 100,000 jobs take some tens of megabytes.

Times are absolute seconds, NaN if unknown. `rows` converts them to the units that users read.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.model.jobs import JobState
from scheduler.model.lease import Bundle

HOUR_S = 3600.0
NUMBERS = (
    *("arrival_s", "start_s", "end_s", "deadline_s"),
    *("held_s", "restart_s", "isolated_s", "cost_usd", "gpus", "preemptions"),
)
STATES = tuple(JobState)
FIELDS = (
    *("number", "id", "name", "type", "gpus", "state", "arrival_h", "start_h", "end_h", "jct_h", "queue_h"),
    *("ran_h", "restart_h", "preemptions", "cost_usd", "rho", "deadline_missed", "plans"),
)


class JobTable:
    """One row per job, in the order of submission. In shapes of arrays, n is the number of jobs, t of types."""

    def __init__(self, worker_types: list[str], offset: int = 0) -> None:
        """`worker_types`: the caller's list; types may be added to it later. `offset`: the number of the first job."""
        self.worker_types = worker_types
        self.offset = offset
        self.ids: list[str] = []
        self.names: list[str] = []
        self.types: list[str] = []
        # By row of a job with plans: those by which it ran, in the order of first use, in a set that keeps its order.
        self._plans: dict[int, dict[str, None]] = {}
        self.states = array("b")
        self._numbers = {name: array("d") for name in NUMBERS}
        self._received: list[array[float]] = []
        self._allocated: list[array[float]] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, job: str, name: str, job_type: str, gpus: int, arrival_s: float, deadline_s: float) -> int:
        """Add a row, and return its number."""
        self.ids.append(job)
        self.names.append(name)
        self.types.append(job_type)
        self.states.append(STATES.index(JobState.QUEUED))
        for column in self._numbers.values():
            column.append(math.nan)
        row = len(self.ids) - 1
        self.put(row, gpus=gpus, arrival_s=arrival_s, deadline_s=deadline_s)
        self.put(row, held_s=0.0, restart_s=0.0, isolated_s=0.0, cost_usd=0.0, preemptions=0)
        return row

    def put(self, row: int, **numbers: float) -> None:
        """Set some columns of a row."""
        for name, value in numbers.items():
            self._numbers[name][row] = value

    def set_state(self, row: int, state: JobState) -> None:
        """Set the state of a job."""
        self.states[row] = STATES.index(state)

    def add_plan(self, row: int, bundle: Bundle) -> None:
        """Add a plan by which a job got GPUs."""
        name = f"{bundle.worker_type}×{bundle.gpus} {bundle.label}"
        self._plans.setdefault(row, {})[name] = None

    def put_times(self, row: int, received_s: dict[int, float], allocated_s: dict[int, float]) -> None:
        """Set a job's times on each worker type: received, and promised by allocations."""
        for columns, times in ((self._received, received_s), (self._allocated, allocated_s)):
            for kind, time_s in times.items():
                _padded_column(columns, kind, len(self))[row] = time_s

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a copy of one column."""
        return np.array(self._numbers[name], dtype=float)

    def received_s(self) -> NDArray[np.float64]:
        """Return [n × t] the time on each type; each of two packed jobs has the whole time."""
        return self._matrix(self._received)

    def allocated_s(self) -> NDArray[np.float64]:
        """Return [n × t] the time promised on each type: share × time over all allocations with the job."""
        return self._matrix(self._allocated)

    def in_state(self, state: JobState) -> NDArray[np.bool_]:
        """Return [n] whether each job is in this state."""
        return np.asarray(np.array(self.states, dtype=np.int8) == STATES.index(state))

    def rho(self) -> NDArray[np.float64]:
        """Return [n] finish-time fairness of completed jobs: time in the system over time at the isolated share."""
        taken_s = self.numbers("end_s") - self.numbers("arrival_s")
        isolated_s = self.numbers("isolated_s")
        known = self.in_state(JobState.COMPLETED) & (isolated_s > 0)
        return np.asarray(np.divide(taken_s, isolated_s, out=np.full(len(self), np.nan), where=known))

    def missed(self, now_s: float) -> NDArray[np.float64]:
        """Return [n] 1 if the deadline was missed, 0 if it was met, NaN if there is none or it is not yet decided."""
        deadline_s, end_s = self.numbers("deadline_s"), self.numbers("end_s")
        completed, failed = self.in_state(JobState.COMPLETED), self.in_state(JobState.FAILED)
        over = ~completed & ~self.in_state(JobState.CANCELLED) & (failed | (deadline_s < now_s))
        verdict = np.where(completed, end_s > deadline_s, np.where(over, 1.0, np.nan))
        return np.where(np.isnan(deadline_s), np.nan, verdict)

    def queue_s(self, now_s: float) -> NDArray[np.float64]:
        """Return [n] the time without GPUs from arrival to the end, or to now."""
        end_s = self.numbers("end_s")
        until_s = np.where(np.isnan(end_s), now_s, end_s)
        return np.maximum(until_s - self.numbers("arrival_s") - self.numbers("held_s"), 0.0)

    def rows(self, now_s: float) -> Iterator[dict[str, Any]]:
        """Yield every job as a dict, in the units that users read. A figure without a value is None."""
        n = {name: self.numbers(name) for name in NUMBERS}
        rho, missed, queue_s = self.rho(), self.missed(now_s), self.queue_s(now_s)
        received_s, allocated_s = self.received_s(), self.allocated_s()
        for row in range(len(self)):
            is_missed = missed[row]
            yield {
                "number": self.offset + row,
                "id": self.ids[row],
                "name": self.names[row],
                "type": self.types[row],
                "gpus": int(n["gpus"][row]),
                "state": str(STATES[self.states[row]]),
                "arrival_h": _hours(n["arrival_s"][row]),
                "start_h": _hours(n["start_s"][row]),
                "end_h": _hours(n["end_s"][row]),
                "jct_h": _hours(n["end_s"][row] - n["arrival_s"][row]),
                "queue_h": _hours(queue_s[row]),
                "ran_h": _hours(n["held_s"][row]),
                "restart_h": _hours(n["restart_s"][row]),
                "preemptions": int(n["preemptions"][row]),
                "cost_usd": float(n["cost_usd"][row]),
                "rho": None if math.isnan(rho[row]) else float(rho[row]),
                "deadline_missed": None if math.isnan(is_missed) else bool(is_missed),
                "plans": "|".join(self._plans.get(row, ())),
                "received_h": self._by_type(received_s[row]),
                "allocated_h": self._by_type(allocated_s[row]),
            }

    def _by_type(self, times_s: NDArray[np.float64]) -> dict[str, float]:
        return {name: float(t) / HOUR_S for name, t in zip(self.worker_types, times_s, strict=True)}

    def _matrix(self, columns: list[array[float]]) -> NDArray[np.float64]:
        matrix = np.zeros((len(self), len(self.worker_types)))
        for kind, column in enumerate(columns):
            matrix[: len(column), kind] = column
        return matrix


def _padded_column(columns: list[array[float]], kind: int, rows: int) -> array[float]:
    """Return the column of a type, padded to all rows."""
    while len(columns) <= kind:
        columns.append(array("d"))
    column = columns[kind]
    column.extend([0.0] * (rows - len(column)))
    return column


def _hours(time_s: float) -> float | None:
    return None if math.isnan(time_s) else float(time_s) / HOUR_S
