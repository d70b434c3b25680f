"""Exits of which the scheduler may not know yet: reported again and again until it shows that it does."""

from __future__ import annotations

import math
from collections.abc import Collection, Set

import msgspec

from worker_agent.core.messages import ProcessExited


class KeptExit(msgspec.Struct, gc=False):
    """An exit, and how far its report has come."""

    exit: ProcessExited
    gpus: tuple[int, ...]
    # The number of the last report that carried it; 0 before the first.
    report: int = 0
    # A set without this lease has come since.
    omitted: bool = False


class Exits:
    """Exits on this node by lease, each kept until the scheduler has it."""

    __slots__ = ("kept", "pending", "reported_s")

    def __init__(self) -> None:
        self.kept: dict[str, KeptExit] = {}
        # Those that the next report carries.
        self.pending: dict[str, KeptExit] = {}
        # When all that are kept were last reported; the time of the first one before that; inf while none is kept.
        self.reported_s = math.inf

    def keep(self, now_s: float, exit: ProcessExited, gpus: tuple[int, ...]) -> None:
        """Keep an exit, and put it into the next report."""
        if self.reported_s == math.inf:
            self.reported_s = now_s
        self.kept[exit.lease] = self.pending[exit.lease] = KeptExit(exit, gpus)

    def resend(self, lease: str) -> None:
        """Put a kept exit into the next report again."""
        self.pending[lease] = self.kept[lease]

    def resend_all(self) -> None:
        """Put every kept exit into the next report: earlier reports may have been lost."""
        self.pending.update(self.kept)

    def take_pending(self, report: int) -> tuple[ProcessExited, ...]:
        """Return the exits for the report of this number; none is pending afterwards."""
        exits = []
        for kept in self.pending.values():
            kept.report = report
            exits.append(kept.exit)
        self.pending.clear()
        return tuple(exits)

    def confirm(self, report: int) -> None:
        """Forget the exits last carried by this report: the scheduler has made it durable."""
        for lease in [lease for lease, kept in self.kept.items() if kept.report == report]:
            self._forget(lease)

    def compare_with_set(self, listed: Collection[str], new_gpus: Set[int]) -> None:
        """Forget the exits that the sender of this set knows. `new_gpus`: those of leases new to this node.

        The scheduler gives a GPU to a new lease only after it has closed the old one: that is proof. A set that only
        lacks the lease may have crossed the report of its exit on the way, so it takes two of those.
        """
        for lease, kept in list(self.kept.items()):
            if lease in listed or not kept.report:
                continue
            if kept.omitted or not new_gpus.isdisjoint(kept.gpus):
                self._forget(lease)
            else:
                kept.omitted = True

    def _forget(self, lease: str) -> None:
        del self.kept[lease]
        self.pending.pop(lease, None)
        if not self.kept:
            self.reported_s = math.inf
