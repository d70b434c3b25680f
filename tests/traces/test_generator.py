"""Generated workloads match their spec, and are the same for the same seed."""

import math
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise

import pytest

from tests.support.traces import published_workload
from tests.traces.tables import published, small
from traces.errors import BadWorkload
from traces.generator import DAY_S, Duration, WorkloadSpec, generate, trace_of
from traces.named import WORKLOADS, workload
from traces.roofline import default_throughputs

SPEC = WorkloadSpec(
    rate_per_h=60,
    widths={1: 3, 2: 1},
    durations=(Duration(0.75, 100, 1_000), Duration(0.25, 10_000, 20_000)),
    weights={1: 0.5, 5: 0.5},
    tenants={"a": 1, "b/c": 2},
    deadline_factors={2: 1},
    deadline_share=0.5,
    elastic_share=0.25,
)


def generated_jobs(spec=SPEC, count=4_000, seed=1, throughputs=None):
    """Return the first jobs of a workload."""
    return tuple(islice(generate(spec, throughputs or small(), seed), count))


def part(jobs, counts):
    """Return the fraction of jobs for which `counts` is true, as a value to compare within 4 %."""
    return pytest.approx(sum(map(counts, jobs)) / len(jobs), abs=0.04)


def test_chances_are_met():
    """Widths, durations, weights, tenants, deadlines and elastic jobs occur as often as stated."""
    jobs = generated_jobs()
    assert part(jobs, lambda job: job.gpus == 1) == 0.75
    assert part(jobs, lambda job: 100 <= job.duration_s <= 1_000) == 0.75
    assert part(jobs, lambda job: 10_000 <= job.duration_s <= 20_000) == 0.25
    assert part(jobs, lambda job: job.weight == 5) == 0.5
    assert part(jobs, lambda job: job.tenant == "b/c") == 2 / 3
    assert part(jobs, lambda job: job.deadline_s == 2 * job.duration_s) == 0.5
    assert part(jobs, lambda job: (job.gpus_min, job.gpus_max) != (None, None)) == 0.25
    # `big` runs on one GPU only.
    assert part(jobs, lambda job: job.job_type == "big") == 0.75 / 2


def test_durations_are_log_uniform():
    """There are as many jobs in each half of the logarithmic range."""
    jobs = generated_jobs(replace(SPEC, durations=(Duration(1, 100, 10_000),)))
    assert part(jobs, lambda job: job.duration_s < 1_000) == 0.5


def test_steps_are_the_duration_on_the_reference_type():
    """A job alone on the reference type takes its duration."""
    for job in generated_jobs(count=100):
        assert job.steps == pytest.approx(job.duration_s * small().reference_rate(job.job_type, job.gpus))
        assert small().reference_rate(job.job_type, job.gpus) > 0


def test_arrivals_are_a_poisson_process():
    """Gaps between arrivals have the stated mean, and a standard deviation as large as the mean."""
    times = [job.arrival_s for job in generated_jobs()]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(60, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(60, rel=0.1)


def test_the_day_has_a_rhythm():
    """Jobs arrive twice as often as on average in the busiest hour, and rarely twelve hours later."""
    spec = replace(SPEC, daily_swing=1.0, busiest_h=15)
    jobs = trace_of(generate(spec, small(), 1), source="day", end_s=20 * DAY_S)
    hours = Counter(int(job.arrival_s % DAY_S // 3600) for job in jobs)
    assert len(jobs) == pytest.approx(20 * 24 * 60, rel=0.03)
    assert hours[15] / 20 == pytest.approx(120, rel=0.1)
    assert hours[3] / 20 < 6


def test_an_infinite_rate_brings_all_at_once():
    """An infinite rate works with a daily rhythm, and for named workloads, too."""
    assert {
        job.arrival_s for job in generated_jobs(replace(SPEC, rate_per_h=math.inf, daily_swing=1.0), 50)
    } == {0.0}
    jobs = list(islice(workload("mixed-day", rate_per_h=math.inf), 200))
    assert {job.arrival_s for job in jobs} == {0.0}
    assert len({job.tenant for job in jobs}) >= 4


def test_the_same_seed_gives_the_same_jobs():
    """Another seed gives other jobs; another rate changes arrivals only; other tenants change tenants only."""
    assert generated_jobs(count=50) == generated_jobs(count=50)
    assert generated_jobs(count=50) != generated_jobs(count=50, seed=2)
    for other, fields in (
        (replace(SPEC, rate_per_h=6), ("job_type", "gpus", "steps", "weight", "tenant", "deadline_s")),
        (replace(SPEC, tenants={}), ("arrival_s", "job_type", "gpus", "steps")),
    ):
        for a, b in zip(generated_jobs(count=50), generated_jobs(other, 50), strict=True):
            assert [getattr(a, name) for name in fields] == [getattr(b, name) for name in fields]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"rate_per_h": 0}, "rate_per_h"),
        ({"rate_per_h": math.nan}, "rate_per_h"),
        ({"deadline_share": 1.5}, "deadline_share"),
        ({"daily_swing": math.nan}, "daily_swing"),
        ({"busiest_h": 24}, "busiest_h"),
        ({"durations": ()}, "durations"),
        ({"durations": (Duration(1, 0, 5),)}, "durations"),
        ({"durations": (Duration(0, 1, 5),)}, "durations"),
        ({"widths": {}}, "widths"),
        ({"widths": {0: 1}}, "widths"),
        ({"widths": {1: -1, 2: 3}}, "widths"),
        ({"weights": {math.inf: 1}}, "weights"),
        ({"tenants": {"a": math.nan}}, "tenants"),
        ({"job_types": {"lmm": 1}}, "job_types"),
        ({"widths": {64: 1}}, "widths"),
    ],
)
def test_an_impossible_spec_is_refused(wrong, field, wording):
    """The error comes before the first job, and has the field, its value and the remedy."""
    with pytest.raises(BadWorkload) as refused:
        generate(replace(SPEC, **wrong), small(), 1)
    assert str(refused.value).startswith(f"{field}: ")
    wording(refused.value)


