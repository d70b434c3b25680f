"""Count the GPUs of quotas while columns are chosen. GPUs that two jobs share count once in each of their quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import NO_ROW
from scheduler.rounds.lookup import Board


class Tally:
    """The GPUs that are left under each quota. They may be fewer than none: a quota may have been lowered."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._left = [limit.gpus for limit in board.inputs.limits]
        self._kind_of = {name: kind for kind, name in enumerate(board.inputs.worker_types)}

    @classmethod
    def of(cls, board: Board, placements: Mapping[Bundle, tuple[GpuId, ...]]) -> Tally | None:
        """Return the tally after these placements; None if there are no quotas."""
        if not board.inputs.limits:
            return None
        tally = cls(board)
        for bundle in placements:
            tally.take(bundle.jobs, bundle)
        return tally

    def fits(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> bool:
        """Whether the quotas of these jobs admit this bundle. The jobs `beside` them hold its GPUs already."""
        return all(self._left[limit] >= bundle.gpus for limit in self._limits(jobs, bundle, beside))

    def take(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str] = ()) -> None:
        """Count the GPUs of the bundle in the quotas of these jobs; see `fits`."""
        for limit in self._limits(jobs, bundle, beside):
            self._left[limit] -= bundle.gpus

    def _limits(self, jobs: Iterable[str], bundle: Bundle, beside: Iterable[str]) -> set[int]:
        """Return the quotas of these jobs that count GPUs of this type, without those that count them already."""
        limits, of = self._board.inputs.limits, self._board.inputs.limits_of
        kinds = (NO_ROW, self._kind_of.get(bundle.worker_type, NO_ROW))
        own = {limit for job in jobs for limit in of.get(job, ()) if limits[limit].worker_type in kinds}
        return own.difference(*(of.get(job, ()) for job in beside))
