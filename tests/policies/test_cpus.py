"""CPUs beside GPUs: columns with more CPUs than their fair share, within the CPUs of each type."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.audit import audit
from policies.engine.cpus import fair_cpus, has_fair_cpus, scarce_types
from policies.engine.grouping import group
from policies.engine.twins import keep_types
from policies.engine.widths import even_widths
from policies.errors import ProblemError
from policies.problem import Allocation, Problem
from policies.registry import names, resolve
from policies.transforms import runnable
from tests.support.problems import alone, by_hand, problems, random_problem

SPECS = [name + modifier for name in names() for modifier in ("", "+packing", "+blind", "+blind+packing")]
# Policies that raise the lowest level of all jobs first.
LEVELS = ("max_min_fairness", "water_filling")
few = settings(max_examples=3)


def drawn(data: st.DataObject, spec: str, **features: Any) -> Problem:
    """A problem with CPUs that this policy can solve."""
    pinned = {key: st.just(value) for key, value in (features | {"cpus": True}).items()}
    if spec.startswith("allox"):
        pinned["widths"] = st.just((1,))
    return data.draw(problems(jobs=st.integers(1, 7), **pinned))


def without_cpus(problem: Problem) -> Problem:
    """The problem with its fair columns only, and CPUs that are not limited."""
    problem = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(fair_cpus(problem)))
    return replace(problem, cpus=np.inf, columns=replace(problem.columns, cpus=0.0))  # type: ignore[arg-type]


def server(*ways: tuple[str, float, float], gpus: float = 4, cpus: float = 12, **facts: Any) -> Problem:
    """A server; each way is a job, its CPUs and its rate on one GPU."""
    columns = [alone(job, "v100", rate, cpus=own) for job, own, rate in ways]
    return by_hand({"v100": gpus}, *columns, cpus=np.array([cpus]), **facts)


def cpus_used(problem: Problem, answer: Allocation) -> np.ndarray:
    """[t] The CPUs in use on average, column by column."""
    used = np.zeros(len(problem.worker_types))
    for k, share in enumerate(answer.time_share):
        used[problem.columns.worker_type[k]] += share * problem.columns.cpus[k]
    return used


@pytest.mark.parametrize("spec", SPECS)
@few
@given(data=st.data())
def test_every_policy_keeps_the_cpus(spec: str, data: st.DataObject) -> None:
    """Every answer is feasible, and no type gives more CPUs than it has, counted column by column."""
    problem = drawn(data, spec)
    answer = resolve(spec)(problem)
    assert audit(problem, answer) == []
    assert (cpus_used(problem, answer) <= problem.cpus * (1 + 1e-6) + 1e-6).all()


@pytest.mark.parametrize("spec", SPECS)
@few
@given(data=st.data())
def test_fair_shares_change_nothing(spec: str, data: st.DataObject) -> None:
    """If each column has its fair share of CPUs, the answer is that without CPUs, to the last bit."""
    problem = drawn(data, spec, empty_type=False)
    problem = problem.restrict(np.arange(len(problem.jobs)), np.flatnonzero(has_fair_cpus(problem)))
    assert scarce_types(problem).tolist() == []
    answer, plain = resolve(spec)(problem), resolve(spec)(without_cpus(problem))
    assert answer.time_share.tolist() == plain.time_share.tolist()
    assert answer.isolated_rate.tolist() == plain.isolated_rate.tolist()
    assert answer.value == plain.value or np.isnan(answer.value)


@pytest.mark.parametrize("spec", LEVELS)
@settings(max_examples=30)
@given(data=st.data())
def test_more_ways_to_split_cpus_lower_no_level(spec: str, data: st.DataObject) -> None:
    """The level of the worst-off job is at least the one that it has if all jobs keep their fair share of CPUs."""
    problem = drawn(data, spec)
    plain = resolve(spec)(without_cpus(problem))
    assume(plain.isolated_rate.any())
    assert resolve(spec)(problem).value >= plain.value * (1 - 1e-6)


def test_a_job_that_needs_few_cpus_leaves_the_others_to_one_that_needs_many() -> None:
    """Four jobs on a server of 12 CPUs: three need one CPU each, so the fourth may have nine."""
    few_cpus = [(name, cpus, 1.0) for name in "abc" for cpus in (3.0, 1.0)]
    many = [("d", 3.0, 1.0), ("d", 6.0, 1.75), ("d", 9.0, 2.5)]
    problem = server(*few_cpus, *many, waited_s=np.arange(4.0))
    answer = resolve("max_throughput(raw=true)")(problem)
    assert answer.value == pytest.approx(5.5)
    assert cpus_used(problem, answer)[0] == pytest.approx(12.0)
    assert problem.rates @ answer.time_share == pytest.approx([1.0, 1.0, 1.0, 2.5])


def test_references_are_measured_at_the_fair_share() -> None:
    """The isolated rate is that of the fair share, whatever the order of columns; if none is fair, the best rate."""
    ways = [("a", 6.0, 2.0), ("a", 3.0, 1.0), ("a", 1.5, 0.5)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        problem = server(*(ways[index] for index in order))
        assert problem.solo_rate.tolist() == [[1.0]]
    assert server(("a", 6.0, 2.0), ("a", 9.0, 3.0)).solo_rate.tolist() == [[3.0]]


def test_jobs_with_equal_columns_are_one_row() -> None:
    """Jobs with the same rates at the same CPUs are merged; with the same rates at other CPUs they are not."""
    problem = server(
        *[(name, cpus, cpus) for name in "ab" for cpus in (3.0, 6.0)], ("c", 3.0, 3.0), ("c", 5.0, 6.0)
    )
    grouped, _ = group(problem, ())
    assert sorted(grouped.jobs.count.tolist()) == [1, 2]
    assert grouped.columns.cpus.tolist() == [3.0, 6.0, 3.0, 5.0]


def test_a_queue_waits_for_cpus() -> None:
    """Jobs that need six of 12 CPUs run two at a time; the third waits although there are GPUs."""
    problem = server(*[(name, 6.0, 1.0) for name in "abc"], waited_s=[3.0, 2.0, 1.0])
    assert resolve("fifo")(problem).time_share.tolist() == [1.0, 1.0, 0.0]
    assert (
        resolve("allox")(
            replace(problem, jobs=replace(problem.jobs, steps_left=np.full(3, 10.0)))
        ).time_share.sum()
        == 2
    )


def test_a_job_without_enough_cpus_anywhere_is_left_out() -> None:
    """A column with more CPUs than its type has is not used, and a type without CPUs runs only jobs that need none."""
    problem = server(("a", 13.0, 1.0), ("b", 3.0, 1.0))
    answer = resolve("las")(problem)
    assert answer.time_share.tolist() == [0.0, pytest.approx(1.0)]
    assert "'a'" in answer.notes[0]
    assert "CPUs" in answer.notes[0]
    assert resolve("las")(replace(problem, cpus=np.zeros(1))).time_share.tolist() == [0.0, 0.0]


def test_exchanges_of_types_keep_the_cpus() -> None:
    """Jobs that are equally fast on both types do not exchange time that would take CPUs which the other type lacks."""
    ways = [alone(job, kind, 1.0, cpus=cpus) for job, cpus in (("a", 5.0), ("b", 1.0)) for kind in ("x", "y")]
    problem = by_hand({"x": 1, "y": 1}, *ways, cpus=np.array([3.0, 3.0]))
    shares = np.array([0.5, 0.0, 0.5, 0.5])
    out = keep_types(problem, shares, np.array([1, 0]))
    assert out.tolist() == shares.tolist()
    free = replace(problem, cpus=np.full(2, np.inf))
    assert keep_types(free, shares, np.array([1, 0])).tolist() != shares.tolist()


def test_widths_are_evened_among_columns_with_the_same_cpus_per_gpu() -> None:
    """Two GPUs half of the time become one GPU all of the time; the time of CPUs stays."""
    ways = [alone("a", "v", float(gpus), gpus, cpus=gpus * each) for gpus in (1, 2) for each in (2.0, 4.0)]
    problem = by_hand({"v": 2}, *ways, cpus=np.array([6.0]))
    out = even_widths(problem, np.arange(4), np.array([0.0, 0.0, 0.5, 0.0]))
    assert out.tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    assert problem.columns.cpus @ out == pytest.approx(0.5 * 4.0)


@given(problem=problems(variants=st.just(True), cpus=st.just(True)), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_even_widths_take_no_more_of_any_type(problem: Problem, seed: int) -> None:
    """The time of GPUs and of CPUs of each type stays, and no job's rate falls."""
    columns, rng = problem.columns, np.random.default_rng(seed)
    usable = np.flatnonzero(columns.first_rate > 0)
    shares = np.zeros(len(columns))
    shares[usable] = rng.random(len(usable))
    shares *= rng.random() / float((problem.membership @ shares / problem.jobs.count).max(initial=1e-9))
    out = even_widths(problem, usable, shares)
    for amount in (columns.gpus, columns.cpus):
        before, after = (np.bincount(columns.worker_type, amount * x) for x in (shares, out))
        assert after == pytest.approx(before, abs=1e-9)
    assert (problem.rates @ out >= (problem.rates @ shares) * (1 - 1e-8) - 1e-12).all()
    assert (problem.membership @ out <= problem.jobs.count * (1 + 1e-9)).all()


