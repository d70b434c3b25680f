"""Cells of tables of results: each is measured once and kept in out/results, so that an interrupted run continues."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Protocol, TypeVar

PROJECT = Path(__file__).resolve().parents[1]
RESULTS = PROJECT / "out" / "results"
END = "<!-- end of figures -->"
Figures = dict[str, Any]


class Cell(Protocol):
    """A case to be measured."""

    @property
    def name(self) -> str:
        """The name of the cell's file."""


C = TypeVar("C", bound=Cell)


def kept_figures(cell: Cell) -> Figures | None:
    """Return the figures of an earlier measurement of this cell, or None if there are none."""
    path = RESULTS / f"{cell.name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def measure_missing(
    cells: Iterable[C], measure: Callable[[C], Figures], *, processes: int, fresh: bool = False
) -> Iterator[tuple[C, Figures, str]]:
    """Measure the cells that are not kept, or all of them; yield each with its figures and the progress, as it ends."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if fresh or kept_figures(cell) is None]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        running = {pool.submit(measure, cell): cell for cell in missing}
        try:
            for number, done in enumerate(as_completed(running), 1):
                cell, figures = running[done], done.result()
                (RESULTS / f"{cell.name}.json").write_text(json.dumps(figures) + "\n")
                yield cell, figures, f"{number}/{len(missing)}"
        finally:
            # After an error, nobody would keep what the others measure.
            pool.shutdown(cancel_futures=True)


def write_figures(page: Path, start: str, lines: Iterable[str]) -> None:
    """Write lines into a page, between the comments `start` and END."""
    before, _, rest = page.read_text(encoding="utf-8").partition(start)
    _, _, after = rest.partition(END)
    page.write_text(before + start + "\n\n" + "\n".join(lines) + "\n" + END + after, encoding="utf-8")
