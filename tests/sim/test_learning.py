"""A scheduler with a table of wrong rates: measured rates replace them."""

from __future__ import annotations

import pytest

from benchmarks.learning import GOAL, LearntRate, learnt_rates
from scheduler.model.settings import Settings
from scheduler.sim.simulate import SimOptions, simulate
from tests.support.journals import MemoryJournal
from traces.throughputs import Throughputs
from traces.trace import TraceJob

TRUTH = {
    ("cnn", 1, "v100"): 10.0,
    ("cnn", 1, "k80"): 2.0,
    ("lm", 1, "v100"): 4.0,
    ("lm", 1, "k80"): 2.0,
    ("gan", 1, "v100"): 6.0,
    ("gan", 1, "k80"): 1.5,
}
TYPES, KINDS = ("cnn", "lm", "gan"), ("v100", "k80")


def believed(wrong_by: float) -> dict[tuple[str, int, str], float]:
    """Rates wrong by this factor, up or down in turn, so that different types look alike and the reverse."""
    return {
        key: rate * wrong_by ** (-1 if (TYPES.index(key[0]) + KINDS.index(key[2])) % 2 else 1)
        for key, rate in TRUTH.items()
    }


def run(wrong_by: float, **settings: object) -> list[LearntRate]:
    """Three jobs that may run on both types, and one of each job type for each type; two GPUs each, no noise."""
    journal = MemoryJournal()
    jobs = [
        TraceJob(
            id=str(n),
            arrival_s=60.0 * n,
            job_type=job_type,
            worker_types=kinds,
            steps=TRUTH[job_type, 1, "v100"] * 3000.0,
        )
        for n, (job_type, kinds) in enumerate(
            [(t, KINDS) for t in TYPES] + [(t, (k,)) for t in TYPES for k in KINDS]
        )
    ]
    simulate(
        SimOptions(
            cluster={"v100": 2, "k80": 2},
            jobs=jobs,
            throughputs=Throughputs(solo=TRUTH),
            believed=Throughputs(solo=believed(wrong_by)),
            settings=Settings(policy="las", **settings),  # type: ignore[arg-type]
            restart_s=30.0,
            checkpoint_s=10.0,
            report_interval_s=10.0,
            journal=journal,
        )
    )
    return learnt_rates(journal.read())


@pytest.mark.parametrize("wrong_by", [3.0, 1 / 3])
def test_rates_wrong_by_three_are_learnt_in_a_jobs_first_lease(wrong_by: float) -> None:
    """The estimated rates are right on every type that a job ran on, and every job type ran on both."""
    rates = run(wrong_by)
    assert {(rate.job_type, rate.worker_type) for rate in rates} == {(key[0], key[2]) for key in TRUTH}
    for rate in rates:
        true = TRUTH[rate.job_type, 1, rate.worker_type]
        assert abs(rate.in_table / true - 1) > 0.5, "the table was wrong"
        assert abs(rate.believed / true - 1) <= GOAL, rate


def test_without_learning_the_wrong_rates_stay() -> None:
    """With `learn_rates` off, as in comparisons, the rates of the table are used."""
    for rate in run(3.0, learn_rates=False):
        assert rate.believed == rate.in_table
