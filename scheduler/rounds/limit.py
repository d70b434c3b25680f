"""A limit on the running jobs that lose their GPUs in one round: beyond it, the best ranked incumbents keep theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.inputs import NOBODY, Held
from scheduler.rounds.lookup import Board
from scheduler.rounds.resources import Stock, demand_of


def spared(
    board: Board, order: Sequence[int], placements: Mapping[Bundle, tuple[GpuId, ...]]
) -> dict[str, Held]:
    """Return the incumbents that must keep their GPUs, because these placements would take them from too many.

    The allowed number of losers are those with the worst rank; a pair counts as two. An incumbent that cannot continue
    as it is (its node, its column or its room is gone) does not count.
    """
    most = board.inputs.preemptions_max
    if most is None:
        return {}
    units = _units(board, order)
    where = {job: (bundle, gpus) for bundle, gpus in placements.items() for job in bundle.jobs}
    losers = [unit for unit in units if any(not _stays(now, where.get(job)) for job, now in unit.items())]
    if sum(map(len, losers)) <= most:
        return {}
    lost: set[str] = set()
    for unit in reversed(losers):
        if len(lost) + len(unit) <= most:
            lost.update(unit)
    return {job: now for unit in units for job, now in unit.items() if job not in lost}


def _stays(now: Held, then: tuple[Bundle, tuple[GpuId, ...]] | None) -> bool:
    return then is not None and then[1] == now.gpus and then[0][1:] == now.bundle[1:]


def _units(board: Board, order: Sequence[int]) -> list[dict[str, Held]]:
    """Return the unpinned jobs that could continue as they are, one dict per set of GPUs, best rank first."""
    inputs = board.inputs
    held = inputs.held
    kind_of = {name: kind for kind, name in enumerate(inputs.worker_types)}
    bundles = inputs.candidates.columns.row_of
    known = set(inputs.jobs)
    sharing: dict[tuple[GpuId, ...], list[str]] = {}
    for job, now in held.items():
        if job in known or now.pinned:
            sharing.setdefault(now.gpus, []).append(job)
    rank = _ranks(board, order)
    units = []
    for gpus, jobs in sharing.items():
        now = held[jobs[0]]
        bundle = now.bundle._replace(jobs=tuple(sorted(jobs)))
        kind = kind_of.get(bundle.worker_type, NOBODY)
        loose = [job for job in jobs if not held[job].pinned]
        if loose and kind != NOBODY and bundle in bundles and board.sites[kind].gpus.issuperset(gpus):
            units.append((rank.get(bundle, len(order)), loose, jobs, gpus))
    units.sort(key=lambda unit: unit[:2])
    return [{job: held[job] for job in loose} for _, loose, jobs, gpus in _with_room(board, units)]


def _with_room(
    board: Board, units: list[tuple[int, list[str], list[str], tuple[GpuId, ...]]]
) -> list[tuple[int, list[str], list[str], tuple[GpuId, ...]]]:
    """Return the units whose nodes have room for them, when pinned jobs and better ranked units are served first."""
    if not board.picky:
        return units
    inputs = board.inputs
    stock = Stock(inputs.nodes)
    for job, now in inputs.held.items():
        if now.pinned:
            stock.charge(demand_of(inputs.needs, (job,)), now.gpus)
    roomy = []
    for unit in units:
        demand = demand_of(inputs.needs, unit[1])
        if demand is None or stock.fits(demand, unit[3]):
            stock.charge(demand, unit[3])
            roomy.append(unit)
    return roomy


def _ranks(board: Board, order: Sequence[int]) -> dict[Bundle, int]:
    bundles = board.inputs.candidates.bundles
    return {bundles[row]: number for number, row in enumerate(order)}
