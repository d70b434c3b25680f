"""The gain from choosing plans together with the schedule, and from measuring rates that are predicted wrongly.

    python -m benchmarks.plans [--processes N] [--fresh] [--page]

planned_jobs.py describes the cluster, the jobs and the ways of working. The first experiment compares these ways under
three policies. In the second, all jobs have the plans of the first way, but the true rate of each plan differs from
the prediction by a factor between 0.6 and 1.6, log-uniform. Finished cells are kept in out/results, as those of
benchmarks.results; all take some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from random import Random
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure
from msgspec import structs

from benchmarks.cells import PROJECT, Figures, kept_figures, measure_missing, write_figures
from benchmarks.planned_jobs import CLUSTER, GPUS_PER_NODE, LARGE, as_worked, jobs, shape_of, table
from gavel.cli.policies.plot import INK, LABEL, PALETTE, finish
from gavel.cli.simulation.plot_style import new_figure
from gavel.cli.simulation.run_plots import jct_figure
from scheduler.core.planning import planned_rates
from scheduler.model.settings import Settings
from scheduler.sim.figures.summary import jct_hours, summarise
from scheduler.sim.simulate import SimOptions, simulate
from traces.costs import Cost
from traces.plans import Plan
from traces.throughputs import Throughputs

PAGE = PROJECT / "docs" / "plans.md"
IMAGES = PROJECT / "docs" / "images"
START = "<!-- figures: written by python -m benchmarks.plans -->"
DPI = 90
USUAL, GPT = Cost(30.0, 10.0), Cost(60.0, 30.0)
SEEDS = (0, 1, 2, 3)
# Jobs per hour.
LOADS = (8.0, 14.0)
BUSY = LOADS[-1]
ALL, FITTING = "all models", "models that fit on one GPU"
WAYS = {ALL: ("joint", "per type", "one plan"), FITTING: ("joint", "per type", "one plan", "data")}
NAMES = {
    "joint": "joint",
    "per type": "width by the user",
    "one plan": "width and plan by the user",
    "data": "data parallelism only",
}
# By policy: what is compared, and how many of the seeds are used.
POLICIES = {
    "las": ("mean_h", SEEDS),
    "makespan": ("makespan_h", SEEDS[:2]),
    "min_cost": ("cost_usd", SEEDS[:2]),
}
# Factors of errors: one for all plans of a job type on a worker type, or one for each plan.
PER_TYPE, PER_PLAN = "per job type and worker type", "per plan"
ERROR = (0.6, 1.6)
EXACT, CORRECTED, OWN_ONLY, PREDICTED = "exact", "corrected", "own only", "predicted"
CORRECTIONS = {
    EXACT: "true rates known",
    CORRECTED: "measured, and sisters corrected",
    OWN_ONLY: "measured, sisters not corrected",
    PREDICTED: "predictions only",
}

HEADS = ("mean h", "GPT jobs h", "others h", "p95 h", "makespan h", "USD")


@dataclass(frozen=True)
class Cell:
    """One simulation."""

    policy: str
    models: str
    way: str
    rate_per_h: float
    seed: int
    # Of the second experiment: how predictions are wrong, and what corrects them.
    error: str = ""
    correction: str = EXACT

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        parts = (self.policy, self.models, self.way, f"{self.rate_per_h:g} per h", f"seed {self.seed}")
        wrong = (self.error, self.correction) if self.error else ()
        return " ".join(("plans", *parts, *wrong)).replace(" ", "_")


def first_cells() -> list[Cell]:
    """Return the simulations that compare ways of working."""
    return [
        Cell(policy, models, way, load, seed)
        for policy, (_, seeds) in POLICIES.items()
        for load in (LOADS if policy == "las" else (BUSY,))
        for models, ways in WAYS.items()
        for way in ways
        for seed in seeds
    ]


def second_cells() -> list[Cell]:
    """Return the simulations with wrong predictions."""
    return [
        Cell("las", ALL, "joint", BUSY, seed, error, correction)
        for error in (PER_TYPE, PER_PLAN)
        for correction in CORRECTIONS
        for seed in SEEDS
    ]


def measure(cell: Cell) -> Figures:
    """Simulate a cell; return its figures."""
    drawn = [
        as_worked(cell.way, job)
        for job in jobs(cell.rate_per_h, cell.seed)
        if cell.models == ALL or shape_of(job.job_type) not in LARGE
    ]
    if cell.policy == "makespan":
        drawn = [structs.replace(job, arrival_s=0.0) for job in drawn]
    rates = table(cell.way)
    if cell.error:
        rates = with_wrong_predictions(rates, cell)
    options = SimOptions(
        cluster=CLUSTER,
        gpus_per_node=GPUS_PER_NODE,
        jobs=drawn,
        throughputs=rates,
        settings=Settings(policy=cell.policy, learn_rates=cell.correction != PREDICTED),
        restart_s=USUAL.restart_s,
        checkpoint_s=USUAL.checkpoint_s,
        costs={key[0]: GPT for key in rates.plans},
    )
    # Without sisters, a plan that has not been measured keeps its prediction: infinitely many speak for it.
    no_sisters = patch.object(planned_rates, "EXACT_PLANS", math.inf)
    with no_sisters if cell.correction == OWN_ONLY else nullcontext():
        result = simulate(options)
    figures = summarise(result.metrics)
    assert figures["completed"] == len(drawn), f"{cell.name}: {figures['completed']} of {len(drawn)} jobs"
    hours = jct_hours(result.metrics)
    is_gpt = np.array([shape_of(job_type) is not None for job_type in result.metrics.jobs.types])
    return {
        "jobs": len(drawn),
        "mean_h": float(hours.mean()),
        "p95_h": float(np.percentile(hours, 95)),
        "gpt_h": [round(float(value), 4) for value in hours[is_gpt]],
        "other_h": float(hours[~is_gpt].mean()),
        "makespan_h": figures["makespan_h"],
        "cost_usd": figures["cost_usd"],
        "restart_h": figures["restart_h"],
        "used": float(np.mean(list(figures["utilization"].values()))),
        "wall_s": result.wall_s,
    }


def with_wrong_predictions(rates: Throughputs, cell: Cell) -> Throughputs:
    """Return the table with true rates that differ from the predicted ones by the factors of the cell's seed."""

    def wrong(plan: Plan) -> Plan:
        kind = f"{plan.job_type} {plan.worker_type}" + (f" {plan.gpus}" if cell.error == PER_PLAN else "")
        factor = math.exp(Random(f"{cell.seed}/{kind}").uniform(*map(math.log, ERROR)))
        true_rate = plan.rate * factor
        predicted = true_rate if cell.correction == EXACT else plan.rate
        return structs.replace(plan, rate=true_rate, predicted=predicted)

    return replace(rates, plans={key: wrong(plan) for key, plan in rates.plans.items()})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are missing, then write tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run finished cells again")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page from finished cells")
    options = parser.parse_args(arguments)
    if not options.page:
        cells = [*second_cells(), *first_cells()]
        for cell, figures, progress in measure_missing(
            cells, measure, processes=options.processes, fresh=options.fresh
        ):
            print(
                f"{progress} {cell.name}: mean {figures['mean_h']:.2f} h, {figures['wall_s']:.0f} s",
                flush=True,
            )
    write_figures(PAGE, START, tables())
    for name, draw in PICTURES.items():
        draw().savefig(IMAGES / f"{name}.png", dpi=DPI, metadata={"Software": None})
    return 0


