"""A short version of `make results`: the gain of heterogeneity awareness, and the cost of rounds."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from scheduler.sim.figures.summary import summarise
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from scheduler.sim.simulate import simulate
from tests.support.public_data import public_data

TABLE = "gavel/simulation_throughputs.json"


@cache
def mean_jct_h(policy: str, *, ideal: bool = False) -> float:
    """Mean JCT of jobs 800 to 1000 at 4 single-GPU jobs per hour, as in the published experiment."""
    run = Run(
        cluster={"v100": 36, "p100": 36, "k80": 36},
        workload="published-single",
        rate_per_h=4.0,
        throughputs=str(public_data(TABLE)),
        comparison=True,
        measure=(800, 1000),
        policy=policy,
    )
    result = simulate(prepare(msgspec.structs.replace(run, ideal=ideal)).options)
    figures = summarise(result.metrics)
    assert figures["completed"] == 200
    return float(figures["mean_jct_h"])


def test_awareness_of_types_is_worth_a_quarter() -> None:
    """Speed-aware fair shares finish jobs in at most three quarters of the time of blind ones."""
    assert mean_jct_h("las") / mean_jct_h("las+blind(reference=v100)") <= 0.75


def test_rounds_come_close_to_exact_shares() -> None:
    """Turns in rounds cost at most 3 % compared with exact shares."""
    assert mean_jct_h("las") <= 1.03 * mean_jct_h("las", ideal=True)


def test_the_first_jobs_are_those_of_the_reference() -> None:
    """The simulated workload is the published one: the same jobs at the same times."""
    rows = public_data("reference/published_workload_single_4.0_per_h_seed0.csv").read_text().splitlines()
    run = Run(
        cluster={"v100": 1},
        workload="published-single",
        rate_per_h=4.0,
        throughputs=str(public_data(TABLE)),
        jobs=len(rows) - 1,
    )
    for row, job in zip(rows[1:], prepare(run).options.jobs, strict=True):
        _, arrival_s, job_type, gpus, _, steps = row.split(",")
        assert (job.job_type, job.gpus) == (job_type, int(gpus))
        assert job.arrival_s == pytest.approx(float(arrival_s), abs=1e-3)
        assert job.steps == pytest.approx(float(steps), abs=1e-3)
