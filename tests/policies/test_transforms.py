"""The changes to a problem before a policy gets it: columns that cannot run are removed, and the others sorted.

With `+packing`, pairs that pay are kept; with `+blind`, differences in speed are removed.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies import transforms
from policies.audit import audit
from policies.errors import ProblemError, SolverFailure
from policies.problem import ALONE, Problem
from policies.reference import rate_table
from policies.registry import names, resolve
from policies.transforms import Blind, runnable, with_pairs, without_pairs
from tests.support.problems import alone, by_hand, canonical, problems, random_problem, shuffled, together
from tests.support.wording import Wording

TYPES = {"v100": 2.0, "p100": 1.0, "k80": 1.0}


# ------------------------------------------------------------------------------------- what can run, in order


def test_columns_that_cannot_run_are_removed() -> None:
    """A column without a rate, without GPUs of its type, or with a partner at rate 0 is removed.

    A job without a column left is removed, too.
    """
    problem = by_hand(
        {"v100": 1, "gone": 0},
        alone("stuck", "gone", 4.0),
        alone("c", "v100", 2.0),
        alone("a", "v100", 3.0),
        together(("a", "c"), "v100", (1.0, 0.0)),
        together(("a", "c"), "gone", (1.0, 1.0)),
        alone("b", "v100", 0.0),
        together(("c", "a"), "v100", (1.0, 0.5), label="mps"),
    )
    rows, columns = runnable(problem)
    assert [problem.jobs.ids[row] for row in rows] == ["a", "c"]
    assert [problem.describe(k) for k in columns] == [
        "'a' on 1 × v100",
        "'c' + 'a' on 1 × v100 (mps)",
        "'c' on 1 × v100",
    ]


@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_two_orders_of_a_problem_become_one(problem: Problem, seed: int) -> None:
    """Jobs are sorted by id, columns by job, partner, type, width and label, whatever order they came in."""
    first, second = canonical(problem), canonical(shuffled(problem, seed))
    assert first.jobs.ids == second.jobs.ids == tuple(sorted(first.jobs.ids))
    for field in ("gpus", "weight", "tenant", "steps_left", "waited_s", "isolated_s", "deadline_s"):
        assert list(getattr(first.jobs, field)) == list(getattr(second.jobs, field))
    low = np.minimum(
        first.columns.first, np.where(first.columns.is_pair, first.columns.second, first.columns.first)
    )
    assert (np.diff(low) >= 0).all()
    assert first.columns.worker_type.tolist() == second.columns.worker_type.tolist()
    assert first.columns.gpus.tolist() == second.columns.gpus.tolist()
    assert first.columns.label == second.columns.label
    assert np.array_equal(first.rates.toarray(), second.rates.toarray())
    assert np.array_equal(first.membership.toarray(), second.membership.toarray())


SPECS = (
    *names(),
    "las+packing",
    "water_filling+packing",
    "las+blind",
    "min_cost+blind+packing",
    "fifo+packing",
)


@pytest.mark.parametrize("spec", SPECS)
@given(problem=problems(widths=st.just((1,))), seed=st.integers(0, 2**32 - 1))
# An example in which the jobs of pairs are exchanged.
@example(problem=random_problem(26, jobs=7, types=2, widths=(1,), pairs=True), seed=0)
@settings(max_examples=15)
def test_answers_do_not_depend_on_the_order_of_jobs(spec: str, problem: Problem, seed: int) -> None:
    """Value and shares are the same bit for bit in any order of the columns."""
    other = shuffled(problem, seed)
    answer, other_answer = resolve(spec)(problem), resolve(spec)(other)
    assert answer.value == other_answer.value
    assert np.array_equal(answer.price, other_answer.price, equal_nan=True)

    def by_name(which: Problem, share: np.ndarray) -> dict[tuple, float]:
        c = which.columns
        jobs = [
            tuple(sorted(which.jobs.ids[row] for row in pair if row != ALONE))
            for pair in zip(c.first.tolist(), c.second.tolist(), strict=True)
        ]
        keys = zip(jobs, c.worker_type.tolist(), c.gpus.tolist(), c.label, c.cpus.tolist(), strict=True)
        return dict(zip(keys, share.tolist(), strict=True))

    assert by_name(problem, answer.time_share) == by_name(other, other_answer.time_share)
    assert by_name(problem, answer.backfill) == by_name(other, other_answer.backfill)


# --------------------------------------------------------------------------------------------- pairs that pay


def test_a_pair_is_kept_when_it_does_more_than_taking_turns() -> None:
    """Pairs need r_a / T_a + r_b / T_b > 1, on each type by itself; every column of one job stays."""
    both = ("a", "b")
    problem = by_hand(
        TYPES,
        *(alone(job, kind, 8.0) for job in both for kind in TYPES),
        together(both, "v100", (4.5, 4.0)),
        together(both, "p100", (4.0, 4.0)),
        together(both, "k80", (7.0, 0.5)),
        together(both, "v100", (2.0, 7.0), label="mps"),
    )
    assert with_pairs(problem).tolist() == [True] * 6 + [True, False, False, True]
    assert without_pairs(problem).tolist() == [True] * 6 + [False] * 4


def test_pairs_are_measured_at_the_requested_width() -> None:
    """T is the rate at the requested width, not at the pair's: half of 2 GPUs each is not better than turns."""
    both = ("a", "b")
    wide = [alone(job, "v100", 8.0, 2) for job in both] + [alone(job, "v100", 3.0, 1) for job in both]
    pair = together(both, "v100", (3.5, 3.5), 1)
    assert not with_pairs(by_hand(TYPES, *wide, pair, gpus=2))[4]
    assert with_pairs(by_hand(TYPES, *wide, pair, gpus=1))[4]


