"""Degenerate problems, under every policy: all alike, just enough GPUs, rates far apart, too wide, hardly moving.

Each answer must be feasible, and exact if there is another formulation for comparison. Under policies that promise
this, no job may be dominated: none could have more without another having less.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from policies.audit import audit, could_gain
from policies.problem import Problem
from policies.registry import names, resolve
from tests.support.problems import alone, by_hand, together
from tests.support.references import REFERENCES, as_seen

MODIFIERS = ((), ("blind",), ("packing",), ("blind", "packing"))
UNDOMINATED = ("max_min_fairness", "water_filling", "hierarchical", "finish_time_fairness", "makespan")
SINGLE_GPU = ("allox",)
# Policies that choose one of several jobs that are alike: the first one, or one at random.
CHOOSY = ("fifo", "allox", "gandiva")
# Policies that may leave GPUs idle: strategy_proof gives withheld time to no job, and min_cost avoids expensive types.
IDLE_ON_PURPOSE = ("strategy_proof", "min_cost")
CASES: dict[str, Callable[[], Problem]] = {}


def case(build: Callable[[], Problem]) -> Callable[[], Problem]:
    """Register a problem for every policy."""
    CASES[build.__name__] = build
    return build


def table(rates: list[list[float]], gpus: list[int] | int, capacity: list[float], **facts: object) -> Problem:
    """A problem with this table of rates (jobs by types), and with the steps, ages and prices that policies need."""
    n = len(rates)
    all_facts = {"steps_left": 1e3 * np.arange(1, n + 1), "waited_s": 100.0 * np.arange(n), **facts}
    return Problem.from_rates(
        rates, gpus, capacity, price_per_gpu_hour=1.0 + np.arange(len(capacity)), **all_facts
    )


@case
def all_alike() -> Problem:
    """Five jobs that differ in nothing but their names."""
    return table([[2.0, 5.0]] * 5, 1, [2, 1], steps_left=500.0, waited_s=10.0)


@case
def just_enough() -> Problem:
    """Exactly as many GPUs as the jobs ask for."""
    return table([[1.0, 3.0], [2.0, 1.0], [4.0, 4.0]], [1, 2, 1], [2, 2])


@case
def far_apart() -> Problem:
    """Rates from a thousandth to ten thousand steps per second."""
    return table([[1e-3, 2e-3], [1e4, 3e3], [1.0, 5.0], [0.05, 700.0]], 1, [1, 2])


@case
def heavy_and_light() -> Problem:
    """Weights from 1 to 100."""
    return table([[1.0, 2.0]] * 4, 1, [1, 1], weight=[1.0, 3.0, 30.0, 100.0])


@case
def one_gpu() -> Problem:
    """Five jobs, one GPU."""
    return table([[1.0], [2.0], [3.0], [4.0], [5.0]], 1, [1])


@case
def hardly_moving() -> Problem:
    """A step every three years, and one every thirty."""
    return table([[1e-8, 2e-8], [1e-9, 1e-9], [3e-8, 1e-9]], 1, [1, 1], steps_left=1e-3)


@case
def one_of_many_jobs_counts() -> Problem:
    """One job has a billion steps left, the others one."""
    return table([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], 1, [1, 1], steps_left=[1e9, 1.0, 1.0])


@case
def twin_types() -> Problem:
    """Two types that differ in name only, so that the split between them is arbitrary."""
    return table([[2.0, 2.0, 1.0], [3.0, 3.0, 9.0], [1.0, 1.0, 1.0], [4.0, 4.0, 2.0]], 1, [1, 1, 1])


@case
def nothing_shared() -> Problem:
    """Each job runs on a type of its own: no two compete."""
    return table([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], 1, [1, 1, 1])


@case
def plenty() -> Problem:
    """A thousand GPUs for three jobs."""
    return table([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], 1, [500, 500])


@case
def fractions_of_gpus() -> Problem:
    """Capacities that are no whole numbers, as when a part is lent out."""
    return table([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], 1, [0.5, 1.5])


@case
def wider_than_a_type() -> Problem:
    """A job of eight GPUs on types of three and four: it can run on them only part of the time."""
    return table([[8.0, 16.0], [1.0, 2.0], [3.0, 2.0]], [8, 1, 2], [3, 4])


@case
def a_type_without_gpus() -> Problem:
    """The fastest type has no GPUs left."""
    return table([[1.0, 9.0], [2.0, 9.0], [1.0, 9.0]], 1, [2, 0])


@case
def pairs_that_pay() -> Problem:
    """Three jobs that hardly slow each other down on one GPU."""
    solo = [alone(job, "gpu", 1.0) for job in "abc"]
    pairs = [together(pair, "gpu", (0.9, 0.8)) for pair in (("a", "b"), ("b", "c"), ("a", "c"))]
    return by_hand({"gpu": 1.0}, *solo, *pairs, steps_left=10.0, price_per_gpu_hour=np.array([1.0]))


every_case = pytest.mark.parametrize("build", CASES.values(), ids=CASES)
every_spec = pytest.mark.parametrize(
    ("name", "modifiers"),
    [(name, modifiers) for name in names() for modifiers in MODIFIERS],
    ids=["+".join((name, *modifiers)) for name in names() for modifiers in MODIFIERS],
)


@every_case
@every_spec
def test_exact_at_the_edge(name: str, modifiers: tuple[str, ...], build: Callable[[], Problem]) -> None:
    """The answer is feasible, optimal, worth its reported value, and as good as another formulation's."""
    problem = build()
    if name in SINGLE_GPU and (problem.jobs.gpus > 1).any():
        pytest.skip(f"{name} takes single-GPU jobs only")
    if name in SINGLE_GPU and (problem.capacity % 1).any():
        pytest.skip(f"{name} gives out whole GPUs; a job with none of its own is another test")
    answer = resolve("+".join((name, *modifiers)))(problem)
    assert audit(problem, answer) == []
    assert answer.optimal
    view = as_seen(problem, answer, *modifiers, *(("packing",) if name == "gandiva" else ()))
    if name in UNDOMINATED:
        assert could_gain(view.problem, replace(answer, time_share=view.share)) == []
    if name not in REFERENCES:
        return
    reference = REFERENCES[name]
    best = reference.optimum(view.problem)
    # The value of strategy_proof is a logarithm, which may be 0.
    close = {"rel": reference.tolerance, "abs": 1e-8 if name == "strategy_proof" else 0.0}
    if name != "hierarchical":
        assert answer.value == pytest.approx(best.value, **close)
    reached = reference.measure(view.problem, view.share)
    assert np.isnan(reached) or reached == pytest.approx(best.value, **close)
    if reference.second is not None:
        assert reference.second(view.problem, view.share) == pytest.approx(best.second, **close)
    if reference.fixed_rates:
        assert view.rate == pytest.approx(best.rate, rel=1e-4)