def figures_of(cells: Sequence[Cell]) -> list[Figures]:
    """Return the kept figures of these cells; raise LookupError if one was not measured."""
    kept = [kept_figures(cell) for cell in cells]
    if missing := [cell.name for cell, figures in zip(cells, kept, strict=True) if figures is None]:
        raise LookupError(f"{missing[0]}: not measured; run python -m benchmarks.plans")
    return [figures for figures in kept if figures is not None]


def by_seed(cells: Sequence[Cell], **fields: object) -> list[Figures]:
    """Return the figures of the cells with these fields, in the order of their seeds."""
    return figures_of([c for c in cells if all(getattr(c, name) == value for name, value in fields.items())])


def tables() -> Iterator[str]:
    """Iterate over the lines of the tables."""
    yield from first_table()
    yield ""
    yield from second_table()
    yield ""


def first_table() -> Iterator[str]:
    """Iterate over the lines of the comparison of ways of working."""
    heads = ("policy, jobs per hour", "models", "way of working", *HEADS, "against joint")
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"
    cells = first_cells()
    for policy, (compared, _) in POLICIES.items():
        for load in LOADS if policy == "las" else (BUSY,):
            for models, ways in WAYS.items():
                same = {"policy": policy, "rate_per_h": load, "models": models}
                base = by_seed(cells, **same, way="joint")
                for way in ways:
                    figures = by_seed(cells, **same, way=way)
                    names = (f"{policy}, {load:g}", models, NAMES[way])
                    yield _row(*names, figures=figures, base=base, compared=compared)


