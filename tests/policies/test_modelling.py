"""Objectives in cvxpy: the policy printed in the checklist gives the same answers as its twin in `Program`."""

import re
import subprocess
import sys
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import registry
from policies.audit import audit
from policies.engine.solvers import time_limit
from policies.errors import SolverFailure
from policies.modelling import Model
from policies.problem import Allocation, Problem
from policies.registry import resolve
from tests.support.problems import problems
from tests.support.references import REFERENCES, as_seen

ROOT = Path(__file__).parents[2]
CHECKLIST = (ROOT / "docs" / "checklists" / "new-policy.md").read_text(encoding="utf-8")
TOLERANCE = 1e-6


@pytest.fixture(scope="module", autouse=True)
def policy_of_the_checklist() -> object:
    """Register the policy of the checklist for these tests only."""
    (block,) = re.findall(r"```python\n(.*?)```", CHECKLIST, re.DOTALL)
    registry.names()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_entries", {**registry._entries})
        patch.setattr(registry, "_names", {**registry._names})
        exec(compile(block, "new-policy.md", "exec"), {"__name__": "policies.my_policy"})
        yield


@pytest.mark.parametrize("modifiers", [(), ("packing",), ("blind",)], ids="+".join)
@settings(max_examples=10)
@given(data=st.data())
def test_both_ways_agree(modifiers: tuple[str, ...], data: st.DataObject) -> None:
    """Level and second-stage gain agree to 1e-6, for jobs alone and in pairs, and the answer is feasible."""
    problem = data.draw(problems())
    in_cvxpy = resolve("+".join(("my_policy", *modifiers)))(problem)
    in_program = resolve("+".join(("las", *modifiers)))(problem)
    assert in_cvxpy.value == pytest.approx(in_program.value, rel=TOLERANCE)
    assert audit(problem, in_cvxpy) == []
    assert in_cvxpy.optimal
    if "blind" not in modifiers:
        # After +blind, time is spread over the types again, which is not part of the objective.
        assert _second_gain(problem, in_cvxpy, modifiers) == pytest.approx(
            _second_gain(problem, in_program, modifiers), rel=TOLERANCE
        )


def _second_gain(problem: Problem, answer: Allocation, modifiers: tuple[str, ...]) -> float:
    view = as_seen(problem, answer, *modifiers)
    return REFERENCES["max_min_fairness"].second(view.problem, view.share)


def test_an_objective_that_is_not_linear() -> None:
    """Maximising the product of two rates gives each job half the GPU, however fast it is; the price is right."""
    problem = Problem.from_rates([[1.0], [4.0]], capacity=[1.0])
    model = Model(problem)
    point = model.maximise(cp.sum(cp.log(model.E)))
    assert point.shares == pytest.approx([0.5, 0.5], abs=1e-5)
    assert point.value == pytest.approx(np.log(0.5) + np.log(2.0), abs=1e-6)
    # Of one more GPU each job would get half: d(log x + log 4x)/dc at x = c/2 is 2/c.
    assert point.price == pytest.approx([2.0], rel=1e-5)


def test_columns_rates_time_and_gpus() -> None:
    """Expressions have one entry per column, row and type; a column that can run nothing stays at 0."""
    problem = Problem.from_rates([[2.0, 0.0], [3.0, 1.0]], gpus=[1, 2], capacity=[2.0, 2.0])
    model = Model(problem)
    point = model.maximise(model.E[0] + model.E[1], model.gpus[0] <= 1.5)
    assert point.shares == pytest.approx([1.0, 0.0, 0.25, 0.75], abs=TOLERANCE)
    assert model.E.value == pytest.approx([2.0, 1.5], abs=TOLERANCE)
    assert model.time.value == pytest.approx([1.0, 1.0], abs=TOLERANCE)
    assert model.gpus.value == pytest.approx([1.5, 1.5], abs=TOLERANCE)


def test_an_unsolved_model_is_a_solver_failure() -> None:
    """Infeasible constraints, or no time left, raise SolverFailure, for which the registry returns isolated shares."""
    model = Model(Problem.from_rates([[1.0]], capacity=[1.0]))
    with pytest.raises(SolverFailure, match="infeasible"):
        model.maximise(model.E[0], model.E[0] >= 2.0)
    with time_limit(0.0), pytest.raises(SolverFailure, match="no time left"):
        model.maximise(model.E[0])


def test_cvxpy_is_imported_only_when_used() -> None:
    """Importing cvxpy takes a second, and `gavel` imports every module of `policies/` when it starts."""
    program = "import sys; from policies.registry import names; names(); print('cvxpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "False\n"
