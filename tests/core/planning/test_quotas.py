"""The quotas of tenants and users as rows of the problem that a policy solves."""

from __future__ import annotations

from collections.abc import Callable

from policies.problem import ANY_TYPE
from scheduler.core.planning import problem
from scheduler.core.planning.kinds import Kinds
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.desk import Desk, job, node

DeskOf = Callable[..., Desk]


def test_every_level_above_a_job_counts_it(desk_of: DeskOf) -> None:
    """The quotas of a tenant, of those above it and of the user count a job; types without nodes are absent."""
    tenants = (
        TenantSpec(name="org", quota=Quota(gpus={"*": 4, "h100": 1}), each_user=Quota(gpus={"v100": 1})),
        TenantSpec(name="org/a", quota=Quota(gpus={"v100": 2})),
        TenantSpec(name="default", quota=Quota(gpus={"v100": 3})),
    )
    desk = desk_of(node("n1", 4), node("k1", 1, "k80"), tenants=tenants)
    desk.submit(job(tenant="org/a", user="ann"), job(tenant="org/b", user="bob"), job(user="eve"))
    built, _ = problem.build(desk.core.state, Kinds(), desk.now_s)
    quotas, v100 = built.quotas, built.worker_types.index("v100")
    rows = {
        name: (kind, gpus, quotas.job[quotas.quota == row].tolist())
        for row, (name, kind, gpus) in enumerate(
            zip(quotas.names, quotas.worker_type.tolist(), quotas.gpus.tolist(), strict=True)
        )
    }
    assert rows == {
        "tenant org/a, v100": (v100, 2.0, [0]),
        "tenant org, *": (ANY_TYPE, 4.0, [0, 1]),
        "user 'ann' of tenant org, v100": (v100, 1.0, [0]),
        "user 'bob' of tenant org, v100": (v100, 1.0, [1]),
        "tenant default, v100": (v100, 3.0, [2]),
    }


def test_settings_without_quotas_make_none(desk_of: DeskOf) -> None:
    """The problem has no rows of quotas, also if there are tenants."""
    desk = desk_of(node("n1", 4), tenants=(TenantSpec(name="org"),))
    desk.submit(job(tenant="org"))
    assert len(problem.build(desk.core.state, Kinds(), desk.now_s)[0].quotas) == 0
