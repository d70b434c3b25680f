"""`gavel sweep`: simulate every combination, over processes or a Ray cluster, and resume interrupted sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import INTERRUPTED, Fault, reason, refusing
from gavel.cli.installation import has, require
from gavel.cli.io.options import JSON, not_empty, options
from gavel.cli.io.outputs import check_directory, print_data, say, write_csv
from gavel.cli.io.wording import count_of
from gavel.cli.simulation.options import run_of_options, run_options, values_of
from protos.extras import install_command
from scheduler.sim.run import Run

if TYPE_CHECKING:
    from scheduler.sim.sweep import Engine

TABLE, PLOT = "results.csv", "mean_jct"
RUNS_MAX = 10_000
# The options in which the runs of a sweep differ; the last changes fastest.
AXES = ("cluster", "rate_per_h", "seed", "policy")
Figures = Mapping[str, Any]


@click.command()
@click.argument("trace", required=False, type=click.Path(), callback=not_empty)
@run_options(*AXES)
@options(
    click.option(
        "--results",
        "results",
        type=click.Path(),
        default="sweep",
        show_default=True,
        metavar="DIR",
        help="The directory for finished runs, the table and the plot.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["processes", "ray"]),
        default="processes",
        show_default=True,
        help="Run in processes on this machine, or on a Ray cluster.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 4096),
        metavar="N",
        help="How many runs at once.  [default: one per CPU]",
    ),
    JSON,
)
def sweep(results: str, engine: str, processes: int | None, as_json: bool, **values: Any) -> None:
    """Simulate every combination of policies, rates, seeds and clusters.

    Runs already in --results are not repeated, so an interrupted sweep continues where it stopped.
    """
    from gavel.cli.io.progress import bar
    from scheduler.sim.sweep import Results
    from scheduler.sim.sweep import sweep as carry_out_all

    runs = _runs(values)
    check_directory("--results", results)
    worker = _engine(engine, processes)
    store = Results(Path(results))
    finished_before = sum(store.load(run) is not None for run in runs)
    if finished_before:
        say(f"{count_of(finished_before, 'run')} of {len(runs)} found in {results}")
    try:
        with bar("sweeping") as show:

            def progress(finished: int, fraction: float) -> None:
                show(f"{finished} of {count_of(len(runs), 'run')}", fraction)

            outcomes = carry_out_all(runs, store, worker, progress=progress)
    except KeyboardInterrupt:
        outcomes = [store.load(run) or "was not carried out" for run in runs]
        _show(runs, outcomes, Path(results), as_json)
        finished = sum(not isinstance(figures, str) for figures in outcomes)
        say(f"interrupted with {finished} of {len(runs)} runs in {results}; repeat the command to continue")
        click.get_current_context().exit(INTERRUPTED)
    except OSError as error:
        raise Fault(f"--results: {results}: {reason(error)}") from None
    _show(runs, outcomes, Path(results), as_json)
    failed = [(run, why) for run, why in zip(runs, outcomes, strict=True) if isinstance(why, str)]
    for run, why in failed:
        say(f"failed: {_label(run)}: {why}")
    if failed:
        click.get_current_context().exit(1)


def _runs(values: dict[str, Any]) -> list[Run]:
    """Return the runs of all combinations; refuse them all if one of them could not start."""
    from gavel.cli.simulation.refusals import refusals_as_faults
    from scheduler.sim.runs import prepare
    from scheduler.sim.sweep import grid

    axes = {field: values_of(field, values[field]) for field in AXES}
    count = math.prod(map(len, axes.values()))
    if count > RUNS_MAX:
        problem = f"{count:,} runs: every combination of policies, rates, seeds and clusters"
        raise Fault(f"{problem}; the limit is {RUNS_MAX:,}")
    with refusals_as_faults():
        runs = grid(run_of_options({**values, **{field: axes[field][0] for field in AXES}}), axes)
        for run in runs:
            prepare(run)
    return runs


def _engine(name: str, processes: int | None) -> Engine:
    from scheduler.sim.sweep import Processes, Ray

    if name == "processes":
        return Processes(processes)
    require("ray", "--engine ray")
    return Ray()


def _show(runs: Sequence[Run], outcomes: Sequence[Figures | str], directory: Path, as_json: bool) -> None:
    """Print the table, or its JSON, and write both files beside the runs."""
    from gavel.cli.io.tables import print_all
    from gavel.cli.simulation.run_table import cluster_text, sweep_table

    if as_json:
        print_data({"runs": list(map(_data, runs, outcomes))})
    finished_runs = [
        (run, figures) for run, figures in zip(runs, outcomes, strict=True) if not isinstance(figures, str)
    ]
    if not finished_runs:
        return
    rows: dict[tuple[str, float | None, str], dict[str, Any]] = {}
    for run, figures in finished_runs:
        key = (cluster_text(run.cluster), run.rate_per_h, run.policy)
        row = rows.setdefault(key, dict(zip(("cluster", "rate", "policy"), key, strict=True)))
        row.setdefault("figures", []).append(figures)
    if not as_json:
        print_all(sweep_table(list(rows.values())))
    written = [_write_table(finished_runs, directory / TABLE), *_draw(list(rows.values()), directory)]
    say(f"written: {', '.join(written)}")


def _data(run: Run, outcome: Figures | str) -> dict[str, Any]:
    """Return a run as JSON: its options, and its figures or the reason why there are none."""
    rate = "inf" if run.rate_per_h == math.inf else run.rate_per_h
    fields = {"policy": run.policy, "rate_per_h": rate, "seed": run.seed, "cluster": dict(run.cluster)}
    return fields | ({"failed": outcome} if isinstance(outcome, str) else {"figures": dict(outcome)})


def _write_table(finished_runs: Sequence[tuple[Run, Figures]], path: Path) -> str:
    from gavel.cli.simulation.run_table import cluster_text, flat

    flattened = [
        dict(flat({**figures, "cluster": cluster_text(run.cluster)})) for run, figures in finished_runs
    ]
    header = list(dict.fromkeys(key for row in flattened for key in row))
    lines = [
        [run.rate_per_h, *(row.get(key) for key in header)]
        for (run, _), row in zip(finished_runs, flattened, strict=True)
    ]
    write_csv("--results", str(path), ["rate_per_h", *(key.replace(" ", ":") for key in header)], lines)
    return str(path)


def _draw(rows: Sequence[Mapping[str, Any]], directory: Path) -> list[str]:
    """Draw mean completion times over the rate, or as bars if there is only one rate; return the file's name."""
    if not has("plots"):
        say(f"no plot is drawn: the extra 'plots' is not installed: {install_command('plots')}")
        return []
    from gavel.cli.simulation.plot_style import save
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
            if row["rate"] is not None and row["rate"] != math.inf:
                curves.setdefault(name, []).append((row["rate"], float(mean_of(means) or 0.0)))
    if len({row["rate"] for row in rows}) > 1:
        if not any(len(points) > 1 for points in curves.values()):
            return []
        figure = rates_figure(curves, "mean job completion time over the rate of arrivals")
    elif len(bars) > 1:
        seeds = max(len(row["figures"]) for row in rows)
        figure = bars_figure(bars, f"mean job completion time{' (dots: seeds)' if seeds > 1 else ''}")
    else:
        # A single bar would show no more than the table.
        return []
    with refusing(OSError, subject=f"--results: {directory}"):
        return save(figure, directory, PLOT)


def _label(run: Run) -> str:
    from gavel.cli.simulation.run_table import cluster_text

    rate = "" if run.rate_per_h is None else f", {run.rate_per_h:g} jobs/h"
    return f"{run.policy}{rate}, seed {run.seed}, {cluster_text(run.cluster)}"
