"""The interceptor of every port: it identifies the caller before it reads anything, and reports malformed calls."""

from __future__ import annotations

import logging
import time
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos.gavel.v1 import agents_pb2, jobs_pb2
from scheduler.live.access import interceptor
from scheduler.live.access.audit import UNKNOWN_BURST, Audit
from scheduler.live.access.interceptor import STRANGER_BYTES_MAX
from scheduler.live.access.limits import NamedSlots
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import CallFailed
from scheduler.live.access.tokens import Access
from tests.support.daemon_thread import DaemonThread
from tests.support.linked import Scheduler, on_event_loop
from tests.support.live import Live, Problem, problem_of, with_daemon

Code = grpc.StatusCode
MALFORMED = b"\x0a\xff\xff\xff\xff\x0f"
TIMEOUT_S = 60.0
HELLO = agents_pb2.AgentMessage(
    hello=agents_pb2.Hello(protocol=1, node="n1", incarnation="i1", worker_type="v100", gpus=[{"index": 0}])
)


def raw(channel: aio.Channel, method: str, token: str = "") -> Any:
    """Open a call whose messages are bytes, written one by one."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    ask = channel.stream_stream(f"/gavel.v1.{method}", lambda data: data, lambda data: data)
    return ask(metadata=metadata, timeout=TIMEOUT_S)


async def ends(call: Any) -> Problem:
    """Return how a call fails."""

    async def read() -> None:
        while await call.read() is not aio.EOF:
            pass

    return await problem_of(read())


@with_daemon(auth="tokens")
async def test_a_call_without_a_token_is_refused_before_its_body_comes(live: Live) -> None:
    """The answer comes before the caller has sent any of its request."""
    for method in ("Jobs/SubmitJobs", "Jobs/WatchJobs", "Jobs/UploadPackage"):
        assert (await ends(raw(live.channel(), method))).code == Code.UNAUTHENTICATED


@with_daemon(auth="tokens")
async def test_a_malformed_message_is_an_invalid_argument(live: Live) -> None:
    """The caller gets the error whether it sends one request or a stream, or reads a stream; the log stays clean."""
    assert live.people.access is not None
    token = live.people.access.create("ann", Role.ADMIN, 60.0)[1]
    noted: list[logging.LogRecord] = []
    watching = logging.Handler(logging.WARNING)
    watching.emit = noted.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(watching)
    for method, kind in (
        ("Jobs/SubmitJobs", "SubmitJobsRequest"),
        ("Jobs/WatchJobs", "WatchJobsRequest"),
        ("Jobs/UploadPackage", "UploadPackageRequest"),
    ):
        call = raw(live.channel(), method, token)
        await call.write(MALFORMED)
        await call.done_writing()
        problem = await ends(call)
        assert (problem.code, problem.reason, kind in problem.text) == (
            Code.INVALID_ARGUMENT,
            "invalid",
            True,
        )
    call = raw(live.channel(), "Jobs/SubmitJobs", token)
    await call.done_writing()
    assert (await ends(call)).code == Code.INVALID_ARGUMENT
    logging.getLogger().removeHandler(watching)
    assert noted == []


@on_event_loop
async def test_a_malformed_message_ends_a_link(caplog):
    """An agent that sends bytes which are no message gets INVALID_ARGUMENT, and its node counts as gone."""
    async with Scheduler() as scheduler, aio.insecure_channel(scheduler.address) as channel:
        call = raw(channel, "Agents/Link")
        await call.write(HELLO.SerializeToString())
        assert agents_pb2.SchedulerMessage.FromString(await call.read()).HasField("welcome")
        await call.write(MALFORMED)
        assert (await ends(call)).code == Code.INVALID_ARGUMENT
        assert scheduler.links.by_name == {}
    assert [record.message for record in caplog.records if record.levelno > logging.WARNING] == []


@with_daemon(auth="tokens")
async def test_a_stream_ends_with_its_token(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who watches when its token is revoked sees nothing more; the streams of others go on."""
    monkeypatch.setattr(interceptor, "AGAIN_S", 0.01)
    access = live.people.access
    assert access is not None
    (own, secret), (_, other) = (access.create("ann", Role.VIEWER, 3600.0) for _ in range(2))
    streams = [raw(live.channel(), "Jobs/WatchJobs", token) for token in (secret, other)]
    for stream in streams:
        await stream.write(b"")
        assert jobs_pb2.JobEvent.FromString(await stream.read()).all_present
    access.revoke(own.id)
    refused = await ends(streams[0])
    assert (refused.code, refused.reason) == (Code.UNAUTHENTICATED, "unauthenticated")
    assert not streams[1].done()
    streams[1].cancel()


