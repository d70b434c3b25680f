"""Quotas: limits on the GPUs that certain jobs hold together, which the answer of every policy keeps."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.audit import audit, could_gain, gpus_by_quota
from policies.engine.grouping import group
from policies.engine.quotas import add_as_exceeded
from policies.errors import ProblemError
from policies.problem import ANY_TYPE, JOBS, Allocation, Problem, Quotas
from policies.registry import names, resolve
from policies.trials.sample import shuffled
from tests.support import formulations as f
from tests.support.problems import alone, by_hand, problems, together
from tests.support.references import REFERENCES, as_seen

SPECS = [name + modifier for name in names() for modifier in ("", "+packing", "+blind", "+blind+packing")]
# Its value is that of all jobs without quotas, and its rates are scaled down.
SCALED = ("isolated",)
# Its value is not that of the jobs that run now.
SCHEDULES = ("allox",)
# The tests below compare it with a formulation of its own.
PAST_QUOTAS = ("max_min_fairness",)
# Its shares are discounted, so quotas that they keep may have bound what they are discounted from.
DISCOUNTED = ("strategy_proof",)
OPTIMA = [name for name in REFERENCES if name not in (*SCALED, *SCHEDULES, *PAST_QUOTAS)]
few = settings(max_examples=6)


def drawn(data: st.DataObject, spec: str, jobs: int = 7, **features: bool) -> Problem:
    """A problem with quotas that this policy can solve."""
    pinned = {key: st.just(value) for key, value in (features | {"quotas": True}).items()}
    if spec.startswith("allox"):
        pinned["widths"] = st.just((1,))
    return data.draw(problems(jobs=st.integers(1, jobs), **pinned))


def two_tenants(quota: float, jobs: int = 8, gpus: float = 8, **facts: object) -> Problem:
    """Two tenants with as many jobs of one GPU each, on one type; a quota for the first tenant."""
    problem = Problem.from_rates(np.ones((2 * jobs, 1)), 1, [gpus], steps_left=1e4, price_per_gpu_hour=1.0)
    first = np.arange(jobs)
    quotas = Quotas(names=("a",), gpus=[quota], quota=np.zeros(jobs, np.int64), job=first)  # type: ignore[arg-type]
    return replace(problem, quotas=quotas, jobs=replace(problem.jobs, **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS)
@few
@given(data=st.data())
def test_every_policy_keeps_quotas(spec: str, data: st.DataObject) -> None:
    """Every answer is feasible, and the jobs under each quota have at most its GPUs, counted by plain sums."""
    problem = drawn(data, spec)
    answer = resolve(spec)(problem)
    assert audit(problem, answer) == []
    assert (gpus_by_quota(problem, answer.time_share) <= problem.quotas.gpus * (1 + 1e-6) + 1e-6).all()
    assert answer.optimal


def test_truthful_shares_are_discounted_from_those_that_quotas_permit() -> None:
    """A quota counts even if only the shares before the discounts exceed it.

    Four jobs share one GPU, and four the other three; if one leaves, its three neighbours get all that it had.
    """
    answer = resolve("strategy_proof")(two_tenants(1, jobs=4, gpus=4))
    discount = (3 / 4) ** 3
    assert answer.time_share == pytest.approx([discount * 1 / 4] * 4 + [discount * 3 / 4] * 4, abs=1e-5)
    assert answer.value == pytest.approx(4 * np.log(1 / 4) + 4 * np.log(3 / 4), abs=1e-5)


@pytest.mark.parametrize("name", OPTIMA)
@pytest.mark.parametrize("modifiers", [(), ("packing",)], ids="+".join)
@few
@given(data=st.data())
def test_as_good_as_another_formulation(name: str, modifiers: tuple[str, ...], data: st.DataObject) -> None:
    """The value is the optimum under all quotas, by a program that is built column by column with all of them."""
    problem = drawn(data, name, jobs=4 if name == "strategy_proof" else 6, deadlines=False)
    answer, reference = resolve("+".join((name, *modifiers)))(problem), REFERENCES[name]
    view = as_seen(problem, answer, *modifiers)
    assume(len(view.problem.jobs))
    best = reference.optimum(view.problem)
    close = {"rel": reference.tolerance, "abs": 1e-9}
    if name != "hierarchical":
        assert answer.value == pytest.approx(best.value, **close)
    reached = reference.measure(view.problem, view.share)
    assert np.isnan(reached) or reached == pytest.approx(best.value, **close)
    if reference.second is not None:
        assert reference.second(view.problem, view.share) == pytest.approx(best.second, **close)
    if reference.fixed_rates:
        assert view.rate == pytest.approx(best.rate, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["max_min_fairness", "water_filling", "hierarchical"])
@few
@given(data=st.data())
def test_no_job_could_have_more_without_another_having_less(name: str, data: st.DataObject) -> None:
    """Under quotas, too, nothing is wasted."""
    problem = drawn(data, name, pairs=False)
    answer = resolve(name)(problem)
    view = as_seen(problem, answer)
    assume(len(view.problem.jobs))
    assert could_gain(view.problem, replace(answer, time_share=view.share)) == []


def assert_same(a: Allocation, b: Allocation) -> None:
    """Two answers are equal to the last bit."""
    for field in ("time_share", "price", "isolated_rate", "backfill"):
        assert np.array_equal(getattr(a, field), getattr(b, field), equal_nan=True), field
    assert (a.value, a.optimal, a.notes) == (b.value, b.optimal, b.notes)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.startswith(DISCOUNTED)])
@settings(max_examples=3)
@given(data=st.data())
def test_quotas_that_do_not_bind_change_nothing(spec: str, data: st.DataObject) -> None:
    """If the answer without quotas keeps them, it is the answer with them, to the last bit."""
    problem = drawn(data, spec)
    without = resolve(spec)(replace(problem, quotas=Quotas()))
    wide = int(problem.columns.gpus.max(initial=0))
    enough = np.maximum(gpus_by_quota(problem, without.time_share), wide)
    assert_same(resolve(spec)(replace(problem, quotas=replace(problem.quotas, gpus=enough))), without)


@pytest.mark.parametrize("spec", SPECS)
@few
@given(data=st.data())
def test_quotas_that_cannot_bind_change_nothing(spec: str, data: st.DataObject) -> None:
    """Quotas with room for all of their jobs at their widest change no bit of the answer."""
    problem = drawn(data, spec)
    enough = np.full(len(problem.quotas), len(problem.jobs) * float(problem.columns.gpus.max(initial=0)))
    without = resolve(spec)(replace(problem, quotas=Quotas()))
    assert_same(resolve(spec)(replace(problem, quotas=replace(problem.quotas, gpus=enough))), without)


@pytest.mark.parametrize("name", ["max_min_fairness", "makespan", "max_throughput", "finish_time_fairness"])
@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_merging_is_exact(name: str, data: st.DataObject, seed: int) -> None:
    """The value is the same with a row for each job; and the order of jobs and columns does not matter."""
    problem = drawn(data, name, deadlines=False)
    answer = resolve(name)(problem)
    assert answer.value == pytest.approx(resolve(name, merge=False)(problem).value, rel=1e-6, abs=1e-9)
    other, _, columns = shuffled(problem, seed)
    assert np.array_equal(resolve(name)(other).time_share, answer.time_share[columns])


def test_jobs_are_merged_unless_their_quotas_differ():
    """Equal jobs are one row, with the quotas of all; jobs under another quota are not merged with them."""
    problem = two_tenants(2, jobs=3)
    grouped, _ = group(problem)
    assert grouped.jobs.count.tolist() == [3, 3]
    assert (grouped.quotas.quota.tolist(), grouped.quotas.job.tolist()) == ([0], [0])
    assert group(replace(problem, quotas=Quotas()))[0].jobs.count.tolist() == [6]


def test_a_pair_counts_once():
    """A pair of jobs under one quota holds its GPUs once; a pair of jobs under two quotas counts for both."""
    problem = by_hand(
        {"v100": 2},
        alone("a", "v100", 1.0, 2),
        alone("b", "v100", 1.0, 2),
        together(("a", "b"), "v100", (0.9, 0.9), 2),
        gpus=2,
        quotas=Quotas(names=("both", "b"), gpus=[2, 2], quota=[0, 0, 1], job=[0, 1, 1]),  # type: ignore[arg-type]
    )
    assert problem.quota_use.toarray().tolist() == [[2, 2, 2], [0, 2, 2]]
    assert resolve("las+packing")(problem).time_share == pytest.approx([0, 0, 1])


def test_quotas_on_the_same_jobs_are_added_together():
    """A job that its quota stops on one type turns to others, so the quotas there come with it, and no others."""
    quotas = Quotas(
        names=tuple("abc"), worker_type=[0, 1, 0], gpus=[1, 1, 1], quota=[0, 0, 1, 1, 2], job=[0, 1, 0, 1, 2]
    )  # type: ignore[arg-type]
    problem = Problem.from_rates(np.ones((3, 2)), 1, [4, 4], quotas=quotas)
    added: list[tuple[str, ...]] = []

    def solve(part: Problem) -> int:
        added.append(part.quotas.names)
        return len(added)

    add_as_exceeded(problem, solve, lambda turn: np.arange(1 if turn == 1 else 0))
    assert added == [(), ("a", "b")]


def test_a_quota_on_one_type_sends_jobs_to_the_others():
    """Jobs that may hold one V100 together take K80s beside it, although these are slower."""
    problem = Problem.from_rates(
        [[4.0, 1.0]] * 2,
        1,
        [2, 2],
        worker_types=["v100", "k80"],
        quotas=Quotas(names=("a",), worker_type=[0], gpus=[1], quota=[0, 0], job=[0, 1]),  # type: ignore[arg-type]
    )
    share = resolve("water_filling")(problem).time_share.reshape(2, 2)
    assert share == pytest.approx(np.full((2, 2), 0.5))


def test_a_job_wider_than_its_quota_is_left_out():
    """The job and the reason are named, and the others get what they would get without it."""
    problem = by_hand(
        {"v100": 4},
        alone("wide", "v100", 1.0, 4),
        alone("other", "v100", 1.0, 1),
        gpus=[4, 1],
        quotas=Quotas(names=("a",), gpus=[2], quota=[0, 0], job=[0, 1]),  # type: ignore[arg-type]
    )
    answer = resolve("las")(problem)
    assert answer.time_share == pytest.approx([0, 1])
    assert "'wide'" in answer.notes[0]


def las_past_quotas(problem: Problem) -> np.ndarray:
    """The levels of LAS, by plain programs: raise all; if quotas alone stop the level, hold the jobs that are stuck."""
    plain, free = f.Plain(problem), f.Plain(replace(problem, quotas=Quotas()))
    n, jobs = len(problem.jobs), problem.jobs
    unit = f.proportional(problem) * jobs.weight / jobs.gpus
    held = np.zeros(n)
    rising = np.ones(n, dtype=bool)
    while rising.any():
        level = cp.Variable(nonneg=True)
        tops = []
        for form in (plain, free):
            floor = [form.E[m] / unit[m] >= (level if rising[m] else held[m]) for m in range(n)]
            tops.append(form.best(level, *floor))
        held[rising] = tops[0] * (1 - 1e-7)
        if tops[1] <= tops[0] * (1 + 1e-5):
            break
        for m in np.flatnonzero(rising):
            floor = [plain.E[other] / unit[other] >= held[other] for other in range(n)]
            if plain.best(plain.E[m] / unit[m], *floor) <= held[m] * (1 + 1e-5):
                rising[m] = False
    return held


@settings(max_examples=25)
@given(data=st.data())
def test_las_lets_no_quota_hold_back_the_others(data: st.DataObject) -> None:
    """Jobs stopped by a quota keep their level; the others rise on together until GPUs are scarce."""
    problem = drawn(data, "las", pairs=False)
    answer = resolve("las")(problem)
    view = as_seen(problem, answer)
    assume(len(view.problem.jobs))
    levels = las_past_quotas(view.problem)
    jobs = view.problem.jobs
    reached = view.rate * jobs.gpus / (jobs.weight * f.proportional(view.problem))
    assert answer.value == pytest.approx(levels.min(), rel=1e-5)
    assert (reached >= levels * (1 - 1e-5)).all()


@pytest.mark.parametrize("spec", ["las", "water_filling", "hierarchical", "ftf", "isolated"])
def test_a_tenant_at_its_quota_leaves_the_rest_to_the_others(spec: str) -> None:
    """Eight jobs share their quota of two GPUs evenly; under fair policies, the others get all that is left."""
    share = resolve(spec)(two_tenants(2)).time_share
    assert share[:8] == pytest.approx(np.full(8, 0.25), abs=1e-6)
    assert share[8:] == pytest.approx(np.full(8, 0.5 if spec == "isolated" else 0.75), abs=1e-6)


def test_first_come_first_served_passes_a_job_that_waits_for_its_quota():
    """The queue goes on with jobs that are not under the quota; under it, no job overtakes another."""
    waited_s = np.arange(16, 0, -1.0)
    share = resolve("fifo")(two_tenants(2, waited_s=waited_s)).time_share
    assert np.flatnonzero(share).tolist() == [0, 1, 8, 9, 10, 11, 12, 13]


def test_allox_runs_the_oldest_jobs_under_a_quota():
    """Of the jobs that would run now, as many as the quota allows do, the oldest."""
    share = resolve("allox")(two_tenants(2, waited_s=np.arange(16, 0, -1.0), gpus=16)).time_share
    assert np.flatnonzero(share).tolist() == [0, 1, *range(8, 16)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"names": ("a",), "gpus": [-1.0]}, "quota 'a': gpus is -1.0, must be a finite number of at least 0"),
        ({"names": ("a",), "gpus": [np.nan]}, "quota 'a': gpus is nan"),
        ({"names": ("a",), "gpus": [1.0], "quota": [1], "job": [0]}, "quota is 1, but there are 1 quotas"),
        ({"names": ("a",), "gpus": [1.0], "quota": [0, 0], "job": [0, 0]}, "under the same quota twice"),
        ({"names": ("a",), "gpus": [1.0], "worker_type": [-3]}, "worker_type is -3"),
        (
            {"names": ("a",), "gpus": [1.0], "worker_type": [1]},
            "worker_type is 1, but there are 1 worker types",
        ),
        ({"names": ("a",), "gpus": [1.0], "quota": [0], "job": [2]}, "job is 2, but there are 2 job rows"),
        ({"names": ("a",), "gpus": [1.0], "quota": [0], "job": []}, "job has 0 entries for 1 rows"),
    ],
)
def test_wrong_quotas_are_refused(fields: dict[str, object], message: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ProblemError, match=message):
        Problem.from_rates(np.ones((2, 1)), 1, [4], quotas=Quotas(**fields))  # type: ignore[arg-type]


def test_quotas_follow_their_jobs():
    """If jobs are left out or change their order, each quota stays with its jobs; a quota may have none left."""
    quotas = Quotas(names=("a", "b"), worker_type=[ANY_TYPE, 0], gpus=[1, 2], quota=[0, 0, 1], job=[0, 1, 2])  # type: ignore[arg-type]
    problem = Problem.from_rates(np.ones((3, 1)), 1, [4], quotas=quotas)
    part = problem.restrict(np.array([2, 0]), np.array([2, 0])).quotas
    assert (part.quota.tolist(), part.job.tolist()) == ([0, 1], [1, 0])
    assert part.take(np.array([1])).names == ("b",)


@pytest.mark.parametrize("spec", ["max_min_fairness", "hierarchical+blind+packing", "makespan", "fifo"])
def test_a_quota_on_jobs_counts_each_job_of_a_pair_and_the_time_of_elastic_jobs(spec: str) -> None:
    """Time at other widths, which is the same GPU time, would be more running jobs than the quota admits."""
    pairs = [together(("a", "b"), "x", (0.9, 0.9)), together(("b", "c"), "x", (0.9, 0.9))]
    wide = [alone(job, "x", 2.0, 2) for job in "abc"]
    single = [alone(job, "x", 1.0) for job in "abc"]
    problem = by_hand({"x": 6}, *single, *wide, *pairs, steps_left=1e4)
    quotas = Quotas(names=("two",), worker_type=[JOBS], gpus=[2], quota=[0, 0, 0], job=[0, 1, 2])  # type: ignore[arg-type]
    answer = resolve(spec)(replace(problem, quotas=quotas))
    assert audit(replace(problem, quotas=quotas), answer) == []
    columns = problem.columns
    assert 1.0 - 1e-6 <= (answer.time_share * (1 + columns.is_pair)).sum() <= 2.0 + 1e-6
