"""Roles and tokens: the table of roles, the life of tokens, what users see of each other, and guessed tokens."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from protos.gavel.v1 import agents_pb2, cluster_pb2_grpc, history_pb2, jobs_pb2_grpc
from protos.gavel.v1 import cluster_pb2 as cpb
from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.live.access.roles import METHODS, Caller, Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access, BadToken
from scheduler.live.node_views import NodeDetails
from scheduler.model.jobs import JobState
from tests.support.live import Live, SetClock, problem_of, spec, with_daemon
from tests.support.wording import Wording

Code = grpc.StatusCode
HOUR_S = 3600.0
PEOPLE = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN)


def methods(file: FileDescriptor) -> set[str]:
    """Return all methods of the services of a .proto file, by the names used in calls."""
    return {
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }


def token(live: Live, user: str, role: Role, valid_s: float = HOUR_S) -> str:
    """Return a token that was created in the scheduler itself."""
    assert live.people.access is not None
    return live.people.access.create(user, role, valid_s)[1]


def test_every_method_has_a_least_role() -> None:
    """The table has every method of ours, of health and of reflection; this test fails if one is forgotten."""
    files = (pb, cpb, history_pb2, agents_pb2, health_pb2, reflection_pb2)
    served = set().union(*(methods(file.DESCRIPTOR) for file in files))
    assert served <= METHODS.keys()
    assert {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"} == METHODS.keys() - served


def test_roles_are_a_ladder_with_agents_beside_it() -> None:
    """A higher role may do all that a lower one may; agents' tokens are no users', but an admin may act as agent."""
    for have in PEOPLE:
        for need in PEOPLE:
            assert (have >= need) == Caller("u", have).may(need)
        assert not Caller("u", Role.AGENT).may(have)
        assert (have is Role.ADMIN) == Caller("u", have).may(Role.AGENT)
    assert Caller("n", Role.AGENT).may(Role.AGENT)
    assert Caller("", Role.NOBODY).may(Role.NOBODY)
    assert not Caller("", Role.NOBODY).may(Role.VIEWER)


def test_a_refused_call_is_named_in_plain_words() -> None:
    """Refusals do not use the protocol's names: every method above viewer has a phrase."""
    people = [method for method in METHODS.values() if method.least_role not in (Role.NOBODY, Role.VIEWER)]
    assert [method for method in people if method.action == "this call"] == []


@with_daemon(auth="tokens")
async def test_every_method_asks_for_its_role(live: Live) -> None:
    """Each method is called with a token of each role and without one, and accepts exactly the roles in the table."""
    tokens = {role: token(live, role.word, role) for role in (*PEOPLE, Role.AGENT)}
    stubs = {
        "Jobs": (jobs_pb2_grpc.JobsStub, pb),
        "Cluster": (cluster_pb2_grpc.ClusterStub, cpb),
        "Access": (cluster_pb2_grpc.AccessStub, cpb),
    }
    channel = live.channel()
    for service, (stub, module) in stubs.items():
        for method in module.DESCRIPTOR.services_by_name[service].methods:
            need = METHODS[f"/gavel.v1.{service}/{method.name}"].least_role
            request: Any = getattr(module, method.input_type.name)()
            for role in (Role.NOBODY, *tokens):
                metadata = () if role is Role.NOBODY else (("authorization", f"Bearer {tokens[role]}"),)
                sent = iter([request]) if method.client_streaming else request
                code = await code_of(getattr(stub(channel), method.name)(sent, metadata=metadata, timeout=10))
                if role is Role.NOBODY:
                    assert code == Code.UNAUTHENTICATED, method.name
                else:
                    may = Caller("u", role).may(need)
                    assert may == (code is not Code.PERMISSION_DENIED), (method.name, role)


async def code_of(call: Any) -> grpc.StatusCode | None:
    """Return how a call ends; a stream that yields a message has accepted its caller."""
    try:
        if hasattr(call, "read"):
            await call.read()
            call.cancel()
        else:
            await call
    except grpc.RpcError as error:
        return error.code()  # type: ignore[attr-defined,no-any-return]
    return None


