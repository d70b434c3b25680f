"""The gain of CPUs that other jobs leave idle: `python -m benchmarks.cpus FILE [--jobs 4000] [--rates 8 9] [--seed 0]`.

FILE has Synergy's tables (the case `synergy-tables` of a file for `benchmarks.reference training`): how fast models
train by their CPUs; equal rows for several models suggest that some were not measured. 16 servers of 8 GPUs and 24
CPUs, jobs of one GPU: 20 % on images, 70 % on text, 10 % on speech.

The first table is one moment with a job on each GPU: the work of all jobs relative to equal CPUs. In it, the CPUs of a
server are divided among the eight jobs that happen to be on it, by weights or in the best way; for comparison, a policy
with a column for each amount of CPUs divides those of all servers together. The second table has mean times to
completion in `gavel simulate` for the jobs of the middle third. Restarts are free unless `--restart` and
`--checkpoint` give their seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from gavel.cli.io.progress import bar
from policies.problem import Columns, Jobs, Problem
from policies.registry import resolve
from scheduler.sim.engine.cpus import Claim, divide
from scheduler.sim.figures.summary import summarise
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import Progress, simulate
from traces.costs import Cost
from traces.cpu_rates import CpuRates
from traces.formats import write_trace
from traces.trace import TraceJob

SERVERS, GPUS, CPUS = 16, 8, 24
FAIR = CPUS // GPUS
# The fair share of a server's memory, in GB.
MEMORY_GB = 62.5
MIX = {
    "image": (0.2, ("alexnet", "res18", "res50", "mobilenet", "shufflenet")),
    "text": (0.7, ("bert", "gnmt", "lstm", "transformer")),
    "speech": (0.1, ("deepspeech", "m5")),
}
# The durations of jobs at equal CPUs, in hours: log-uniform between two times, with this chance.
DURATIONS_H = ((0.8, 10**1.5 / 60, 10**3 / 60), (0.2, 10**3 / 60, 10**4 / 60))
# The worker type of all servers.
TYPE = "v100"
# Synergy's own figure for FIFO with tuned CPUs, 9 jobs an hour, in hours.
PUBLISHED_FIFO_H = {9.0: 21.88}
# By CPUs: the rate relative to that of the fair share.
Rates = dict[int, float]


def tables(document: dict[str, Any], memory_gb: float) -> dict[str, Rates]:
    """Return the rates of each model by its CPUs, with this much memory."""
    table = next(case["expected"] for case in document["cases"] if case["id"] == "synergy-tables")
    column = table["memory_gb"].index(memory_gb)
    return {
        model: dict(zip(table["cpus"], (row[column] for row in rows), strict=True))
        for model, rows in table["rate"].items()
    }


def useful(rates: Rates) -> Rates:
    """Return the amounts of CPUs at which a job is no slower than at the fair share, and faster than with fewer."""
    kept: Rates = {}
    for cpus, rate in sorted(rates.items()):
        if rate >= max(rates[FAIR], max(kept.values(), default=0.0) * (1 + 1e-9)):
            kept[cpus] = rate
    return kept


def problem_of(models: Sequence[str], ways: dict[str, Rates], servers: int, **facts: Any) -> Problem:
    """Return the problem of jobs of one GPU each, with a column for each amount of CPUs."""
    columns = [(row, cpus, rate) for row, model in enumerate(models) for cpus, rate in ways[model].items()]
    first, cpus, rate = zip(*columns, strict=True)
    return Problem(
        jobs=Jobs(tuple(f"{row:06}" for row in range(len(models))), **facts),
        columns=Columns(
            np.array(first),
            np.zeros(len(first), np.int64),
            np.ones(len(first), np.int64),
            np.array(rate),
            cpus=np.array(cpus, float),
        ),
        worker_types=(TYPE,),
        capacity=np.array([float(servers * GPUS)]),
        cpus=np.array([float(servers * CPUS)]),
    )


def best_split(models: Sequence[str], ways: dict[str, Rates], cpus: int = CPUS) -> float:
    """Return the greatest total rate of the jobs of one server, each with a whole number of CPUs."""
    best = np.zeros(cpus + 1)
    for model in models:
        most = np.full(cpus + 1, -np.inf)
        for own, rate in ways[model].items():
            if own <= cpus:
                most[own:] = np.maximum(most[own:], best[: cpus + 1 - own] + rate)
        best = most
    return float(best[-1])


def draw_model(luck: Random) -> str:
    """Draw a model of the mix."""
    kind = luck.choices(list(MIX), [chance for chance, _ in MIX.values()])[0]
    return luck.choice(MIX[kind][1])


def by_weights(models: Sequence[str], ways: dict[str, Rates]) -> float:
    """Return the total rate of the jobs of one server if its CPUs are divided by weights."""
    curves = [CpuRates(tuple(sorted(ways[model].items()))) for model in models]
    shares = divide(CPUS, [Claim(1.0, curve.enough) for curve in curves])
    return sum(curve.rate(share) for curve, share in zip(curves, shares, strict=True))


def moments(all_rates: dict[str, Rates], samples: int) -> Iterator[tuple[float, float, float]]:
    """Yield the gains of weights and of best splits server by server, and of columns, at moments drawn at random."""
    ways = {model: useful(rates) for model, rates in all_rates.items()}
    for seed in range(samples):
        luck = Random(seed)
        models = [draw_model(luck) for _ in range(SERVERS * GPUS)]
        problem = problem_of(models, ways, SERVERS)
        shares = resolve("max_throughput(raw=true)")(problem).time_share
        servers = [models[at : at + GPUS] for at in range(0, len(models), GPUS)]
        weights = sum(by_weights(own, all_rates) for own in servers)
        split = sum(best_split(own, ways) for own in servers)
        total = float((problem.rates @ shares).sum())
        yield weights / len(models), split / len(models), total / len(models)


@dataclass(frozen=True)
class Arrival:
    """A job: when it arrives, and how many hours it takes at equal CPUs."""

    at_h: float
    model: str
    work_h: float


def arrivals(rate_per_h: float, jobs: int, seed: int) -> list[Arrival]:
    """Draw the jobs of a workload. Another rate keeps the jobs."""
    clock, sizes, at_h, drawn = Random(f"{seed}/arrivals"), Random(f"{seed}/sizes"), 0.0, []
    for _ in range(jobs):
        at_h += clock.expovariate(1.0) / rate_per_h
        _, low, high = sizes.choices(DURATIONS_H, [chance for chance, _, _ in DURATIONS_H])[0]
        drawn.append(Arrival(at_h, draw_model(sizes), low * (high / low) ** sizes.random()))
    return drawn


def write_table(path: Path, all_rates: dict[str, Rates]) -> None:
    """Write the rates as a throughput table: a job of any model does one step per second at the fair share."""
    lines = ["job_type,gpus,worker_type,cpus_per_gpu,steps_per_s"]
    for model, rates in all_rates.items():
        lines += [f"{model},1,{TYPE},,{rates[FAIR]}"]
        lines += [f"{model},1,{TYPE},{cpus},{rate}" for cpus, rate in sorted(rates.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mean_h(
    folder: Path, all_rates: dict[str, Rates], jobs: Sequence[Arrival], policy: str, fixed: bool, costs: Cost
) -> float:
    """Simulate the jobs, and return the mean hours to completion of the middle third."""
    table, trace = folder / "rates.csv", folder / "jobs.csv"
    write_table(table, all_rates)
    write_trace(
        trace,
        [
            TraceJob(id=str(number), arrival_s=3600 * job.at_h, job_type=job.model, steps=3600 * job.work_h)
            for number, job in enumerate(jobs)
        ],
    )
    run = Run(
        trace=str(trace),
        throughputs=str(table),
        cluster={TYPE: SERVERS * GPUS},
        gpus_per_node=GPUS,
        cpus_per_node=CPUS,
        fixed_cpus=fixed,
        policy=policy,
        restart_s=costs.restart_s,
        checkpoint_s=costs.checkpoint_s,
        measure=(len(jobs) // 3, len(jobs) - len(jobs) // 3),
    )

    name = f"{policy}, {'fixed' if fixed else 'shared'} CPUs"
    with bar(name) as show:

        def show_progress(progress: Progress) -> None:
            show(f"{name}: {progress.ended:,} jobs", progress.ended / len(jobs))

        result = simulate(prepare(run).options, progress=show_progress)
    return float(summarise(result.metrics)["mean_jct_h"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--rates", type=float, nargs="+", default=[8.0, 9.0], help="jobs per hour")
    parser.add_argument("--policies", nargs="+", default=["las", "fifo"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--restart", type=float, default=0.0, help="seconds, as of `gavel simulate`")
    parser.add_argument("--checkpoint", type=float, default=0.0, help="seconds, as of `gavel simulate`")
    options = parser.parse_args(arguments)
    costs = Cost(options.restart, options.checkpoint)
    document = json.loads(options.file.read_text(encoding="utf-8"))
    all_rates = tables(document, MEMORY_GB)
    gains = np.array(list(moments(all_rates, samples=50))).mean(axis=0)
    print("work done, relative to equal CPUs, mean of 50 moments")
    for name, gain in zip(("by weights", "best split of each server", "columns"), gains, strict=True):
        print(f"{name:28}{gain:8.3f}")
    titles = ("jobs per h", "fixed CPUs, h", "shared CPUs, h", "ratio", "published FIFO-Tune, h")
    print(f"\n{'policy':8}" + "".join(f"{title:>{len(title) + 4}}" for title in titles))
    for policy in options.policies:
        for rate in options.rates:
            jobs = arrivals(rate, options.jobs, options.seed)
            with tempfile.TemporaryDirectory() as folder:
                fixed, shared = (
                    mean_h(Path(folder), all_rates, jobs, policy, is_fixed, costs)
                    for is_fixed in (True, False)
                )
            published = PUBLISHED_FIFO_H.get(rate) if policy == "fifo" else None
            cells = (f"{rate:g}", f"{fixed:.2f}", f"{shared:.2f}", f"{fixed / shared:.2f}", published or "")
            line = "".join(f"{cell:>{len(title) + 4}}" for cell, title in zip(cells, titles, strict=True))
            print(f"{policy:8}{line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
