"""The promises of every policy, whatever it optimises. New policies are discovered and tested here, too.

Each policy runs plain, blind, with packing, and with both. Policies that promise an optimum are compared with
another formulation of it (`tests/support/references.py`); a policy that is a rule rather than an optimum is
listed in RULES, with the tests of its rule.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.audit import audit, could_gain
from policies.errors import MissingFacts
from policies.problem import Allocation, Problem
from policies.registry import names, resolve
from policies.trials.sample import shuffled
from tests.support.problems import problems
from tests.support.references import REFERENCES, as_seen

MODIFIERS = ((), ("blind",), ("packing",), ("blind", "packing"))
SPECS = [(name, modifiers) for name in names() for modifiers in MODIFIERS]
RULES = {"fifo": "tests/policies/test_fifo.py", "gandiva": "tests/policies/test_gandiva.py"}
UNDOMINATED = ("max_min_fairness", "water_filling", "hierarchical", "finish_time_fairness", "makespan")
MUST_KNOW_STEPS = ("makespan", "shortest_job_first", "allox")
SINGLE_GPU = ("allox",)
# Policies that spread a job over types by the number of their GPUs, not by their speed.
PROPORTIONAL = ("isolated", "gandiva")
# Policies that do not spread a job over types: they give whole GPUs, or choose types by price.
NOT_SPREAD = ("fifo", "allox", "min_cost", "throughput_per_cost")
FACTS = ("count", "gpus", "weight", "waited_s", "steps_left", "isolated_s", "deadline_s")

every_spec = pytest.mark.parametrize(
    ("name", "modifiers"), SPECS, ids=["+".join((name, *modifiers)) for name, modifiers in SPECS]
)
few = settings(max_examples=8)


def solve(name: str, modifiers: tuple[str, ...], problem: Problem) -> Allocation:
    """The answer of a policy under these modifiers."""
    return resolve("+".join((name, *modifiers)))(problem)


def drawn(data: st.DataObject, name: str, **features: Any) -> Problem:
    """A random problem that this policy can solve."""
    pinned = {key: st.just(value) for key, value in features.items()}
    if name in SINGLE_GPU:
        pinned["widths"] = st.just((1,))
    return data.draw(problems(**pinned))


def with_empty_type(problem: Problem) -> Problem:
    """The problem with one more type, which has no GPUs."""
    return replace(
        problem,
        worker_types=(*problem.worker_types, "none-left"),
        capacity=np.append(problem.capacity, 0.0),
        cpus=np.append(problem.cpus, 0.0),
        price_per_gpu_hour=np.append(problem.price_per_gpu_hour, 0.01),
    )


def assert_same(a: Allocation, b: Allocation) -> None:
    """Two answers are equal to the last bit, apart from their solve times."""
    for field in ("time_share", "price", "isolated_rate", "backfill"):
        assert np.array_equal(getattr(a, field), getattr(b, field), equal_nan=True), field
    assert (a.value, a.optimal, a.notes) == (b.value, b.optimal, b.notes)


@every_spec
@few
@given(data=st.data())
def test_feasible(name: str, modifiers: tuple[str, ...], data: st.DataObject) -> None:
    """Every answer is feasible: capacity, time of each job, bounds, no time where the rate is 0."""
    problem = drawn(data, name)
    answer = solve(name, modifiers, problem)
    assert audit(problem, answer) == []
    assert answer.optimal
    assert not np.isnan(answer.value)
    assert answer.policy == "+".join((name, *modifiers))


@every_spec
@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_the_order_of_jobs_does_not_matter(
    name: str, modifiers: tuple[str, ...], data: st.DataObject, seed: int
) -> None:
    """Solved twice, or with jobs and columns in another order, every job gets the same to the last bit."""
    problem = drawn(data, name)
    other, rows, columns = shuffled(problem, seed)
    answer = solve(name, modifiers, problem)
    assert_same(answer, solve(name, modifiers, problem))
    moved = replace(
        answer,
        time_share=answer.time_share[columns],
        backfill=answer.backfill[columns],
        isolated_rate=answer.isolated_rate[rows],
    )
    again = solve(name, modifiers, other)
    assert_same(replace(moved, notes=()), replace(again, notes=()))


def test_every_policy_is_compared_with_something() -> None:
    """Every policy has another formulation of its optimum, or tests of its own for its rule."""
    assert set(REFERENCES) | set(RULES) == set(names())


@pytest.mark.parametrize(
    ("name", "modifiers"),
    [spec for spec in SPECS if spec[0] in REFERENCES],
    ids=["+".join((name, *modifiers)) for name, modifiers in SPECS if name in REFERENCES],
)
@settings(max_examples=10)
@given(data=st.data())
def test_as_good_as_another_formulation(name: str, modifiers: tuple[str, ...], data: st.DataObject) -> None:
    """The reported value is the optimum, and the shares are worth that much."""
    features = {"jobs": data.draw(st.integers(1, 4 if name == "strategy_proof" else 7)), "deadlines": False}
    problem = drawn(data, name, **features)
    answer, reference = solve(name, modifiers, problem), REFERENCES[name]
    view = as_seen(problem, answer, *modifiers)
    assume(len(view.problem.jobs))
    best = reference.optimum(view.problem)
    close = {"rel": reference.tolerance, "abs": 1e-9}
    # The value of hierarchical is a level of its tree.
    if name != "hierarchical":
        assert answer.value == pytest.approx(best.value, **close)
    reached = reference.measure(view.problem, view.share)
    assert np.isnan(reached) or reached == pytest.approx(best.value, **close)
    if reference.second is not None:
        assert reference.second(view.problem, view.share) == pytest.approx(best.second, **close)
    if reference.fixed_rates:
        assert view.rate == pytest.approx(best.rate, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", UNDOMINATED)
@pytest.mark.parametrize("modifiers", MODIFIERS, ids="+".join)
@settings(max_examples=15)
@given(data=st.data())
def test_undominated(name: str, modifiers: tuple[str, ...], data: st.DataObject) -> None:
    """If the policy maximises a minimum first, no job could have more without another having less."""
    problem = drawn(data, name)
    answer = solve(name, modifiers, problem)
    view = as_seen(problem, answer, *modifiers)
    assume(len(view.problem.jobs))
    viewed = replace(answer, time_share=view.share)
    assert could_gain(view.problem, viewed) == []


@every_spec
@settings(max_examples=4)
@given(data=st.data())
def test_a_job_that_can_run_nowhere_is_left_out(
    name: str, modifiers: tuple[str, ...], data: st.DataObject
) -> None:
    """A job that has no positive rate on a type with GPUs is left out and named; the others get the same as without."""
    problem = with_empty_type(drawn(data, name, zero_rates=False, empty_type=False))
    n, k = len(problem.jobs), len(problem.columns)
    j, c = problem.jobs, problem.columns
    jobs = replace(
        j,
        ids=(*j.ids, "aaa-stranded"),
        tenant=(*j.tenant, j.tenant[0]),
        **{fact: np.append(getattr(j, fact), getattr(j, fact)[0]) for fact in FACTS},
    )
    columns = replace(
        c.take(np.concatenate([np.arange(k), [0, 0]])),
        first=np.append(c.first, [n, n]),
        worker_type=np.append(c.worker_type, [0, len(problem.worker_types) - 1]),
        first_rate=np.append(c.first_rate, [0.0, 5.0]),
    )
    bigger = replace(problem, jobs=jobs, columns=columns)
    answer, without = solve(name, modifiers, bigger), solve(name, modifiers, problem)
    assert answer.notes[0].startswith("left out")
    assert "'aaa-stranded'" in answer.notes[0]
    assert not answer.time_share[k:].any()
    assert np.array_equal(answer.time_share[:k], without.time_share)
    assert answer.value == without.value
    assert answer.notes[1:] == without.notes


@every_spec
def test_no_jobs(name: str, modifiers: tuple[str, ...]) -> None:
    """A problem without jobs is no error: the answer is empty, and its value is 0."""
    problem = Problem.from_rates(np.zeros((0, 2)), 1, [3, 4], price_per_gpu_hour=[1, 2])
    answer = solve(name, modifiers, problem)
    assert audit(problem, answer) == []
    assert (len(answer.time_share), answer.value, answer.notes) == (0, 0.0, ())
    nothing = Problem.from_rates(np.zeros((0, 0)), 1, [])
    assert solve(name, modifiers, nothing).value == 0.0


@every_spec
def test_no_job_can_run(name: str, modifiers: tuple[str, ...]) -> None:
    """In a cluster without GPUs every job is left out, and named."""
    problem = Problem.from_rates([[1.0], [2.0]], 1, [0], ids=["x", "y"], price_per_gpu_hour=1.0)
    answer = solve(name, modifiers, problem)
    assert not answer.time_share.any()
    assert "'x', 'y'" in answer.notes[0]


@every_spec
def test_one_job(name: str, modifiers: tuple[str, ...]) -> None:
    """A job alone in the cluster runs all the time, on the type that is best for it."""
    problem = Problem.from_rates([[1.0, 4.0]], 1, [3, 1], steps_left=100.0, price_per_gpu_hour=1.0)
    share = solve(name, modifiers, problem).time_share
    assert share.sum() == pytest.approx(1.0, abs=1e-6)
    if "blind" in modifiers and name not in NOT_SPREAD:
        # Spread by the size of the types.
        assert share == pytest.approx([0.75, 0.25], abs=1e-6)
    elif "blind" not in modifiers:
        expected = [0.75, 0.25] if name in PROPORTIONAL else [0.0, 1.0]
        assert share == pytest.approx(expected, abs=1e-6)


@every_spec
def test_unknown_steps(name: str, modifiers: tuple[str, ...]) -> None:
    """A policy that needs steps names the jobs without them; the other policies do not need them."""
    problem = Problem.from_rates(
        [[1.0, 2.0], [3.0, 1.0], [2.0, 2.0]],
        1,
        [1, 1],
        ids=["known", "unknown", "secret"],
        steps_left=[10.0, np.inf, np.inf],
        price_per_gpu_hour=[1.0, 2.0],
    )
    if name in MUST_KNOW_STEPS:
        with pytest.raises(MissingFacts, match=r"steps_left.*'secret', 'unknown'"):
            solve(name, modifiers, problem)
    else:
        answer = solve(name, modifiers, problem)
        assert audit(problem, answer) == []
        assert np.isfinite(answer.value)
