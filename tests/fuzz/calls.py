"""Single calls to the services for users, with a random method, caller and body, and ended in random ways."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc import aio
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from protos.gavel.v1 import agents_pb2, cluster_pb2, history_pb2, jobs_pb2
from scheduler.live.access.roles import Role
from tests.fuzz.values import Values
from tests.support import http2
from tests.support.served import ROLES, Served

CALL_S = 5.0
ANSWERS_MAX = 20
ODD_METADATA = (
    ("x-gavel-user", "x" * 200),
    ("x-gavel-user", "a b"),
    ("authorization", "Bearer"),
    ("authorization", "Bearer gavel_1_2_3"),
    ("authorization", "Basic " + "A" * 3000),
    ("grpc-timeout", "1n"),
    ("x-odd-bin", b"\xff\xfe\x00"),
    ("te", "x"),
)
ODD_PATHS = (
    b"/",
    b"/gavel.v1.Jobs/",
    b"/gavel.v1.Jobs/\xff\xfe",
    b"/" + b"a" * 120,
    b"/gavel.v1.Jobs/submitjobs",
    b"",
)


class Method(NamedTuple):
    """A method that can be called."""

    path: str
    request: type[Message]


METHODS = [
    Method(f"/{service.full_name}/{method.name}", message_factory.GetMessageClass(method.input_type))
    for module in (jobs_pb2, cluster_pb2, history_pb2, agents_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name not in ("Link",)  # links.py attacks these.
]
BUSY = ("SubmitJobs", "PreviewJobs", "CommandJob", "CommandNode", "GiveRates", "SetPolicy", "SetPrices")
OFTEN = [method for method in METHODS if method.path.rpartition("/")[2] in BUSY]


def valid(request: type[Message], chance: random.Random) -> Message:
    """Return a valid request for this method, if one is known."""
    name = request.DESCRIPTOR.name
    if name in ("SubmitJobsRequest", "PreviewJobsRequest"):
        launch = jobs_pb2.Launch(command=["true"])
        spec = jobs_pb2.JobSpec(
            name="job", gpus=chance.choice((0, 1, 1, 2)), steps=chance.choice((0.0, 100.0)), launch=launch
        )
        return request(specs=[spec] * chance.choice((1, 1, 2)))
    if name == "SetPolicyRequest":
        return request(policy=chance.choice(("las", "fifo", "max_throughput", "finish_time_fairness")))
    return request()


def any_request(values: Values, request: type[Message]) -> Message:
    """Return a request: either a valid one with some fields changed, or one with random fields only."""
    chance = values.chance
    if chance.random() < 0.6:
        message = valid(request, chance)
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            values.mutate(message)
        return message
    return values.fill(request())  # type: ignore[no-any-return]


async def one_call(
    served: Served, channels: Sequence[aio.Channel], chance: random.Random, known: list[str]
) -> Any:
    """Make one call; return the method, and the status and text that it ended with."""
    values = Values(chance, known)
    if chance.random() < 0.02 and not served.tls:
        path = chance.choice(ODD_PATHS)
        await asyncio.to_thread(http2.answer, served.address, http2.request(path, body=chance.randbytes(30)))
        return "odd path", "", ""
    method = chance.choice(OFTEN if chance.random() < 0.4 else METHODS)
    role = chance.choice((None, *ROLES, Role.ADMIN, Role.USER, Role.USER))
    metadata: Any = served.metadata(role)
    if chance.random() < 0.03:
        metadata = (*metadata, chance.choice(ODD_METADATA))
    messages = [any_request(values, method.request) for _ in range(chance.choice((1, 1, 1, 1, 0, 2, 5)))]
    ask = chance.choice(channels).stream_stream(method.path)
    call = ask(metadata=metadata, timeout=CALL_S)
    code, text = await _played(call, [values.body(each) for each in messages], chance, known)
    return method.path.removeprefix("/gavel.v1."), code, text


async def _played(
    call: Any, bodies: Sequence[bytes], chance: random.Random, known: list[str]
) -> tuple[str, str]:
    try:
        for body in bodies:
            await call.write(body)
        if chance.random() < 0.9:
            await call.done_writing()
        elif chance.random() < 0.5:
            call.cancel()
        for _ in range(ANSWERS_MAX):
            answer = await asyncio.wait_for(call.read(), 2.0)
            if answer is aio.EOF:
                break
            if len(known) < 2000 and len(answer) < 200:
                known.extend(_texts_in(answer))
        else:
            call.cancel()
        status = await call.code()
        return status.name, await call.details() or ""
    except TimeoutError:
        call.cancel()
        return "left alone", ""
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        return "CANCELLED", ""
    except aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    except grpc.RpcError as error:
        return type(error).__name__, str(error)
    except (asyncio.InvalidStateError, cygrpc.ExecuteBatchError):
        # A message was written after the call's end.
        return (await call.code()).name, await call.details() or ""


def _texts_in(answer: bytes) -> list[str]:
    """Return the ids of jobs in the answer to a submission; the answer of another method has none."""
    response = jobs_pb2.SubmitJobsResponse()
    try:
        response.ParseFromString(answer)
    except Exception:
        # The answer of another method.
        return []
    return [job for job in response.jobs if job.isprintable()][:5]
