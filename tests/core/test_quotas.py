"""Quotas on the GPUs that a tenant, or each of its users, holds at once: kept in every state of the core."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.core.effects import Reply
from scheduler.core.facts import Configured
from scheduler.core.messages import Configure, SetTenants, SubmitJobs, UpdateJob
from scheduler.model.changes import JobChanges
from scheduler.model.lease import Phase
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.chaos import HORIZON_S, Chaos
from tests.support.core_world import replayed
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]
ORG = TenantSpec(name="org", quota=Quota(gpus={"v100": 2}))


def holders(desk: Desk) -> dict[str, int]:
    """How many GPUs each user holds, by leases that may have processes."""
    held: Counter[str] = Counter()
    for holding in desk.core.state.leases.values():
        if holding.phase is not Phase.WAITING:
            held[desk.job(holding.lease.job).spec.user] += len(holding.lease.gpus)
    return dict(held)


def test_a_tenant_holds_at_most_its_quota(desk_of: DeskOf) -> None:
    """Jobs of all tenants below it count, those of others do not, and GPUs beyond the quota go to these."""
    desk = desk_of(node("n1", 4), tenants=(ORG,))
    desk.submit(*[job(tenant="org/a", user="ann")] * 2, *[job(tenant="org/b", user="bob")] * 2)
    desk.submit(job(user="eve"), job(user="eve"))
    desk.until(30.0)
    held = holders(desk)
    assert held.pop("eve") == 2
    assert sum(held.values()) == 2


def test_each_user_has_the_same_quota(desk_of: DeskOf) -> None:
    """The quota of each user counts only this user's jobs, also of tenants below."""
    tenants = (TenantSpec(name="org", each_user=Quota(gpus={"*": 1})),)
    desk = desk_of(node("n1", 4), tenants=tenants)
    for user in ("ann", "bob"):
        desk.submit(*[job(tenant="org/a", user=user), job(tenant="org", user=user)])
    desk.until(30.0)
    assert holders(desk) == {"ann": 1, "bob": 1}


def test_a_gang_wider_than_a_lowered_quota_gets_nothing(desk_of: DeskOf) -> None:
    """It waits while others run."""
    desk = desk_of(node("n1", 4))
    desk.submit(job(tenant="org", gpus=3, user="ann"), job(tenant="org", user="bob"))
    set_tenants(desk, ORG)
    desk.until(400.0)
    assert holders(desk) == {"bob": 1}


@pytest.mark.parametrize(
    ("spec", "tenant"),
    [
        ({"gpus": 3}, "org"),
        ({"gpus": 3}, "org/a/b"),
        ({"gpus": 3, "worker_types": ("v100",)}, "org"),
        ({"gpus": 6, "gpus_min": 3, "gpus_max": 6}, "org"),
        ({"gpus": 2, "user": "bob"}, "team"),
    ],
)
def test_a_job_wider_than_its_quotas_is_refused(
    desk_of: DeskOf, spec: dict[str, Any], tenant: str, wording: Wording
) -> None:
    """The refusal names the field, who may hold how many GPUs, and what the job asks for; so does the preview's."""
    team = TenantSpec(name="team", each_user=Quota(gpus={"*": 1}))
    desk = desk_of(node("n1", 4), node("n2", 4), tenants=(ORG, team))
    desk.tell(0, SubmitJobs(call="c", specs=(job(**spec, tenant=tenant),), user="ann"))
    reply = desk.expect(Reply, code="invalid")
    assert reply.result == {"field": "gpus"}
    wording(reply.error)


def test_a_job_that_one_worker_type_admits_is_accepted(desk_of: DeskOf) -> None:
    """Other worker types, fewer GPUs of an elastic job, or another tenant: then the job is accepted."""
    desk = desk_of(node("n1", 4), node("k1", 4, "k80"), tenants=(ORG,))
    desk.submit(job(gpus=3, tenant="org"), job(gpus=3, tenant="other"))
    desk.submit(job(gpus=4, gpus_min=2, gpus_max=4, tenant="org", worker_types=("v100",)))
    desk.tell(0, SubmitJobs(call="c", specs=(job(gpus=3, tenant="org", worker_types=("v100",)),)))
    assert desk.expect(Reply, code="invalid").result == {"field": "gpus"}


def test_an_update_keeps_a_job_within_its_quotas(desk_of: DeskOf) -> None:
    """A change of its GPUs or of its tenant is refused if no quota would ever admit it."""
    desk = desk_of(node("n1", 4), tenants=(ORG,))
    own, other = desk.submit(job(gpus=2, tenant="org"), job(gpus=3, tenant="other"))
    for name, changes in ((own, JobChanges(gpus=3)), (other, JobChanges(tenant="org"))):
        desk.tell(0, UpdateJob(call="u", job=name, changes=changes))
        assert desk.expect(Reply, code="invalid").result == {"field": "gpus"}
        desk.settle()


# -------------------------------------------------------------------------------------------------- SetTenants


def set_tenants(desk: Desk, *tenants: TenantSpec, removed: tuple[str, ...] = ()) -> None:
    """Let an operator declare tenants."""
    desk.tell(desk.now_s, SetTenants(call="t", tenants=tenants, removed=removed, user="opa"))
    assert not desk.expect(Reply, call="t").error
    desk.settle()