def test_only_one_of_several_amounts_is_fair() -> None:
    """It is the fastest within the fair share; of equally fast ones that with fewer CPUs; else that with the fewest."""
    problem = server(
        ("a", 3.0, 1.0),
        ("a", 6.0, 2.0),
        ("a", 1.5, 0.5),
        ("b", 3.0, 1.0),
        ("b", 1.0, 1.0),
        ("c", 6.0, 3.0),
        ("c", 4.0, 2.0),
    )
    assert fair_cpus(problem).tolist() == [True, False, False, False, True, False, True]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30)
def test_columns_with_other_cpus_are_other_columns(seed: int) -> None:
    """The key of a column distinguishes CPUs, in any order of columns, and what can run stays what it was."""
    problem = random_problem(seed, variants=True, pairs=True, cpus=True, empty_type=True)
    keys = problem.column_key
    assert len(set(keys.tolist())) == len(problem.columns)
    rows, columns = runnable(problem)
    assert problem.restrict(rows, columns).in_order


BAD = [
    ({"cpus": [np.nan]}, "worker type 'v100': cpus is nan"),
    ({"cpus": [-1.0]}, "worker type 'v100': cpus is -1.0"),
    ({"cpus": [1.0, 2.0]}, "problem: cpus has 2 entries for 1 rows"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_type_with_bad_cpus(change: dict[str, Any], message: str) -> None:
    """The error names the worker type and the value."""
    with pytest.raises(ProblemError, match="cpus") as error:
        replace(server(("a", 3.0, 1.0)), **change)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("cpus", [np.nan, -3.0, np.inf])
def test_a_column_with_bad_cpus(cpus: float) -> None:
    """The error names the column's job and the value."""
    with pytest.raises(ProblemError) as error:
        server(("a", 3.0, 1.0), ("b", cpus, 1.0))
    assert "'b' on 1 × v100" in str(error.value)
    assert f"cpus is {cpus}" in str(error.value)


def test_the_audit_counts_cpus() -> None:
    """Shares that take more CPUs than there are get a fault with both numbers."""
    problem = server(("a", 9.0, 1.0), ("b", 9.0, 1.0))
    answer = resolve("las")(problem)
    assert audit(problem, answer) == []
    (fault,) = audit(problem, replace(answer, time_share=np.ones(2)))
    assert fault == "v100: 18 CPUs allocated of 12"
