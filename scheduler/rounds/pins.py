"""Pinned jobs keep exactly their GPUs. The only open question is who shares these GPUs with them.

Two jobs pinned as a pair stay a pair. A job that is pinned alone, or whose partner is not pinned, is `open`: its best
ranked column that fits its GPUs decides whether it runs alone or with a partner. Without such a column it runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import NOBODY, Held
from scheduler.rounds.lookup import Board
from scheduler.rounds.resources import Stock, demand_of


class Pins:
    """The pinned jobs of a round, their GPUs, and their partners as far as they are settled."""

    def __init__(self, board: Board, held: Mapping[str, Held]) -> None:
        """Settle all pinned jobs that have no choice of partners. `held`: the pinned jobs and what they hold."""
        self.board = board
        self.held = held
        self.open: set[str] = set()
        self.placements: dict[Bundle, tuple[GpuId, ...]] = {}
        # By worker type: GPUs of pinned jobs whose turn has not come yet.
        self.behind = [0] * len(board.sites)
        self.gpus: set[GpuId] = set()
        self.rows: dict[int, str] = {}  # pinned jobs by row
        # Pinned rows whose turn matters, to a waiting gang or to a possible partner.
        self.meeting: set[int] = set()
        self.stock: Stock | None = None
        if not held:
            return
        self._passed: set[tuple[GpuId, ...]] = set()
        kind_of = {name: kind for kind, name in enumerate(board.inputs.worker_types)}
        self.rows = {row: job for row, job in enumerate(board.inputs.jobs) if job in held}
        could_pair = _could_pair(board)
        sharing: dict[tuple[GpuId, ...], list[str]] = {}
        for job, now in held.items():
            sharing.setdefault(now.gpus, []).append(job)
            partners = now.bundle.jobs
            alone = len(partners) == 1 and job not in could_pair
            paired = len(partners) == 2 and all(
                partner in held and held[partner].gpus == now.gpus for partner in partners
            )
            if alone or paired:
                self.placements[now.bundle] = now.gpus
            else:
                self.open.add(job)
        for gpus, jobs in sharing.items():
            self.gpus.update(gpus)
            kind = kind_of.get(held[jobs[0]].bundle.worker_type, NOBODY)
            if kind != NOBODY:
                self.behind[kind] += len(gpus)
        gangs = max(board.widths, default=1) > 1
        self.meeting = {row for row, job in self.rows.items() if gangs or job in self.open}
        if board.picky:
            self.stock = Stock(board.inputs.nodes)
            for gpus, jobs in sharing.items():
                self.stock.charge(demand_of(board.inputs.needs, jobs), gpus)

    def meet(self, row: int, busy: bytearray) -> None:
        """Settle how a pinned job continues when the turn of this column comes, if the column allows it.

        `busy` marks the jobs that run already; a partner that joins is marked too.
        """
        board = self.board
        bundle = board.inputs.candidates.bundles[row]
        members = [job for job in (board.first[row], board.second[row]) if job != NOBODY]
        pinned = [self.rows[job] for job in members if job in self.rows]
        now = self.held[pinned[0]]
        if any(self.held[job].gpus != now.gpus or self.held[job].bundle[1:] != bundle[1:] for job in pinned):
            return
        if now.gpus not in self._passed:
            self._passed.add(now.gpus)
            self.behind[board.kinds[row]] -= board.widths[row]
        joining = [job for job in members if job not in self.rows]
        if any(job not in self.open for job in pinned) or any(busy[job] for job in joining):
            return
        if joining and not self._lets_in(board.inputs.jobs[joining[0]], now.gpus, board.kinds[row]):
            return
        self.placements[bundle] = now.gpus
        self.open.difference_update(self.rows[job] for job in members if job in self.rows)
        for job in joining:
            busy[job] = True

    def settle(self) -> None:
        """Let every job that is still open run alone."""
        for job in sorted(self.open):
            now = self.held[job]
            self.placements[now.bundle._replace(jobs=(job,))] = now.gpus
        self.open.clear()

    def _lets_in(self, job: str, gpus: tuple[GpuId, ...], kind: int) -> bool:
        """Whether the nodes accept new work and have the resources for the partner; if so, charge them."""
        if not self.board.sites[kind].gpus.issuperset(gpus):
            return False
        demand = demand_of(self.board.inputs.needs, (job,))
        if demand is None or self.stock is None:
            return True
        fits = self.stock.fits(demand, gpus)
        if fits:
            self.stock.charge(demand, gpus)
        return fits


def _could_pair(board: Board) -> set[str]:
    """Return the jobs that may run together with another one."""
    candidates = board.inputs.candidates
    pairs = ((candidates.columns.second != NOBODY) & candidates.terms.may_run).nonzero()[0].tolist()
    return {job for row in pairs for job in candidates.bundles[row].jobs}
