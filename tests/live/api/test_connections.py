"""The call Jobs.Connect: who may connect to which job, what is recorded, and when a connection ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import pytest
from grpc import aio

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.messages import Exit
from scheduler.live.access.limits import PeopleConfig
from scheduler.live.access.roles import Role
from tests.live.access.test_access import token
from tests.support.live import Live, SetClock, spec, with_daemon
from tests.support.wording import Wording

Code = grpc.StatusCode
SESSION = "0123456789abcdef"
INTERACTIVE = {
    "launch": pb.Launch(command=["bash"], ranks=pb.Launch.RANKS_PER_NODE, terminal=pb.Terminal(tty=True))
}


async def interactive(live: Live, **caller: Any) -> str:
    """Submit an interactive job, and let it run."""
    if not live.world.state.nodes:
        await live.node(gpus=8)
    reply = await live.jobs(**caller).SubmitJobs(pb.SubmitJobsRequest(specs=[spec(**INTERACTIVE)]))
    await live.run_job(reply.jobs[0])
    return str(reply.jobs[0])


async def opened(live: Live, job: str, caller: dict[str, Any], **opening: Any) -> Any:
    """Connect to a job; return the call after its first message. Raises the error of a refusal."""
    call = live.jobs(**caller).Connect()
    await call.write(pb.ToJob(open=pb.OpenConnection(**{"job": job, "session": SESSION, **opening})))
    first = await call.read()
    if first is aio.EOF:
        raise AssertionError(await call.details())
    assert first.opened.tty
    return call


async def refused(live: Live, job: str, caller: dict[str, Any], **opening: Any) -> tuple[Code, str]:
    """Try to connect; return status and text of the refusal."""
    with pytest.raises(aio.AioRpcError) as error:
        await opened(live, job, caller, **opening)
    return error.value.code(), error.value.details() or ""


def recorded(live: Live) -> list[dict[str, Any]]:
    """The lines of the audit log about connections."""
    lines = [json.loads(line) for line in (live.folder / "audit.log").read_text().splitlines()]
    return [line for line in lines if line["call"] == "Jobs/Connect"]


@with_daemon(auth="tokens")
async def test_the_owner_and_admins_connect_and_nobody_else(live: Live, wording: Wording) -> None:
    """Operators may read logs but not type commands; viewers may do neither. Everything is in the audit log."""
    ann = {"token": token(live, "ann", Role.USER)}
    job = await interactive(live, **ann)
    for user, role, code in (
        ("ann", Role.USER, None),
        ("ada", Role.ADMIN, None),
        ("bob", Role.USER, Code.PERMISSION_DENIED),
        ("oli", Role.OPERATOR, Code.PERMISSION_DENIED),
        ("ann", Role.VIEWER, Code.PERMISSION_DENIED),
    ):
        caller = {"token": token(live, user, role)}
        if code is None:
            call = await opened(live, job, caller)
            await call.write(pb.ToJob(data=b"ls"))
            assert (await call.read()).data == b"ls"
            await call.write(pb.ToJob(end=True))
            assert (await call.read()).exit_code == 0
        else:
            status, text = await refused(live, job, caller)
            assert status is code
            wording(text)
    lines = [
        (line["user"], line["what"].get("job"), line["what"].get("node"), line["result"])
        for line in recorded(live)
    ]
    assert lines == [
        *(("ann", job, "n1", "opened"), ("ada", job, "n1", "opened")),
        *(("bob", job, None, "forbidden"), ("oli", job, None, "forbidden")),
    ]


@with_daemon(auth="tokens", clock=SetClock(1e9))
async def test_a_connection_ends_with_its_token(live: Live) -> None:
    """When the token is revoked or expires, an open connection ends."""
    ann = token(live, "ann", Role.USER)
    job = await interactive(live, token=ann)
    for is_revoked in (True, False):
        secret = token(live, "ann", Role.USER, 3600.0)
        call = await opened(live, job, {"token": secret})
        if is_revoked:
            live.people.access.revoke(live.people.access.recognise(secret).id)  # type: ignore[union-attr]
        else:
            live.world.clock.at_s += 3601.0  # type: ignore[attr-defined]
        with pytest.raises(aio.AioRpcError) as error:
            await asyncio.wait_for(call.read(), 30)
        assert error.value.code() is Code.UNAUTHENTICATED


@with_daemon(auth="tokens")
async def test_the_job_has_the_use_of_its_terminal(live: Live) -> None:
    """Whether a client is attached, and until when the job waits for the next; shells are no clients of a terminal."""
    ann = {"token": token(live, "ann", Role.USER)}
    job = await interactive(live, **ann)

    async def use(**caller: Any) -> pb.TerminalUse | None:
        entry = await live.jobs(**(caller or ann)).GetJob(pb.GetJobRequest(job=job))
        return entry.placement.terminal if entry.placement.HasField("terminal") else None

    assert await use() == pb.TerminalUse(attached=False)
    await opened(live, job, ann, new_shell=True)
    assert await use() == pb.TerminalUse(attached=False)
    call = await opened(live, job, ann)
    assert await use() == pb.TerminalUse(attached=True, keep_s=600.0)
    assert await use(token=token(live, "bob", Role.USER)) is None
    explanation = await live.jobs(**ann).ExplainJob(pb.ExplainJobRequest(job=job))
    assert explanation.details["terminal"]["attached"]
    assert f"`gavel attach {job}`" in explanation.rendered
    left_s = live.world.now_s()
    await call.write(pb.ToJob(end=True))
    assert (await call.read()).exit_code == 0
    assert await call.read() is aio.EOF
    after = await use()
    assert after is not None
    assert (after.attached, after.until.seconds >= int(left_s + 600.0)) == (False, True)


@with_daemon()
async def test_a_time_that_a_node_makes_up_is_bounded(live: Live) -> None:
    """A job may have replaced what its node reports; the job can be shown nevertheless."""
    live.nodes.keep_s = float("nan")
    job = await interactive(live)
    call = await opened(live, job, {})
    await call.write(pb.ToJob(end=True))
    assert (await call.read()).exit_code == 0
    assert await call.read() is aio.EOF
    entry = await live.jobs().GetJob(pb.GetJobRequest(job=job))
    assert (entry.placement.terminal.attached, entry.placement.terminal.keep_s) == (False, 0.0)


@with_daemon(config=PeopleConfig(watchers_max=1))
async def test_a_refusal_for_too_many_connections_is_recorded(live: Live) -> None:
    """The audit log names the second connection by the reason of its refusal, and not as opened."""
    job = await interactive(live)
    await opened(live, job, {})
    status, _ = await refused(live, job, {})
    assert status is Code.RESOURCE_EXHAUSTED
    assert [line["result"] for line in recorded(live)] == ["opened", "too_many"]


@with_daemon(config=PeopleConfig(terminals=False))
async def test_a_setting_turns_terminals_off(live: Live, wording: Wording) -> None:
    """Interactive jobs are refused at submission, and connections when they begin."""
    await live.node()
    with pytest.raises(aio.AioRpcError) as error:
        await interactive(live)
    assert error.value.code() is Code.INVALID_ARGUMENT
    wording(error.value.details() or "")
    status, text = await refused(live, "1", {})
    assert status is Code.PERMISSION_DENIED
    wording(text)


@with_daemon()
async def test_a_job_that_has_no_terminal_now(live: Live, wording: Wording) -> None:
    """A job that is not interactive, that waits, that has ended or does not exist: a line with the next command."""
    await live.node(gpus=8)
    jobs = live.jobs()
    batch = (await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec()]))).jobs[0]
    waiting = (
        await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec(earliest_start_s=1e6, **INTERACTIVE)]))
    ).jobs[0]
    ended = (
        await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec(earliest_start_s=1e6, **INTERACTIVE)]))
    ).jobs[0]
    await jobs.CommandJob(pb.CommandJobRequest(job=ended, action=pb.CommandJobRequest.ACTION_CANCEL))
    for job, code in (
        (batch, Code.FAILED_PRECONDITION),
        (waiting, Code.UNAVAILABLE),
        (ended, Code.FAILED_PRECONDITION),
        ("99", Code.NOT_FOUND),
    ):
        status, text = await refused(live, job, {})
        assert status is code
        wording(text)


@with_daemon()
async def test_a_session_does_not_continue_in_the_next_attempt(live: Live, wording: Wording) -> None:
    """A session that names an attempt is refused once it has ended, before and after the next one begins."""
    job = await interactive(live)
    await opened(live, job, {}, attempt=1)
    lease = live.world.state.jobs[job].lease or ""
    await live.jobs().CommandJob(pb.CommandJobRequest(job=job, action=pb.CommandJobRequest.ACTION_HOLD))
    await live.report("n1", exits=(Exit(lease, "yielded", 0, 0, 0.0, 1.0),))
    status, text = await refused(live, job, {}, attempt=1)
    assert status is Code.FAILED_PRECONDITION
    wording(text)
    await live.jobs().CommandJob(pb.CommandJobRequest(job=job, action=pb.CommandJobRequest.ACTION_RELEASE))
    await live.run_job(job)
    status, text = await refused(live, job, {}, attempt=1)
    assert status is Code.FAILED_PRECONDITION
    wording(text)
    await opened(live, job, {}, attempt=2)


@with_daemon()
async def test_a_connection_must_begin_properly(live: Live, wording: Wording) -> None:
    """Sessions are random names, sizes are those of terminals, and the first message opens the connection."""
    for opening in (
        {"session": ""},
        {"session": "../../x"},
        {"size": pb.TerminalSize(rows=10**9)},
        {"term": "\n"},
    ):
        status, text = await refused(live, "1", {}, **opening)
        assert status is Code.INVALID_ARGUMENT
        wording(text)
    call = live.jobs().Connect()
    await call.write(pb.ToJob(data=b"ls"))
    with pytest.raises(aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is Code.INVALID_ARGUMENT
    wording(error.value.details() or "")


@with_daemon()
async def test_an_interactive_job_is_one_process_on_one_node(live: Live, wording: Wording) -> None:
    """More GPUs than a node has, several ranks, and absurd sizes are refused with the field."""
    await live.node(gpus=2)
    await live.node("n2", gpus=2)
    for change in (
        {"gpus": 3, **INTERACTIVE},
        {"launch": pb.Launch(command=["bash"], terminal=pb.Terminal())},
        {
            "launch": pb.Launch(
                command=["bash"], ranks=pb.Launch.RANKS_PER_NODE, terminal=pb.Terminal(rows=70_000)
            )
        },
    ):
        with pytest.raises(aio.AioRpcError) as error:
            await live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec(**change)]))
        assert error.value.code() is Code.INVALID_ARGUMENT
        wording(error.value.details() or "")


@with_daemon()
async def test_a_shell_opens_beside_any_running_job_on_one_of_its_nodes(live: Live, wording: Wording) -> None:
    """The job need not be interactive; a node on which it does not run is refused. The audit log has the difference."""
    await live.node(gpus=1)
    await live.node("n2", gpus=1)
    await live.node("n3", gpus=1)
    job = (await live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec(gpus=2)]))).jobs[0]
    await live.until(lambda: live.world.state.jobs[job].lease)
    nodes = [
        gpu.partition(":")[0]
        for gpu in live.world.state.leases[live.world.state.jobs[job].lease or ""].lease.gpus
    ]
    for node in ("", *nodes):
        await opened(live, job, {}, new_shell=True, node=node)
    (other,) = {"n1", "n2", "n3"} - set(nodes)
    status, text = await refused(live, job, {}, new_shell=True, node=other)
    assert status is Code.INVALID_ARGUMENT
    wording(text)
    places = [(line["what"].get("new_shell"), line["what"].get("node")) for line in recorded(live)]
    assert places == [(True, nodes[0]), (True, nodes[0]), (True, nodes[1]), (True, other)]


@with_daemon()
async def test_a_port_of_a_job_must_be_one(live: Live, wording: Wording) -> None:
    """Ports are numbers from 1 to 65,535; the audit log has them."""
    await live.node()
    job = (await live.jobs().SubmitJobs(pb.SubmitJobsRequest(specs=[spec()]))).jobs[0]
    await live.run_job(job)
    await opened(live, job, {}, port=8888)
    status, text = await refused(live, job, {}, port=65_536)
    assert status is Code.INVALID_ARGUMENT
    wording(text)
    assert [line["what"]["port"] for line in recorded(live)] == [8888, 65_536]
