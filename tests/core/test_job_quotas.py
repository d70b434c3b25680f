"""Quotas on numbers of jobs: how many may run at once, and how many may be unfinished; and tenants nobody declared."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from scheduler.core.effects import Reply
from scheduler.core.messages import (
    HeldLease,
    JobCommand,
    NodeHello,
    NodeSilent,
    SetTenants,
    SubmitJobs,
    UpdateJob,
)
from scheduler.core.planning import problem
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.model.changes import JobChanges
from scheduler.model.job_quotas import JobQuota
from scheduler.model.lease import Phase
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.desk import Desk, exited, job, node
from tests.support.wording import Wording

DeskOf = Callable[..., Desk]
TWO_RUN = TenantSpec(name="org", quota=Quota(jobs_running=2))
ONE_RUNS = TenantSpec(name="org", quota=Quota(jobs_running=1))


def running(desk: Desk) -> set[str]:
    """The jobs with leases that may have processes."""
    return {h.lease.job for h in desk.core.state.leases.values() if h.phase is not Phase.WAITING}


def refusal(desk: Desk, *specs: object, code: str = "too_many", **more: object) -> Reply:
    """Submit jobs that are refused as a whole, and return the refusal."""
    desk.tell(desk.now_s, SubmitJobs(call="c", specs=specs, **more))  # type: ignore[arg-type]
    reply = desk.expect(Reply, call="c", code=code)
    assert desk.facts == []
    return reply


# ----------------------------------------------------------------------------------------------- running jobs


def test_a_tenant_runs_at_most_so_many_jobs(desk_of: DeskOf) -> None:
    """Jobs of all tenants below it count, whatever their size; GPUs beyond go to jobs of others."""
    desk = desk_of(node("n1", 6), tenants=(TWO_RUN,))
    own = desk.submit(*[job(tenant=f"org/{name}", gpus=2 if name == "a" else 1) for name in "abcd"])
    (other,) = desk.submit(job())
    desk.until(30.0)
    assert other in running(desk)
    assert len(running(desk) & set(own)) == 2


def test_each_user_runs_at_most_so_many_jobs_on_every_level(desk_of: DeskOf) -> None:
    """The limits of the users of a tenant and of those above it hold together."""
    tenants = (
        TenantSpec(name="org", quota=Quota(jobs_running=3), each_user=Quota(jobs_running=2)),
        TenantSpec(name="org/a", each_user=Quota(jobs_running=1)),
    )
    desk = desk_of(node("n1", 8), tenants=tenants)
    ann = desk.submit(*[job(tenant=tenant, user="ann") for tenant in ("org/a", "org/a", "org/b", "org/b")])
    bob = desk.submit(*[job(tenant="org/a", user="bob")] * 2)
    desk.until(30.0)
    assert len(running(desk) & set(ann[:2])) <= 1
    assert len(running(desk) & set(ann)) == 2
    assert len(running(desk) & set(bob)) == 1


def test_a_raised_limit_is_used_at_once_and_a_lowered_one_at_the_boundary(desk_of: DeskOf) -> None:
    """Nothing is killed when a limit is lowered."""
    desk = desk_of(node("n1", 4), tenants=(ONE_RUNS,))
    desk.submit(*[job(tenant="org", steps=1e6)] * 3)
    desk.until(100.0)
    assert len(running(desk)) == 1
    set_tenants(desk, TWO_RUN)
    desk.until(110.0)
    assert len(running(desk)) == 2
    set_tenants(desk, ONE_RUNS)
    assert [h.phase for h in desk.core.state.leases.values()] == [Phase.SENT, Phase.SENT]
    desk.until(desk.core.state.round.ends_s - 1.0)
    assert sorted(h.phase for h in desk.core.state.leases.values()) == [Phase.SENT, Phase.STOPPING]


def test_a_lease_waits_for_the_exit_of_the_job_before_it(desk_of: DeskOf) -> None:
    """While a job of the tenant is still stopping, it counts: the next one waits, also on other GPUs."""
    desk = desk_of(node("n1"), node("n2"), tenants=(ONE_RUNS,))
    (first,) = desk.run(job(tenant="org", user="ann", steps=1e6))
    (second,) = desk.submit(job(tenant="org", user="bob", steps=1e6, weight=100.0))
    while desk.holding(first).phase is not Phase.STOPPING:
        desk.until(desk.core.state.round.ends_s - 1.0)
    assert desk.holding(desk.job(second).lease or "").waits_for == {first}
    assert running(desk) == {desk.holding(first).lease.job}
    desk.report(desk.holding(first).lease.gpus[0].partition(":")[0], exits=(exited(first),))
    desk.settle()
    assert running(desk) == {second}


def test_a_job_whose_quota_admits_none_is_refused(desk_of: DeskOf, wording: Wording) -> None:
    """With a limit of 0, it would wait for ever."""
    desk = desk_of(node("n1"), tenants=(TenantSpec(name="org", quota=Quota(jobs_running=0)),))
    reply = refusal(desk, job(tenant="org/a"), code="invalid")
    assert reply.result == {"field": "tenant"}
    wording(reply.error)


def test_the_policy_knows_the_limit(desk_of: DeskOf) -> None:
    """The problem has a row that counts the jobs, so that their shares do not exceed what rounds can give."""
    desk = desk_of(node("n1", 4), tenants=(ONE_RUNS,))
    desk.submit(*[job(tenant="org")] * 3, job())
    desk.until(10.0)
    built, _ = problem.build(desk.core.state, Kinds(), desk.now_s)
    assert built.quotas.names == ("tenant org, jobs",)
    table = desk.core.state.shares
    shares = {bundle.jobs[0]: share for bundle, share in zip(table.bundles, table.share, strict=True)}
    assert sum(shares[name] for name in "123") == pytest.approx(1.0, abs=1e-5)
    assert shares["4"] == pytest.approx(1.0)


# -------------------------------------------------------------------------------------------- unfinished jobs


@pytest.mark.parametrize(
    ("tenant", "user"), [("org", "ann"), ("org/a/b", "bob"), ("team", "ann"), ("team/x", "ann")]
)
def test_unfinished_jobs_beyond_a_limit_are_refused(
    desk_of: DeskOf, tenant: str, user: str, wording: Wording
) -> None:
    """The refusal has the numbers and whose limit it is; jobs of others are accepted."""
    team = TenantSpec(name="team", each_user=Quota(jobs_unfinished=2))
    desk = desk_of(node("n1"), tenants=(TenantSpec(name="org", quota=Quota(jobs_unfinished=2)), team))
    desk.submit(job(tenant="org/a", user="ann"), job(tenant="team", user="ann"))
    reply = refusal(desk, *[job(tenant=tenant)] * 2, user=user)
    assert reply.result == {"field": "tenant"}
    wording(reply.error)
    desk.submit(job(tenant="org", user="bob"), job(tenant="team", user="bob"), job())


def test_an_array_counts_whole(desk_of: DeskOf) -> None:
    """All of its jobs are accepted or none, together with the other jobs of the submission."""
    desk = desk_of(node("n1"), tenants=(TenantSpec(name="org", quota=Quota(jobs_unfinished=3)),))
    refusal(desk, job(tenant="org", array=(1, 2, 3, 4)))
    refusal(desk, job(tenant="org"), job(tenant="org/a", array=(1, 2, 3)))
    assert desk.core.state.jobs == {}
    desk.submit(job(tenant="org", array=(1, 2, 3)))
    refusal(desk, job(tenant="org"))


def test_a_repeated_submission_is_not_counted_twice(desk_of: DeskOf) -> None:
    """With its key, it gets the same ids although the limit is reached."""
    desk = desk_of(node("n1"), tenants=(TenantSpec(name="org", quota=Quota(jobs_unfinished=1)),))
    for _ in range(2):
        desk.tell(0, SubmitJobs(call="c", key="k", specs=(job(tenant="org"),)))
        assert desk.expect(Reply, call="c").result == {"jobs": ["1"]}
        desk.settle()


def test_ended_jobs_do_not_count(desk_of: DeskOf) -> None:
    """A held job does, until it is cancelled."""
    desk = desk_of(node("n1"), tenants=(TenantSpec(name="org", quota=Quota(jobs_unfinished=1)),))
    (first,) = desk.submit(job(tenant="org"))
    for action in ("hold", "cancel"):
        refusal(desk, job(tenant="org"))
        desk.tell(desk.now_s, JobCommand(job=first, action=action))
        desk.settle()
    desk.submit(job(tenant="org"))


def test_a_job_moves_only_to_a_tenant_with_room(desk_of: DeskOf) -> None:
    """A level that it belongs to already has it; others must admit it, for an array all of its jobs."""
    tenants = (
        TenantSpec(name="org", quota=Quota(jobs_unfinished=2)),
        TenantSpec(name="org/full", quota=Quota(jobs_unfinished=1)),
        TenantSpec(name="lab", quota=Quota(jobs_unfinished=1)),
    )
    desk = desk_of(node("n1"), tenants=tenants)
    _, own, *_ = desk.submit(job(tenant="org/full"), job(tenant="org"), job(array=(1, 2)))
    for name, tenant, code in (
        (own, "org/full", "too_many"),
        ("3", "lab", "too_many"),
        (own, "org/b", ""),
        (own, "lab", ""),
        ("3_1", "org", ""),
    ):
        desk.tell(0, UpdateJob(call="u", job=name, changes=JobChanges(tenant=tenant)))
        assert desk.expect(Reply, call="u").code == code
        desk.settle()


def test_counts_outlive_a_restart(desk_of: DeskOf) -> None:
    """The unfinished jobs by tenant and user are derived again from a snapshot."""
    desk = desk_of(node("n1"))
    desk.submit(job(tenant="org", user="ann"), job(tenant="org", user="ann"), job(user="bob"))
    restored = SchedulerState.restore(desk.core.state.snapshot())
    assert restored.owners == desk.core.state.owners == {("org", "ann"): 2, ("", "bob"): 1}


# --------------------------------------------------------------------------------------------- declared tenants


@pytest.mark.parametrize("tenant", ["org/visoin", "lab", ""])
def test_undeclared_tenants_are_refused_on_demand(desk_of: DeskOf, tenant: str, wording: Wording) -> None:
    """The error names the nearest declared tenant; jobs that are there already stay."""
    tenants = (TenantSpec(name="org"), TenantSpec(name="org/vision"))
    desk = desk_of(node("n1"), tenants=tenants)
    (old,) = desk.submit(job(tenant=tenant))
    settings = msgspec.structs.replace(desk.core.state.settings, tenants_declared=True)
    desk.core.state.settings = settings
    reply = refusal(desk, job(tenant=tenant), code="invalid")
    assert reply.result == {"field": "tenant"}
    wording(reply.error)
    (own,) = desk.submit(job(tenant="org/vision"))
    desk.tell(0, UpdateJob(call="u", job=own, changes=JobChanges(tenant="nobody")))
    assert desk.expect(Reply, call="u").code == "invalid"
    assert old in desk.core.state.active


def test_without_any_declaration_the_refusal_says_so(desk_of: DeskOf, wording: Wording) -> None:
    """There is no nearest tenant then."""
    desk = desk_of(node("n1"), tenants_declared=True)
    wording(refusal(desk, job(tenant="org"), code="invalid").error)


def test_jobs_without_a_tenant_belong_to_the_default_one(desk_of: DeskOf) -> None:
    """It can be declared like any other."""
    desk = desk_of(node("n1"), tenants_declared=True, tenants=(TenantSpec(name="default"),))
    desk.submit(job(), job(tenant="default"))


# --------------------------------------------------------------------------- attacks on quotas that once succeeded


@pytest.mark.parametrize(
    "spec",
    [
        {"gpus": 3, "gpus_together": 3},
        {"gpus": 3, "gpu_memory_gb": 32.0},
        {"gpus": 3, "job_type": "lm"},
    ],
)
def test_a_type_on_which_a_job_cannot_run_does_not_admit_it(
    desk_of: DeskOf, spec: dict[str, object], wording: Wording
) -> None:
    """Too few GPUs on a node, too little memory, no rate: only its quota on another type counts, which is too small."""
    org = TenantSpec(name="org", quota=Quota(gpus={"v100": 2}))
    wide = node("n1", 4, gpu_memory_gb=40.0)
    narrow = [node(f"k{i}", 2, "k80", gpu_memory_gb=16.0) for i in range(2)]
    desk = desk_of(wide, *narrow, tenants=(org,))
    reply = refusal(desk, job(tenant="org", **spec), code="invalid")
    assert reply.result == {"field": "gpus"}
    wording(reply.error)


@pytest.mark.parametrize("quota", [Quota(gpus={"v100": 1}), Quota(jobs_running=1)])
def test_a_lost_job_does_not_continue_if_another_waits_for_its_end(desk_of: DeskOf, quota: Quota) -> None:
    """The other would wait on its GPUs until the first ends, if neither can be preempted."""
    desk = desk_of(node("n1", 1), node("n2", 1), tenants=(TenantSpec(name="org", quota=quota),))
    (first,) = desk.run(job(tenant="org", steps=1e6, preemptible=False))
    lost = desk.holding(first).lease.gpus[0].partition(":")[0]
    (second,) = desk.submit(job(tenant="org", steps=1e6, preemptible=False, weight=100.0))
    desk.tell(desk.now_s + 1.0, NodeSilent(node=lost))
    desk.settle()
    while desk.job(second).lease is None and desk.now_s < 10_000.0:
        desk.until(desk.now_s + 10.0)
    assert desk.holding(desk.job(second).lease or "").waits_for == {first}
    back = HeldLease(lease=first, steps=10.0, ran_s=5.0)
    desk.tell(desk.now_s, NodeHello(spec=node(lost, 1), held=(back,)))
    desk.settle()
    assert desk.holding(first).phase is Phase.STOPPING


# ------------------------------------------------------------------------------------------- concurrent changes


def set_tenants(desk: Desk, *tenants: TenantSpec) -> None:
    """Let an operator declare tenants."""
    desk.tell(desk.now_s, SetTenants(call="t", tenants=tenants))
    assert not desk.expect(Reply, call="t").error
    desk.settle()


def test_a_declaration_that_changed_meanwhile_is_not_replaced(desk_of: DeskOf, wording: Wording) -> None:
    """Two operators who read the same declaration cannot lose the change of either; a repeated request may pass."""
    desk = desk_of(node("n1"), tenants=(TWO_RUN,))
    heavier, narrower = (msgspec.structs.replace(TWO_RUN, weight=2.0), ONE_RUNS)
    for tenant, version, code in (
        (heavier, TWO_RUN.version, ""),
        (narrower, TWO_RUN.version, "outdated"),
        (heavier, TWO_RUN.version, ""),
        (narrower, "undeclared", "outdated"),
        (narrower, heavier.version, ""),
        (TenantSpec(name="lab"), "undeclared", ""),
        (TenantSpec(name="lab2"), TWO_RUN.version, "outdated"),
        (heavier, "", ""),
    ):
        desk.tell(0, SetTenants(call="t", tenants=(tenant,), versions={tenant.name: version}))
        reply = desk.expect(Reply, call="t")
        assert reply.code == code
        if code:
            assert desk.facts == []
            wording(reply.error)
        desk.settle()
    assert desk.core.state.settings.tenants == (heavier, TenantSpec(name="lab"))


def test_levels_have_their_quotas_in_order(desk_of: DeskOf) -> None:
    """Those of the job's own tenant come first, then those above it."""
    tenants = (ONE_RUNS, TenantSpec(name="org/a", each_user=Quota(jobs_running=3)))
    desk = desk_of(node("n1"), tenants=tenants)
    quotas = desk.core.state.running_quotas.of(job(tenant="org/a", user="ann"))
    assert [(str(level), most) for level, most in quotas] == [
        ("user 'ann' of tenant org/a", 3),
        ("tenant org", 1),
    ]
    assert desk.core.state.running_quotas.of(job(tenant="organ")) == ()
    assert all(isinstance(quota, JobQuota) for quota in quotas)
