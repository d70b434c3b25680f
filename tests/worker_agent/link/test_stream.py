"""The agent's end of the stream, with a real scheduler at the other end."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from scheduler.model.launch import Launch as SubmittedLaunch
from tests.support.linked import CALM, Remembering, Scheduler, on_event_loop, until
from worker_agent.core.messages import (
    Desired,
    Held,
    Launch,
    LinkDown,
    LinkUp,
    Order,
    ProcessExited,
    Progressed,
    Renewed,
    Report,
    Taken,
)
from worker_agent.link.stream import Dismissed, GrpcLink
from worker_agent.link.target import Target, TargetError
from worker_agent.runs.rendezvous import CacheNode, CacheOffer, Rendezvous

# The tolerance for times: the machine may be suspended between taking a time and comparing it.
LOOSE_S = 20.0


def hello(name: str = "n1", **fields: Any) -> pb.Hello:
    """Return the hello of a node with one GPU."""
    more = {"protocol": 1, "incarnation": f"{name}-1", "worker_type": "v100", **fields}
    return pb.Hello(node=name, gpus=[pb.InventoryGpu(index=0, name="V100")], **more)


@asynccontextmanager
async def linked(
    address: str, name: str = "n1", held: tuple[Held, ...] = (), **more: Any
) -> AsyncIterator[tuple[GrpcLink, Remembering]]:
    """Yield a running link and its node, without waiting for the welcome."""
    target = more.pop("target", None) or Target(address=address)
    fields = more.pop("hello", {})
    link = GrpcLink(target, lambda: hello(name, **fields), chance=random.Random(7), **more)
    node = Remembering(lambda: link.send_hello(held))
    running = asyncio.create_task(link.run(node))
    try:
        yield link, node
    finally:
        running.cancel()
        result = (await asyncio.gather(running, return_exceptions=True))[0]
        node.ended = result  # type: ignore[attr-defined]


@on_event_loop
async def test_a_link_sends_hello_and_delivers_orders_on_the_agents_clock():
    """The node gets LinkUp, then Desired with its order: the launch, and the end of the lease on the agent's clock."""
    async with Scheduler() as scheduler, linked(scheduler.address) as (_, node):
        await scheduler.submit(
            name="resnet", user="ann", launch=SubmittedLaunch(command=("a",), env_from={"K": "key"})
        )
        await until(lambda: node.orders)
        desired = node.of(Desired)[-1]
        (order,) = desired.orders
        assert (order.lease, order.job, order.attempt, order.token) == ("1", "1", 1, (1, 1))
        assert (order.gpus, order.nodes, order.world_size) == ((0,), 1, 1)
        left_s = scheduler.state.round.ends_s - scheduler.world.now_s()
        assert order.ends_s == pytest.approx(time.monotonic() + left_s, abs=LOOSE_S)
        assert (order.name, order.user) == ("resnet", "ann")
        assert order.launch == Launch(command=("a",), env_from={"K": "secret:key"})
        assert node.events[0] == LinkUp()


@on_event_loop
async def test_every_report_is_acknowledged():
    """Starts, progress and exits arrive, and every number of the core's reports is acknowledged as Taken."""
    async with Scheduler() as scheduler, linked(scheduler.address) as (link, node):
        (job,) = await scheduler.submit(steps=10.0)
        await until(lambda: node.orders)
        generation = node.of(Desired)[-1].generation
        link.send_report(Report(1, generation, ("1",)))
        link.send_report(Report(2, generation, (), (Progressed("1", 4.0, 2.0, 1.0),)))
        exit = ProcessExited("1", "failed", 4.0, 2.0, 1.0, 2.0, 3)
        link.send_report(Report(3, generation, (), (), (exit,)))
        await until(lambda: {receipt.number for receipt in node.of(Taken)} == {1, 2, 3})
        kept = scheduler.state.jobs[job]
        assert (kept.state, kept.steps_saved, kept.last_exit) == (JobState.FAILED, 2.0, 3)
        assert kept.last_lines == "the end of 1"


