"""The timeline of a pipeline in a terminal: a row per GPU, digits for forward, shades for backward, dots for idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.simulate import Work

BACKWARD, IDLE = "▓", "·"
# So many rows and columns are drawn; of longer timelines and deeper pipelines, the beginning.
ROWS_MAX, COLUMNS_MAX = 16, 90


def timeline_lines(works: Sequence[Sequence[Work]]) -> Iterator[str]:
    """Yield the rows, and in words what is left out."""
    # A forward computation is as wide as a character, or more.
    column_s = min(work.end_s - work.begin_s for row in works for work in row if work.is_forward)
    end_s = max(row[-1].end_s for row in works)
    columns = max(1, round(end_s / column_s))
    width = len(str(len(works)))
    for number, row in enumerate(works[:ROWS_MAX], start=1):
        yield f"GPU {number:>{width}}  {_row(row, column_s, min(columns, COLUMNS_MAX))}"
    if len(works) > ROWS_MAX:
        yield f"and {len(works) - ROWS_MAX} more GPUs, which begin later by as much each"
    if columns > COLUMNS_MAX:
        yield f"cut after {COLUMNS_MAX * column_s:.3g} of {end_s:.3g} s"
    yield f"digits: forward, by the last digit of the microbatch; {BACKWARD} backward; {IDLE} idle"


def _row(row: Sequence[Work], column_s: float, columns: int) -> str:
    """Return what a GPU does in the middle of each column."""
    cells = []
    works = iter(row)
    work = next(works, None)
    for column in range(columns):
        now_s = (column + 0.5) * column_s
        while work is not None and work.end_s <= now_s:
            work = next(works, None)
        if work is None or now_s < work.begin_s:
            cells.append(IDLE)
        else:
            cells.append(str((work.microbatch + 1) % 10) if work.is_forward else BACKWARD)
    return "".join(cells)
