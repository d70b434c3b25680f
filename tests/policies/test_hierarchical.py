"""`hierarchical`: trees of tenants that can be divided by hand. All jobs are alike: rates are shares of GPUs."""

import numpy as np
import pytest

from policies.errors import ProblemError
from policies.problem import Problem, Tenant
from policies.registry import resolve
from tests.support.wording import Wording


def divided(gpus: float, jobs: dict[str, str], *tenants: Tenant, **facts: object) -> dict[str, float]:
    """Return the time that each job gets on this many GPUs of one type; `jobs` has the tenant of each job."""
    problem = Problem.from_rates(
        np.ones((len(jobs), 1)),
        1,
        [gpus],
        ids=list(jobs),
        tenant=tuple(jobs.values()),
        tenants=tenants,
        **facts,
    )
    share = resolve("hierarchical")(problem).time_share
    return dict(zip(jobs, share.tolist(), strict=True))


def test_tenants_by_weight_then_jobs() -> None:
    """Tenants of weights 1 and 3 share a GPU; the first has one job, the second two: 1/4, 3/8 and 3/8 of the time."""
    shares = divided(1, {"a": "x", "b": "y", "c": "y"}, Tenant("x", 1.0), Tenant("y", 3.0))
    assert shares == pytest.approx({"a": 0.25, "b": 0.375, "c": 0.375}, rel=1e-6)


def test_jobs_by_weight_inside_a_tenant() -> None:
    """Inside one tenant, jobs of weights 1 and 3 get a quarter and three quarters."""
    shares = divided(1, {"a": "x", "b": "x"}, Tenant("x"), weight=[1.0, 3.0])
    assert shares == pytest.approx({"a": 0.25, "b": 0.75}, rel=1e-6)


def test_a_full_tenant_leaves_the_rest_to_others() -> None:
    """On two GPUs, the only job of x is full with one GPU, so the three jobs of y divide the other."""
    shares = divided(2, dict(zip("abcd", "xyyy", strict=True)), Tenant("x", 5.0), Tenant("y", 1.0))
    assert shares == pytest.approx({"a": 1.0, "b": 1 / 3, "c": 1 / 3, "d": 1 / 3}, rel=1e-6)


def test_a_tree_of_three_levels() -> None:
    """One GPU is divided by weight at each level: org 2 and other 1; in org, p 1 and q 3; in q, r and s equally."""
    tenants = [
        *(Tenant("org", 2.0), Tenant("other", 1.0)),
        *(Tenant("org/p", 1.0), Tenant("org/q", 3.0)),
        *(Tenant("org/q/r"), Tenant("org/q/s")),
    ]
    shares = divided(1, {"a": "other", "b": "org/p", "c": "org/q/r", "d": "org/q/s"}, *tenants)
    assert shares == pytest.approx({"a": 1 / 3, "b": 1 / 6, "c": 1 / 4, "d": 1 / 4}, rel=1e-6)


def test_unused_time_passes_to_siblings_first() -> None:
    """Time that a full job cannot use stays in its tenant.

    Tenant org has p, with job b, and q, with jobs c and d. Tenant other has jobs a and e.
    """
    tenants = [Tenant("org"), Tenant("org/p"), Tenant("org/q"), Tenant("other")]
    jobs = {"a": "other", "b": "org/p", "c": "org/q", "d": "org/q", "e": "other"}
    shares = divided(3, jobs, *tenants, weight=[1.0, 1.0, 1.0, 1.0, 1.0])
    # Each tenant has 1.5 GPUs: a and e have 3/4 each; org gives p and q 3/4 each, and c and d divide that of q.
    assert shares == pytest.approx({"a": 0.75, "e": 0.75, "b": 0.75, "c": 0.375, "d": 0.375}, rel=1e-6)
    # Each tenant has 2 GPUs: a and e are full; in org, b is full with one GPU, and c and d share the other.
    more = divided(4, jobs, *tenants)
    assert more == pytest.approx({"a": 1.0, "e": 1.0, "b": 1.0, "c": 0.5, "d": 0.5}, rel=1e-6)


def test_fifo_tenants_serve_the_earliest() -> None:
    """The queue has half of three GPUs: its oldest job has one, the second half a GPU, the third nothing."""
    tenants = [Tenant("fair"), Tenant("queue", policy="fifo")]
    jobs = {"a": "fair", "b": "fair", "q1": "queue", "q2": "queue", "q3": "queue"}
    shares = divided(3, jobs, *tenants, waited_s=[0.0, 0.0, 10.0, 30.0, 20.0])
    expected = {"a": 0.75, "b": 0.75, "q2": 1.0, "q3": 0.5, "q1": 0.0}
    assert shares == pytest.approx(expected, abs=1e-6)


def test_equal_age_is_decided_by_name() -> None:
    """Of two jobs that arrived together, the one with the lower id is first."""
    shares = divided(1, {"b": "queue", "a": "queue"}, Tenant("queue", policy="fifo"))
    assert shares == pytest.approx({"a": 1.0, "b": 0.0}, abs=1e-6)


def test_jobs_without_a_tenant_count_as_one_tenant() -> None:
    """If no tenants are listed, each path has weight 1, as have all jobs without a tenant together."""
    shares = divided(1, {"a": "", "b": "", "c": "x"})
    assert shares == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.5}, rel=1e-6)


def test_without_tenants_it_is_water_filling() -> None:
    """Without a tree the rates are those of water filling."""
    problem = Problem.from_rates([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]], 1, [1, 1], weight=[1.0, 2.0, 4.0])
    hierarchical_rates = problem.rates @ resolve("hierarchical")(problem).time_share
    assert hierarchical_rates == pytest.approx(
        problem.rates @ resolve("water_filling")(problem).time_share, rel=1e-6
    )


def test_a_job_must_belong_to_a_leaf(wording: Wording) -> None:
    """A job of a tenant that has tenants below it is refused."""
    with pytest.raises(ProblemError, match=r"job 'a': tenant 'org' .*'org/p'") as refused:
        divided(1, {"a": "org", "b": "org/p"}, Tenant("org"), Tenant("org/p"))
    wording(refused.value)


def test_fifo_orders_jobs_not_tenants(wording: Wording) -> None:
    """A fifo tenant with tenants below it is refused."""
    with pytest.raises(ProblemError, match="tenant 'org': ") as refused:
        divided(1, {"b": "org/p"}, Tenant("org", policy="fifo"), Tenant("org/p"))
    wording(refused.value)
