"""A run in which jobs get their shares exactly, without rounds, leases or machines: what rounds are compared with.

Every job with an allocation advances at its effective throughput all the time. Allocations are made as in the
scheduler: at boundaries of rounds, when something has changed, at least `min_reallocation_s` apart. There are no
restarts, and time is not rounded to rounds. The scheduler's own code builds the problem from a state. This module adds
the steps to that state itself, because there are no leases that could report steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.effects import Solve
from scheduler.core.planning import problem
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import Move
from scheduler.model.settings import Settings
from scheduler.sim.engine.world import Arrival
from scheduler.solving import shares, solve

# A boundary that is nearer than this counts as reached.
LEAST_STEP_S = 1e-6


class Fluid:
    """Jobs that advance at their effective throughput."""

    def __init__(self, settings: Settings, record: Callable[[float, f.Fact], None]) -> None:
        self.state = SchedulerState()
        self.now_s = 0.0
        self.allocations = 0
        self._settings = settings
        self._kinds = Kinds()
        self._record = record
        # By job: the steps per second under the current allocation.
        self._rate: dict[str, float] = {}
        # When the last allocation was made.
        self._asked_s = -math.inf

    def fact(self, fact: f.Fact) -> None:
        """Apply a fact now, and record it."""
        apply(self.state, self.now_s, fact)
        self._record(self.now_s, fact)

    def open(self, nodes: Iterable[NodeSpec], rates: f.RatesGiven, prices: Mapping[str, float]) -> None:
        """Set up the cluster at the start."""
        self.fact(f.Configured(settings=self._settings))
        self.fact(rates)
        if prices:
            self.fact(f.PricesSet(price_per_gpu_hour=dict(prices)))
        for node in nodes:
            self.fact(f.NodeJoined(spec=node))

    def run(self, arrivals: Iterable[Arrival], over: Callable[[float], bool]) -> None:
        """Advance from one arrival, end or boundary to the next, until the run is over or no job advances any more."""
        remaining = iter(arrivals)
        arrival = next(remaining, None)
        while not over(self.now_s):
            if self.state.stale and self.now_s >= self._boundary_s() - LEAST_STEP_S:
                self._allocate()
            ends_s, job = self._next_end()
            boundary_s = self._boundary_s() if self.state.stale and self.state.active else math.inf
            arrival_s = math.inf if arrival is None else arrival.at_s
            until_s = min(ends_s, boundary_s, arrival_s)
            if until_s == math.inf:
                return
            self._advance(until_s)
            if arrival is not None and arrival_s <= until_s:
                self.fact(f.JobSubmitted(job=str(self.state.next_job), spec=arrival.spec))
                arrival = next(remaining, None)
            elif ends_s <= until_s:
                del self._rate[job]
                self.fact(f.JobMoved(job=job, move=Move.COMPLETE))

    def _boundary_s(self) -> float:
        """Return the first boundary of a round at which an allocation may be made."""
        round_s = self._settings.round_s
        earliest_s = max(self.now_s, self._asked_s + max(self._settings.min_reallocation_s, round_s))
        return math.ceil(earliest_s / round_s - 1e-9) * round_s

    def _allocate(self) -> None:
        built, pairs = problem.build(self.state, self._kinds, self.now_s)
        self.allocations += 1
        self._asked_s = self.now_s
        self.fact(f.AllocationAsked(number=self.allocations))
        solved, allocation = solve(Solve(self.allocations, self._settings.policy, built, pairs))
        self.fact(
            f.AllocationAdopted(
                number=self.allocations, policy=allocation.policy, shares=shares(solved, allocation)
            )
        )
        rates = solved.rates @ allocation.time_share
        self._rate = {
            name: float(rate) for name, rate in zip(solved.jobs.ids, np.asarray(rates), strict=True)
        }

    def _next_end(self) -> tuple[float, str]:
        """Return when the next job ends, and the job; inf if no job does."""
        first_s, first = math.inf, ""
        for name, rate in self._rate.items():
            if rate > 0:
                ends_s = self.now_s + self.state.jobs[name].steps_left / rate
                if ends_s < first_s:
                    first_s, first = ends_s, name
        return first_s, first

    def _advance(self, until_s: float) -> None:
        for name, rate in self._rate.items():
            job = self.state.jobs[name]
            gained = rate * (until_s - self.now_s)
            job.steps_done += gained
            isolated = self.state.isolated_rate.get(name, 0.0)
            if isolated > 0:
                job.isolated_s += gained / isolated
        self.now_s = until_s