@with_daemon(auth="tokens")
async def test_users_see_and_change_only_their_own_jobs(live: Live) -> None:
    """Others' jobs are listed without launch and output; operators see and change everything."""
    ann, bob = token(live, "ann", Role.USER), token(live, "bob", Role.USER)
    viewer, operator = token(live, "vic", Role.VIEWER), token(live, "opa", Role.OPERATOR)
    secret = pb.Launch(command=["train"], env={"PASSWORD": "x"})
    await live.jobs(token=ann).SubmitJobs(pb.SubmitJobsRequest(specs=[spec(name="a", launch=secret)]))
    live.world.state.jobs["1"].last_lines = "PASSWORD=x"
    get = pb.GetJobRequest(job="1")
    for secret_token, sees in ((ann, True), (operator, True), (bob, False), (viewer, False)):
        jobs = live.jobs(token=secret_token)
        listed = (await jobs.ListJobs(pb.ListJobsRequest())).jobs[0]
        watch = jobs.WatchJobs(pb.WatchJobsRequest())
        watched = (await watch.read()).job
        watch.cancel()
        for job in (await jobs.GetJob(get), listed, watched):
            assert (job.spec.name, job.spec.user) == ("a", "ann")
            assert (sees, sees) == (job.spec.HasField("launch"), bool(job.last_lines))
            assert sees or b"PASSWORD" not in job.SerializeToString()
        explanation = await jobs.ExplainJob(pb.ExplainJobRequest(job="1"))
        assert b"PASSWORD" not in explanation.SerializeToString()
    live.world.state.jobs["1"].state = JobState.FAILED
    for secret_token, sees in ((ann, True), (operator, True), (bob, False), (viewer, False)):
        explanation = await live.jobs(token=secret_token).ExplainJob(pb.ExplainJobRequest(job="1"))
        assert ("PASSWORD" in explanation.rendered, "last_lines" in explanation.details) == (sees, sees)
    live.world.state.jobs["1"].state = JobState.QUEUED
    cancel = pb.CommandJobRequest(job="1", action=pb.CommandJobRequest.ACTION_CANCEL)
    for call in (
        live.jobs(token=bob).CommandJob(cancel),
        live.jobs(token=bob).ReadLogs(pb.ReadLogsRequest(job="1")).read(),
        live.jobs(token=bob).ListFiles(pb.ListFilesRequest(job="1")).read(),
        live.jobs(token=bob).FetchFiles(pb.FetchFilesRequest(job="1")).read(),
        live.jobs(token=viewer).ListFiles(pb.ListFilesRequest(job="1")).read(),
        live.jobs(token=viewer).CommandJob(cancel),
    ):
        assert (await problem_of(call)).code == Code.PERMISSION_DENIED
    assert list((await live.jobs(token=operator).CommandJob(cancel)).jobs) == ["1"]


@with_daemon(auth="tokens")
async def test_only_operators_submit_for_others(live: Live) -> None:
    """The user comes from the token; only an operator may name another one."""
    ann, operator = token(live, "ann", Role.USER), token(live, "opa", Role.OPERATOR)
    for_bob = pb.SubmitJobsRequest(specs=[spec(), spec(user="bob")])
    problem = await problem_of(live.jobs(token=ann).SubmitJobs(for_bob))
    assert (
        *(problem.code, problem.reason),
        problem.field,
    ) == (Code.PERMISSION_DENIED, "forbidden", "specs[1].user")
    await live.jobs(token=operator).SubmitJobs(for_bob)
    await live.jobs(token=ann).SubmitJobs(pb.SubmitJobsRequest(specs=[spec(user="ann")]))
    assert [job.spec.user for job in live.world.state.jobs.values()] == ["opa", "bob", "ann"]


