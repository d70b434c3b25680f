"""The published figures beside ours, cell by cell: `make results` writes docs/results.md.

    python -m benchmarks.results [--only TEXT] [--processes N] [--fresh]

Finished cells are kept in out/results and not run again, so that an interrupted run continues where it stopped;
`--fresh` runs all cells. That takes about an hour on two cores. The cells need the published throughput table in
../shared/data, which is not part of the project.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from benchmarks.cells import PROJECT, kept_figures, measure_missing, write_figures
from benchmarks.published import INFORMATION, Cell, cells
from scheduler.sim.figures.summary import jct_hours, summarise
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate
from traces.named import workload
from traces.throughput_files import load_throughputs

TABLE = PROJECT.parent / "shared" / "data" / "gavel" / "simulation_throughputs.json"
PAGE = PROJECT / "docs" / "results.md"
START = "<!-- figures: written by python -m benchmarks.results -->"
TITLES = {
    "single": "Jobs on one GPU each: mean completion time, hours",
    "multi": "Jobs on 1, 2, 4 or 8 GPUs: mean completion time, hours",
    "weighted": "A fifth of the jobs with weight 5, multi GPU: mean completion time, hours",
    "makespan": "All jobs at time 0, multi GPU: makespan, hours",
}


def measure(cell: Cell) -> dict[str, float]:
    """Simulate the case of a cell; return its figures."""
    result = simulate(prepare(cell.run).options)
    if cell.table == "makespan":
        hours = summarise(result.metrics)["makespan_h"]
    else:
        jct_h = jct_hours(result.metrics)
        hours = float(np.mean(jct_h if cell.weight is None else jct_h[_weights(cell) == cell.weight]))
    return {"hours": hours, "wall_s": result.wall_s, "rounds": result.rounds, "facts": result.facts}


def _weights(cell: Cell) -> np.ndarray:
    """Return the weights of the measured jobs, in the order of their submission."""
    assert cell.run.measure is not None
    jobs = workload(
        cell.run.workload,
        load_throughputs(cell.run.throughputs),
        rate_per_h=cell.run.rate_per_h or float("inf"),
        seed=cell.run.seed,
    )
    return np.array([job.weight for job in islice(jobs, *cell.run.measure)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="only cells with this in their name, such as 'multi 2.0'")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run finished cells again")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from finished cells")
    options = parser.parse_args(arguments)
    if not TABLE.exists():
        print(f"The published throughput table does not exist: {TABLE}", file=sys.stderr)
        return 2
    all_cells = cells(str(TABLE))
    selected = [cell for cell in all_cells if options.only in f"{cell.table} {cell.load} {cell.policy}"]
    if not options.page:
        measured = measure_missing(selected, measure, processes=options.processes, fresh=options.fresh)
        for cell, figures, progress in measured:
            print(f"{progress} {cell_text(cell, figures)}", flush=True)
    write_figures(PAGE, START, tables(all_cells))
    return 0


def cell_text(cell: Cell, figures: dict[str, float]) -> str:
    """Return one finished cell as a line."""
    change = figures["hours"] / cell.published - 1
    return (
        f"{cell.table:<9}{cell.load:<9}{cell.policy:<20} published {cell.published:6.2f}  "
        f"ours {figures['hours']:6.2f}  {change:+6.1%}  {figures['wall_s']:5.0f} s"
    )


def tables(all_cells: Sequence[Cell]) -> Iterator[str]:
    """Iterate over the lines of the tables: published, ours, difference, wall time."""
    for table, title in TITLES.items():
        yield f"### {title}\n"
        yield "| load | policy | published | ours | difference | wall time, s | rounds/s |"
        yield "|---|---|---|---|---|---|---|"
        for cell in all_cells:
            figures = kept_figures(cell)
            if cell.table != table:
                continue
            name = f"{cell.policy} ¹" if cell.policy in INFORMATION else cell.policy
            if figures is None:
                yield f"| {cell.load} | {name} | {cell.published} | | | | |"
                continue
            change = figures["hours"] / cell.published - 1
            pace = figures["rounds"] / figures["wall_s"]
            yield (
                f"| {cell.load} | {name} | {cell.published} | {figures['hours']:.2f} | {change:+.1%} "
                f"| {figures['wall_s']:.0f} | {pace:.0f} |"
            )
        yield ""


if __name__ == "__main__":
    sys.exit(main())