def second_table() -> Iterator[str]:
    """Iterate over the lines of the comparison of corrections."""
    yield f"| {' | '.join(('a factor …', 'rates', *HEADS, 'against true rates'))} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    cells = second_cells()
    for error in (PER_TYPE, PER_PLAN):
        base = by_seed(cells, error=error, correction=EXACT)
        for correction, name in CORRECTIONS.items():
            figures = by_seed(cells, error=error, correction=correction)
            yield _row(error, name, figures=figures, base=base, compared="gpt_h")


def _row(*names: str, figures: list[Figures], base: list[Figures], compared: str) -> str:
    """Return a line: means over the seeds, then the mean, least and greatest change from `base`, seed by seed."""
    keys = ("mean_h", "gpt_h", "other_h", "p95_h", "makespan_h")
    hours = [f"{np.mean([np.mean(f[key]) for f in figures]):.2f}" for key in keys]
    usd = f"{np.mean([f['cost_usd'] for f in figures]):,.0f}"
    changes = [np.mean(f[compared]) / np.mean(b[compared]) - 1 for f, b in zip(figures, base, strict=True)]
    change = (
        f"{np.mean(changes):+.0%} ({min(changes):+.0%} to {max(changes):+.0%})" if figures != base else ""
    )
    return f"| {' | '.join((*names, *hours, usd, change))} |"


def joint_figure() -> Figure:
    """Draw how long the GPT jobs took, by way of working, at the higher load."""
    cells = first_cells()
    hours = {
        NAMES[way]: np.concatenate(
            [f["gpt_h"] for f in by_seed(cells, policy="las", rate_per_h=BUSY, models=ALL, way=way)]
        )
        for way in WAYS[ALL]
    }
    return jct_figure(hours)


def corrected_figure() -> Figure:
    """Draw the mean completion time of GPT jobs under each correction, a dot per seed."""
    figure = new_figure(9.5, 2.8)
    panels = figure.subplots(1, 2, sharey=True, sharex=True)
    cells = second_cells()
    for axes, error in zip(panels, (PER_TYPE, PER_PLAN), strict=True):
        for place, correction in enumerate(CORRECTIONS):
            means = [float(np.mean(f["gpt_h"])) for f in by_seed(cells, error=error, correction=correction)]
            axes.barh(place, np.mean(means), color=PALETTE[place], height=0.6)
            axes.plot(means, [place] * len(means), "o", color=INK, markersize=3)
        axes.set_yticks(range(len(CORRECTIONS)), list(CORRECTIONS.values()), **LABEL)
        axes.set_xlabel("mean completion time of GPT jobs, hours", **LABEL)
        finish(axes, f"a factor {error}")
    panels[0].invert_yaxis()
    return figure


PICTURES = {"joint": joint_figure, "corrected": corrected_figure}

if __name__ == "__main__":
    sys.exit(main())