@with_daemon(auth="tokens")
async def test_only_owners_update_jobs_and_only_operators_their_tenants(live: Live) -> None:
    """An update records the user of the token; a refused one changes nothing."""
    ann, bob = token(live, "ann", Role.USER), token(live, "bob", Role.USER)
    operator = token(live, "opa", Role.OPERATOR)
    await live.jobs(token=ann).SubmitJobs(pb.SubmitJobsRequest(specs=[spec()]))
    weight = pb.UpdateJobRequest(job="1", changes=pb.JobChanges(weight=2.0))
    tenant = pb.UpdateJobRequest(job="1", changes=pb.JobChanges(tenant="org/team"))
    for secret, request in ((bob, weight), (bob, tenant), (ann, tenant)):
        assert (await problem_of(live.jobs(token=secret).UpdateJob(request))).code == Code.PERMISSION_DENIED
    assert live.world.state.jobs["1"].updates == ()
    for secret, request in ((ann, weight), (operator, tenant)):
        assert list((await live.jobs(token=secret).UpdateJob(request)).jobs) == ["1"]
    job = live.world.state.jobs["1"]
    assert (job.spec.weight, job.spec.tenant, [entry.by for entry in job.updates]) == (
        2.0,
        "org/team",
        ["ann", "opa"],
    )


@with_daemon(auth="tokens")
async def test_a_token_lives_until_it_expires_or_is_revoked(live: Live) -> None:
    """A token works until then; after that, its holder gets the reason, but a wrong secret gets none."""
    admin = live.tokens(token=token(live, "root", Role.ADMIN))
    created = await admin.CreateToken(cpb.CreateTokenRequest(user="ann", role=cpb.ROLE_USER, note="laptop"))
    identity = await live.tokens(token=created.secret).WhoAmI(cpb.WhoAmIRequest())
    assert ("ann", cpb.ROLE_USER, created.token.expires) == (identity.user, identity.role, identity.expires)
    await admin.RevokeToken(cpb.RevokeTokenRequest(id=created.token.id))
    expired = token(live, "ann", Role.USER, valid_s=-1.0)
    for secret, word in (
        (created.secret, "revoked"),
        (expired, "expired"),
        (created.secret[:-1] + "x", "not known"),
        ("gavel_0123_x", "not known"),
    ):
        problem = await problem_of(live.tokens(token=secret).WhoAmI(cpb.WhoAmIRequest()))
        assert (problem.code, problem.reason) == (Code.UNAUTHENTICATED, "unauthenticated")
        assert word in problem.text
    listed = (await admin.ListTokens(cpb.ListTokensRequest(user="ann"))).tokens
    assert [(each.note, each.revoked) for each in listed] == [("laptop", True), ("", False)]
    assert listed[0].HasField("used")
    assert created.secret.encode() not in (live.folder / "access.db").read_bytes()


