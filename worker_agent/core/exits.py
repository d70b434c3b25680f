"""Exits that the scheduler may not have received: each is reported again until the scheduler is known to have it."""

from __future__ import annotations

import math
from collections.abc import Collection, Set

import msgspec

from worker_agent.core.messages import ProcessExited


class KeptExit(msgspec.Struct, gc=False):
    """An exit, and the state of its report."""

    exit: ProcessExited
    gpus: tuple[int, ...]
    # The number of the last report that carried the exit; 0 before the first.
    report: int = 0
    # Whether a set without this lease has arrived after a report of the exit.
    omitted: bool = False


class Exits:
    """Exits on this node by lease, each kept until the scheduler has it."""

    __slots__ = ("kept", "pending", "reported_s")

    def __init__(self) -> None:
        self.kept: dict[str, KeptExit] = {}
        # The exits in the next report.
        self.pending: dict[str, KeptExit] = {}
        # When all kept exits were last reported; before that, when the first was kept; inf while none is kept.
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
        """Return the exits for the report of this number, and leave none pending."""
        exits = []
        for kept in self.pending.values():
            kept.report = report
            exits.append(kept.exit)
        self.pending.clear()
        return tuple(exits)

    def confirm(self, report: int) -> None:
        """Forget the exits that were last sent in this report, because the scheduler has made it durable."""
        for lease in [lease for lease, kept in self.kept.items() if kept.report == report]:
            self._forget(lease)

    def compare_with_set(self, listed: Collection[str], new_gpus: Set[int]) -> None:
        """Forget the exits that the scheduler must have received before it sent this set.

        `listed`: the leases in the set. `new_gpus`: the GPUs of those that are new to this node. The scheduler leases a
        GPU again only after it has closed the old lease, so a new lease on the GPU proves that the scheduler has the
        old lease's exit. A set that merely omits the old lease may have been sent before the report of the exit
        arrived, so an exit is forgotten only after two such sets.
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
