"""All processes of one lease, on all its nodes: they begin together, step together and end together."""

from __future__ import annotations

import math
from enum import Enum

from scheduler.model.lease import GpuId, Lease, nodes_of
from scheduler.sim.engine.physics import JobTruth
from worker_agent.core.messages import Token


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
        *("lease", "truth", "place", "worker_type", "consolidated", "present", "doing"),
        *("steps", "saved", "stepping_s", "rate", "since_s", "runs_to", "version", "ends_s", "token"),
    )

    def __init__(self, lease: Lease, truth: JobTruth, worker_type: str, saved: float = 0.0) -> None:
        self.lease = lease
        self.truth = truth
        self.token: Token = (lease.epoch, lease.attempt)
        self.place: GpuId = min(lease.gpus)  # the same for both of a packed pair
        self.worker_type = worker_type
        self.consolidated = True
        self.present: dict[str, float] = {}  # nodes whose ranks run, and since when
        self.doing = GATHERING
        self.steps = self.saved = saved
        self.stepping_s = self.rate = self.since_s = 0.0
        self.runs_to = truth.runs_to
        self.ends_s = lease.ends_s  # as last told, where renewals cost something
        self.version = 0  # of its entry on the heap of what is due; older ones are void

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where its ranks run, in order."""
        return nodes_of(self.lease.gpus)

    def settle(self, now_s: float) -> None:
        """Bring the figures up to now."""
        if self.doing is not STEPPING or now_s <= self.since_s:
            return
        span_s, every_s, to = now_s - self.since_s, self.truth.save_every_s, self.runs_to
        stepping_s = self.stepping_s + span_s
        if stepping_s >= every_s:
            into_s = math.floor(stepping_s / every_s) * every_s - self.stepping_s
            if into_s >= 0.0:
                self.saved = max(self.saved, min(self.steps + self.rate * into_s, to))
        steps = self.steps + self.rate * span_s
        self.steps = steps if steps < to else to
        self.stepping_s = stepping_s
        self.since_s = now_s

    def ends_itself_s(self) -> float:
        """When it reaches its last step at the present rate."""
        left = self.runs_to - self.steps
        return self.since_s + left / self.rate if left > 0 else self.since_s

    def has_run_out(self) -> bool:
        """Whether it is at its last step, but for rounding."""
        to = self.runs_to
        return to < math.inf and self.steps >= to - 1e-9 * (to if to > 1.0 else 1.0)
