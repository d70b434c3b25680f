"""Agents that violate the protocol: they send messages in any order, twice, from old epochs, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import grpc
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.access.roles import Role
from tests.fuzz.values import Values
from tests.support.served import Served

NODES = ("n1", "n2", "n3", "n4", "n5")
LINK_S = 20.0
BODIES = [field.name for field in pb.AgentMessage.DESCRIPTOR.oneofs_by_name["body"].fields]


class Received:
    """Ids and numbers from the scheduler's messages, which the fuzz then uses in the wrong place."""

    def __init__(self) -> None:
        self.leases: list[str] = []
        self.calls: list[str] = []
        self.checks: list[str] = []
        self.generation = 0
        self.sent: list[bytes] = []

    def note(self, data: bytes) -> str:
        """Note a message, and return its kind."""
        message = pb.SchedulerMessage()
        try:
            message.ParseFromString(data)
        except Exception:
            # The answer of another method.
            return ""
        match kind := message.WhichOneof("body") or "":
            case "desired":
                self.generation = message.desired.generation
                self.leases = (self.leases + [order.lease for order in message.desired.orders])[-50:]
            case "logs_wanted":
                self.calls = [*self.calls, message.logs_wanted.call][-20:]
            case "storage_check":
                self.checks = [*self.checks, message.storage_check.check][-20:]
        return kind


def hello(chance: random.Random, node: str) -> pb.Hello:
    """Return a valid Hello."""
    gpus = [pb.InventoryGpu(index=index, memory_gb=16.0) for index in range(chance.choice((1, 1, 2, 4)))]
    return pb.Hello(
        protocol=1,
        node=node,
        incarnation=chance.choice(("i1", "i1", "i2", str(chance.random()))),
        worker_type=chance.choice(("v100", "v100", "k80")),
        gpus=gpus,
        storage_id=chance.choice(("", "", "s1")),
        cpus=chance.choice((0.0, 8.0)),
    )


def message(values: Values, received: Received) -> pb.AgentMessage:
    """Return a random message of an agent, often about a lease that exists."""
    chance = values.chance
    kind = chance.choice((*BODIES, "report", "report", "report", "gang_ready", "storage_checked"))
    sent = pb.AgentMessage(sent_s=chance.choice((0.0, 1.0, 1e9)))
    getattr(sent, kind).SetInParent()
    if kind == "report" and received.leases and chance.random() < 0.7:
        lease = chance.choice(received.leases)
        report = sent.report
        report.number = chance.randrange(100)
        report.generation = max(received.generation - chance.choice((0, 0, 0, 1, -1)), 0)
        match chance.randrange(3):
            case 0:
                report.started.append(lease)
            case 1:
                report.progress.add(
                    lease=lease, steps=chance.uniform(0, 100), saved=1.0, stepping_s=chance.uniform(0, 9)
                )
            case 2:
                report.exits.add(lease=lease, outcome=chance.randrange(5), steps=5.0, ran_s=1.0)  # type: ignore[arg-type]
        if chance.random() < 0.4:
            values.mutate(sent)
    elif kind == "storage_checked" and received.checks and chance.random() < 0.7:
        sent.storage_checked.check, sent.storage_checked.found = (
            chance.choice(received.checks),
            chance.random() < 0.5,
        )
    else:
        values.fill(getattr(sent, kind))
    return sent


async def one_link(
    served: Served, channels: dict[str, aio.Channel], chance: random.Random, received: Received
) -> Any:
    """Play one link, or another call of an agent, until it ends; return the method, and how the call ended."""
    node = chance.choice(NODES)
    values = Values(chance, [*received.leases[-5:], *received.calls[-5:], *NODES])
    own = channels[chance.choice(NODES)] if served.tls and chance.random() < 0.1 else channels[node]
    metadata = served.metadata(chance.choice((Role.AGENT,) * 9 + (Role.USER, Role.ADMIN, None)))
    if chance.random() < 0.25:
        return await _beside(own, metadata, values, received)
    call = own.stream_stream("/gavel.v1.Agents/Link")(metadata=metadata, timeout=LINK_S)
    reading = asyncio.create_task(_read(call, received))
    try:
        first = pb.AgentMessage(hello=hello(chance, node), sent_s=1.0)
        if chance.random() < 0.3:
            values.mutate(first)
        if chance.random() < 0.95:
            await call.write(first.SerializeToString())
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.05, 0.3)))
        for _ in range(chance.choice((0, 1, 3, 10, 30))):
            data = values.body(message(values, received))
            if received.sent and chance.random() < 0.1:
                data = chance.choice(received.sent)
            received.sent = [*received.sent[-50:], data]
            await call.write(data)
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.0, 0.02, 0.5)))
        match chance.randrange(4):
            case 0:
                await call.done_writing()
            case 1:
                call.cancel()
        await asyncio.wait([reading], timeout=chance.choice((0.0, 0.2, 2.0)))
    except (aio.AioRpcError, asyncio.InvalidStateError):
        pass
    finally:
        is_open = not call.done()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    if is_open:
        return "Link", "left alone", ""
    return "Link", *await _end(call)


async def _end(call: Any) -> tuple[str, str]:
    try:
        return (await call.code()).name, await call.details() or ""
    except asyncio.CancelledError:
        return "CANCELLED", ""


async def _read(call: Any, received: Received) -> None:
    try:
        while (data := await call.read()) is not aio.EOF:
            received.note(data)
    except (grpc.RpcError, asyncio.CancelledError, asyncio.InvalidStateError):
        pass


async def _beside(channel: aio.Channel, metadata: Any, values: Values, received: Received) -> Any:
    """Send logs that nobody reads, fetch a package that does not exist, or join again."""
    chance = values.chance
    kind: Any
    name, kind = chance.choice(
        (("SendLogs", pb.SentLogs), ("FetchPackage", pb.FetchPackageRequest), ("Join", pb.JoinRequest))
    )
    bodies: Sequence[bytes] = [values.body(values.fill(kind())) for _ in range(chance.choice((0, 1, 1, 3)))]
    if name == "SendLogs" and received.calls:
        bodies = [pb.SentLogs(call=chance.choice(received.calls)).SerializeToString(), *bodies]
    call = channel.stream_stream(f"/gavel.v1.Agents/{name}")(metadata=metadata, timeout=LINK_S)
    try:
        for body in bodies:
            await call.write(body)
        await call.done_writing()
        await asyncio.wait_for(_read(call, Received()), 2.0)
    except (aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        pass
    if not call.done():
        call.cancel()
        return name, "left alone", ""
    return name, *await _end(call)