@pytest.mark.parametrize("spec", [*names(), *(f"{name}+packing" for name in names())])
def test_a_job_with_pair_rates_only_is_left_out(spec: str) -> None:
    """A job without a rate of its own cannot be measured: the notes name it, and the other jobs run."""
    facts = {"steps_left": 100.0, "price_per_gpu_hour": 1.0}
    ways = [alone("a", "v100", 8.0), alone("b", "gone", 8.0), together(("a", "b"), "v100", (7.0, 7.0))]
    answer = resolve(spec)(by_hand(TYPES | {"gone": 0.0}, *ways, **facts))
    assert answer.time_share[1:].tolist() == [0.0, 0.0]
    assert answer.time_share[0] > 0
    assert np.isfinite(answer.value)
    assert "left out" in answer.notes[0]
    assert "'b'" in answer.notes[0]


# ------------------------------------------------------------------------------------------------------- blind


def test_blind_counts_every_type_as_the_reference() -> None:
    """A job has its rate on the reference type wherever it can run, and 0 elsewhere."""
    problem = by_hand(
        TYPES,
        *(alone("a", kind, rate) for kind, rate in zip(TYPES, (8.0, 4.0, 1.0), strict=True)),
        alone("b", "v100", 6.0),
        alone("b", "k80", 2.0),
        alone("c", "k80", 5.0),
    )
    # The v100 is fastest for most jobs; c cannot run on it and keeps its own rate.
    blind_rates = [[8.0, 8.0, 8.0], [6.0, 0.0, 6.0], [0.0, 0.0, 5.0]]
    assert rate_table(Blind.of(problem).problem).tolist() == blind_rates
    assert rate_table(Blind.of(problem, "k80").problem).tolist() == [
        [1.0, 1.0, 1.0],
        [2.0, 0.0, 2.0],
        [0.0, 0.0, 5.0],
    ]


def test_the_default_reference_is_the_fastest_type_for_most_jobs() -> None:
    """Each job counts once, whatever its speed and however jobs are merged; types without GPUs do not count."""
    rates = {"a": (9.0, 1.0, 99.0), "b": (1.0, 2.0, 99.0)}
    rows = [alone(job, kind, r) for job in rates for kind, r in zip(TYPES, rates[job], strict=True)]
    none_of_the_last = dict(TYPES, k80=0.0)
    one_of_each = Blind.of(by_hand(none_of_the_last, *rows))
    assert rate_table(one_of_each.problem)[:, 0].tolist() == [9.0, 1.0]
    three_of_b = Blind.of(by_hand(none_of_the_last, *rows, count=[1, 3]))
    assert rate_table(three_of_b.problem)[:, 0].tolist() == [1.0, 2.0]


def test_pairs_and_variants_keep_their_proportions() -> None:
    """A pair has its rates on the reference type; without any, it keeps its ratio to the jobs' own rates."""
    problem = by_hand(
        {"v100": 1, "k80": 1},
        *(alone(job, kind, rate) for job in "ab" for kind, rate in (("v100", 8.0), ("k80", 2.0))),
        together(("a", "b"), "v100", (6.0, 4.0)),
        together(("b", "a"), "k80", (1.0, 1.5)),
        together(("a", "b"), "k80", (1.0, 0.5), label="mps"),
        alone("a", "k80", 1.0, label="spread"),
    )
    columns = Blind.of(problem).problem.columns
    assert columns.first_rate.tolist() == [8.0] * 4 + [6.0, 4.0, 4.0, 4.0]
    assert columns.second_rate.tolist() == [0.0] * 4 + [4.0, 6.0, 2.0, 0.0]


