"""Estimates of pairs: `python -m benchmarks.pairs errors`, or `python -m benchmarks.pairs simulation`.

`errors` hides the pairs of some of the 26 job types that were measured for Gavel, shows the estimator a part of them,
and prints the errors of the others, and the time that the estimates take. `simulation` prints mean completion times of
the published setting: with all rates of pairs, with estimated ones, with estimated ones until they are measured, and
without any. Both need the published tables.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from scheduler.model.pair_estimate import Bools, Floats, complete
from scheduler.sim.figures.summary import jct_hours
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import SimOptions, simulate

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
WORKER_TYPES = ("k80", "p100", "v100")
REFERENCES = 16
# Packing pays if two jobs together do more than this times the work of one.
PAYS = 1.1
# The published setting: 4 + 4 + 4 GPUs, jobs on one GPU each, LAS; and its mean completion times in hours.
CLUSTER = {"v100": 4, "p100": 4, "k80": 4}
RATE_PER_H, FIRST, END = 0.596, 4000, 5000
PUBLISHED_H = {"oracle": 19.8, "estimated": 22.1, "las": 33.9}
# The same estimates at the beginning, but pairs that run are measured, as they are outside of comparisons.
MEASURED = "measured"

Method = Callable[[Floats], Floats]


class Published(NamedTuple):
    """The measured pairs: the rate of a type beside a partner on a worker type as a part of its rate alone."""

    job_types: tuple[str, ...]
    # [type, partner, worker type]; 0 where a pair does not fit.
    fraction: Floats

    @property
    def families(self) -> list[str]:
        """The model of each job type, without the batch size."""
        return [name.partition(" (")[0] for name in self.job_types]


def published_pairs(folder: Path = DATA / "throughputs") -> Published:
    """Read the published pairs on one GPU."""
    with (folder / "gavel_throughputs.csv").open(encoding="utf-8") as lines:
        alone = {
            (row["job_type"], row["gpu_type"]): float(row["throughput_steps_per_s"])
            for row in csv.DictReader(lines)
            if (row["source"], row["placement"], row["scale_factor"]) == ("simulation", "consolidated", "1")
        }
    job_types = tuple(sorted({job_type for job_type, _ in alone}))
    number = {name: i for i, name in enumerate(job_types)}
    fraction = np.zeros((len(job_types), len(job_types), len(WORKER_TYPES)))
    with (folder / "gavel_colocated.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if "simulation" not in row["source"] or row["gpu_type"] not in WORKER_TYPES:
                continue
            a, b, w = row["job_type_a"], row["job_type_b"], WORKER_TYPES.index(row["gpu_type"])
            fraction[number[a], number[b], w] = float(row["throughput_a"]) / alone[a, row["gpu_type"]]
            fraction[number[b], number[a], w] = float(row["throughput_b"]) / alone[b, row["gpu_type"]]
    return Published(job_types, np.minimum(fraction, 1.0))


def mean_of_references(fraction: Floats) -> Floats:
    """The estimate without probes: what the references do on average beside each partner, and cost it."""
    known = fraction > 0
    row = np.where(known, fraction, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    return np.broadcast_to(row, fraction.shape)


METHODS: dict[str, Method] = {
    "ours": lambda fraction: complete(fraction).fraction,
    "mean of references": mean_of_references,
}


class Errors(NamedTuple):
    """Errors of estimates over pairs that fit and were not probed."""

    mae: float
    # The part of the pairs that were on the wrong side of `PAYS`.
    wrong_side: float


def errors(
    published: Published,
    method: Method,
    probed: float,
    group: str,
    seeds: Sequence[int] = range(10),
    *,
    misfits: bool = False,
) -> Errors:
    """Return the errors for a type that is new to the estimator, drawn for each type and seed.

    `group`: "may be a reference", "never a reference", or "family unseen": no batch size of its model is one either.
    `misfits`: also count pairs that do not fit, which are known.
    """
    differences: list[Floats] = []
    wrong: list[Floats] = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for job_type in range(len(published.job_types)):
            truth, fraction, is_probed = _case(published, job_type, probed, group, rng)
            estimate = method(fraction)
            counts = ~is_probed & (misfits | (truth[-1, :-1] > 0))
            # What the type keeps beside each partner, and what the partner keeps.
            views = [(each[-1, :-1][counts], each[:-1, -1][counts]) for each in (estimate, truth)]
            (own, partner), (true_own, true_partner) = views
            differences.append(np.abs(own - true_own))
            wrong.append((own + partner > PAYS) != (true_own + true_partner > PAYS))
    return Errors(float(np.concatenate(differences).mean()), float(np.concatenate(wrong).mean()))


def _case(
    published: Published, job_type: int, probed: float, group: str, rng: np.random.Generator
) -> tuple[Floats, Floats, Bools]:
    """Return the truth, what is known of it, and which pairs of the last type were probed; the others are references.

    That pairs do not fit is known.
    """
    families = published.families
    others = [
        each
        for each in range(len(families))
        if group == "may be a reference"
        or (each != job_type and (group == "never a reference" or families[each] != families[job_type]))
    ]
    references = np.sort(rng.choice(others, min(REFERENCES, len(others)), replace=False))
    order = np.append(references, job_type)
    truth = published.fraction[np.ix_(order, order)]
    fraction = truth.copy()
    is_probed = rng.random(fraction[-1, :-1].shape) < probed
    # At least one probe.
    if not (is_probed & (truth[-1, :-1] > 0)).any():
        fitting = np.argwhere(truth[-1, :-1] > 0)
        is_probed[tuple(fitting[rng.integers(len(fitting))])] = True
    hidden = ~is_probed & (truth[-1, :-1] > 0)
    fraction[-1, :-1][hidden] = np.nan
    fraction[:-1, -1][hidden] = np.nan
    fraction[-1, -1] = np.nan
    return truth, fraction, is_probed


def unknown_types(published: Published, known: int = REFERENCES, probed: float = 0.2) -> Floats:
    """Return what is known of all types if only so many are references, and a part of the rest was probed."""
    rng = np.random.default_rng(0)
    types = len(published.job_types)
    is_reference = np.zeros(types, bool)
    is_reference[rng.choice(types, known, replace=False)] = True
    pairs = np.triu(rng.random((types, types)) < probed)
    is_known = (is_reference[:, None] & is_reference) | (
        (is_reference[:, None] ^ is_reference) & (pairs | pairs.T)
    )
    return np.where(is_known[:, :, None] | (published.fraction == 0), published.fraction, np.nan)


def estimate_ms(fraction: Floats, runs: int = 51) -> float:
    """Return the median processor time of one estimate."""
    times_s = []
    for _ in range(runs):
        began_s = time.process_time()
        complete(fraction)
        times_s.append(time.process_time() - began_s)
    return 1e3 * float(np.median(times_s))


def options_of(
    knowledge: str, seed: int, first: int = FIRST, end: int = END, rate_per_h: float = RATE_PER_H
) -> SimOptions:
    """Return the published setting: `knowledge` is that of `--pair-rates`, or MEASURED, or `las` without packing."""
    pair_rates = {"las": "oracle", MEASURED: "estimated"}.get(knowledge, knowledge)
    run = Run(
        cluster=CLUSTER,
        throughputs=str(DATA / "gavel" / "simulation_throughputs.json"),
        comparison=True,
        workload="published-single",
        rate_per_h=rate_per_h,
        measure=(first, end),
        seed=seed,
        policy="las" if knowledge == "las" else "las+packing",
        pair_rates=pair_rates,
    )
    options = prepare(run).options
    if knowledge != MEASURED:
        return options
    settings = msgspec.structs.replace(options.settings, learn_rates=True)
    # Rates are measured from report to report.
    return msgspec.structs.replace(options, settings=settings, report_interval_s=settings.round_s)


def error_lines(published: Published) -> Iterator[str]:
    """Yield the table of errors, and the time of an estimate."""
    yield f"{'':22}{'probed':>8}{'method':>22}{'MAE':>9}{'wrong side':>12}"
    for group in ("may be a reference", "never a reference", "family unseen"):
        for probed in (0.1, 0.2):
            for name, method in METHODS.items():
                mae, wrong_side = errors(published, method, probed, group)
                yield f"{group:22}{probed:8.0%}{name:>22}{mae:9.4f}{wrong_side:12.1%}"
    yield f"{len(published.job_types)} types: {estimate_ms(unknown_types(published)):.1f} ms of processor time"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["errors", "simulation"])
    parser.add_argument("--seeds", type=int, default=1, help="simulate seeds 0 to N - 1")
    parser.add_argument("--measure", nargs=2, type=int, default=(FIRST, END), metavar=("FIRST", "END"))
    parser.add_argument("--knowledge", nargs="+", default=["oracle", "estimated", MEASURED, "none", "las"])
    options = parser.parse_args(arguments)
    if not DATA.exists():
        print(f"The published tables do not exist: {DATA}", file=sys.stderr)
        return 2
    if options.part == "errors":
        for line in error_lines(published_pairs()):
            print(line, flush=True)
        return 0
    print(f"{'pair rates':12}{'seed':>6}{'mean, h':>10}{'published':>11}{'wall time, s':>14}")
    for seed in range(options.seeds):
        for knowledge in options.knowledge:
            result = simulate(options_of(knowledge, seed, *options.measure))
            hours, published_h = float(np.mean(jct_hours(result.metrics))), PUBLISHED_H.get(knowledge)
            column = f"{published_h:11.1f}" if published_h else f"{'':11}"
            print(f"{knowledge:12}{seed:6}{hours:10.2f}{column}{result.wall_s:14.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
