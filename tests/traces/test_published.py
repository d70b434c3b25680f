"""The published workload is generated exactly as it was published."""

import csv
import math
from itertools import islice

import pytest

from tests.support.public_data import public_data
from tests.support.traces import published_workload
from tests.traces.tables import published, small
from traces.errors import BadWorkload
from traces.published import JOB_TYPES, published_jobs


@pytest.mark.parametrize(
    ("kind", "rate_per_h", "file"),
    [
        ("single", 4.0, "published_workload_single_4.0_per_h_seed0.csv"),
        ("multi", 2.0, "published_workload_multi_2.0_per_h_seed0.csv"),
    ],
)
def test_equals_the_published_runs_job_for_job(kind, rate_per_h, file):
    """Every field of the first 200 jobs of seed 0 agrees, to the published digits."""
    with public_data(f"reference/{file}").open(newline="") as lines:
        expected = list(csv.DictReader(lines))
    trace = published_workload(kind, rate_per_h=rate_per_h, jobs=200, seed=0, throughputs=published())
    assert len(expected) == len(trace) == 200
    for row, job in zip(expected, trace, strict=True):
        assert (row["job"], row["job_type"], int(row["gpus"])) == (job.id, job.job_type, job.gpus)
        assert float(row["arrival_s"]) == pytest.approx(job.arrival_s, abs=6e-4)
        assert float(row["duration_on_v100_s"]) == pytest.approx(job.duration_s, abs=6e-4)
        assert float(row["steps"]) == pytest.approx(job.steps, abs=6e-4)


def test_there_are_26_types():
    """The job types are those that the published table measured, each once."""
    assert len(set(JOB_TYPES)) == len(JOB_TYPES) == 26


def test_jobs_are_the_same_at_any_rate_and_with_deadlines():
    """The rate changes arrivals only; deadlines are added, and change nothing else."""
    slow = published_workload("multi", rate_per_h=1, jobs=50, seed=3, throughputs=published())
    fast = published_workload(
        "multi", rate_per_h=10, jobs=50, seed=3, throughputs=published(), deadlines=True
    )
    for a, b in zip(slow, fast, strict=True):
        assert (a.job_type, a.gpus, a.steps) == (b.job_type, b.gpus, b.steps)
        assert a.arrival_s == pytest.approx(10 * b.arrival_s)
        assert a.deadline_s is None
        assert any(b.deadline_s == pytest.approx(f * b.duration_s) for f in (1.2, 2, 10))


def test_a_fifth_of_weighted_jobs_weighs_five():
    """Weights are 1 or 5, and 5 about one time in five."""
    trace = published_workload(
        "multi", rate_per_h=1, jobs=2000, seed=1, throughputs=published(), weighted=True
    )
    assert {job.weight for job in trace} == {1.0, 5.0}
    assert sum(job.weight == 5 for job in trace) / 2000 == pytest.approx(0.2, abs=0.03)


def test_infinite_rate_brings_all_at_once():
    """With an infinite rate all jobs arrive at 0, as in a static workload."""
    trace = published_workload("single", rate_per_h=math.inf, jobs=9, seed=0, throughputs=published())
    assert {job.arrival_s for job in trace} == {0.0}


def test_an_endless_workload_begins_with_the_finite_one():
    """The endless workload begins with the finite one, and every job has its own id."""
    endless = published_jobs("single", rate_per_h=4, seed=0, throughputs=published())
    jobs = tuple(islice(endless, 1000))
    assert (
        published_workload("single", rate_per_h=4, jobs=10, seed=0, throughputs=published()).jobs == jobs[:10]
    )
    assert len({job.id for job in jobs}) == 1000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kind": "triple"}, "'single' or 'multi'"),
        ({"rate_per_h": 0}, "rate_per_h: is 0"),
        ({"rate_per_h": math.nan}, "rate_per_h: is nan"),
        ({"jobs": -1}, "jobs: is -1"),
        ({}, "'ResNet-18 (batch size 16)'"),
    ],
)
def test_an_impossible_workload_is_refused(wrong, named, wording):
    """The error names the setting, or the first job type that the table lacks."""
    arguments = {"kind": "single", "rate_per_h": 4.0, "jobs": 1, "seed": 0, "throughputs": small()} | wrong
    with pytest.raises(BadWorkload) as refusal:
        published_workload(**arguments)
    assert named in str(refusal.value)
    wording(refusal.value)
