"""Exits that the scheduler may not know of yet: said again until it shows that it does."""

from __future__ import annotations

import math
from collections.abc import Collection, Set

import msgspec

from worker_agent.core.messages import ProcessExited


class KeptExit(msgspec.Struct, gc=False):
    """One exit, and what became of telling it."""

    exit: ProcessExited
    gpus: tuple[int, ...]
    number: int = 0  # of the report that said it last
    omitted: bool = False  # a set came that does without the lease


class Exits:
    """What has ended here, by lease, until the scheduler has taken it in."""

    __slots__ = ("kept", "said_s", "unsaid")

    def __init__(self) -> None:
        self.kept: dict[str, KeptExit] = {}
        self.unsaid: dict[str, KeptExit] = {}  # goes out with the next report
        self.said_s = math.inf  # when all that are kept were last said; the first one counts

    def keep(self, now_s: float, exit: ProcessExited, gpus: tuple[int, ...]) -> None:
        """It has ended, and has to be told."""
        if self.said_s == math.inf:
            self.said_s = now_s
        self.kept[exit.lease] = self.unsaid[exit.lease] = KeptExit(exit, gpus)

    def say_again(self, lease: str) -> None:
        """Tell an exit that is kept once more."""
        self.unsaid[lease] = self.kept[lease]

    def say_all_again(self) -> None:
        """The interval has passed, or the link is new: whatever was told may have been lost."""
        self.unsaid.update(self.kept)

    def said(self, number: int) -> tuple[ProcessExited, ...]:
        """What goes into the report of this number."""
        exits = []
        for kept in self.unsaid.values():
            kept.number = number
            exits.append(kept.exit)
        self.unsaid.clear()
        return tuple(exits)

    def taken(self, number: int) -> None:
        """The scheduler has the report of this number for good."""
        for lease in [lease for lease, kept in self.kept.items() if kept.number == number]:
            self._forget(lease)

    def see_set(self, listed: Collection[str], given: Set[int]) -> None:
        """Which exits does the sender of this set know of? `given`: GPUs that go to leases new to this node.

        GPUs go to a new lease only when the old one is closed: that is proof. A set that merely does without
        the lease may have crossed the exit on its way; it takes two of them.
        """
        for lease, kept in list(self.kept.items()):
            if lease in listed or not kept.number:  # never said: nobody can know
                continue
            if kept.omitted or not given.isdisjoint(kept.gpus):
                self._forget(lease)
            else:
                kept.omitted = True

    def _forget(self, lease: str) -> None:
        del self.kept[lease]
        self.unsaid.pop(lease, None)
        if not self.kept:
            self.said_s = math.inf
