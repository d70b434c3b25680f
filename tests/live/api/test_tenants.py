"""Tenants over a real connection: who may declare them, what a declaration replaces, and that it outlives a restart."""

from __future__ import annotations

import grpc

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.roles import Role
from tests.support.live import Live, problem_of, spec, with_daemon

Code = grpc.StatusCode
ORG = pb.Tenant(
    name="org",
    quota=pb.Quota(gpus={"v100": 1}, beyond="wait"),
    each_user=pb.Quota(gpus={"*": 4}, beyond="wait"),
)


@with_daemon(auth="tokens")
async def test_only_operators_declare_tenants(live: Live) -> None:
    """Others may list them."""
    assert live.people.access is not None
    tokens = {role: live.people.access.create("uma", role, 60.0)[1] for role in (Role.USER, Role.OPERATOR)}
    user, operator = (live.cluster(token=tokens[role]) for role in (Role.USER, Role.OPERATOR))
    problem = await problem_of(user.SetTenants(pb.SetTenantsRequest(tenants=[ORG])))
    assert problem.code == Code.PERMISSION_DENIED
    await operator.SetTenants(pb.SetTenantsRequest(tenants=[ORG]))
    (tenant,) = (await user.ListTenants(pb.ListTenantsRequest())).tenants
    assert (tenant.name, tenant.weight, tenant.policy, tenant.declared) == ("org", 1.0, "fairness", True)
    assert (tenant.quota, tenant.each_user) == (ORG.quota, ORG.each_user)


@with_daemon()
async def test_wrong_requests_are_refused(live: Live) -> None:
    """The error has the key of the settings; an unknown tenant is NOT_FOUND; an empty request says so."""
    cluster = live.cluster()
    await live.node("n1")
    for request, field in (
        (pb.SetTenantsRequest(), "tenants"),
        (
            pb.SetTenantsRequest(tenants=[pb.Tenant(name="a", quota=pb.Quota(gpus={"h10": 1}))]),
            "tenants.a.quota.gpus",
        ),
        (pb.SetTenantsRequest(tenants=[pb.Tenant(name="a", weight=float("nan"))]), "tenants.a.weight"),
        (pb.SetTenantsRequest(tenants=[pb.Tenant(name="a", policy="x")]), "tenants.a.policy"),
        (pb.SetTenantsRequest(tenants=[pb.Tenant(name="x" * 5000)]), "tenants"),
    ):
        problem = await problem_of(cluster.SetTenants(request))
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, field)
    problem = await problem_of(cluster.SetTenants(pb.SetTenantsRequest(removed=["nobody"])))
    assert problem.code == Code.NOT_FOUND
    problem = await problem_of(cluster.ListTenants(pb.ListTenantsRequest(tenants=["nobody"])))
    assert problem.code == Code.NOT_FOUND


@with_daemon()
async def test_a_refusal_names_the_quota(live: Live) -> None:
    """A submission and its preview are refused by their field `gpus`; another tenant's job is accepted."""
    await live.node("n1", gpus=2)
    await live.cluster().SetTenants(pb.SetTenantsRequest(tenants=[ORG]))
    wide = spec(gpus=2, tenant="org/a")
    problem = await problem_of(live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[wide])))
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "specs[0].gpus")
    (preview,) = (await live.jobs().PreviewJobs(jobs_pb2.PreviewJobsRequest(specs=[wide]))).previews
    assert (preview.accepted, preview.refused_field) == (False, "gpus")
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec(gpus=2, tenant="lab")]))


@with_daemon()
async def test_limits_on_jobs_are_set_used_and_listed(live: Live) -> None:
    """Of the tenant and of each of its users who have jobs; the limit of a submission refuses with TOO_MANY."""
    quota = pb.Quota(jobs_running=1, jobs_unfinished=2, beyond="wait")
    org = pb.Tenant(name="org", quota=quota, each_user=pb.Quota(jobs_unfinished=3, beyond="wait"))
    await live.cluster().SetTenants(pb.SetTenantsRequest(tenants=[org]))
    own = spec(tenant="org/a")
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[own]))
    for specs in ([own, own], [spec(tenant="org", array=[1, 2])]):
        problem = await problem_of(live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs)))
        assert (problem.code, problem.reason, problem.field) == (
            Code.RESOURCE_EXHAUSTED,
            "too_many",
            "tenant",
        )
    request = jobs_pb2.PreviewJobsRequest(specs=[own, own])
    first, second = (await live.jobs().PreviewJobs(request)).previews
    assert (first.accepted, second.accepted, second.refused_field) == (True, False, "tenant")
    (tenant,) = (await live.cluster().ListTenants(pb.ListTenantsRequest(tenants=["org"]))).tenants
    assert (tenant.quota, tenant.each_user) == (org.quota, org.each_user)
    limits = [(bool(limit.user), limit.resource, limit.limit, limit.used) for limit in tenant.limits]
    assert limits == [
        (False, "jobs_running", 1, 0),
        (False, "jobs_unfinished", 2, 1),
        (True, "jobs_unfinished", 3, 1),
    ]


@with_daemon()
async def test_of_two_concurrent_changes_none_is_lost(live: Live) -> None:
    """The second one, which was read before the first was made, is refused and can be made again."""
    cluster = live.cluster()
    await cluster.SetTenants(pb.SetTenantsRequest(tenants=[ORG]))
    (read,) = (await cluster.ListTenants(pb.ListTenantsRequest())).tenants
    for weight, code in ((2.0, None), (3.0, Code.ABORTED)):
        changed = pb.Tenant()
        changed.CopyFrom(read)
        changed.weight = weight
        call = cluster.SetTenants(pb.SetTenantsRequest(tenants=[changed]))
        if code is None:
            await call
        else:
            problem = await problem_of(call)
            assert (problem.code, problem.reason) == (code, "outdated")
    (now,) = (await cluster.ListTenants(pb.ListTenantsRequest())).tenants
    assert (now.weight, now.quota) == (2.0, ORG.quota)
    assert now.version != read.version
