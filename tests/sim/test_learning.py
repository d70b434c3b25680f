"""A scheduler that was told wrong rates: what it measures replaces them, and jobs are placed by the truth."""

from __future__ import annotations

import pytest

from benchmarks.learning import GOAL, Learnt, learnt
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
    """Wrong by this factor, up or down in turn, so that types look alike that are not and the other way round."""
    return {
        key: rate * wrong_by ** (-1 if (TYPES.index(key[0]) + KINDS.index(key[2])) % 2 else 1)
        for key, rate in TRUTH.items()
    }


def run(wrong_by: float, **settings: object) -> list[Learnt]:
    """On two GPUs of each type, without noise: three jobs that may run anywhere, and one for each type on either."""
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
    return learnt(journal.read())


@pytest.mark.parametrize("wrong_by", [3.0, 1 / 3])
def test_rates_that_were_wrong_by_three_are_right_after_a_jobs_first_lease(wrong_by: float) -> None:
    """On every type that it ran on, and every job type was seen on both."""
    found = run(wrong_by)
    assert {(one.job_type, one.worker_type) for one in found} == {(key[0], key[2]) for key in TRUTH}
    for one in found:
        true = TRUTH[one.job_type, 1, one.worker_type]
        assert abs(one.told / true - 1) > 0.5, "it was told something wrong"
        assert abs(one.believed / true - 1) <= GOAL, one


def test_where_nothing_is_to_be_learnt_the_wrong_rates_stay() -> None:
    """`learn_rates` off, as in comparisons: what was told is what is believed."""
    for one in run(3.0, learn_rates=False):
        assert one.believed == one.told