@with_daemon(auth="tokens")
async def test_users_create_tokens_for_themselves_within_their_own_rights(live: Live) -> None:
    """Only an admin may create a token for others, of a higher role, or with a longer life than the creator's own."""
    ann = live.tokens(token=token(live, "ann", Role.USER))
    own = await ann.CreateToken(cpb.CreateTokenRequest(role=cpb.ROLE_VIEWER, valid_s=10 * HOUR_S))
    assert (own.token.user, own.token.role) == ("ann", cpb.ROLE_VIEWER)
    assert own.token.expires.seconds <= live.world.now_s() + HOUR_S + 1
    for request, field in (
        (cpb.CreateTokenRequest(user="bob"), "user"),
        (cpb.CreateTokenRequest(role=cpb.ROLE_ADMIN), "role"),
        (cpb.CreateTokenRequest(role=cpb.ROLE_AGENT), "role"),
    ):
        problem = await problem_of(ann.CreateToken(request))
        assert (Code.PERMISSION_DENIED, field) == (problem.code, problem.field)
    root = token(live, "root", Role.ADMIN)
    other = (await live.tokens(token=root).CreateToken(cpb.CreateTokenRequest(user="bob"))).token
    assert other.role == cpb.ROLE_USER
    assert {"ann"} == {each.user for each in (await ann.ListTokens(cpb.ListTokensRequest())).tokens}
    for call in (
        ann.ListTokens(cpb.ListTokensRequest(user="bob")),
        ann.RevokeToken(cpb.RevokeTokenRequest(id=other.id)),
    ):
        assert (await problem_of(call)).code == Code.PERMISSION_DENIED
    await ann.RevokeToken(cpb.RevokeTokenRequest(id=own.token.id))
    for request, field in (
        (cpb.CreateTokenRequest(user="a b"), "user"),
        (cpb.CreateTokenRequest(valid_s=-1.0), "valid_s"),
        (cpb.CreateTokenRequest(valid_s=float("nan")), "valid_s"),
        (cpb.CreateTokenRequest(valid_s=1e12), "valid_s"),
        (cpb.CreateTokenRequest(role=17), "role"),  # type: ignore[arg-type]
        (cpb.CreateTokenRequest(note="a\nb"), "note"),
    ):
        problem = await problem_of(live.tokens(token=root).CreateToken(request))
        assert (Code.INVALID_ARGUMENT, field) == (problem.code, problem.field)
    problem = await problem_of(live.tokens(token=root).RevokeToken(cpb.RevokeTokenRequest(id="x")))
    assert problem.code == Code.NOT_FOUND


@with_daemon(auth="tokens", clock=SetClock(1e9))
async def test_guessing_a_token_slows_wrong_tokens_only(live: Live) -> None:
    """After ten wrong secrets for a token from one address, others are refused; its owner and other tokens are not."""
    good, other = token(live, "ann", Role.USER), token(live, "bob", Role.USER)
    wrong = good[:-1] + ("a" if good[-1] != "a" else "b")
    codes = [(await problem_of(live.tokens(token=wrong).WhoAmI(cpb.WhoAmIRequest()))).code for _ in range(11)]
    assert codes[:10] == [Code.UNAUTHENTICATED] * 10
    problem = await problem_of(live.tokens(token=wrong).WhoAmI(cpb.WhoAmIRequest()))
    assert (problem.code, problem.reason) == (Code.RESOURCE_EXHAUSTED, "too_many")
    assert problem.retry_s
    assert (await live.tokens(token=good).WhoAmI(cpb.WhoAmIRequest())).user == "ann"
    assert (await live.tokens(token=other).WhoAmI(cpb.WhoAmIRequest())).user == "bob"


@with_daemon()
async def test_without_tokens_every_caller_is_an_admin_under_the_name_it_gives(live: Live) -> None:
    """In single-user mode, on loopback, the caller's name is accepted if it is well-formed; there are no tokens."""
    identity = await live.tokens("ann").WhoAmI(cpb.WhoAmIRequest())
    assert (identity.user, identity.role) == ("ann", cpb.ROLE_ADMIN)
    for name in ("a" * 65, "a:b"):
        assert (await problem_of(live.tokens(name).WhoAmI(cpb.WhoAmIRequest()))).code == Code.UNAUTHENTICATED
    for call in (
        live.tokens().CreateToken(cpb.CreateTokenRequest()),
        live.tokens().CreateJoinToken(cpb.CreateJoinTokenRequest()),
    ):
        assert (await problem_of(call)).code == Code.FAILED_PRECONDITION


