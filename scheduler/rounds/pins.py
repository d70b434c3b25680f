"""Pinned jobs keep exactly their GPUs. The only question is which jobs share these GPUs with them.

Two jobs pinned as a pair stay a pair. A job that is pinned alone, or whose partner is not pinned, is undecided: the
best-ranked column that contains the job, and can run on its GPUs, decides whether it has a partner. If there is no such
column, the job runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import NO_ROW, Held
from scheduler.rounds.lookup import Board
from scheduler.rounds.quota import Tally
from scheduler.rounds.resources import Stock, demand_of


class Pins:
    """The pinned jobs of a round, their GPUs, and the partners decided so far."""

    def __init__(self, board: Board, held: Mapping[str, Held]) -> None:
        """Place all pinned jobs that have no choice of partners. `held`: the holding of each pinned job."""
        self.board = board
        self.held = held
        self.undecided: set[str] = set()
        self.placements: dict[Bundle, tuple[GpuId, ...]] = {}
        # By worker type: the number of GPUs held by pinned jobs for which `visit` has not been called yet.
        self.unvisited_gpus = [0] * len(board.sites)
        self.gpus: set[GpuId] = set()
        # Pinned jobs by their row in RoundInputs.jobs.
        self.rows: dict[int, str] = {}
        # The rows of pinned jobs whose columns have to be visited, because a gang may wait or a partner may join.
        self.watched: set[int] = set()
        self.stock: Stock | None = None
        # What is left under quotas and budgets; None if there are none.
        self.tally = Tally.new(board)
        if not held:
            return
        # The sets of GPUs whose pinned jobs have been visited.
        self._visited: set[tuple[GpuId, ...]] = set()
        kind_of = {name: kind for kind, name in enumerate(board.inputs.worker_types)}
        self.rows = {row: job for row, job in enumerate(board.inputs.jobs) if job in held}
        could_pair = _could_pair(board)
        sharing: dict[tuple[GpuId, ...], list[str]] = {}
        for job, holding in held.items():
            sharing.setdefault(holding.gpus, []).append(job)
            partners = holding.bundle.jobs
            alone = len(partners) == 1 and job not in could_pair
            paired = len(partners) == 2 and all(
                partner in held and held[partner].gpus == holding.gpus for partner in partners
            )
            if alone or paired:
                self.placements[holding.bundle] = holding.gpus
            else:
                self.undecided.add(job)
        for gpus, jobs in sharing.items():
            self.gpus.update(gpus)
            if self.tally is not None:
                self.tally.take(jobs, held[jobs[0]].bundle)
            kind = kind_of.get(held[jobs[0]].bundle.worker_type, NO_ROW)
            if kind != NO_ROW:
                self.unvisited_gpus[kind] += len(gpus)
        any_gang = max(board.widths, default=1) > 1
        self.watched = {row for row, job in self.rows.items() if any_gang or job in self.undecided}
        if board.any_needs:
            self.stock = Stock(board.inputs.nodes)
            for gpus, jobs in sharing.items():
                self.stock.charge(demand_of(board.inputs.needs, jobs), gpus)

    def visit(self, row: int, busy: bytearray) -> None:
        """Let the pinned jobs of this column run in it, if they can, and if a partner that joins them can.

        `busy` marks the jobs that run already; a partner that joins is marked here.
        """
        board = self.board
        bundle = board.inputs.candidates.bundles[row]
        members = [job for job in (board.first[row], board.second[row]) if job != NO_ROW]
        pinned = [self.rows[job] for job in members if job in self.rows]
        holding = self.held[pinned[0]]
        if any(
            self.held[job].gpus != holding.gpus or self.held[job].bundle[1:] != bundle[1:] for job in pinned
        ):
            return
        if holding.gpus not in self._visited:
            self._visited.add(holding.gpus)
            self.unvisited_gpus[board.kinds[row]] -= board.widths[row]
        joining = [job for job in members if job not in self.rows]
        if any(job not in self.undecided for job in pinned) or any(busy[job] for job in joining):
            return
        if joining and not self._admit(board.inputs.jobs[joining[0]], holding.gpus, row):
            return
        self.placements[bundle] = holding.gpus
        self.undecided.difference_update(self.rows[job] for job in members if job in self.rows)
        for job in joining:
            busy[job] = True

    def settle(self) -> None:
        """Let every undecided job run alone."""
        for job in sorted(self.undecided):
            holding = self.held[job]
            self.placements[holding.bundle._replace(jobs=(job,))] = holding.gpus
        self.undecided.clear()

    def _admit(self, job: str, gpus: tuple[GpuId, ...], row: int) -> bool:
        """Charge quotas and nodes for a partner in this column; return False if it cannot run on these GPUs."""
        board, bundle = self.board, self.board.inputs.candidates.bundles[row]
        if not board.sites[board.kinds[row]].gpus.issuperset(gpus):
            return False
        others = [other for other in bundle.jobs if other != job]
        if self.tally is not None and not self.tally.fits((job,), bundle, beside=others):
            return False
        granule = board.inputs.candidates.columns.granules.get(row, 1)
        demand = demand_of(board.inputs.needs, (job,), granule)
        if demand is not None and self.stock is not None:
            if not self.stock.fits(demand, gpus):
                return False
            self.stock.charge(demand, gpus)
        if self.tally is not None:
            self.tally.take((job,), bundle, beside=others)
        return True


def _could_pair(board: Board) -> set[str]:
    """Return the jobs that belong to at least one pair that may run."""
    candidates = board.inputs.candidates
    pairs = ((candidates.columns.second != NO_ROW) & candidates.terms.may_run).nonzero()[0].tolist()
    return {job for row in pairs for job in candidates.bundles[row].jobs}