@on_event_loop
async def test_reports_before_the_welcome_wait_for_it():
    """The core reports as soon as the link is up; the scheduler gets the report after it has taken the Hello."""
    async with Scheduler() as scheduler:
        scheduler.may_answer.clear()
        async with linked(scheduler.address) as (link, node):
            await until(lambda: node.of(LinkUp))
            link.send_report(Report(1, 0))
            await asyncio.sleep(0.1)
            assert not node.of(Taken)
            scheduler.may_answer.set()
            await until(lambda: node.of(Taken))


@on_event_loop
async def test_a_report_beyond_the_size_of_a_message_goes_in_parts():
    """Hundreds of exits with long last lines go in several messages, and the core's number is acknowledged once."""

    class Wordy(Remembering):
        def last_lines(self, lease: str) -> str:
            return "x" * 100_000

    async with Scheduler() as scheduler:
        link = GrpcLink(Target(address=scheduler.address), hello)
        node = Wordy(lambda: link.send_hello(()))
        running = asyncio.create_task(link.run(node))
        await until(lambda: node.of(Desired))
        exits = tuple(ProcessExited(str(n), "failed", 0.0, 0.0, 0.0, 1.0, 1) for n in range(300))
        link.send_report(Report(5, 0, (), (), exits))
        await until(lambda: node.of(Taken))
        assert node.of(Taken) == [Taken(5)]
        assert scheduler.state.nodes["n1"].state == NodeState.UP
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@on_event_loop
async def test_a_scheduler_that_was_away_is_linked_again_with_the_held_leases():
    """The link breaks and is opened again, and the lease continues in the new epoch without a stop."""
    first = Scheduler()
    await first.__aenter__()
    held = (Held("1", 3.0, 2.0),)
    async with linked(first.address, held=held) as (link, node):
        (job,) = await first.submit()
        await until(lambda: node.orders)
        link.send_report(Report(1, 1, ("1",)))
        await until(lambda: node.of(Taken))
        await first.die()
        await until(lambda: node.of(LinkDown))
        async with Scheduler(journal=first.journal, port=first.port) as second:
            await until(lambda: node.of(Desired)[-1].epoch == 2)
            assert [order.lease for order in node.of(Desired)[-1].orders] == ["1"]
            assert second.state.jobs[job].state == JobState.RUNNING
            assert len(node.of(LinkUp)) == 2


@on_event_loop
async def test_what_the_cache_holds_is_sent_again_on_a_new_link():
    """A scheduler that lost it with its last records gets it again, and the next content replaces it."""
    first = Scheduler()
    await first.__aenter__()
    content = pb.CacheContent(cached=[pb.CachedData(user="", key="a" * 32, used_bytes=7_000_000)])
    async with linked(first.address, hello={"has_cache": True}) as (link, _):
        # Only the newest of those that wait for the link arrives.
        link.send_standing(pb.AgentMessage(cache_content=pb.CacheContent()))
        link.send_standing(pb.AgentMessage(cache_content=content))
        await until(lambda: "n1" in first.state.cached.nodes)
        await first.die()
        async with Scheduler(port=first.port) as second:
            await until(lambda: "n1" in second.state.cached.nodes)
            ((entry, used),) = second.state.cached.nodes["n1"].items()
            assert (entry, used) == (("", "a" * 32), pytest.approx(7e6, rel=0.03))
            link.send_standing(pb.AgentMessage(cache_content=pb.CacheContent()))
            await until(lambda: "n1" not in second.state.cached.nodes)


@pytest.mark.parametrize(
    ("fields", "reason"), [({"protocol": 9}, "version"), ({"lease_grace_s": 1e6}, "refused")]
)
def test_goodbye_ends_the_link_for_good(fields, reason):
    """A dismissed agent does not link again; the error has the scheduler's reason."""

    @on_event_loop
    async def dismissed_for_good():
        async with Scheduler() as scheduler:
            link = GrpcLink(Target(address=scheduler.address), lambda: hello(**fields))
            node = Remembering(lambda: link.send_hello(()))
            with pytest.raises(Dismissed) as dismissed:
                await link.run(node)
            assert dismissed.value.reason == reason
            assert node.events[-1] == LinkDown()

    dismissed_for_good()