def test_tenants_are_declared_and_forgotten(desk_of: DeskOf) -> None:
    """Each declaration replaces that of its name; others stay. A repeated one changes nothing."""
    other = TenantSpec(name="other", weight=2.0)
    desk = desk_of(node("n1", 4), tenants=(ORG,))
    set_tenants(desk, other)
    changed = TenantSpec(name="org", quota=Quota(gpus={"*": 3}))
    desk.tell(0, SetTenants(call="t", tenants=(changed,), user="opa"))
    assert desk.expect(Configured).settings.tenants == (changed, other)
    desk.settle()
    desk.tell(0, SetTenants(call="t", tenants=(changed,), user="opa"))
    assert desk.facts == []
    desk.settle()
    set_tenants(desk, removed=("org", "other"))
    assert desk.core.state.settings.tenants == ()


@pytest.mark.parametrize(
    ("tenants", "removed", "field"),
    [
        ([TenantSpec(name="org", quota=Quota(gpus={"h10": 1}))], (), "tenants.org.quota.gpus"),
        ([TenantSpec(name="org", each_user=Quota(gpus={"v100": -1}))], (), "tenants.org.each_user.gpus.v100"),
        ([TenantSpec(name="")], (), "tenants"),
        ([TenantSpec(name="a\nb")], (), "tenants"),
        ([TenantSpec(name="org", weight=math.nan)], (), "tenants.org.weight"),
        ([TenantSpec(name="org", policy="lifo")], (), "tenants.org.policy"),
        ([], ("nobody",), None),
    ],
)
def test_wrong_declarations_are_refused(
    desk_of: DeskOf, tenants: list[TenantSpec], removed: tuple[str, ...], field: str | None, wording: Wording
) -> None:
    """The error names the key of the settings, and nothing changes."""
    desk = desk_of(node("n1", 4))
    desk.tell(0, SetTenants(call="t", tenants=tuple(tenants), removed=removed))
    reply = desk.expect(Reply, call="t")
    assert reply.result == ({} if field is None else {"field": field})
    assert reply.code == ("not_found" if field is None else "invalid")
    assert desk.facts == []
    wording(reply.error)


def test_a_raised_quota_is_used_at_once(desk_of: DeskOf) -> None:
    """Idle GPUs go to the tenant's waiting jobs in mid-round."""
    desk = desk_of(node("n1", 4), tenants=(ORG,))
    desk.submit(*[job(tenant="org", user="ann", steps=1e6)] * 4)
    desk.until(100.0)
    assert holders(desk) == {"ann": 2}
    set_tenants(desk, TenantSpec(name="org", quota=Quota(gpus={"v100": 4})))
    desk.until(110.0)
    assert holders(desk) == {"ann": 4}


def test_a_lowered_quota_is_met_at_the_next_boundary(desk_of: DeskOf) -> None:
    """Nothing is killed: the lease ends with the round, and a job of another tenant takes the GPU."""
    desk = desk_of(node("n1", 2), tenants=(ORG,))
    desk.run(job(tenant="org", user="ann", steps=1e6), job(tenant="org", user="ann", steps=1e6))
    lower = (msgspec.structs.replace(ORG, quota=Quota(gpus={"v100": 1})),)
    settings = msgspec.structs.replace(desk.core.state.settings, tenants=lower)
    desk.tell(desk.now_s, Configure(settings=settings))
    desk.settle()
    assert holders(desk) == {"ann": 2}
    desk.until(desk.core.state.round.ends_s - 1.0)
    phases = Counter(holding.phase for holding in desk.core.state.leases.values())
    assert phases == {Phase.RUNNING: 1, Phase.STOPPING: 1}


def test_a_lease_waits_for_the_exits_of_its_tenant(desk_of: DeskOf) -> None:
    """While a lease of the tenant is still stopping, its GPUs count: the next one waits, also on other GPUs."""
    desk = desk_of(node("n1", 2), node("n2", 2), tenants=(ORG,))
    (first,) = desk.run(job(tenant="org", gpus=2, user="ann", steps=1e6))
    (second,) = desk.submit(job(tenant="org", gpus=2, user="bob", steps=1e6, weight=100.0))
    while desk.holding(first).phase is not Phase.STOPPING:
        desk.until(desk.core.state.round.ends_s - 1.0)
    lease = desk.job(second).lease or ""
    assert desk.holding(lease).waits_for == {first}
    assert holders(desk) == {"ann": 2}
    name = desk.holding(first).lease.gpus[0].partition(":")[0]
    desk.report(name, exits=(exited(first),))
    desk.settle()
    assert holders(desk) == {"bob": 2}


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_fill_or_late_message_exceeds_a_quota(seed: int) -> None:
    """Stories with faults, late and forged messages, and quotas that change: the invariant holds after each message."""
    story = Chaos(seed, quotas=True)
    story.stage.until(HORIZON_S)
    story.stage.restart(3, links_drop=True)
    story.stage.until(200_000.0)
    assert {job.id: job.why for job in story.stage.state.active.values()} == {}
    assert replayed(story.stage.journal.records).leases == {}