# ------------------------------------------------------------------------------------------------- by name


def test_published_workloads_have_names():
    """A named workload has the same jobs as the function in published.py."""
    for name, kind, weighted in (
        ("published-single", "single", False),
        ("published-multi", "multi", False),
        ("published-multi-weighted", "multi", True),
    ):
        expected = published_workload(
            kind, rate_per_h=3, jobs=20, seed=4, throughputs=published(), weighted=weighted
        )
        assert tuple(islice(workload(name, published(), rate_per_h=3, seed=4), 20)) == expected.jobs


def test_a_mixed_day_has_everything():
    """A mixed day has several tenants, widths, weights, deadlines and elastic jobs, at about the requested rate."""
    table = default_throughputs()
    day = trace_of(workload("mixed-day", rate_per_h=40, seed=1), source="mixed-day", end_s=DAY_S)
    assert len(day) == pytest.approx(24 * 40, rel=0.15)
    assert {job.tenant.split("/")[0] for job in day} == {"research", "product", "teaching"}
    assert {job.gpus for job in day} == {1, 2, 4, 8}
    assert {job.weight for job in day} == {1, 3}
    assert any(job.deadline_s for job in day)
    assert any(job.gpus_max and job.gpus_max > job.gpus for job in day)
    assert all(
        any(table.rate(job.job_type, job.gpus, kind) > 0 for kind in table.worker_types) for job in day
    )


def test_a_mixed_day_has_the_documented_amount_of_work():
    """A job takes about 11 GPU-hours of V100, 7 of A100, or 3 of H100."""
    table = default_throughputs()
    jobs = list(islice(workload("mixed-day", rate_per_h=40), 8_000))
    for kind, stated in (("v100", 11), ("a100", 6.6), ("h100", 3.2)):
        fitting = [job for job in jobs if table.rate(job.job_type, job.gpus, kind) > 0]
        hours = [job.gpus * job.steps / table.rate(job.job_type, job.gpus, kind) / 3600 for job in fitting]
        assert sum(hours) / len(hours) == pytest.approx(stated, rel=0.07)


def test_an_unknown_workload_is_refused(wording):
    """The error suggests the nearest name; for a table without the workload's models it names a model."""
    with pytest.raises(BadWorkload, match="'mixed-day'") as refused:
        workload("mixed-days", rate_per_h=1)
    wording(refused.value)
    with pytest.raises(BadWorkload, match="'resnet50'") as refused:
        workload("mixed-day", small(), rate_per_h=1)
    wording(refused.value)
    for name in WORKLOADS:
        with pytest.raises(BadWorkload, match=r"rate_per_h: is -1"):
            workload(name, rate_per_h=-1)


def test_an_endless_workload_is_cut_by_count_or_time():
    """A workload without a count or an end would never end, and is refused."""
    assert len(trace_of(generate(SPEC, small(), 1), source="x", count=7)) == 7
    assert trace_of(generate(SPEC, small(), 1), source="x", end_s=3600).jobs[-1].arrival_s < 3600
    with pytest.raises(BadWorkload, match="has no end"):
        trace_of(generate(SPEC, small(), 1), source="x")
