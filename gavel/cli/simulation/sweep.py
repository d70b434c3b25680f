"""`gavel sweep`: every combination, over processes or a Ray cluster, resumed where it was interrupted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gavel.cli.faults import INTERRUPTED, Fault
from gavel.cli.installation import has, install_command, require
from gavel.cli.io.outputs import STDOUT, check_directory, say, unwritable, write_csv, write_json
from gavel.cli.io.progress import Bar
from gavel.cli.io.tables import print_all
from gavel.cli.io.wording import count_of, printable
from gavel.cli.simulation.run_table import cluster_words, flat, sweep_table
from gavel.cli.simulation.simulate import faults, run_of_options
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.sweep import Engine, Processes, Ray, Results, grid
from scheduler.sim.sweep import sweep as carry_out_all

TABLE, PLOT = "results.csv", "mean_jct.png"
RUNS_MAX = 10_000
Figures = Mapping[str, Any]


def sweep(
    policies: Sequence[list[str]],
    rates_per_h: list[float] | None,
    seeds: list[int],
    clusters: Sequence[dict[str, int]],
    results: str,
    engine: str,
    processes: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """The command's body."""
    specs = list(dict.fromkeys(spec for listed in policies for spec in listed))
    base = run_of_options({**options, "cluster": clusters[0], "policy": specs[0]})
    with faults():
        count = len(specs) * len(rates_per_h or [None]) * len(seeds) * len(clusters)
        if count > RUNS_MAX:
            raise Fault(
                f"{count:,} runs: every combination of policies, rates, seeds and clusters; at most {RUNS_MAX:,}"
            )
        runs = grid(base, specs, rates_per_h or [None], seeds, clusters)
        for run in runs:
            prepare(run)
    check_directory("--results", results)
    worker = _engine(engine, processes)
    kept = Results(Path(results))
    known = sum(kept.load(run) is not None for run in runs)
    if known:
        say(f"{count_of(known, 'run')} of {len(runs)} found in {printable(results)}")
    try:
        with Bar("sweeping") as bar:

            def seen(finished: int, part: float) -> None:
                bar.show(f"{finished} of {count_of(len(runs), 'run')}", part)

            found = carry_out_all(runs, kept, worker, seen=seen)
    except KeyboardInterrupt:
        done = [kept.load(run) or "was not carried out" for run in runs]
        _show(runs, done, Path(results), as_json)
        finished = sum(not isinstance(figures, str) for figures in done)
        say(
            f"interrupted with {finished} of {len(runs)} runs in {printable(results)}; the same command goes on"
        )
        click.get_current_context().exit(INTERRUPTED)
    except OSError as error:
        raise unwritable("--results", results, error) from None
    _show(runs, found, Path(results), as_json)
    failed = [(run, why) for run, why in zip(runs, found, strict=True) if isinstance(why, str)]
    for run, why in failed:
        say(f"failed: {_label(run)}: {printable(why)}")
    if failed:
        click.get_current_context().exit(1)


def _engine(name: str, processes: int | None) -> Engine:
    if name == "processes":
        return Processes(processes)
    require("ray", "--engine ray")
    return Ray()


def _show(runs: Sequence[Run], found: Sequence[Figures | str], directory: Path, as_json: bool) -> None:
    """The table or the same as JSON, and its files beside the runs."""
    if as_json:
        write_json("--json", STDOUT, {"runs": list(map(_told, runs, found))})
    done = [(run, figures) for run, figures in zip(runs, found, strict=True) if not isinstance(figures, str)]
    if not done:
        return
    rows: dict[tuple[str, float | None, str], dict[str, Any]] = {}
    for run, figures in done:
        place = (cluster_words(run.cluster), run.rate_per_h, run.policy)
        row = rows.setdefault(place, dict(zip(("cluster", "rate", "policy"), place, strict=True)))
        row.setdefault("figures", []).append(figures)
    if not as_json:
        print_all(sweep_table(list(rows.values())))
    written = [_write_table(done, directory / TABLE)]
    written += _draw(list(rows.values()), directory)
    say("written: " + ", ".join(map(printable, written)))


def _told(run: Run, found: Figures | str) -> dict[str, Any]:
    """A run for programs: what was asked, and its figures or why there are none. All jobs at once is the rate "inf"."""
    rate = "inf" if run.rate_per_h == math.inf else run.rate_per_h
    asked = {"policy": run.policy, "rate_per_h": rate, "seed": run.seed, "cluster": dict(run.cluster)}
    return asked | ({"failed": found} if isinstance(found, str) else {"figures": dict(found)})


def _write_table(done: Sequence[tuple[Run, Figures]], path: Path) -> str:
    flattened = [dict(flat({**figures, "cluster": cluster_words(run.cluster)})) for run, figures in done]
    header = list(dict.fromkeys(key for row in flattened for key in row))
    lines = [
        [run.rate_per_h, *(row.get(key) for key in header)]
        for (run, _), row in zip(done, flattened, strict=True)
    ]
    write_csv("--results", str(path), ["rate_per_h", *(key.replace(" ", ":") for key in header)], lines)
    return str(path)


def _draw(rows: Sequence[Mapping[str, Any]], directory: Path) -> list[str]:
    """Mean JCT: over the rate where there are several, else a bar each; by policy, and by cluster if need be."""
    if not has("plots"):
        say(f"no plot is drawn: the extra 'plots' is not installed: {install_command('plots')}")
        return []
    from gavel.cli.simulation.run_plots import bars_figure, rates_figure
    from gavel.cli.simulation.run_table import mean_of

    several = len({row["cluster"] for row in rows}) > 1
    curves: dict[str, list[tuple[float, float]]] = {}
    bars: dict[str, list[float]] = {}
    for row in rows:
        means = [figures["mean_jct_h"] for figures in row["figures"] if figures["mean_jct_h"] is not None]
        if means:
            name = f"{row['policy']} on {row['cluster']}" if several else row["policy"]
            bars[name] = means
            if row["rate"] is not None and row["rate"] != float("inf"):
                curves.setdefault(name, []).append((row["rate"], float(mean_of(means) or 0.0)))
    if len({row["rate"] for row in rows}) > 1:
        if not any(len(points) > 1 for points in curves.values()):
            return []
        figure = rates_figure(curves, "mean job completion time over the rate of arrivals")
    elif len(bars) > 1:
        figure = bars_figure(
            bars, "mean job completion time (dots: seeds)" if _seeds(rows) > 1 else "mean job completion time"
        )
    else:
        return []  # one bar says no more than the table
    path = directory / PLOT
    try:
        figure.savefig(path)
    except OSError as error:
        raise unwritable("--results", str(path), error) from None
    return [str(path)]


def _seeds(rows: Sequence[Mapping[str, Any]]) -> int:
    return max(len(row["figures"]) for row in rows)


def _label(run: Run) -> str:
    rate = "" if run.rate_per_h is None else f", {run.rate_per_h:g} jobs/h"
    return f"{printable(run.policy)}{rate}, seed {run.seed}, {printable(cluster_words(run.cluster))}"
