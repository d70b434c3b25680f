"""Count the GPUs and jobs of quotas, and what is left of budgets, while columns are chosen.

GPUs that two jobs share count once in each quota on GPUs and budget of these jobs; in a quota on running jobs, the two
are two jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.budget import Purse
from scheduler.rounds.inputs import NO_ROW
from scheduler.rounds.lookup import Board


class Tally:
    """The rest of each quota and budget. It may be less than nothing: a limit may have been lowered."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._left = [limit.gpus for limit in board.inputs.limits]
        self._jobs_left = list(board.inputs.job_limits)
        self._kind_of = {name: kind for kind, name in enumerate(board.inputs.worker_types)}
        inputs = board.inputs
        self._purse = Purse(inputs.budgets, inputs.budgets_of, inputs.held) if inputs.budgets else None

    @classmethod
    def new(cls, board: Board) -> Tally | None:
        """Return the tally before any placement; None if there are neither quotas nor budgets."""
        inputs = board.inputs
        return cls(board) if inputs.limits or inputs.job_limits or inputs.budgets else None

    @classmethod
    def of(cls, board: Board, placements: Mapping[Bundle, tuple[GpuId, ...]]) -> Tally | None:
        """Return the tally after these placements; None if there are neither quotas nor budgets."""
        tally = cls.new(board)
        if tally is None:
            return None
        for bundle in placements:
            tally.take(bundle.jobs, bundle)
        return tally

    def fits(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> bool:
        """Whether quotas and budgets of these jobs admit this bundle. The jobs `beside` them hold its GPUs already."""
        if not all(self._left[limit] >= bundle.gpus for limit in self._limits(jobs, bundle, beside)):
            return False
        if any(self._jobs_left[limit] < count for limit, count in self._counts(jobs).items()):
            return False
        return self._purse is None or self._purse.fits(jobs, bundle, beside)

    def take(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> None:
        """Count the bundle in the quotas and budgets of these jobs; see `fits`."""
        if self._purse is not None:
            self._purse.take(jobs, bundle, beside)
        for limit in self._limits(jobs, bundle, beside):
            self._left[limit] -= bundle.gpus
        for limit, count in self._counts(jobs).items():
            self._jobs_left[limit] -= count

    def _counts(self, jobs: Iterable[str]) -> Mapping[int, int]:
        """Return how many of these jobs each quota on running jobs counts."""
        of = self._board.inputs.job_limits_of
        return Counter(limit for job in jobs for limit in of.get(job, ())) if of else {}

    def _limits(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str]) -> set[int]:
        """Return the quotas of these jobs that count GPUs of this type, without those that count them already."""
        limits, of = self._board.inputs.limits, self._board.inputs.limits_of
        kinds = (NO_ROW, self._kind_of.get(bundle.worker_type, NO_ROW))
        own = {limit for job in jobs for limit in of.get(job, ()) if limits[limit].worker_type in kinds}
        return own.difference(*(of.get(job, ()) for job in beside))
