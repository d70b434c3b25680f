"""Generated workloads: what a spec says is what comes out, and the same again."""

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


def some(spec=SPEC, count=4_000, seed=1, throughputs=None):
    """The first jobs of a workload."""
    return tuple(islice(generate(spec, throughputs or small(), seed), count))


def part(jobs, is_one):
    """Which part of the jobs is one of those."""
    return pytest.approx(sum(map(is_one, jobs)) / len(jobs), abs=0.04)


def test_chances_are_met():
    """Widths, branches of durations, weights, tenants, deadlines, elastic jobs: as often as stated."""
    jobs = some()
    assert part(jobs, lambda job: job.gpus == 1) == 0.75
    assert part(jobs, lambda job: 100 <= job.duration_s <= 1_000) == 0.75
    assert part(jobs, lambda job: 10_000 <= job.duration_s <= 20_000) == 0.25
    assert part(jobs, lambda job: job.weight == 5) == 0.5
    assert part(jobs, lambda job: job.tenant == "b/c") == 2 / 3
    assert part(jobs, lambda job: job.deadline_s == 2 * job.duration_s) == 0.5
    assert part(jobs, lambda job: (job.gpus_min, job.gpus_max) != (None, None)) == 0.25
    assert part(jobs, lambda job: job.job_type == "big") == 0.75 / 2  # big runs on one GPU only


def test_durations_are_log_uniform():
    """As many in each half of the logarithm."""
    jobs = some(replace(SPEC, durations=(Duration(1, 100, 10_000),)))
    assert part(jobs, lambda job: job.duration_s < 1_000) == 0.5


def test_steps_are_the_duration_on_the_reference_type():
    """So that a job takes its duration where nobody disturbs it."""
    for job in some(count=100):
        assert job.steps == pytest.approx(job.duration_s * small().reference_rate(job.job_type, job.gpus))
        assert small().reference_rate(job.job_type, job.gpus) > 0


def test_arrivals_are_a_poisson_process():
    """Gaps with the stated mean, and a deviation as large as the mean."""
    times = [job.arrival_s for job in some()]
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(60, rel=0.05)
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(60, rel=0.1)


def test_the_day_has_a_rhythm():
    """Twice the mean in the busiest hours, hardly anything half a day later, the mean over the day."""
    spec = replace(SPEC, daily_swing=1.0, busiest_h=15)
    jobs = trace_of(generate(spec, small(), 1), source="day", end_s=20 * DAY_S)
    hours = Counter(int(job.arrival_s % DAY_S // 3600) for job in jobs)
    assert len(jobs) == pytest.approx(20 * 24 * 60, rel=0.03)
    assert hours[15] / 20 == pytest.approx(120, rel=0.1)
    assert hours[3] / 20 < 6


def test_an_infinite_rate_brings_all_at_once():
    """Also where the day has a rhythm, and for every named workload."""
    assert {job.arrival_s for job in some(replace(SPEC, rate_per_h=math.inf, daily_swing=1.0), 50)} == {0.0}
    jobs = list(islice(workload("mixed-day", rate_per_h=math.inf), 200))
    assert {job.arrival_s for job in jobs} == {0.0}
    assert len({job.tenant for job in jobs}) >= 4


def test_the_same_seed_gives_the_same_jobs():
    """Another seed gives others; another rate only other arrivals; other tenants only other tenants."""
    assert some(count=50) == some(count=50)
    assert some(count=50) != some(count=50, seed=2)
    for other, fields in (
        (replace(SPEC, rate_per_h=6), ("job_type", "gpus", "steps", "weight", "tenant", "deadline_s")),
        (replace(SPEC, tenants={}), ("arrival_s", "job_type", "gpus", "steps")),
    ):
        for a, b in zip(some(count=50), some(other, 50), strict=True):
            assert [getattr(a, name) for name in fields] == [getattr(b, name) for name in fields]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate_per_h": 0}, "rate_per_h: is 0; give jobs per hour, above 0"),
        ({"rate_per_h": math.nan}, "rate_per_h: is nan"),
        ({"deadline_share": 1.5}, "deadline_share: is 1.5; give a part, from 0 to 1"),
        ({"daily_swing": math.nan}, "daily_swing: is nan"),
        ({"busiest_h": 24}, "busiest_h: is 24"),
        ({"durations": ()}, "durations: is empty"),
        ({"durations": (Duration(1, 0, 5),)}, "durations: from 0 to 5 s"),
        ({"durations": (Duration(0, 1, 5),)}, "durations: has the chances [0]"),
        ({"widths": {}}, "widths: has the chances []"),
        ({"widths": {0: 1}}, "widths: holds 0"),
        ({"widths": {1: -1, 2: 3}}, "widths: has the chances [-1, 3]"),
        ({"weights": {math.inf: 1}}, "weights: holds inf"),
        ({"tenants": {"a": math.nan}}, "tenants: has the chances [nan]"),
        ({"job_types": {"lmm": 1}}, "job_types: 'lmm' is not in the throughput table; did you mean 'lm'?"),
        ({"widths": {64: 1}}, "widths: no job type of the table runs on 64 GPUs"),
    ],
)
def test_a_spec_that_cannot_be_drawn_from_is_refused(wrong, said):
    """Before the first job: setting, value, what to do."""
    with pytest.raises(BadWorkload) as refused:
        generate(replace(SPEC, **wrong), small(), 1)
    assert str(refused.value).startswith(said)


