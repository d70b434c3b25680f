"""Limit how many incumbents (running jobs) lose their GPUs in one round: those with the best rank keep their GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.model.lease import Bundle, GpuId
from scheduler.rounds.budget import Purse
from scheduler.rounds.inputs import NO_ROW, Held
from scheduler.rounds.lookup import Board
from scheduler.rounds.resources import Stock, demand_of

# The jobs on one set of GPUs, for `_groups`: their rank, those that are not pinned, the GPUs, and the column's granule.
_Unit = tuple[int, list[str], tuple[GpuId, ...], int]


def jobs_to_keep(
    board: Board, order: Sequence[int], placements: Mapping[Bundle, tuple[GpuId, ...]]
) -> dict[str, Held]:
    """Return the incumbents that must keep their GPUs; empty if these placements keep to the limit of preemptions.

    The incumbents with the worst rank may lose their GPUs, up to the limit; a pair counts as two. An incumbent that
    cannot continue anyway does not count: its node has gone, the allocation has no column for it any more, its CPUs or
    memory go to jobs of better rank, or its budget is spent.
    """
    limit = board.inputs.preemptions_max
    if limit is None:
        return {}
    groups = _groups(board, order)
    placement_of = {job: (bundle, gpus) for bundle, gpus in placements.items() for job in bundle.jobs}
    losers = [
        group
        for group in groups
        if any(not _stays(holding, placement_of.get(job)) for job, holding in group.items())
    ]
    if sum(map(len, losers)) <= limit:
        return {}
    lost: set[str] = set()
    for group in reversed(losers):
        if len(lost) + len(group) <= limit:
            lost.update(group)
    return {job: holding for group in groups for job, holding in group.items() if job not in lost}


def _stays(holding: Held, placement: tuple[Bundle, tuple[GpuId, ...]] | None) -> bool:
    if placement is None:
        return False
    bundle, gpus = placement
    return gpus == holding.gpus and bundle[1:] == holding.bundle[1:]


def _groups(board: Board, order: Sequence[int]) -> list[dict[str, Held]]:
    """Return the holdings of unpinned jobs that could keep their GPUs: one dict per set of GPUs, best rank first."""
    inputs = board.inputs
    held = inputs.held
    kind_of = {name: kind for kind, name in enumerate(inputs.worker_types)}
    columns = inputs.candidates.columns
    known = set(inputs.jobs)
    sharing: dict[tuple[GpuId, ...], list[str]] = {}
    for job, holding in held.items():
        if job in known or holding.pinned:
            sharing.setdefault(holding.gpus, []).append(job)
    rank = _ranks(board, order)
    units = []
    for gpus, jobs in sharing.items():
        holding = held[jobs[0]]
        bundle = holding.bundle._replace(jobs=tuple(sorted(jobs)))
        kind = kind_of.get(bundle.worker_type, NO_ROW)
        unpinned = [job for job in jobs if not held[job].pinned]
        row = columns.row_of.get(bundle)
        if unpinned and kind != NO_ROW and row is not None and board.sites[kind].gpus.issuperset(gpus):
            units.append((rank.get(bundle, len(order)), unpinned, gpus, columns.granules.get(row, 1)))
    units.sort(key=lambda unit: unit[:2])
    affordable = _within_budgets(board, _with_room(board, units))
    return [{job: held[job] for job in unit[1]} for unit in affordable]


def _with_room(board: Board, units: list[_Unit]) -> list[_Unit]:
    """Return the units that fit their nodes, after pinned jobs and units of better rank took their CPUs and memory."""
    if not board.any_needs:
        return units
    inputs = board.inputs
    stock = Stock(inputs.nodes)
    for job, holding in inputs.held.items():
        if holding.pinned:
            stock.charge(demand_of(inputs.needs, (job,)), holding.gpus)
    fitting = []
    for unit in units:
        _, unpinned, gpus, granule = unit
        demand = demand_of(inputs.needs, unpinned, granule)
        if demand is None or stock.fits(demand, gpus):
            stock.charge(demand, gpus)
            fitting.append(unit)
    return fitting


def _within_budgets(board: Board, units: list[_Unit]) -> list[_Unit]:
    """Return the units whose budgets admit another round, after pinned jobs and units of better rank are charged."""
    inputs = board.inputs
    if not inputs.budgets:
        return units
    purse = Purse(inputs.budgets, inputs.budgets_of, inputs.held)
    pinned = {holding.gpus: job for job, holding in inputs.held.items() if holding.pinned}
    for job in pinned.values():
        purse.take(inputs.held[job].bundle.jobs, inputs.held[job].bundle)
    affordable = []
    for unit in units:
        bundle = inputs.held[unit[1][0]].bundle
        if unit[2] in pinned:
            affordable.append(unit)
        elif purse.fits(bundle.jobs, bundle):
            purse.take(bundle.jobs, bundle)
            affordable.append(unit)
    return affordable


def _ranks(board: Board, order: Sequence[int]) -> dict[Bundle, int]:
    bundles = board.inputs.candidates.bundles
    return {bundles[row]: number for number, row in enumerate(order)}