@every_spec
def test_alike_are_treated_alike(name: str, modifiers: tuple[str, ...]) -> None:
    """Jobs that differ only in their names get the same, unless the policy chooses one of them."""
    answer = resolve("+".join((name, *modifiers)))(all_alike())
    share = answer.time_share.reshape(5, 2)
    if name not in CHOOSY:
        assert share == pytest.approx(np.tile(share[0], (5, 1)), rel=1e-9)
    if name not in IDLE_ON_PURPOSE:
        assert share.sum() == pytest.approx(3.0, rel=1e-4)  # three GPUs, five jobs


@pytest.mark.parametrize("name", [name for name in names() if name not in ("gandiva", *SINGLE_GPU)])
def test_a_job_with_pair_rates_only(name: str) -> None:
    """A job that has a rate only in a pair is left out without packing; with packing the answer is feasible."""
    problem = by_hand(
        {"gpu": 1.0},
        alone("a", "gpu", 1.0),
        together(("a", "b"), "gpu", (0.9, 0.8)),
        steps_left=10.0,
        price_per_gpu_hour=np.array([1.0]),
    )
    answer = resolve(name)(problem)
    assert audit(problem, answer) == []
    assert np.isfinite(answer.value)
    assert answer.time_share == pytest.approx([1.0, 0.0], abs=1e-6)
    assert "'b'" in "".join(answer.notes)
    packed = resolve(f"{name}+packing")(problem)
    assert audit(problem, packed) == []
    assert np.isfinite(packed.value)
