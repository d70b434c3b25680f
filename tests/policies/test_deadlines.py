"""Deadlines under three policies: as many as possible are kept, and the jobs that miss theirs are named."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.errors import MissingFacts
from policies.problem import Problem
from policies.registry import resolve
from tests.support import formulations as f
from tests.support.problems import problems
from tests.support.references import rates
from tests.support.wording import Wording

POLICIES = {
    "max_throughput": f.max_throughput,
    "throughput_per_cost": f.throughput_per_cost,
    "min_cost(premium=9)": lambda p, floor: f.min_cost(p, floor, premium=9.0),
}
every_policy = pytest.mark.parametrize("spec", POLICIES)


def missed(notes: tuple[str, ...]) -> set[str]:
    """Return the jobs that miss their deadlines according to the notes."""
    named = [note for note in notes if note.startswith("deadline missed by")]
    return set("".join(named).split("'")[1::2])


def problem_of(deadline_s: list[float], steps_left: list[float], gpus: float = 1, **facts: object) -> Problem:
    """Return a problem of jobs a, b, c … of one step per second on one type."""
    n = len(deadline_s)
    return Problem.from_rates(
        np.ones((n, 1)),
        1,
        [gpus],
        ids=list("abcdefgh"[:n]),
        steps_left=steps_left,
        deadline_s=deadline_s,
        price_per_gpu_hour=1.0,
        **facts,
    )


@every_policy
def test_kept_where_it_can_be(spec: str) -> None:
    """60 steps in 100 s need 0.6 of the GPU, whichever other jobs want it."""
    answer = resolve(spec)(problem_of([100.0, np.inf, np.inf], [60.0, 1.0, 1.0]))
    assert answer.time_share[0] >= 0.6 - 1e-7
    assert missed(answer.notes) == set()


@every_policy
def test_the_greatest_number_is_kept(spec: str) -> None:
    """One GPU: a needs 0.9 of it; b, c and d need 0.3 each. Three deadlines are kept, not one, and a is named."""
    answer = resolve(spec)(problem_of([100.0] * 4, [90.0, 30.0, 30.0, 30.0]))
    assert missed(answer.notes) == {"a"}
    assert answer.time_share[1:].min() >= 0.3 - 1e-7


@every_policy
def test_late_already(spec: str) -> None:
    """A deadline in the past is missed; other jobs keep theirs, and the late job still runs."""
    answer = resolve(spec)(problem_of([-5.0, 0.0, 100.0], [10.0, 10.0, 50.0], gpus=3))
    assert missed(answer.notes) == {"a", "b"}
    assert answer.time_share == pytest.approx([1.0, 1.0, 1.0], rel=1e-6)


@every_policy
def test_out_of_reach_alone(spec: str) -> None:
    """200 steps in 100 s at one step per second are missed, whatever the other jobs do."""
    answer = resolve(spec)(problem_of([100.0, 100.0], [200.0, 50.0]))
    assert missed(answer.notes) == {"a"}
    assert answer.time_share[1] >= 0.5 - 1e-7


@every_policy
def test_just_in_time_is_in_time(spec: str) -> None:
    """Two jobs that need exactly half of the GPU each both keep their deadlines."""
    answer = resolve(spec)(problem_of([100.0, 200.0], [50.0, 100.0]))
    assert missed(answer.notes) == set()
    assert answer.time_share == pytest.approx([0.5, 0.5], abs=1e-6)


@every_policy
def test_steps_must_be_known_where_a_deadline_is(spec: str, wording: Wording) -> None:
    """Only jobs with a deadline need the number of steps left."""
    with pytest.raises(MissingFacts, match=r"steps_left.*'b'") as caught:
        resolve(spec)(problem_of([np.inf, 100.0], [np.inf, np.inf]))
    assert "'a'" not in str(caught.value)
    wording(caught.value)
    assert missed(resolve(spec)(problem_of([np.inf, 100.0], [np.inf, 10.0])).notes) == set()


def test_fifty_are_decided_exactly() -> None:
    """Of 48 small jobs and one job that needs the whole cluster, the small ones keep their deadlines.

    What counts is the number of deadlines that are kept, not the total shortfall.
    """
    n = 49
    steps = [480.0, *[10.0] * (n - 1)]
    problem = Problem.from_rates(
        [[1.0]] * n, [48, *[1] * (n - 1)], [48], steps_left=steps, deadline_s=[480.0, *[10.0] * (n - 1)]
    )
    answer = resolve("max_throughput")(problem)
    assert missed(answer.notes) == {"00"}
    assert answer.optimal


@every_policy
@settings(max_examples=12)
@given(data=st.data())
def test_as_many_as_branch_and_bound_keeps(spec: str, data: st.DataObject) -> None:
    """On random problems another formulation gives the same number of kept deadlines, and the same value."""
    on = {"deadlines": st.just(True), "jobs": st.integers(2, 8), "pairs": st.just(False)}
    problem = f.visible(data.draw(problems(**on)))
    has_deadline = np.isfinite(problem.jobs.deadline_s)
    assume(has_deadline.any())
    answer = resolve(spec)(problem)
    late = missed(answer.notes)
    hard = np.array([job not in late for job in problem.jobs.ids]) & has_deadline
    assert hard.sum() == f.most_deadlines(problem)
    need = np.where(hard, problem.jobs.steps_left / problem.jobs.deadline_s, 0.0)
    assert (rates(problem, answer.time_share) >= need * (1 - 1e-6)).all()
    assert answer.value == pytest.approx(POLICIES[spec](problem, need).value, rel=1e-6)