@on_event_loop
async def test_a_renewal_moves_the_end_on_the_agents_clock():
    """The event Renewed has the scheduler's end of the leases in the agent's time."""
    from scheduler.core.effects import RenewLeases

    async with Scheduler() as scheduler, linked(scheduler.address) as (_, node):
        await until(lambda: node.of(Desired))
        scheduler.links.renew_leases(RenewLeases(1, 9, scheduler.world.now_s() + 50.0, {"n1": 2}))
        await until(lambda: node.of(Renewed))
        (renewed,) = node.of(Renewed)
        assert (renewed.generation, renewed.round_number) == (2, 9)
        assert renewed.ends_s == pytest.approx(time.monotonic() + 50.0, abs=LOOSE_S)


@on_event_loop
async def test_a_renewal_that_was_read_late_ends_at_the_same_time():
    """An agent that was stopped reads a renewal late; its lease still ends when the scheduler expects it."""
    from scheduler.core.effects import RenewLeases

    shift_s = 0.0
    async with Scheduler() as scheduler:
        clock = lambda: time.monotonic() + shift_s  # noqa: E731
        async with linked(scheduler.address, clock=clock) as (link, node):
            await until(lambda: node.of(Desired))
            sent_s = time.monotonic()
            scheduler.links.renew_leases(RenewLeases(1, 9, scheduler.world.now_s() + 50.0, {"n1": 2}))
            # As if 300 s had passed before the agent read it.
            shift_s = 300.0
            await until(lambda: node.of(Renewed))
            assert node.of(Renewed)[0].ends_s == pytest.approx(sent_s + 50.0, abs=LOOSE_S)
            del link


# ------------------------------------------------------------------------------------------------------- gangs


# So patient that the scheduler does not give up on a part of a gang that reports late.
PATIENT = msgspec.structs.replace(CALM, gang_s=60.0)


def order(rank: int, lease: str = "1") -> Order:
    """Return an order for a part of a gang over two nodes."""
    return Order(lease, "1", 1, (0,), time.monotonic() + 60, node_rank=rank, nodes=2, world_size=2)


@on_event_loop
async def test_the_parts_of_a_gang_meet_even_if_the_scheduler_dies_between_their_reports():
    """Both parts get the same address, although the scheduler was killed after the first had reported."""
    first = Scheduler(pace=PATIENT)
    await first.__aenter__()
    async with (
        linked(first.address, "n1", hello={"address": "10.0.0.1"}) as (first_link, node_one),
        linked(first.address, "n2", hello={"address": "10.0.0.2"}) as (second_link, node_two),
    ):
        await until(lambda: node_one.of(Desired) and node_two.of(Desired))
        await first.submit(gpus=2)
        await until(lambda: node_one.orders and node_two.orders)
        rank_of = {"n1": node_one.of(Desired)[-1].orders[0].node_rank}
        lead, other = (first_link, second_link) if rank_of["n1"] == 0 else (second_link, first_link)
        other.send_preparing(order(1))
        lead.send_ready(order(0), (2001, 2002), CacheOffer(2003, "5a"))
        await asyncio.sleep(0.1)
        await first.die()
        async with Scheduler(pace=PATIENT, journal=first.journal, port=first.port):
            await until(lambda: len(node_one.of(LinkUp)) > 1 and len(node_two.of(LinkUp)) > 1)
            other.send_ready(order(1), (), CacheOffer(2004))
            await until(lambda: node_one.gangs and node_two.gangs)
            nodes = [("n1", "10.0.0.1"), ("n2", "10.0.0.2")]
            nodes = nodes if rank_of["n1"] == 0 else nodes[::-1]
            caches = tuple(CacheNode(*node, port) for node, port in zip(nodes, (2003, 2004), strict=True))
            meeting = Rendezvous(nodes[0][1], 2001, 2002, caches, "5a")
            assert node_one.gangs["1"] == node_two.gangs["1"] == meeting


