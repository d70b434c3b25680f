"""The rows of the tables that are made from the journal: their fields are the columns. Times are in milliseconds."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import msgspec

from scheduler.model.lease import GpuId

# How a lease ended, by its number in the history. A dropped lease was never sent to its nodes.
DROPPED = "dropped"
OUTCOMES = ("finished", "yielded", "failed", "node_failed", DROPPED)
OUTCOME_NUMBERS = {outcome: number for number, outcome in enumerate(OUTCOMES)}


class PastLease(NamedTuple):
    """A lease that has ended: a row of the table `lease`."""

    # Where the journal reports its end. Later ends have greater places.
    place: int
    lease: int
    job: str
    attempt: int
    round: int
    worker_type: str
    gpus: int
    # The GPUs in the order of ranks, as by `packed_gpus`.
    on_gpus: str
    plan: str
    # The job with which it was packed when it was granted.
    with_job: str
    user: str
    tenant: str
    job_type: str
    granted_ms: int
    # When processes ran; None if none ever did.
    started_ms: int | None
    ended_ms: int
    run_ms: int
    stepping_ms: int
    # The total steps of the job at the end, and how many of them were saved; None if the lease was dropped.
    steps: float | None
    saved: float | None
    # An index of OUTCOMES.
    outcome: int
    code: int
    why: str
    # How long it held its GPUs, up to its end, and how this time divides (`division`); the rest of it is restart.
    held_ms: int
    useful_ms: int
    lost_ms: int
    idle_ms: int
    # How long, up to its end, another lease held the same GPUs that has not ended yet.
    shared_ms: int

    def continues_at(self, steps_before: float | None) -> float | None:
        """Return the steps from which the job continues after this lease; None if they are not known."""
        if self.steps is None:
            return steps_before
        return self.steps if OUTCOMES[self.outcome] in ("finished", "yielded") else self.saved


class PastNode(NamedTuple):
    """The GPUs of a node from a time on: a row of the table `node`."""

    place: int
    node: str
    at_ms: int
    worker_type: str
    # 0: the node was removed.
    gpus: int
    # Of the GPUs that no lease holds, those that none could hold.
    drained: int
    broken: int
    unreachable: int


class PastRound(NamedTuple):
    """A round that was planned: a row of the table `round`."""

    number: int
    planned_ms: int
    starts_ms: int
    ends_ms: int
    # Leases that begin with the round, continue, and do not continue; columns that were due, but did not fit.
    granted: int
    renewed: int
    ended: int
    skipped: int
    # The number of the allocation by which it was planned; 0: there was none yet.
    allocation: int


class PastAllocation(NamedTuple):
    """An allocation that was adopted: a row of the table `allocation`."""

    number: int
    adopted_ms: int
    # From the question to the adoption; None if the question is not known.
    solve_ms: int | None
    policy: str
    # Why the policy failed; empty: it did not.
    failed: str
    optimal: bool
    # What each tenant gets of each worker type, as by `packed_shares`.
    shares: str


Row = PastLease | PastNode | PastRound | PastAllocation
# By tenant and worker type, the sum of share times GPUs over the tenant's jobs; a packed pair counts for both jobs.
SharesByTenant = dict[str, dict[str, float]]
_SHARES = msgspec.json.Decoder(SharesByTenant)


def ms(at_s: float) -> int:
    """Return a time in whole milliseconds."""
    return round(at_s * 1000.0)


def packed_shares(shares: SharesByTenant) -> str:
    """Return shares as one value, JSON that SQLite can read."""
    return msgspec.json.encode(shares).decode()


def unpacked_shares(value: str) -> SharesByTenant:
    """Return the shares of a value made by `packed_shares`."""
    return _SHARES.decode(value)


# Cached, because jobs take turns on the same GPUs.
@lru_cache(maxsize=4096)
def packed_gpus(gpus: tuple[GpuId, ...]) -> str:
    """Return the GPUs of a lease as short text: `n1:0-3 n2:0` for four GPUs of n1 and one of n2."""
    if len(gpus) == 1:
        return gpus[0]
    runs: list[tuple[str, int, int]] = []
    for gpu in gpus:
        node, _, index = gpu.rpartition(":")
        number = int(index)
        if runs and runs[-1][0] == node and runs[-1][2] + 1 == number:
            runs[-1] = (node, runs[-1][1], number)
        else:
            runs.append((node, number, number))
    return " ".join(f"{node}:{first}" + (f"-{last}" if last > first else "") for node, first, last in runs)


def unpacked_gpus(text: str) -> tuple[GpuId, ...]:
    """Return the GPUs of text made by `packed_gpus`."""
    gpus: list[GpuId] = []
    for run in text.split(" "):
        node, _, numbers = run.rpartition(":")
        first, _, last = numbers.partition("-")
        gpus += [f"{node}:{number}" for number in range(int(first), int(last or first) + 1)]
    return tuple(gpus)
