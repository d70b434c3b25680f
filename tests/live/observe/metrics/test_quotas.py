"""The series of quotas and budgets: limit and use of each tenant that has a label of its own, and of no user."""

from __future__ import annotations

import pytest

from scheduler.core.messages import SetPrices
from scheduler.live.observe.metrics.quotas import quota_series
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.desk import Desk, job, node

ORG = TenantSpec(
    name="org",
    quota=Quota(gpus={"v100": 3}, gpu_hours={"week": 500.0}),
    each_user=Quota(gpu_hours={"day": 8.0}),
)
LAB = TenantSpec(name="lab", quota=Quota(gpu_hours={"day": 5.0}))


def test_each_limit_of_a_tenant_has_a_series() -> None:
    """GPUs that are held and GPU-hours so far stand beside their limits; a tenant under a shared label has none."""
    desk = Desk(node("n1", 4), tenants=(ORG, LAB))
    (lease,) = desk.run(job(tenant="org/a", gpus=2, user="ann", steps=1e6))
    desk.until(200.0)
    sent_s = desk.holding(lease).sent_s
    assert sent_s is not None
    series = quota_series(desk.core.state, 200.0, lambda tenant: tenant if tenant == "org" else "other")
    assert series == {
        ("org", "gpus", "v100", "limit"): 3,
        ("org", "gpus", "v100", "used"): 2,
        ("org", "gpu_hours", "week", "limit"): 500.0,
        ("org", "gpu_hours", "week", "used"): pytest.approx(2 * (200.0 - sent_s) / 3600.0),
    }


def test_without_limits_there_is_no_series() -> None:
    """A cluster without quotas and budgets exports nothing."""
    assert quota_series(Desk(node("n1", 1)).core.state, 0.0, str) == {}


def test_a_budget_of_cost_has_series_of_its_own() -> None:
    """What was spent is by the price of the type, and stands beside the budget of GPU-hours of the same period."""
    quota = Quota(cost={"month": 40.0}, gpu_hours={"month": 9.0})
    desk = Desk(node("n1", 4), tenants=(TenantSpec(name="org", quota=quota),))
    desk.tell(0, SetPrices(price_per_gpu_hour={"v100": 2.5}))
    desk.settle()
    (lease,) = desk.run(job(tenant="org/a", gpus=2, user="ann", steps=1e6))
    desk.until(200.0)
    sent_s = desk.holding(lease).sent_s
    assert sent_s is not None
    hours = 2 * (200.0 - sent_s) / 3600.0
    assert quota_series(desk.core.state, 200.0, str) == {
        ("org", "cost", "month", "limit"): 40.0,
        ("org", "cost", "month", "used"): pytest.approx(2.5 * hours),
        ("org", "gpu_hours", "month", "limit"): 9.0,
        ("org", "gpu_hours", "month", "used"): pytest.approx(hours),
    }
