"""Tables of figures: of one run, of two side by side, of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from gavel.cli.io.tables import name_cell, new_table
from gavel.cli.io.wording import count_of, printable
from gavel.client.views.units import duration
from scheduler.sim.figures.summary import INTERRUPTED

Figures = Mapping[str, Any]
# The names of figures in tables; a key that is not listed is its own name.
FIGURE_NAMES = {
    "mean_jct_h": "mean job completion time (h)",
    "median_jct_h": "median (h)",
    "p99_jct_h": "99th percentile (h)",
    "mean_queue_h": "mean time without GPUs (h)",
    "makespan_h": "makespan (h)",
    "utilization": "utilisation",
    "cost_usd": "cost (USD)",
    "deadline_misses": "deadlines missed",
    "max_rho": "greatest ρ",
    "mean_rho": "mean ρ",
    "unfair_fraction": "jobs with ρ > 1.05",
    "preemptions_per_job": "preemptions per job",
    "restart_h": "restarts, in all (h)",
    "wall_s": "wall time (s)",
}
PERCENT = ("unfair_fraction",)


def cluster_text(cluster: Mapping[str, int]) -> str:
    """Return `v100=36,k80=36`, in the form of the option --cluster."""
    return ",".join(f"{kind}={gpus}" for kind, gpus in cluster.items())


def value_cell(key: str, value: Any) -> str:
    """Return a figure with as many digits as a reader needs."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, Mapping):
        return printable(cluster_text(value))
    if key in PERCENT or key.startswith("utilization"):
        return f"{value:.1%}"
    if isinstance(value, float):
        if abs(value) >= 1e12:
            return f"{value:.3g}"
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and key != "seed" else printable(str(value))


def headline(figures: Figures, simulated_h: float) -> Text:
    """Return a line about the run."""
    gpus = count_of(sum(figures["cluster"].values()), "GPU")
    kinds = count_of(len(figures["cluster"]), "type")
    wall = f" in {duration(figures['wall_s'])}" if figures["wall_s"] else ""
    return Text.assemble(
        (printable(figures["policy"] or "?"), "bold"),
        f" · {count_of(figures['jobs'], 'job')} on {gpus} of {kinds} · {simulated_h:,.1f} h simulated{wall}",
    )


def figures_table(figures: Figures) -> Table:
    """Return a table with a row per figure."""
    table = new_table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for key, value in flat(figures):
        if key not in ("policy", "cluster", "seed", "wall_s"):
            table.add_row(figure_name(key), value_cell(key, value))
    return table


def comparison_table(a: Figures, b: Figures, names: tuple[str, str]) -> Table:
    """Return a table with a row per figure: A's, B's, and the ratio of B to A."""
    table = new_table()
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name_cell(name), justify="right", no_wrap=True)
    table.add_column("B / A", justify="right", no_wrap=True)
    first, second = dict(flat(a)), dict(flat(b))
    for key in dict.fromkeys([*first, *second]):
        x, y = first.get(key), second.get(key)
        ratio = ratio_of(key, x, y)
        style = "" if ratio is None or abs(ratio - 1) < 0.005 else "bold"
        table.add_row(
            figure_name(key),
            value_cell(key, x),
            value_cell(key, y),
            Text("–" if ratio is None else f"{ratio:.3f}", style),
        )
    return table


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row per cluster, rate and policy: means over seeds, and their range."""
    table = new_table()
    several = len({row["cluster"] for row in rows}) > 1
    if several:
        table.add_column("cluster", no_wrap=True)
    table.add_column("jobs/h", justify="right")
    table.add_column("policy", no_wrap=True)
    for title in (
        "seeds",
        "mean JCT (h)",
        "range",
        "p99 JCT (h)",
        "in use",
        "ρ > 1.05",
        "cost (USD)",
        "wall (s)",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        figures = row["figures"]
        means = [f["mean_jct_h"] for f in figures if f["mean_jct_h"] is not None]
        table.add_row(
            *([printable(row["cluster"])] if several else []),
            "–" if row["rate"] is None else f"{row['rate']:g}",
            Text(row["policy"], "bold"),
            str(len(figures)),
            value_cell("", mean_of(means)),
            f"{min(means):.2f}–{max(means):.2f}" if len(means) > 1 else "",
            value_cell("", mean_of([f["p99_jct_h"] for f in figures])),
            value_cell("utilization", mean_of([mean_use(f) for f in figures])),
            value_cell("unfair_fraction", mean_of([f["unfair_fraction"] for f in figures])),
            value_cell("", mean_of([f["cost_usd"] for f in figures])),
            value_cell("", mean_of([f["wall_s"] for f in figures])),
        )
    return table


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean, leaving out None; None if no values remain."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def mean_use(figures: Figures) -> float | None:
    """Return the utilisation over all types, weighted by their GPUs."""
    known = [(figures["cluster"].get(k, 0), u) for k, u in figures["utilization"].items() if u is not None]
    gpus = sum(n for n, _ in known)
    return sum(n * u for n, u in known) / gpus if gpus else None


def flat(figures: Figures) -> Iterable[tuple[str, Any]]:
    """Yield the name and value of each figure; utilisation becomes one figure per worker type."""
    for key, value in figures.items():
        if key == INTERRUPTED:
            # A note beside the table states it.
            continue
        if key == "utilization" and isinstance(value, Mapping):
            yield from ((f"utilization {kind}", fraction) for kind, fraction in value.items())
        else:
            yield key, value


def figure_name(key: str) -> str:
    """Return the name of a figure for tables."""
    name, space, kind = key.partition(" ")
    return printable(FIGURE_NAMES.get(name, name) + space + kind)


def ratio_of(key: str, x: Any, y: Any) -> float | None:
    """Return the ratio of y to x; None if it has no meaning."""
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (x, y))
    if key == "seed" or not numbers or x == 0:
        return None
    ratio = float(y) / float(x)
    return ratio if math.isfinite(ratio) else None
