"""`isolated`, which has a closed form, and `strategy_proof`, under which no job gains by claiming false rates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.audit import audit
from policies.errors import ProblemError
from policies.problem import Problem
from policies.registry import resolve
from tests.support.problems import alone, by_hand
from tests.support.references import rates
from tests.support.wording import Wording


def test_a_slice_of_everything() -> None:
    """Two jobs on 2 + 1 GPUs: each has 1 GPU of the first type and 1/2 of the second, scaled to a total time of 1."""
    share = resolve("isolated")(Problem.from_rates([[1.0, 2.0]] * 2, 1, [2, 1])).time_share.reshape(2, 2)
    assert share == pytest.approx(np.array([[2 / 3, 1 / 3]] * 2), rel=1e-12)


def test_a_wide_job_has_its_slice_for_less_time() -> None:
    """Two jobs have two of four GPUs each, so a job of width four runs for half of the time."""
    problem = Problem.from_rates([[1.0], [1.0]], [4, 1], [4])
    answer = resolve("isolated")(problem)
    assert answer.time_share == pytest.approx([0.5, 1.0], rel=1e-12)
    assert answer.isolated_rate == pytest.approx([0.5, 1.0], rel=1e-12)


def test_time_where_it_cannot_run_is_lost() -> None:
    """The slice of a type on which the job does not run is given to no other job."""
    answer = resolve("isolated")(Problem.from_rates([[1.0, 0.0], [1.0, 1.0]], 1, [1, 1]))
    assert answer.time_share.reshape(2, 2) == pytest.approx(np.array([[0.5, 0.0], [0.5, 0.5]]), rel=1e-12)


def test_one_gpu_for_two_equals() -> None:
    """Without discounts each job has half of the GPU; without the other job, all of it.

    So its discount is 1/2, and it gets a quarter of the time.
    """
    answer = resolve("strategy_proof")(Problem.from_rates([[2.0], [6.0]], 1, [1]))
    assert answer.time_share == pytest.approx([0.25, 0.25], rel=1e-5)
    assert answer.value == pytest.approx(np.log(1.0) + np.log(3.0), abs=1e-6)


def test_a_job_that_slows_no_other_keeps_all() -> None:
    """With a GPU each, discounts are 1."""
    answer = resolve("strategy_proof")(Problem.from_rates([[2.0], [6.0]], 1, [2]))
    assert answer.time_share == pytest.approx([1.0, 1.0], rel=1e-5)


def test_weights_do_not_count() -> None:
    """A weight is a claim that could be false too, so it changes nothing."""
    rate = [[3.0, 1.0], [2.0, 2.0]]
    plain = resolve("strategy_proof")(Problem.from_rates(rate, 1, [1, 1]))
    heavy = resolve("strategy_proof")(Problem.from_rates(rate, 1, [1, 1], weight=[1.0, 50.0]))
    assert heavy.time_share == pytest.approx(plain.time_share, abs=1e-6)


def test_discounted_time_stays_idle(wording: Wording) -> None:
    """Discounted time may not be backfilled, and the notes have the reason."""
    answer = resolve("strategy_proof")(Problem.from_rates([[2.0], [6.0]], 1, [1]))
    assert not answer.backfill.any()
    wording(answer.notes[0])


def test_bounds_instead_of_exact_discounts() -> None:
    """For more than `exact` kinds of jobs, bounds replace exact discounts; no job gets more, and a note says so."""
    problem = Problem.from_rates([[3.0, 1.0], [2.0, 2.0], [1.0, 4.0]], 1, [1, 1])
    exact, bound = resolve("strategy_proof")(problem), resolve("strategy_proof(exact=2)")(problem)
    assert (rates(problem, bound.time_share) <= rates(problem, exact.time_share) * (1 + 1e-6)).all()
    assert "first-order bounds" in bound.notes[1]
    assert len(exact.notes) == 1


@pytest.mark.parametrize("exact", ["-1", "2.5", "true", "'all'"])
def test_exact_is_a_count(exact: str) -> None:
    """If `exact` is not a whole number of at least 0, the error names the parameter."""
    with pytest.raises(ProblemError, match="strategy_proof: exact is"):
        resolve(f"strategy_proof(exact={exact})")(Problem.from_rates([[1.0]], 1, [1]))


@settings(max_examples=15)
@given(data=st.data())
def test_no_lie_pays(data: st.DataObject) -> None:
    """Whatever speeds job 0 claims, its true rate is no higher than if it claims its true speeds."""
    speed = st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0])
    n = data.draw(st.integers(2, 4))
    truth = np.reshape(data.draw(st.lists(speed, min_size=2 * n, max_size=2 * n)), (n, 2))
    claim = truth.copy()
    claim[0] = data.draw(st.lists(speed, min_size=2, max_size=2))

    def truly(claimed: np.ndarray) -> float:
        share = resolve("strategy_proof")(Problem.from_rates(claimed, 1, [1, 1])).time_share
        return float(share[:2] @ truth[0])

    assert truly(claim) <= truly(truth) * (1 + 1e-4)


def test_narrow_columns_fill_no_more_than_all_the_time() -> None:
    """A job of four GPUs that has rates for single GPUs only gets half of its time on each of the two types."""
    problem = by_hand({"a": 1.0, "b": 1.0}, alone("j", "a", 1.0), alone("j", "b", 1.0), gpus=[4])
    answer = resolve("isolated")(problem)
    assert answer.time_share == pytest.approx([0.5, 0.5], rel=1e-12)
    assert not audit(problem, answer)