# ------------------------------------------------------------------------------------------------- by name


def test_published_workloads_have_names():
    """The same jobs as from published.py."""
    for name, kind, weighted in (
        ("published-single", "single", False),
        ("published-multi", "multi", False),
        ("published-multi-weighted", "multi", True),
    ):
        wanted = published_workload(
            kind, rate_per_h=3, jobs=20, seed=4, throughputs=published(), weighted=weighted
        )
        assert tuple(islice(workload(name, published(), rate_per_h=3, seed=4), 20)) == wanted.jobs


def test_a_mixed_day_has_everything():
    """Several tenants, widths, deadlines, weights, elastic jobs; in order of arrival, at about the rate asked for."""
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


def test_a_mixed_day_is_as_much_work_as_it_says():
    """Some 11 GPU-hours of V100 per job, 7 of A100, 3 of H100."""
    table = default_throughputs()
    jobs = list(islice(workload("mixed-day", rate_per_h=40), 8_000))
    for kind, stated in (("v100", 11), ("a100", 6.6), ("h100", 3.2)):
        fitting = [job for job in jobs if table.rate(job.job_type, job.gpus, kind) > 0]
        hours = [job.gpus * job.steps / table.rate(job.job_type, job.gpus, kind) / 3600 for job in fitting]
        assert sum(hours) / len(hours) == pytest.approx(stated, rel=0.07)


def test_a_workload_without_a_name_is_refused():
    """The nearest name is offered; a table without its models is refused by the model."""
    with pytest.raises(BadWorkload, match="did you mean 'mixed-day'"):
        workload("mixed-days", rate_per_h=1)
    with pytest.raises(BadWorkload, match="'resnet50' is not in the throughput table"):
        workload("mixed-day", small(), rate_per_h=1)
    for name in WORKLOADS:
        with pytest.raises(BadWorkload, match=r"rate_per_h: is -1"):
            workload(name, rate_per_h=-1)


def test_an_endless_workload_is_cut_by_count_or_time():
    """Without either it would never end, and that is refused."""
    assert len(trace_of(generate(SPEC, small(), 1), source="x", count=7)) == 7
    assert trace_of(generate(SPEC, small(), 1), source="x", end_s=3600).jobs[-1].arrival_s < 3600
    with pytest.raises(BadWorkload, match="has no end"):
        trace_of(generate(SPEC, small(), 1), source="x")
