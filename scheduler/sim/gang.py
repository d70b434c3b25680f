"""All processes of one lease, on all its nodes: they begin together, step together and end together."""

from __future__ import annotations

import math
from enum import Enum

from scheduler.model.lease import GpuId, Lease, nodes_of
from scheduler.sim.physics import JobTruth


class Doing(Enum):
    """What a gang is at."""

    GATHERING = "gathering"  # not all nodes have started their ranks
    RESTARTING = "restarting"
    STEPPING = "stepping"
    SAVING = "saving"
    GONE = "gone"


GATHERING, RESTARTING, STEPPING, SAVING, GONE = Doing


class Gang:
    """A job under one lease. `steps` is true at `since_s`, and grows by `rate` while it is stepping."""

    __slots__ = (
        *("lease", "truth", "nodes", "place", "worker_type", "consolidated", "present", "doing"),
        *("steps", "saved", "stepping_s", "rate", "since_s", "runs_to", "version", "ends_s"),
    )

    def __init__(self, lease: Lease, truth: JobTruth, worker_type: str) -> None:
        self.lease = lease
        self.truth = truth
        self.nodes = nodes_of(lease.gpus)
        self.place: GpuId = min(lease.gpus)  # the same for both of a packed pair
        self.worker_type = worker_type
        self.consolidated = True
        self.present: dict[str, float] = {}  # nodes whose ranks run, and since when
        self.doing = GATHERING
        self.steps = self.saved = self.stepping_s = self.rate = self.since_s = 0.0
        self.runs_to = truth.runs_to
        self.ends_s = lease.ends_s  # as last told, where renewals cost something
        self.version = 0  # of its entry on the heap of what is due; older ones are void

    def settle(self, now_s: float) -> None:
        """Bring the figures up to now."""
        if self.doing is not STEPPING or now_s <= self.since_s:
            return
        span_s = now_s - self.since_s
        every_s = self.truth.save_every_s
        if every_s < math.inf:
            into_s = math.floor((self.stepping_s + span_s) / every_s) * every_s - self.stepping_s
            if into_s >= 0.0:
                self.saved = max(self.saved, min(self.steps + self.rate * into_s, self.runs_to))
        self.steps = min(self.steps + self.rate * span_s, self.runs_to)
        self.stepping_s += span_s
        self.since_s = now_s

    def ends_itself_s(self) -> float:
        """When it reaches its last step at the present rate."""
        left = self.runs_to - self.steps
        return self.since_s + left / self.rate if left > 0 else self.since_s

    def has_run_out(self) -> bool:
        """Whether it is at its last step, but for rounding."""
        to = self.runs_to
        return self.steps >= to - 1e-9 * max(1.0, abs(to)) if to < math.inf else False
