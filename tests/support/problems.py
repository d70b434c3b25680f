"""Problems for tests: those of `policies.trials.sample`, and strategies that draw them.

@given(problems(pairs=st.just(True)))
"""

from typing import Any

from hypothesis import strategies as st

from policies.problem import Problem
from policies.transforms import runnable
from policies.trials import sample
from policies.trials.sample import TENANTS, Way, alone, by_hand, random_problem, together

__all__ = [
    "TENANTS",
    "Way",
    "alone",
    "by_hand",
    "canonical",
    "problems",
    "random_problem",
    "shuffled",
    "together",
]


def problems(**features: st.SearchStrategy[Any]) -> st.SearchStrategy[Problem]:
    """Any problem of up to ten jobs; a keyword pins or narrows a feature: `pairs=st.just(True)`."""
    switches = (
        "zero_rates", "empty_type", "weights", "pairs", "variants", "tenants", "deadlines", "cpus", "facts_by_kind",
    )  # fmt: skip
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 2**32 - 1),
        "jobs": st.integers(1, 10),
        "types": st.integers(1, 4),
        "kinds": st.none() | st.integers(1, 4),
        **{name: st.booleans() for name in switches},
    }
    return st.builds(random_problem, **(drawn | features))


def canonical(problem: Problem) -> Problem:
    """Return what can run, sorted, as the registry passes it to a policy, but not grouped."""
    return problem.restrict(*runnable(problem))


def shuffled(problem: Problem, seed: int) -> Problem:
    """Return the same jobs and columns in another order, with the two jobs of some pairs exchanged."""
    return sample.shuffled(problem, seed)[0]
