"""`make day`: simulate a day on a mixed cluster under three policies; print a table and draw pictures.

What to look for: under first come, first served, short jobs wait behind long ones. Under fair shares they do not. If
the policy also knows how fast each job is on each type, the same jobs finish sooner on the same GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.table import Table
from rich.text import Text

from gavel.cli.io.tables import new_table, print_all
from gavel.cli.simulation.run_plots import jct_figure, utilisation_figure
from gavel.cli.simulation.run_table import cluster_text, mean_use, value_cell
from gavel.cli.simulation.timeline_plot import timeline_figure
from gavel.client.views.units import duration
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.figures.summary import jct_hours, summarise
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate

POLICIES = ("fifo", "las+blind", "las")
DAY = Run(
    cluster={"t4": 16, "v100": 8, "a100": 8, "h100": 8}, workload="mixed-day", rate_per_h=6.0, hours=24.0
)
COLUMNS = {
    "mean\nJCT (h)": "mean_jct_h",
    "p99\nJCT (h)": "p99_jct_h",
    "makespan\n(h)": "makespan_h",
    "in\nuse": "in_use",
    "cost\n(USD)": "cost_usd",
    "deadlines\nmissed": "deadline_misses",
    "jobs with\nρ > 1.05": "unfair_fraction",
    "preemptions\nper job": "preemptions_per_job",
    "simulated\nin": "wall_s",
}
PICTURES = Path(__file__).parents[1] / "out" / "day_demo"


def main() -> None:
    """Simulate a day under every policy, print the table, save the pictures."""
    metrics, figures = {}, {}
    for policy in POLICIES:
        metrics[policy], figures[policy] = one_day(policy)
    jobs = figures[POLICIES[0]]["jobs"]
    print_all(
        Text(
            f"A day of four teams: {jobs} jobs on {cluster_text(DAY.cluster)}, simulated to the end", "bold"
        ),
        Text("Rates are estimates for today's GPUs and models: docs/throughputs.md"),
        runs_table(figures),
        Text(gain_words(figures)),
    )
    print_all(Text("\npictures: " + ", ".join(draw(metrics))))


def one_day(policy: str) -> tuple[Metrics, dict[str, Any]]:
    """Simulate the day under this policy; return its metrics and figures."""
    run = structs.replace(DAY, policy=policy)
    result = simulate(prepare(run).options)
    return result.metrics, summarise(result.metrics, wall_s=result.wall_s, policy=policy, cluster=DAY.cluster)


def runs_table(runs: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with a row of figures for each policy."""
    table = new_table()
    table.add_column("\npolicy", no_wrap=True)
    for title in COLUMNS:
        table.add_column(title, justify="right")
    for name, figures in runs.items():
        use = mean_use(figures)
        cells = {key: value_cell(key, figures.get(key)) for key in COLUMNS.values()}
        cells["in_use"] = "–" if use is None else f"{use:.0%}"
        cells["wall_s"] = duration(figures["wall_s"])
        table.add_row(Text(name, "bold"), *cells.values())
    return table


def gain_words(figures: dict[str, dict[str, Any]]) -> str:
    """Return a sentence about the gain of fair shares, and the further gain of knowing the rates."""
    fifo, blind, aware = (float(figures[policy]["mean_jct_h"]) for policy in POLICIES)
    return (
        f"Mean time to completion: {fifo / blind:.1f} × shorter with fair shares than first come, first served; "
        f"{blind / aware:.2f} × shorter again with shares that know each job's rate on each type."
    )


def draw(metrics: dict[str, Metrics]) -> list[str]:
    """Save the pictures of all policies, and return their paths."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    pictures = {
        "jct.png": jct_figure({policy: jct_hours(run_metrics) for policy, run_metrics in metrics.items()}),
        "utilisation.png": utilisation_figure(metrics),
    }
    for policy, run_metrics in metrics.items():
        pictures[f"timeline_{policy.replace('+', '_')}.png"] = timeline_figure(run_metrics, policy)
    for name, figure in pictures.items():
        figure.savefig(PICTURES / name)
    root = PICTURES.parents[1]
    return [str((PICTURES / name).relative_to(root)) for name in pictures]


if __name__ == "__main__":
    main()
