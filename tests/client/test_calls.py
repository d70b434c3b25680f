"""Both clients make the same calls of the protocol: the method, the request, and whether it may be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from gavel import AsyncClient, Client, JobFilter, JobSpec
from gavel.client import calls
from gavel.client.calls import Call, Method
from gavel.client.jobs.spec import Plan
from gavel.client.results import ACTIVE, JobState, Role
from gavel.client.transport.channels import AsyncTransport, SyncTransport

RUN = JobSpec(command=("true",))
AT = datetime(2030, 1, 2, tzinfo=UTC)
# By the name of a call: its arguments, the method of the protocol, and the request as JSON.
CALLS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "submit": (
        {"jobs": RUN, "key": "k"},
        "Jobs/SubmitJobs",
        {"specs": [{"launch": {"command": ["true"]}}], "idempotencyKey": "k"},
    ),
    "preview": ({"jobs": RUN}, "Jobs/PreviewJobs", {"specs": [{"launch": {"command": ["true"]}}]}),
    "get": ({"job": "1"}, "Jobs/GetJob", {"job": "1"}),
    "list": (
        {
            "wanted": JobFilter(states=["held", JobState.FAILED], ended_since=AT),
            "page_size": 2,
            "brief": True,
        },
        "Jobs/ListJobs",
        {
            "filter": {
                "states": ["JOB_STATE_HELD", "JOB_STATE_FAILED"],
                "endedSince": "2030-01-02T00:00:00Z",
            },
            "pageSize": 2,
            "brief": True,
        },
    ),
    "queue": (
        {"all_users": True, "limit": 3},
        "Jobs/ListJobs",
        {
            "filter": {"states": [f"JOB_STATE_{state.upper()}" for state in ACTIVE]},
            "pageSize": 3,
            "brief": True,
        },
    ),
    "members": ({"job": "1"}, "Jobs/GetJob", {"job": "1"}),
    "page": ({"size": 3, "token": "t"}, "Jobs/ListJobs", {"filter": {}, "pageSize": 3, "pageToken": "t"}),
    "watch": ({"skip_present": True}, "Jobs/WatchJobs", {"filter": {}, "skipPresent": True}),
    "wait": ({"jobs": "1"}, "Jobs/WatchJobs", {"filter": {"jobs": ["1"]}}),
    **{
        action: ({"job": "1"}, "Jobs/CommandJob", {"job": "1", "action": f"ACTION_{action.upper()}"})
        for action in ("cancel", "hold", "release", "requeue")
    },
    "update": (
        {
            "job": "1",
            "weight": 2,
            "worker_types": "v100",
            "gpus": 2,
            "max_cost": None,
            "plans": [Plan("v100", 2, "p2", 1.5)],
        },
        "Jobs/UpdateJob",
        {
            "job": "1",
            "changes": {
                "weight": 2.0,
                "workerTypes": {"names": ["v100"]},
                "gpus": 2,
                "remove": ["max_cost"],
                "plans": {
                    "plans": [
                        {"workerType": "v100", "gpus": 2, "label": "p2", "rate": 1.5, "gpusTogether": 1}
                    ]
                },
                "plansFrom": "",
            },
        },
    ),
    "explain": ({"job": "1"}, "Jobs/ExplainJob", {"job": "1"}),
    **{
        name: (
            {"job": "1", "attempt": 2, "rank": 0, "tail": 5},
            "Jobs/ReadLogs",
            {"job": "1", "attempt": 2, "rank": 0, "tailLines": 5},
        )
        for name in ("logs", "log_chunks")
    },
    "files": (
        {"job": "1", "paths": ["a"], "attempt": 2, "checkpoints": True},
        "Jobs/ListFiles",
        {"job": "1", "paths": ["a"], "attempt": 2, "checkpoints": True},
    ),
    "fetch": ({"job": "1", "to": "here"}, "Jobs/ListFiles", {"job": "1", "paths": ["."]}),
    "status": ({}, "Cluster/GetStatus", {}),
    "nodes": ({"names": ["n1"]}, "Cluster/ListNodes", {"nodes": ["n1"]}),
    **{
        action: (
            {"node": "n1", "reason": "its fan"},
            "Cluster/CommandNode",
            {"node": "n1", "action": f"ACTION_{action.upper()}", "reason": "its fan"},
        )
        for action in ("drain", "resume")
    },
    "remove": ({"node": "n1"}, "Cluster/CommandNode", {"node": "n1", "action": "ACTION_REMOVE"}),
    "policy": ({}, "Cluster/GetPolicy", {}),
    "set_policy": ({"spec": "las"}, "Cluster/SetPolicy", {"policy": "las"}),
    "tenants": ({"names": ["org"]}, "Cluster/ListTenants", {"tenants": ["org"]}),
    "set_tenants": ({"removed": ["org"]}, "Cluster/SetTenants", {"removed": ["org"]}),
    "allocation": ({}, "Cluster/GetAllocation", {}),
    "rounds": ({"follow": True}, "Cluster/WatchRounds", {"follow": True}),
    "usage": (
        {"by": "job_type", "since": AT, "user": "ada"},
        "Cluster/GetUsage",
        {"by": "BY_JOB_TYPE", "since": "2030-01-02T00:00:00Z", "user": "ada"},
    ),
    "gpu_time": (
        {"by": "node", "since": AT, "user": "ada"},
        "History/GetGpuTime",
        {"by": "BY_NODE", "since": "2030-01-02T00:00:00Z", "user": "ada"},
    ),
    "past_rounds": (
        {"since": AT, "limit": 7},
        "History/ListRounds",
        {"since": "2030-01-02T00:00:00Z", "pageSize": 7},
    ),
    "leases": (
        {"since": AT, "node": "n1", "limit": 7},
        "History/ListLeases",
        {"since": "2030-01-02T00:00:00Z", "node": "n1", "pageSize": 7},
    ),
    "matrix": (
        {"by_tenant": True, "tenant": "a", "limit": None},
        "Cluster/GetMatrix",
        {"byTenant": True, "tenant": "a", "pageSize": 10_000},
    ),
    "shares": (
        {"since": AT, "step_s": 60.0, "tenant": "a"},
        "History/GetShares",
        {"since": "2030-01-02T00:00:00Z", "stepS": 60.0, "tenant": "a"},
    ),
    "timeline": ({"job": "1"}, "History/GetTimeline", {"job": "1", "pageSize": 10_000}),
    "set_prices": ({"prices": {"a": 2.5}}, "Cluster/SetPrices", {"pricePerGpuHour": {"a": 2.5}}),
    "channels": ({}, "Cluster/ListChannels", {}),
    "test_channel": ({"channel": "ops"}, "Cluster/TestChannel", {"channel": "ops"}),
    "rates": ({"job_type": "lm"}, "Cluster/ListRates", {"jobType": "lm"}),
    "who_am_i": ({}, "Access/WhoAmI", {}),
    "create_token": (
        {"user": "ada", "role": Role.ADMIN, "valid_s": 60.0, "note": "n"},
        "Access/CreateToken",
        {"user": "ada", "role": "ROLE_ADMIN", "validS": 60.0, "note": "n"},
    ),
    "tokens": ({"user": "ada"}, "Access/ListTokens", {"user": "ada"}),
    "revoke_token": ({"token": "t"}, "Access/RevokeToken", {"id": "t"}),
    "create_join_token": (
        {"node": "n1", "valid_s": 60.0},
        "Access/CreateJoinToken",
        {"node": "n1", "validS": 60.0},
    ),
    "revoke_node": ({"node": "n1"}, "Access/RevokeNode", {"node": "n1"}),
    "revoked_nodes": ({}, "Access/ListRevokedNodes", {}),
    "unrevoke_node": ({"node": "n1"}, "Access/UnrevokeNode", {"node": "n1"}),
}
# Calls that are never repeated after a lost connection, because the first attempt may have had its effect.
ONCE = {
    *("cancel", "hold", "release", "requeue", "drain", "resume", "remove"),
    *("create_token", "create_join_token", "unrevoke_node", "test_channel"),
}


class Recorder:
    """A transport that records calls; replies and streams are empty."""

    ask: Any = SyncTransport.ask
    retry_s = 0.0

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def call(self, call: Call[Any]) -> Any:
        """Record the call."""
        self.calls.append(call)
        return call.read(call.reply_type())

    def stream(self, call: Call[Any], timeout_s: float | None = None) -> Iterator[Any]:
        """Record the call, once the stream is read."""
        self.calls.append(call)
        yield from ()

    def follow(
        self, make: Callable[[], Call[Any]], patience_s: float, timeout_s: float | None = None
    ) -> Iterator[Any]:
        """Record the first call."""
        return self.stream(make())


class AsyncRecorder(Recorder):
    """The recorder for the asynchronous client."""

    ask = AsyncTransport.ask

    async def call(self, call: Call[Any]) -> Any:
        """Record the call."""
        return super().call(call)

    async def stream(self, call: Call[Any], timeout_s: float | None = None) -> AsyncIterator[Any]:  # type: ignore[override]
        """Record the call, once the stream is read."""
        for answer in super().stream(call):
            yield answer


def recorded(client: Any, name: str, arguments: dict[str, Any], recorder: Recorder) -> Call[Any]:
    """Return the one call that a client makes."""

    async def finish(result: Any) -> None:
        if isawaitable(result):
            await result
        elif isasyncgen(result):
            [item async for item in result]
        elif isgenerator(result):
            list(result)

    client._wire = recorder
    asyncio.run(finish(getattr(client, name)(**arguments)))
    (call,) = recorder.calls
    return call


@pytest.mark.parametrize("name", CALLS)
def test_both_clients_send_the_same(name: str) -> None:
    """Both clients send the same method and request, in which every argument has its field."""
    arguments, method, expected = CALLS[name]
    for client, recorder in (
        (Client("127.0.0.1:1"), Recorder()),
        (AsyncClient("127.0.0.1:1"), AsyncRecorder()),
    ):
        call = recorded(client, name, arguments, recorder)
        request: Any = call.request
        assert (method, expected, name not in ONCE) == (call.method, MessageToDict(request), call.safe)


def test_every_call_is_tried_above() -> None:
    """The table has every call, except for those that write or send files, the live view, and those about plans."""
    assert set(CALLS) == {
        name
        for kind in Client.__mro__
        for name, call in vars(kind).items()
        if callable(call) and not name.startswith("_")
    } - {"close", "backup", "live", "with_plans", "refresh_plans"}
    methods = {entry._call.method for entry in vars(calls).values() if isinstance(entry, Method)}
    sent = {method for _, method, _ in CALLS.values()}
    others = {"Jobs/FetchFiles", "Jobs/FindPackages", "Jobs/UploadPackage", "Jobs/Connect", "Upkeep/Backup"}
    assert methods - sent == others


def test_a_submission_without_a_key_is_sent_once() -> None:
    """A repeated submission without a key would submit the jobs twice."""
    assert [calls.submit([RUN], key).safe for key in ("k", "")] == [True, False]