@on_event_loop
async def test_a_part_of_a_gang_that_cannot_start_stops_the_others():
    """The other part gets the reason, whether it is ready or not."""
    async with (
        Scheduler(pace=PATIENT) as scheduler,
        linked(scheduler.address, "n1") as (first_link, node_one),
        linked(scheduler.address, "n2") as (second_link, node_two),
    ):
        await until(lambda: node_one.of(Desired) and node_two.of(Desired))
        await scheduler.submit(gpus=2)
        await until(lambda: node_one.orders and node_two.orders)
        first_link.send_preparing(order(0))
        reason = "user 'eve' does not exist on this node"
        second_link.send_cannot_start(order(1), reason)
        await until(lambda: node_one.gangs)
        assert node_one.gangs["1"] == f"n2: {reason}"


# ---------------------------------------------------------------------------------------------------- packages


@on_event_loop
async def test_a_package_is_fetched_and_a_missing_one_is_an_error(wording):
    """The bytes come in order; NotFound and a missing link become OSErrors with the cause."""
    async with Scheduler() as scheduler:
        content = bytes(range(256)) * 100
        scheduler.packages.content["sha256:aa"] = content
        async with linked(scheduler.address) as (link, node):
            await until(lambda: node.of(Desired))
            assert b"".join([part async for part in link.fetch("sha256:aa")]) == content
            with pytest.raises(OSError, match="sha256:bb") as missing:
                [part async for part in link.fetch("sha256:bb")]
            wording(missing.value)
    with pytest.raises(OSError, match="cannot be reached"):
        [part async for part in GrpcLink(Target(address="127.0.0.1:1"), hello).fetch("sha256:aa")]


# ------------------------------------------------------------------------------------------------------ trouble


@on_event_loop
async def test_no_link_to_another_machine_is_unencrypted():
    """Beyond loopback, an agent without a certificate does not link; the error has the command that gets one."""
    with pytest.raises(TargetError, match="gavel agent join"):
        Target(address="head-node:7071").channel()
    with pytest.raises(TargetError, match="gavel agent join"):
        Target(address="192.0.2.1:7071").channel()


@on_event_loop
async def test_a_wrong_token_is_tried_again_and_logged(caplog, wording):
    """The scheduler refuses the agent, which keeps trying; the log names the option to check."""

    class Refusing(agents_pb2_grpc.AgentsServicer):
        tried = 0

        async def Link(self, requests: Any, context: Any) -> None:
            Refusing.tried += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this token is not known here")

    server = aio.server()
    agents_pb2_grpc.add_AgentsServicer_to_server(Refusing(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with linked(f"127.0.0.1:{port}", target=Target(address=f"127.0.0.1:{port}", token="wrong")):
        await until(lambda: Refusing.tried >= 2)
    await server.stop(None)
    refused = [record.getMessage() for record in caplog.records if "--token-file" in record.getMessage()]
    assert refused
    wording(refused[0], address=f"127.0.0.1:{port}", wait=re.compile(r"[\d.]+ s\b"))


@on_event_loop
async def test_an_agent_speaks_first_to_a_scheduler_that_waits(monkeypatch: pytest.MonkeyPatch):
    """If the call is not accepted in time, the agent sends its Hello unasked: older schedulers wait for it."""

    class Earlier(agents_pb2_grpc.AgentsServicer):
        received: asyncio.Future[pb.AgentMessage] = asyncio.get_running_loop().create_future()

        async def Link(self, requests: Any, context: Any) -> None:
            self.received.set_result(await context.read())

    monkeypatch.setattr("worker_agent.link.stream.ACCEPT_S", 0.05, raising=False)
    server = aio.server()
    agents_pb2_grpc.add_AgentsServicer_to_server(Earlier(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with linked(f"127.0.0.1:{port}"), asyncio.timeout(30.0):
        assert (await Earlier.received).hello.node == "n1"
    await server.stop(None)