@with_daemon(config=PeopleConfig(calls_per_user_max=2, calls_max=3))
async def test_calls_in_flight_are_limited_by_user_and_in_all(live: Live) -> None:
    """A call beyond the limit of its user or of all gets a time to retry; an ended call makes room."""

    def call(user: str) -> Any:
        metadata = (("x-gavel-user", user),)
        ask = live.channel().stream_stream("/gavel.v1.Jobs/GetJob", lambda data: data, lambda data: data)
        return ask(metadata=metadata, timeout=TIMEOUT_S)

    slots = live.people.guard.slots.users
    open_calls = [call("ann"), call("ann")]
    await live.until(lambda: slots.used == 2)
    one_too_many = await ends(call("ann"))
    assert (one_too_many.code, one_too_many.reason) == (Code.RESOURCE_EXHAUSTED, "too_many")
    assert one_too_many.retry_s == 0.5
    open_calls.append(call("bob"))
    await live.until(lambda: slots.used == 3)
    in_all = await ends(call("cy"))
    assert (in_all.code, in_all.reason, in_all.retry_s) == (Code.RESOURCE_EXHAUSTED, "too_many", 1.0)
    for open_call in open_calls:
        open_call.cancel()
    await live.until(lambda: slots.used == 0)
    served = await live.jobs("ann").ListJobs(jobs_pb2.ListJobsRequest())
    assert served.total == 0


def test_names_without_calls_are_not_remembered() -> None:
    """Slots are counted by name and in all, and a name without calls takes no memory."""
    slots = NamedSlots(5, 1)
    slots.take("a")
    slots.take("b")
    with pytest.raises(CallFailed):
        slots.take("a")
    assert (slots.used, len(slots._used_by)) == (2, 2)
    slots.release("a")
    slots.release("b")
    assert (slots.used, len(slots._used_by)) == (0, 0)


def test_callers_without_a_token_may_send_little(tmp_path) -> None:
    """A health check of the usual size is answered, a large one is refused."""
    with DaemonThread(tmp_path) as daemon, grpc.insecure_channel(daemon.address) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check", lambda data: data)
        small = health_pb2.HealthCheckRequest(service="gavel.v1.Jobs").SerializeToString()
        assert health_pb2.HealthCheckResponse.FromString(ask(small, timeout=TIMEOUT_S)).status == 1
        with pytest.raises(grpc.RpcError) as error:
            ask(bytes(STRANGER_BYTES_MAX + 1), timeout=TIMEOUT_S)
        assert error.value.code() == Code.INVALID_ARGUMENT


@pytest.mark.parametrize("tokens", [False, True])
def test_reflection_asks_for_a_token_where_tokens_are_required(tokens, tmp_path) -> None:
    """Reflection refuses a call without a token; in single-user mode it is open."""
    auth = "tokens" if tokens else "none"
    if tokens:
        access = Access(tmp_path / "access.db", time.time)
        access.create("ann", Role.ADMIN, 3600.0)
        access.close()
    with DaemonThread(tmp_path, auth=auth) as daemon, grpc.insecure_channel(daemon.address) as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        answers = ask(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=TIMEOUT_S)
        if not tokens:
            listed = next(answers).list_services_response.service
            assert "gavel.v1.Jobs" in {service.name for service in listed}
            return
        with pytest.raises(grpc.RpcError) as error:
            next(answers)
        assert error.value.code() == Code.UNAUTHENTICATED


def test_unknown_callers_cannot_flood_the_audit_log(tmp_path) -> None:
    """The log keeps a burst of lines about unknown callers, and every line about users."""
    log = Audit(tmp_path / "audit.log", PeopleConfig(), lambda: 1000.0)
    stranger, user = Caller("", Role.NOBODY, peer="ipv4:192.0.2.1:5"), Caller("ann", Role.USER)
    for _ in range(1000):
        log.note(stranger, "/gavel.v1.Jobs/SubmitJobs", None, "unauthenticated")
        log.note(user, "/gavel.v1.Jobs/SubmitJobs", None, "ok")
    log.close()
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert sum('"ok"' in line for line in lines) == 1000
    assert len(lines) - 1000 == UNKNOWN_BURST
