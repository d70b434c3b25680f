"""Filling apart: raising tenants each to its own quotas gives the levels that raising all jobs together gives."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.engine import apart, solvers
from policies.engine.apart import Apart, _layers
from policies.engine.sharing import fair_jobs
from policies.problem import ANY_TYPE, Problem, Quotas, Tenant
from policies.program import Program
from policies.reference import proportional_rates
from policies.registry import resolve


def tree_of_quotas(seed: int, tenants: int, jobs: int, types: int = 2) -> Problem:
    """Tenants in two halves, with quotas for each half, each tenant and each user, some of whom are in two tenants."""
    rng = np.random.default_rng(seed)
    tenant, user = rng.integers(tenants, size=jobs), rng.integers(2 * tenants, size=jobs)
    sets = [tenant % 2 == half for half in range(2)]
    sets += [tenant == number for number in range(tenants)] + [
        user == number for number in range(2 * tenants)
    ]
    limits = [("half", 4.0, own) for own in sets[:2]]
    limits += [("own", 2.0, own) for own in sets[2:]]
    kinds = rng.integers(ANY_TYPE, types, size=len(limits))
    quota, job = np.nonzero(np.array([own for _, _, own in limits]))
    names = [f"org{number % 2}/team{number}" for number in range(tenants)]
    return Problem.from_rates(
        rng.uniform(1.0, 3.0, (jobs, types)) * np.arange(1, types + 1),
        rng.choice([1, 2], jobs),
        np.full(types, float(jobs)),
        weight=rng.choice([1.0, 2.0], jobs),
        waited_s=rng.uniform(0.0, 100.0, jobs),
        tenant=[names[number] for number in tenant.tolist()],
        tenants=[
            Tenant(name, 1.0 + number, ("fairness", "fifo")[number % 2]) for number, name in enumerate(names)
        ],
        quotas=Quotas(
            names=tuple(f"{name}{row}" for row, (name, _, _) in enumerate(limits)),
            worker_type=kinds,
            gpus=np.array([limit * rng.choice([1.0, 1.5]) for _, limit, _ in limits]),
            quota=quota,
            job=job,
        ),
    )


def rates(problem: Problem, spec: str) -> np.ndarray:
    """The rate of each job."""
    answer = resolve(spec)(problem)
    assert answer.optimal
    return np.asarray(problem.rates @ answer.time_share)


@pytest.mark.parametrize("spec", ["water_filling", "las", "hierarchical"])
@settings(max_examples=12)
@given(seed=st.integers(0, 2**32 - 1), tenants=st.integers(1, 4), gpus=st.sampled_from([0.2, 0.5, 2.0]))
def test_levels_are_those_of_filling_all_together(spec: str, seed: int, tenants: int, gpus: float) -> None:
    """With or without layers, and whether GPUs are scarce or not, every job has the same rate."""
    problem = tree_of_quotas(seed, tenants, jobs=3 * tenants)
    problem = replace(problem, capacity=np.maximum(2.0, np.round(problem.capacity * gpus)))
    apart_rates = rates(problem, spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "LAYERS_MAX", 0)
        together = rates(problem, spec)
    if spec == "las":
        # Above their levels, LAS maximises the total, to which different jobs can contribute.
        unit = proportional_rates(problem) / problem.jobs.gpus
        assert (apart_rates / unit).sum() == pytest.approx((together / unit).sum(), rel=1e-5)
    else:
        assert apart_rates == pytest.approx(together, rel=1e-4, abs=1e-5)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), tenants=st.integers(1, 5))
def test_caps_can_be_reached_by_all_jobs_together(seed: int, tenants: int) -> None:
    """The heights of all layers keep every quota if there are GPUs for all, and no job exceeds its cap."""
    problem = tree_of_quotas(seed, tenants, jobs=4 * tenants)
    problem = replace(problem, capacity=100.0 * problem.capacity)
    program, unit = Program(problem), np.ones(len(problem.jobs))
    cap = program.best_rate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "LAYERS_MAX", 100)
        heights = Apart(program, fair_jobs(problem.jobs), unit).caps(cap)
    assert (heights <= cap).all()
    assert program.raise_all(heights).value >= 1.0 - 1e-9


def test_layers_begin_with_the_smallest_quotas():
    """Users come first, then their tenant, then the tenant above; quotas on the same jobs share a layer."""
    sets = [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1, 2], [0, 1], [3, 4]]
    quota = np.repeat(np.arange(len(sets)), [len(own) for own in sets])
    quotas = Quotas(names=tuple("abcde"), gpus=np.ones(5), quota=quota, job=np.concatenate(sets))
    users, tenant, above = _layers(quotas, np.arange(6))
    assert [layer.quotas.tolist() for layer in (users, tenant, above)] == [
        [3, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3, 4],
    ]
    assert users.part.tolist() == [0, 0, -1, 1, 1, -1]
    assert tenant.part.tolist() == [0, 0, 0, 1, 1, -1]
    assert above.part.tolist() == [0, 0, 0, 0, 0, -1]


def test_many_tenants_need_no_more_programs_than_few(monkeypatch: pytest.MonkeyPatch):
    """All tenants rise in the same programs, although each is stopped at levels of its own."""
    rng = np.random.default_rng(5)
    tenants, jobs, types = 60, 360, 3
    owner = rng.integers(tenants, size=jobs)
    quota, job = np.nonzero(np.repeat(owner == np.arange(tenants)[:, None], types, axis=0))
    problem = Problem.from_rates(
        rng.uniform(1.0, 3.0, (jobs, types)) * [1.0, 3.0, 5.0],
        rng.choice([1, 2, 4], jobs),
        np.full(types, 2000.0),
        quotas=Quotas(
            names=tuple(f"tenant{row}" for row in range(types * tenants)),
            worker_type=np.tile(np.arange(types), tenants),
            gpus=np.full(types * tenants, 4.0),
            quota=quota,
            job=job,
        ),
    )
    shapes: list[tuple[int, int]] = []

    def counted(program: solvers.LinearProgram) -> None:
        # The small programs of `level_by_prices` have a column for each type and one more.
        if program.rows.shape[1] > types + 1:
            shapes.append(program.rows.shape)

    # The first link of the chain counts each program and leaves it to the others.
    monkeypatch.setattr(solvers, "_CHAIN", [("count", counted), *solvers._CHAIN])
    assert resolve("water_filling")(problem).optimal
    assert len(shapes) <= 40
