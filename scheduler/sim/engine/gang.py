"""All processes of one lease, on all its nodes. They begin, step and end together."""

from __future__ import annotations

import math
from enum import Enum

from scheduler.model.lease import GpuId, Lease, nodes_of
from scheduler.sim.engine.physics import JobTruth
from worker_agent.core.messages import Token


class Phase(Enum):
    """The stages of a gang's life."""

    # Some nodes have not started their ranks yet.
    GATHERING = "gathering"
    RESTARTING = "restarting"
    STEPPING = "stepping"
    SAVING = "saving"
    GONE = "gone"


GATHERING, RESTARTING, STEPPING, SAVING, GONE = Phase


class Gang:
    """A job under one lease. `steps` is exact at `since_s`; a gang that is stepping does `rate` steps per second."""

    __slots__ = (
        *("lease", "truth", "place", "worker_type", "consolidated", "present", "phase"),
        *("steps", "saved", "stepping_s", "rate", "since_s", "runs_to", "version", "ends_s", "token"),
    )

    def __init__(self, lease: Lease, truth: JobTruth, worker_type: str, saved: float = 0.0) -> None:
        """`saved`: the steps in the job's newest checkpoint."""
        self.lease = lease
        self.truth = truth
        # Of two attempts, the one with the greater token is the newer. Only the newest may write the checkpoint.
        self.token: Token = (lease.epoch, lease.attempt)
        # A key for the GPUs of the gang, the same for both jobs of a packed pair.
        self.place: GpuId = min(lease.gpus)
        self.worker_type = worker_type
        self.consolidated = True
        # When the ranks of each node started, by node.
        self.present: dict[str, float] = {}
        self.phase = GATHERING
        # The steps done, and the steps in the newest checkpoint.
        self.steps = self.saved = saved
        # The time spent on steps, the present rate, and the time up to which `steps` is counted.
        self.stepping_s = self.rate = self.since_s = 0.0
        # The step at which the gang ends by itself.
        self.runs_to = truth.runs_to
        # The end of the lease as of the last renewal. Only RestartingMachines keep it up to date.
        self.ends_s = lease.ends_s
        # The version of the gang's entry on the heap of due events. Entries with an older version are void.
        self.version = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the gang's ranks, in order of rank."""
        return nodes_of(self.lease.gpus)

    def settle(self, now_s: float) -> None:
        """Update `steps`, `saved` and `stepping_s` to now."""
        if self.phase is not STEPPING or now_s <= self.since_s:
            return
        span_s, every_s, end = now_s - self.since_s, self.truth.save_every_s, self.runs_to
        stepping_s = self.stepping_s + span_s
        if stepping_s >= every_s:
            # The time from `since_s` to the last regular save.
            into_s = math.floor(stepping_s / every_s) * every_s - self.stepping_s
            if into_s >= 0.0:
                self.saved = max(self.saved, min(self.steps + self.rate * into_s, end))
        steps = self.steps + self.rate * span_s
        self.steps = steps if steps < end else end
        self.stepping_s = stepping_s
        self.since_s = now_s

    def last_step_s(self) -> float:
        """Return when the gang reaches its last step at the present rate."""
        left = self.runs_to - self.steps
        return self.since_s + left / self.rate if left > 0 else self.since_s

    def is_at_last_step(self) -> bool:
        """Return whether the gang is at its last step, within rounding."""
        end = self.runs_to
        return end < math.inf and self.steps >= end - 1e-9 * (end if end > 1.0 else 1.0)
