"""Count what a round costs, so that every column that runs fits the budgets of its jobs until the round has ended.

All leases of now are counted to their ends already, as if none was renewed. So a column whose jobs run already in it is
charged only for the time after that, and others from now on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.model.lease import Bundle
from scheduler.rounds.inputs import Held, SpendingLimit


class Purse:
    """The rest of each budget. It may be less than nothing: a budget may have been lowered."""

    def __init__(
        self,
        limits: Sequence[SpendingLimit],
        limits_of: Mapping[str, tuple[int, ...]],
        held: Mapping[str, Held],
    ) -> None:
        self._limits, self._of, self._held = limits, limits_of, held
        self._left = [limit.left for limit in limits]

    def fits(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> bool:
        """Whether the budgets of these jobs admit this bundle. The jobs `beside` them hold its GPUs already."""
        for limit in self._rows(jobs, beside):
            charge = self._charge(limit, bundle)
            if charge > 0 and charge > self._left[limit]:
                return False
        return True

    def take(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> None:
        """Charge the bundle to the budgets of these jobs; see `fits`."""
        for limit in self._rows(jobs, beside):
            self._left[limit] -= self._charge(limit, bundle)

    def first_exceeded(self, bundle: Bundle) -> int | None:
        """Return the row of the first budget that does not admit this bundle; None if all do."""
        for limit in sorted(self._rows(bundle.jobs, ())):
            charge = self._charge(limit, bundle)
            if charge > 0 and charge > self._left[limit]:
                return limit
        return None

    def _rows(self, jobs: Iterable[str], beside: Iterable[str]) -> set[int]:
        of = self._of
        own = {limit for job in jobs for limit in of.get(job, ())}
        return own.difference(*(of.get(job, ()) for job in beside))

    def _charge(self, limit: int, bundle: Bundle) -> float:
        terms = self._limits[limit]
        rate = bundle.gpus * terms.price.get(bundle.worker_type, 0.0)
        held = [self._held[job].bundle for job in bundle.jobs if job in self._held]
        if len(held) < len(bundle.jobs) or any(before.jobs != bundle.jobs for before in held):
            return rate * (terms.before_h + terms.after_h)
        # The lease of now is charged to its end in any case; the next one on other GPUs begins after its exit.
        before = held[0].gpus * terms.price.get(held[0].worker_type, 0.0)
        return rate * terms.after_h + max(rate - before, 0.0) * terms.before_h
