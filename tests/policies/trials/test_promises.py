"""The promises that `gavel policies check` tries, on Gavel's own policies; and the search for small problems."""

import numpy as np
import pytest

from policies.errors import ProblemError
from policies.registry import names
from policies.trials.promises import PROMISES, PROPERTIES, Case, faults, generated, smallest
from tests.policies.test_every_policy import UNDOMINATED

PROBLEMS = 8


@pytest.mark.parametrize("modifiers", ["", "+packing", "+blind", "+packing+blind"])
@pytest.mark.parametrize("name", names())
def test_our_policies_keep_every_promise(name: str, modifiers: str) -> None:
    """On the first problems that the command makes; a policy may refuse some of them, but not all."""
    refused = 0
    for number in range(PROBLEMS):
        try:
            assert faults(Case(name + modifiers, generated(number)), PROMISES) == {}
        except ProblemError:
            refused += 1
    assert refused < PROBLEMS


@pytest.mark.parametrize("name", UNDOMINATED)
def test_policies_that_promise_more_have_the_property(name: str) -> None:
    """Policies that maximise a minimum first leave no job that could have more."""
    for number in range(PROBLEMS):
        assert "undominated" not in faults(Case(name, generated(number)), PROPERTIES)


def test_problems_are_the_same_each_time_and_all_different() -> None:
    """Number and seed decide a problem; every feature occurs among the first two dozen."""
    problems = [generated(number) for number in range(24)]
    again = generated(7)
    assert np.array_equal(problems[7].columns.first_rate, again.columns.first_rate)
    assert not np.array_equal(generated(7, seed=1).columns.first_rate[:1], problems[7].columns.first_rate[:1])
    assert any(problem.any_pairs for problem in problems)
    assert any(problem.tenants for problem in problems)
    assert any(np.isfinite(problem.jobs.deadline_s).any() for problem in problems)
    assert any((problem.capacity == 0).any() for problem in problems)
    assert {int(problem.jobs.gpus.max()) for problem in problems} == {1, 2}
    assert any(any(problem.columns.label) for problem in problems)


def test_a_small_problem_breaks_the_same_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be left out is left out: here everything but one job that is two GPUs wide."""
    wide = PROMISES["feasible"]._replace(
        fault=lambda case: "a wide job" if (case.problem.jobs.gpus > 1).any() else ""
    )
    monkeypatch.setitem(PROMISES, "feasible", wide)
    case = next(
        case
        for number in range(24)
        if faults(case := Case("isolated", generated(number)), {"feasible": wide})
        and len(case.problem.jobs) > 4
    )
    small, fault = smallest(case, "feasible", "unknown")
    assert fault == "a wide job"
    assert (len(small.problem.jobs), len(small.problem.columns), len(small.problem.worker_types)) == (1, 0, 1)
    assert (small.problem.seed, small.problem.jobs.weight.tolist()) == (0, [1.0])
