"""Trees that divide an amount among jobs: how high each job is when the common level has a value.

As the level rises, no job's height falls, and each stops at its cap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from policies.problem import Floats, Ints, Jobs


class Share(Protocol):
    """A node of the tree that divides an amount among jobs. `v` holds the height of each job, by row."""

    @property
    def below(self) -> Ints:
        """The rows of all jobs below."""

    @property
    def room(self) -> float:
        """The amount at which every job below is at its cap."""

    def pour(self, amount: float, v: Floats) -> None:
        """Divide an amount among the nodes and jobs below, writing heights into v."""


@dataclass(slots=True)
class Fair(ABC):
    """Members rise together, each at the rate of its weight, and stop at their caps."""

    weight: Floats
    cap: Floats
    count: Floats
    # The level at which each member stops, in ascending order, and the amount in all members at that level.
    _level: Floats = field(init=False)
    _amount: Floats = field(init=False)
    # How fast the amount grows with the level, in the segment that ends at each level.
    _slope: Floats = field(init=False)

    def __post_init__(self) -> None:
        stop = self.cap / self.weight
        order = np.argsort(stop, kind="stable")
        full = np.cumsum((self.count * self.cap)[order])
        rising = (self.count * self.weight)[order]
        above = np.append(np.cumsum(rising[::-1])[::-1][1:], 0.0)
        self._level = stop[order]
        self._amount = full + above * self._level
        self._slope = above + rising

    @property
    def top(self) -> float:
        """The level at which the last member stops."""
        return float(self._level[-1])

    @property
    def stops(self) -> Floats:
        """The level at which each member stops."""
        return np.asarray(self.cap / self.weight)

    @property
    @abstractmethod
    def below(self) -> Ints:
        """See Share."""

    @property
    @abstractmethod
    def member(self) -> Ints:
        """The member to which each of the jobs `below` belongs."""

    @property
    def room(self) -> float:
        """See Share."""
        return float(self._amount[-1])

    def pour(self, amount: float, v: Floats) -> None:
        """See Share."""
        k = int(np.searchsorted(self._amount, amount))
        if k >= len(self._amount):
            self.rise(self.top, v)
        else:
            self.rise(max(0.0, float(self._level[k] - (self._amount[k] - amount) / self._slope[k])), v)

    def heights(self, level: float | Floats) -> Floats:
        """Return the amount in each member at this level, or at a level of its own."""
        return np.minimum(self.cap, self.weight * level)

    @abstractmethod
    def rise(self, level: float | Floats, v: Floats) -> None:
        """Raise all members to this level, or each to a level of its own, and write the heights of jobs into v."""


@dataclass(slots=True)
class FairJobs(Fair):
    """A tenant of policy `fairness`: jobs by weight."""

    rows: Ints = field(kw_only=True)

    @property
    def below(self) -> Ints:
        """See Share."""
        return self.rows

    @property
    def member(self) -> Ints:
        """See Fair."""
        return np.arange(len(self.rows))

    def rise(self, level: float | Floats, v: Floats) -> None:
        """See Fair."""
        v[self.rows] = self.heights(level)


def fair_jobs(jobs: Jobs) -> Callable[[Floats], FairJobs]:
    """Return the tree of all jobs without tenants, for `fill`."""

    def tree(cap: Floats) -> FairJobs:
        return FairJobs(jobs.weight, cap, jobs.count.astype(float), rows=np.arange(len(jobs)))

    return tree


@dataclass(slots=True)
class FairTenants(Fair):
    """An inner node: tenants by weight."""

    children: Sequence[Share] = field(kw_only=True)

    @property
    def below(self) -> Ints:
        """See Share."""
        return np.concatenate([child.below for child in self.children])

    @property
    def member(self) -> Ints:
        """See Fair."""
        return np.repeat(np.arange(len(self.children)), [len(child.below) for child in self.children])

    def rise(self, level: float | Floats, v: Floats) -> None:
        """See Fair."""
        for child, amount in zip(self.children, self.heights(level).tolist(), strict=True):
            child.pour(amount, v)


@dataclass(slots=True)
class QueuedJobs:
    """A tenant of policy `fifo`: the earliest job rises to its cap, then the next. Rows are in order of arrival."""

    rows: Ints
    cap: Floats
    count: Floats

    @property
    def below(self) -> Ints:
        """See Share."""
        return self.rows

    @property
    def room(self) -> float:
        """See Share."""
        return float((self.count * self.cap).sum())

    def pour(self, amount: float, v: Floats) -> None:
        """See Share."""
        before = np.cumsum(self.count * self.cap) - self.count * self.cap
        v[self.rows] = np.clip((amount - before) / self.count, 0.0, self.cap)
