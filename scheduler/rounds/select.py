"""Select the columns that run, from the best rank down, by counting GPUs. `place` chooses the exact GPUs.

- A job runs in at most one column, the GPUs of a type are never given out twice, and a gang gets all or nothing.
- Pinned jobs keep their GPUs in any case; the rank of their columns only decides which partner shares the GPUs.
- Quotas are counted like GPUs, but a column that exceeds one reserves nothing: its own tenant has the GPUs.
- Columns whose GPUs must be in groups on single nodes are counted by groups, too.
- A gang is skipped if pinned jobs of worse rank hold the GPUs that it lacks. After enough skipped rounds, it reserves
  the type: no column of worse rank takes free GPUs of this type until the gang has enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from scheduler.rounds.inputs import NO_ROW
from scheduler.rounds.lookup import Board
from scheduler.rounds.pins import Pins


@dataclass(slots=True)
class Choice:
    """The selected columns, before placement. The columns of pinned jobs are in `Pins`."""

    # Best first.
    rows: list[int] = field(default_factory=list)
    # The column for which GPUs are held back, by worker type.
    reserved: dict[int, int] = field(default_factory=dict)
    # Gangs with a share that get no GPUs because too few are free, best first.
    skipped: list[int] = field(default_factory=list)


def select(board: Board, order: Iterable[int], pins: Pins, unplaceable: Set[int] = frozenset()) -> Choice:
    """Select the columns that fit, from the best down, except those that `place` has refused (`unplaceable`)."""
    first, second, kinds, widths = board.first, board.second, board.kinds, board.widths
    watched, unvisited_gpus = pins.watched, pins.unvisited_gpus
    free = [len(site.gpus - pins.gpus if pins.gpus else site.gpus) for site in board.sites]
    free_total = sum(free)
    granules = board.inputs.candidates.columns.granules
    groups = Groups(board, pins) if granules else None
    tally, bundles = pins.tally, board.inputs.candidates.bundles
    # Even if no GPU is free any more, the loop must go on while it may have to skip gangs or visit pinned jobs.
    must_finish = bool(pins.gpus or unplaceable)
    busy = bytearray(len(board.inputs.jobs))
    for job in pins.rows:
        busy[job] = True
    choice = Choice()
    chosen = choice.rows
    for row in order:
        a, b = first[row], second[row]
        if busy[a] or (b != NO_ROW and busy[b]):
            if watched and (a in watched or b in watched):
                pins.visit(row, busy)
            continue
        kind, width = kinds[row], widths[row]
        if tally is not None and not tally.fits(bundles[row].jobs, bundles[row]):
            continue
        if (
            width > free[kind]
            or (unplaceable and row in unplaceable)
            or (groups is not None and not groups.take(kind, width, granules.get(row, 1)))
        ):
            could_fit = must_finish and width <= free[kind] + unvisited_gpus[kind]
            if could_fit and width > 1 and board.entitled[row]:
                choice.skipped.append(row)
                if kind not in choice.reserved and has_waited(board, row):
                    choice.reserved[kind] = row
                    if row not in unplaceable:
                        free_total -= free[kind]
                        free[kind] = 0
            continue
        busy[a] = True
        if b != NO_ROW:
            busy[b] = True
        if tally is not None:
            tally.take(bundles[row].jobs, bundles[row])
        free[kind] -= width
        free_total -= width
        chosen.append(row)
        if not free_total and not must_finish:
            break
    pins.settle()
    return choice


class Groups:
    """How many GPUs are left in groups that lie on single nodes, by worker type and granule (the size of a group).

    If every granule divides all larger ones, the counts are exact: `place` has GPUs for all columns that were counted,
    if it may move the jobs that are in the way. Otherwise, they are upper limits.
    """

    def __init__(self, board: Board, pins: Pins) -> None:
        granules = set(board.inputs.candidates.columns.granules.values())
        self._left: list[dict[int, int]] = []
        for site in board.sites:
            free = [sum(gpu not in pins.gpus for gpu in node.gpus) for node in site.nodes]
            self._left.append({size: sum(count - count % size for count in free) for size in granules})

    def take(self, kind: int, width: int, granule: int) -> bool:
        """Count a column of this worker type as selected; return False if too few groups are left for it."""
        left = self._left[kind]
        # A group takes at least this many GPUs from smaller groups.
        needed = {size: width // granule * (granule - granule % size) for size in left if size <= granule}
        if any(left[size] < count for size, count in needed.items()):
            return False
        for size, count in needed.items():
            left[size] -= count
        return True


def has_waited(board: Board, row: int) -> bool:
    """Whether the gang was skipped so often that GPUs are held back for it."""
    return bool(board.inputs.candidates.skipped[row] >= board.inputs.reserve_after)
