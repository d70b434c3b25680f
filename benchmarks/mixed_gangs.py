"""Bound by brute force what gangs over two worker types would add to an allocation of plans on one type.

    python -m benchmarks.mixed_gangs

On small clusters of two types, every mix of a few models is allocated twice by one linear program: with the columns
that the scheduler has, each a plan on one type, and with columns for gangs over both types as well. The gain is how
much more the jobs then reach, in the least of their rates and in total; each rate is relative to that of the job alone
on the cluster. `benchmarks.gang_costs` prices pipelines whose stages stand on both types. Replicas on both types are
bounded by the sum of the rates on each, as if they never exchanged a gradient. Writes the table of docs/plans.md and
its picture, in a few minutes; the picture's file also contains the table.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, combinations, combinations_with_replacement, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import linprog

from benchmarks.gang_costs import gang_of, profile_of, step_s
from docs.plots import IMAGES
from gavel.cli.policies.plot import LABEL, PALETTE, finish
from gavel.cli.simulation.plot_style import legend, new_figure
from gavel.plans import gpu_of, simulator_for
from planner.errors import PlanError
from planner.search import ALLOWED, best_plan
from planner.transformer import Transformer

# A type has at most one node.
PER_NODE = 8
TYPES = ("v100", "a100", "h100")
CLUSTERS = ((2, 2), (4, 4), (8, 8), (8, 4), (4, 8), (8, 2), (2, 8))
# Layers, hidden size and heads: models of 0.35, 1.3, 2.7 and 6.7 billion parameters.
SHAPES = {"0.35": (24, 1024, 16), "1.3": (24, 2048, 16), "2.7": (32, 2560, 32), "6.7": (32, 4096, 32)}
SEQUENCE, VOCABULARY, BATCH = 1024, 51_200, 64
JOBS = (1, 2, 3, 4, 8)
GOALS = ("least", "total")
GANGS = ("pipelines", "pipelines and replicas")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "plans.md"
PICTURE = IMAGES / "mixed-gangs.png"
START, END = "<!-- figures: written by python -m benchmarks.mixed_gangs -->", "<!-- end of figures -->"


class Way(NamedTuple):
    """A column: the GPUs of both types that a job takes, and the rate at which it then runs."""

    gpus: tuple[int, int]
    rate: float


class Gain(NamedTuple):
    """How much more the jobs of one case reach with gangs of both types: 0.1 is a tenth."""

    jobs: int
    goal: str
    gangs: str
    gain: float
    # Whether every model of the case also fits on each of the two types alone.
    is_free: bool


@cache
def ways(
    shape: str, types: tuple[str, str]
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]]:
    """Return the rates of a model by GPUs of both types: of plans on one of the types, and of pipelines on both."""
    layers, hidden, heads = SHAPES[shape]
    model = Transformer(layers=layers, hidden=hidden, heads=heads, sequence=SEQUENCE, vocabulary=VOCABULARY)
    gpus = [gpu_of(name, PER_NODE) for name in types]
    profile = profile_of(model, gpus, BATCH)
    simulator = simulator_for(profile)
    assert simulator is not None
    single: dict[tuple[int, int], float] = {}
    for index, count in product((0, 1), range(1, PER_NODE + 1)):
        try:
            cost = best_plan(profile, gpus[index], count, BATCH, ALLOWED, simulator).cost
        except PlanError:
            continue
        single[(count, 0) if index == 0 else (0, count)] = 1 / cost.step_s
    mixed = {}
    for first, second in product(range(1, PER_NODE + 1), repeat=2):
        parts = [(gpus[0], first), (gpus[1], second)]
        seconds = min(step_s(gang_of(profile, order), BATCH, simulator) for order in (parts, parts[::-1]))
        if math.isfinite(seconds):
            mixed[first, second] = 1 / seconds
    return single, mixed


def columns(shape: str, types: tuple[str, str], cluster: tuple[int, int], gangs: str | None) -> list[Way]:
    """Return the ways to run a model on a cluster: on one type, and with `gangs` on both."""
    single, mixed = ways(shape, types)
    rates = dict(single)
    if gangs is not None:
        rates |= mixed
    if gangs == GANGS[1]:
        for first, second in product(range(1, PER_NODE + 1), repeat=2):
            both = single.get((first, 0), 0.0) + single.get((0, second), 0.0)
            rates[first, second] = max(rates.get((first, second), 0.0), both)
    return [
        Way(gpus, rate)
        for gpus, rate in rates.items()
        if gpus[0] <= cluster[0] and gpus[1] <= cluster[1] and rate > 0
    ]


def value(
    columns_of: Mapping[str, Sequence[Way]], jobs: Mapping[str, int], cluster: Sequence[int], goal: str
) -> float:
    """Return the greatest least rate that all jobs reach, or the greatest total, by time-sharing of their columns.

    `jobs` counts the equal jobs by model. Rates are relative to the model's best on one type.
    """
    rows = list(jobs)
    table = [(row, way) for row, shape in enumerate(rows) for way in columns_of[shape]]
    alone = [max(way.rate for way in columns_of[shape] if 0 in way.gpus) for shape in rows]
    counts = np.array([jobs[shape] for shape in rows], dtype=float)
    of_job = np.zeros((len(rows), len(table) + 1))
    rates = np.zeros((len(rows), len(table) + 1))
    used = np.zeros((len(cluster), len(table) + 1))
    for column, (row, way) in enumerate(table):
        of_job[row, column] = 1
        rates[row, column] = way.rate / alone[row]
        used[:, column] = way.gpus
    limits, bounds = [*counts, *cluster], [of_job, used]
    objective = rates.sum(axis=0)
    if goal == "least":
        # The last variable is the least rate.
        rates[:, -1] = -counts
        limits, bounds = [*limits, *np.zeros(len(rows))], [*bounds, -rates]
        objective = np.zeros(len(table) + 1)
        objective[-1] = 1
    answer = linprog(-objective, A_ub=np.vstack(bounds), b_ub=limits)
    assert answer.fun is not None, answer.message
    return -float(answer.fun)


def gains(types: tuple[str, str]) -> Iterator[Gain]:
    """Yield the gains of every case with two types: a cluster of them, and models that each fit on one of the types."""
    for cluster in CLUSTERS:
        by_gangs = {
            gangs: {shape: columns(shape, types, cluster, gangs) for shape in SHAPES}
            for gangs in (None, *GANGS)
        }
        known = [shape for shape, each in by_gangs[None].items() if each]
        free = {shape for shape in known if len({way.gpus[0] > 0 for way in by_gangs[None][shape]}) == 2}
        for count, goal in product(JOBS, GOALS):
            for mix in combinations_with_replacement(known, count):
                values = {
                    gangs: value(columns_of, Counter(mix), cluster, goal)
                    for gangs, columns_of in by_gangs.items()
                }
                for gangs in GANGS:
                    gain = values[gangs] / values[None] - 1
                    yield Gain(count, goal, gangs, gain, free.issuperset(mix))


def table(every: Sequence[Gain]) -> Iterator[str]:
    """Yield the lines of the table: the median of the gains, what nine in ten do not exceed, and the greatest.

    The last column counts the cases whose least rate gains more than a tenth by any of these gangs, and those of them
    in which every model fits on each of the two types.
    """
    heads = [
        "least rate: pipelines",
        "… and replicas",
        "in total: pipelines",
        "… and replicas",
        "above a tenth",
    ]
    yield f"| jobs | cases | {' | '.join(heads)} |"
    yield f"|{'---:|' * (len(heads) + 2)}"
    for jobs in JOBS:
        cells = []
        for goal, gangs in product(GOALS, GANGS):
            percents = 100 * _sorted(every, jobs, goal, gangs)
            cells.append(" / ".join(f"{each:.1f}" for each in np.quantile(percents, [0.5, 0.9, 1.0]) + 0.0))
        high = [each for each in every if each[:3] == (jobs, GOALS[0], GANGS[1]) and each.gain > 0.1]
        cells.append(f"{len(high)}, {sum(each.is_free for each in high)}")
        yield f"| {jobs} | {len(percents)} | {' | '.join(cells)} |"


def figure(every: Sequence[Gain]) -> Figure:
    """Draw the part of the cases whose least rate gains at most so much, a curve per number of jobs."""
    drawn = new_figure(9.5, 3.6)
    panels = drawn.subplots(1, len(GANGS), sharey=True)
    for axes, gangs in zip(panels, GANGS, strict=True):
        for jobs, color in zip(JOBS, PALETTE, strict=False):
            percents = 100 * _sorted(every, jobs, GOALS[0], gangs)
            parts = np.arange(1, len(percents) + 1) / len(percents)
            label = "1 job" if jobs == 1 else f"{jobs} jobs"
            axes.step(percents, parts, where="post", color=color, label=label)
        finish(axes, f"{gangs} over two types")
        axes.set_xlim(-1, 60)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("gain of the least rate, %", **LABEL)
    panels[0].set_ylabel("part of the cases", **LABEL)
    legend(panels[-1])
    return drawn


def _sorted(every: Sequence[Gain], jobs: int, goal: str, gangs: str) -> np.ndarray:
    """Return the gains of these cases in increasing order. What an optimum loses to rounding is no loss."""
    return np.sort([max(0.0, each.gain) for each in every if each[:3] == (jobs, goal, gangs)])


def main() -> None:
    """Compute all gains, and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    with multiprocessing.get_context("spawn").Pool(parser.parse_args().processes) as pool:
        every = list(chain.from_iterable(pool.map(_gains, combinations(TYPES, 2), chunksize=1)))
    text = "\n".join(table(every))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    figure(every).savefig(PICTURE, dpi=90, metadata={"Description": text, "Software": None})
    print(text)


def _gains(types: tuple[str, str]) -> list[Gain]:
    return list(gains(types))


if __name__ == "__main__":
    main()