def test_an_unknown_reference_is_refused(wording: Wording) -> None:
    """The error lists the types of the problem."""
    with pytest.raises(ProblemError, match=r"'a100' .*type0, type1, type2") as refused:
        resolve("las+blind(reference=a100)")(random_problem(1))
    wording(refused.value)


def test_blind_time_is_spread_by_size() -> None:
    """A job that can run on every type is on each in proportion to its GPUs, slow or fast."""
    problem = Problem.from_rates([[9.0, 3.0, 1.0]], capacity=[2, 1, 1])
    answer = resolve("las+blind")(problem)
    assert answer.time_share == pytest.approx([0.5, 0.25, 0.25], abs=1e-6)
    both = Problem.from_rates([[9.0, 3.0], [9.0, 0.0]], capacity=[3, 1])
    assert resolve("las+blind")(both).time_share == pytest.approx([0.75, 0.25, 1.0, 0.0], abs=1e-6)


def test_the_nearest_spread_that_fits_is_used() -> None:
    """In proportion, the first job would have a quarter of its time on the only type that the second can use."""
    problem = Problem.from_rates([[9.0, 9.0], [9.0, 0.0]], capacity=[1, 3])
    assert resolve("las+blind")(problem).time_share == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-6)


@given(
    problem=problems(), spec=st.sampled_from(["las+blind", "max_throughput+blind+packing", "makespan+blind"])
)
@settings(max_examples=60)
def test_spreading_keeps_totals_and_capacity(problem: Problem, spec: str) -> None:
    """Blind shares are moved between types on which the job can run, and never exceed capacity."""
    answer = resolve(spec)(problem)
    assert audit(problem, answer) == []
    problem = canonical(problem)
    if len(problem.jobs):
        blind_problem = Blind.of(problem).problem
        assert ((rate_table(blind_problem) > 0) == (rate_table(problem) > 0)).all()
        assert (blind_problem.columns.is_pair == problem.columns.is_pair).all()


@given(
    problem=problems(kinds=st.none(), pairs=st.just(False), variants=st.just(False)), seed=st.integers(0, 999)
)
@settings(max_examples=60)
def test_the_spread_is_the_nearest(problem: Problem, seed: int) -> None:
    """Of all ways to give each job its time without overdrawing a type, none is nearer to the proportional one."""
    problem = canonical(problem)
    if not len(problem.jobs):
        return
    blind, rng = Blind.of(problem), np.random.default_rng(seed)
    share = resolve("las")(blind.problem).time_share
    spread = blind.spread(problem, share)
    first = problem.columns.first
    size = problem.capacity[problem.columns.worker_type]
    n = len(problem.jobs)
    total = np.bincount(first, share, n)
    assert np.bincount(first, spread, n) == pytest.approx(total, abs=1e-6)
    proportional = total[first] * size / np.bincount(first, size, n)[first]
    assert (problem.occupancy @ spread <= problem.capacity * (1 + 1e-6) + 1e-6).all()
    for other in (share, _blend(rng, spread, share)):
        assert np.sum((spread - proportional) ** 2) <= np.sum((other - proportional) ** 2) + 1e-6


def _blend(rng: np.random.Generator, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A random point between two feasible ones, which is feasible too."""
    part = rng.random()
    return part * first + (1 - part) * second


def test_without_a_solver_blind_shares_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the nearest spread cannot be solved for, the answer keeps its shares."""
    problem = canonical(Problem.from_rates([[9.0, 9.0], [9.0, 0.0]], capacity=[1, 3]))
    blind, share = Blind.of(problem), np.array([0.0, 1.0, 1.0])

    def fails(*program: object, **options: object) -> None:
        raise SolverFailure("had a bad day")

    monkeypatch.setattr(transforms, "run_clarabel", fails)
    assert blind.spread(problem, share).tolist() == share.tolist()


def test_policies_of_whole_gpus_are_not_spread() -> None:
    """Blind FIFO draws one of the equal types, and puts the whole job on it."""
    problem = Problem.from_rates(np.array([[9.0, 3.0, 1.0]] * 3), capacity=[1, 1, 1])
    share = resolve("fifo+blind")(problem).time_share
    assert sorted(share.tolist()) == [0.0] * 6 + [1.0] * 3
    other_seeds = {tuple(resolve("fifo+blind")(replace(problem, seed=seed)).time_share) for seed in range(9)}
    assert len(other_seeds) > 1
