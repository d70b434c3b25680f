"""An exact matching of jobs to (worker type, position from last) with the least sum of position × time.

All GPUs of a type are alike, so a slot is (type, position) with room for as many jobs as the type has GPUs, and there
are few slots. Jobs are added one at a time, each along the shortest augmenting path: a job enters a slot; if that slot
is full, it pushes another job into the next slot, and so on until a slot has room. After each path the matching is the
cheapest for the jobs so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from policies.errors import ProblemError, SolverFailure
from policies.problem import Floats, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The type and the position from last (1 = last) of each job, and the sum of completion times."""

    kind: Ints
    position: Ints
    cost: float


def shortest_schedule(time_s: Floats, gpus: Ints, stop: Callable[[], bool] = bool) -> Schedule:
    """Return the schedule with the least sum of completion times; `time_s[job, type]` is inf if a job cannot run."""
    jobs = len(time_s)
    usable = np.where(gpus[None, :] > 0, time_s, np.inf)
    if not np.isfinite(usable).any(axis=1).all():
        raise ProblemError("matching: a job cannot run on any type that has a GPU")
    slots = _Slots(usable, gpus)
    for job in np.argsort(-usable.min(axis=1), kind="stable").tolist():
        if stop():
            raise SolverFailure("matching: no time left")
        slots.insert(job)
    kind = slots.kind[slots.slot_of]
    position = slots.position[slots.slot_of]
    cost = float((usable[np.arange(jobs), kind] * position).sum())
    return Schedule(kind, position, cost)


class _Slots:
    """The slots in use and one empty slot above them for each type, with the jobs in each slot.

    `push_cost[from, to]` is the least extra cost of pushing a job from one slot to another, `push_job[from, to]` the
    job with this cost.
    """

    def __init__(self, time_s: Floats, gpus: Ints) -> None:
        self.time_s, self.gpus = time_s, gpus
        self.kind = np.zeros(0, dtype=np.int64)
        self.position = np.zeros(0, dtype=np.int64)
        self.members: list[list[int]] = []
        self.slot_of = np.full(len(time_s), -1, dtype=np.int64)
        self.push_cost = np.zeros((0, 0))
        self.push_job = np.zeros((0, 0), dtype=np.int64)
        for kind in np.flatnonzero(gpus > 0).tolist():
            self._open(kind, 1)

    def insert(self, job: int) -> None:
        """Add a job along the cheapest path, which keeps the matching the cheapest."""
        direct = self.position * self.time_s[job, self.kind]
        room = np.array([len(m) for m in self.members]) < self.gpus[self.kind]
        # The least cost of a path to each slot, and the slot before it on this path.
        reach, previous = direct.copy(), np.full(len(direct), -1)
        # No cycle can reduce the cost, so this ends after at most as many rounds as there are slots.
        while True:
            via = reach[:, None] + self.push_cost
            origin = via.argmin(axis=0)
            through = via[origin, np.arange(len(reach))]
            # Without a margin, ties in the last bit would cycle forever.
            margin = 1e-12 * np.where(np.isfinite(reach), np.abs(reach), 0.0)
            better = through < reach - margin
            if not better.any():
                break
            reach = np.where(better, through, reach)
            previous = np.where(better, origin, previous)
        end = int(np.argmin(np.where(room, reach, np.inf)))
        self._move(job, end, previous)

    def _move(self, job: int, end: int, previous: Ints) -> None:
        """Add a job along the path that ends in slot `end`."""
        path = [end]
        while previous[path[-1]] >= 0:
            path.append(int(previous[path[-1]]))
            if len(path) > len(previous):
                raise SolverFailure("matching: times too far apart to compare")
        path.reverse()
        for step, slot in enumerate(path):
            self.members[slot].append(job)
            self.slot_of[job] = slot
            if step + 1 < len(path):
                job = int(self.push_job[slot, path[step + 1]])
                self.members[slot].remove(job)
        kind, position = int(self.kind[end]), int(self.position[end])
        if position == self.position[self.kind == kind].max():
            self._open(kind, position + 1)
        for slot in path:
            self._price(slot)

    def _open(self, kind: int, position: int) -> None:
        """Add the slot of the next position on each GPU of a type."""
        self.kind, self.position = np.append(self.kind, kind), np.append(self.position, position)
        self.members.append([])
        size = len(self.kind)
        push_cost, push_job = np.full((size, size), np.inf), np.full((size, size), -1)
        push_cost[:-1, :-1], push_job[:-1, :-1] = self.push_cost, self.push_job
        self.push_cost, self.push_job = push_cost, push_job
        for slot in range(size):
            self._price(slot)

    def _price(self, slot: int) -> None:
        """Update the costs of pushing a job out of this slot."""
        members = np.array(self.members[slot], dtype=np.int64)
        if len(members) < self.gpus[self.kind[slot]]:
            # The slot has room, so no job needs to leave it.
            self.push_cost[slot] = np.inf
            return
        cost = self.time_s[np.ix_(members, self.kind)] * self.position
        extra = cost - cost[:, [slot]]
        cheapest = extra.argmin(axis=0)
        self.push_cost[slot] = extra[cheapest, np.arange(len(self.kind))]
        self.push_job[slot] = members[cheapest]
        self.push_cost[slot, slot] = np.inf
