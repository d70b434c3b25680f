"""The gain of columns with other CPUs: `python -m benchmarks.cpus FILE [--jobs 1500] [--rates 7 8 9]`.

FILE has Synergy's tables (the case `synergy-tables` of a file for `benchmarks.reference training`): how fast models
train by their CPUs; equal rows for several models suggest that some were not measured. 16 servers of 8 GPUs and 24
CPUs, jobs of one GPU: 20 % on images, 70 % on text, 10 % on speech.

The first table is one moment with a job on each GPU: the work of all jobs relative to equal CPUs, as the policy's
columns have it, and with each server's CPUs split in the best way among the eight jobs that happen to be on it. The
second one is the mean time to completion when shares are carried out exactly, without rounds, places and restarts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from policies.problem import Columns, Jobs, Problem
from policies.registry import resolve

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
WARM_UP = 1 / 3
WAYS = ("equal CPUs", "CPU columns")
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
        worker_types=("v100",),
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


def moments(ways: dict[str, Rates], samples: int) -> Iterator[tuple[float, float]]:
    """Yield the gain of the policy's columns, and of splits server by server, at moments drawn at random."""
    for seed in range(samples):
        luck = Random(seed)
        models = [draw_model(luck) for _ in range(SERVERS * GPUS)]
        problem = problem_of(models, ways, SERVERS)
        shares = resolve("max_throughput(raw=true)")(problem).time_share
        by_server = (models[at : at + GPUS] for at in range(0, len(models), GPUS))
        split = sum(best_split(own, ways) for own in by_server)
        yield float((problem.rates @ shares).sum()) / len(models), split / len(models)


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


def completion_times_h(jobs: Sequence[Arrival], ways: dict[str, Rates], policy: str) -> np.ndarray:
    """Return the hours from arrival to end of each job, if the policy's shares are carried out exactly."""
    solve = resolve(policy)
    left, ended_h = np.array([job.work_h for job in jobs]), np.zeros(len(jobs))
    present: list[int] = []
    now_h, coming = 0.0, 0
    while present or coming < len(jobs):
        if not present:
            now_h = jobs[coming].at_h
        while coming < len(jobs) and jobs[coming].at_h <= now_h:
            present.append(coming)
            coming += 1
        waited_s = [3600 * (now_h - jobs[job].at_h) for job in present]
        problem = problem_of(
            [jobs[job].model for job in present], ways, SERVERS, steps_left=left[present], waited_s=waited_s
        )
        rate = problem.rates @ solve(problem).time_share
        with np.errstate(divide="ignore"):
            ends_h = now_h + np.where(rate > 1e-9, left[present] / rate, np.inf)
        until_h = min(float(ends_h.min()), jobs[coming].at_h if coming < len(jobs) else np.inf)
        left[present] -= rate * (until_h - now_h)
        now_h = until_h
        for index in np.flatnonzero(ends_h <= until_h * (1 + 1e-12)).tolist():
            ended_h[present[index]] = now_h
        present = [job for job in present if not ended_h[job]]
    return ended_h - np.array([job.at_h for job in jobs])


def mean_h(times_h: np.ndarray) -> float:
    """Return the mean without the first jobs, which found an empty cluster, and the last ones, which left one."""
    skipped = int(len(times_h) * WARM_UP)
    return float(times_h[skipped : len(times_h) - skipped].mean())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--rates", type=float, nargs="+", default=[7.0, 8.0, 9.0], help="jobs per hour")
    parser.add_argument("--policies", nargs="+", default=["las"])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    document = json.loads(options.file.read_text(encoding="utf-8"))
    all_rates = tables(document, MEMORY_GB)
    ways = {
        WAYS[0]: {model: {FAIR: rates[FAIR]} for model, rates in all_rates.items()},
        WAYS[1]: {model: useful(rates) for model, rates in all_rates.items()},
    }
    gains = np.array(list(moments(ways[WAYS[1]], samples=50))).mean(axis=0)
    print("work done, relative to equal CPUs, mean of 50 moments")
    print(f"{'columns':24}{gains[0]:8.3f}\n{'server by server':24}{gains[1]:8.3f}\n")
    print(
        f"{'policy':12}{'jobs per h':>12}" + "".join(f"{name + ', h':>18}" for name in WAYS) + f"{'ratio':>8}"
    )
    for policy in options.policies:
        for rate in options.rates:
            jobs = arrivals(rate, options.jobs, options.seed)
            hours = [mean_h(completion_times_h(jobs, ways[name], policy)) for name in WAYS]
            print(
                f"{policy:12}{rate:12g}"
                + "".join(f"{value:18.2f}" for value in hours)
                + f"{hours[0] / hours[1]:8.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
