"""Whole workloads for tests, and throughput tables written into files."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from traces.errors import BadWorkload
from traces.published import Kind, published_jobs
from traces.readers.throughput_csv import OUR_PAIRS, OURS, TYPES
from traces.throughputs import Throughputs
from traces.trace import Trace


def published_workload(
    kind: Kind = "single",
    *,
    rate_per_h: float,
    jobs: int,
    seed: int,
    throughputs: Throughputs,
    weighted: bool = False,
    deadlines: bool = False,
) -> Trace:
    """Return the first jobs of the published workload as a trace."""
    if jobs < 0:
        raise BadWorkload(f"is {jobs}", field="jobs", hint="give how many jobs, 0 or more")
    endless = published_jobs(
        kind,
        rate_per_h=rate_per_h,
        seed=seed,
        throughputs=throughputs,
        weighted=weighted,
        deadlines=deadlines,
    )
    marks = ("-weighted" if weighted else "") + ("-deadlines" if deadlines else "")
    return Trace(tuple(islice(endless, jobs)), f"published-{kind}{marks}, {rate_per_h:g} jobs/h, seed {seed}")


def write_folder(folder: Path, table: Throughputs) -> None:
    """Write a table as a folder in our format; each pair once."""
    folder.mkdir(parents=True, exist_ok=True)
    placements = (("consolidated", table.solo), ("unconsolidated", table.unconsolidated))
    _write(
        folder / "rates.csv",
        (*OURS.layout.needed[:3], "placement", "steps_per_s"),
        ((*key, placement, rate) for placement, rates in placements for key, rate in rates.items()),
    )
    once = ((k, r) for k, r in table.pairs.items() if (k[1], k[2]) <= (k[3], k[4]))
    _write(folder / "pairs.csv", OUR_PAIRS.needed, ((*key, *rates) for key, rates in once))
    prices, memory = table.prices_per_gpu_hour, table.memory_gb
    kinds = dict.fromkeys((*prices, *memory))
    _write(
        folder / "types.csv",
        (*TYPES.needed, *TYPES.optional),
        ((kind, prices.get(kind, ""), memory.get(kind, "")) for kind in kinds),
    )


def _write(path: Path, header: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(header)
        table.writerows(lines)