@with_daemon(auth="tokens")
async def test_a_node_is_revoked_by_an_admin_where_nodes_have_certificates(
    live: Live, wording: Wording
) -> None:
    """The node is cut off; the reason and the audit log have the admin's name. Without keys, nothing can be revoked."""
    access = live.people.access
    assert access is not None
    admin = live.tokens(token=access.create("root", Role.ADMIN, 60.0)[1])
    problem = await problem_of(admin.RevokeNode(cpb.RevokeNodeRequest(node="n1")))
    assert problem.code == Code.FAILED_PRECONDITION
    wording(problem.text)
    Keys(live.folder / "tls").make([])
    live.nodes.news["n1"] = NodeDetails(last_message_s=0.0)
    for node, was_linked in (("n1", True), ("n2", False)):
        done = await admin.RevokeNode(cpb.RevokeNodeRequest(node=node))
        assert (done.node, done.was_linked) == (node, was_linked)
        cut_off, why = live.nodes.sent[-1]
        assert (cut_off, "root" in why) == (node, True)
        wording(why)
    problem = await problem_of(admin.RevokeNode(cpb.RevokeNodeRequest(node="../n1")))
    assert problem.code == Code.INVALID_ARGUMENT
    entries = [json.loads(line) for line in (live.folder / "audit.log").read_text().splitlines()]
    revoked = [(entry["what"], entry["result"]) for entry in entries if entry["call"] == "Access/RevokeNode"]
    assert revoked[1:3] == [({"node": "n1"}, "ok"), ({"node": "n2"}, "ok")]


def test_tokens_survive_a_restart_and_the_file_is_private(tmp_path: Path) -> None:
    """Only the owner can read the file; tokens, their use and revocations are in it after a restart."""
    path = tmp_path / "access.db"
    clock = [1000.0]
    access = Access(path, lambda: clock[0])
    kept, secret = access.create("ann", Role.OPERATOR, 500.0, "note")
    gone, _ = access.create("bob", Role.USER, 500.0)
    access.revoke(gone.id)
    clock[0] = 1100.0
    access.recognise(secret)
    access.close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    again = Access(path, lambda: clock[0])
    token_ = again.recognise(secret)
    assert (
        *(token_.user, token_.role),
        *(token_.note, token_.expires_s),
    ) == ("ann", Role.OPERATOR, "note", 1500.0)
    assert [(kept.id, False), (gone.id, True)] == sorted(
        ((each.id, each.revoked) for each in again.tokens()), key=lambda pair: pair[1]
    )
    clock[0] = 1500.0
    with pytest.raises(BadToken, match="expired"):
        again.recognise(secret)
    again.close()


def test_a_revocation_is_durable_whatever_became_of_the_notes_before_it(tmp_path: Path) -> None:
    """If recording a token's use fails half-way, no transaction stays open that would hold up later changes."""
    path, clock = tmp_path / "access.db", [1000.0]
    access = Access(path, lambda: clock[0])
    bad, secret = access.create("ann", Role.ADMIN, 10_000.0)
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TRIGGER full BEFORE UPDATE OF used_s ON token BEGIN SELECT RAISE(FAIL, 'full'); END"
        )
    clock[0] = 2000.0
    access.recognise(secret)
    with pytest.raises(sqlite3.Error, match="full"):
        access.write_used()
    access.revoke(bad.id)
    again = Access(path, lambda: clock[0])
    with pytest.raises(BadToken, match="revoked"):
        again.recognise(secret)


def test_a_join_token_is_used_once_by_the_node_it_is_for(tmp_path: Path) -> None:
    """One of twenty simultaneous attempts succeeds; another node, a late attempt and a wrong token fail."""
    clock = [0.0]
    access = Access(tmp_path / "access.db", lambda: clock[0])
    secret, expires_s = access.create_join()
    assert expires_s == 3600.0

    async def race() -> list[bool]:
        return await asyncio.gather(*(asyncio.to_thread(tried, access, secret, f"n{i}") for i in range(20)))

    assert sum(asyncio.run(race())) == 1
    named, _ = access.create_join("n1")
    assert [tried(access, named, node) for node in ("n2", "n1", "n1")] == [False, True, False]
    late, _ = access.create_join("n1", 10.0)
    clock[0] = 11.0
    assert [tried(access, join_token, "n1") for join_token in (late, late + "x")] == [False, False]
    access.close()


def tried(access: Access, secret: str, node: str) -> bool:
    """Return whether the node could use the token."""
    try:
        access.consume_join(secret, node, b"its certificate")
    except BadToken:
        return False
    return True
