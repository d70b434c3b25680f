"""The scheduler's end of the stream in trouble: silence, sick GPUs, deaf agents, restarts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import msgspec
import pytest

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import SendLeases
from scheduler.core.messages import NodeCommand, NodeHello, NodeReport
from scheduler.live.api.cluster_view import withheld_warnings
from scheduler.live.rescue.rescue import NODE_FAILURES_MAX
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobState
from scheduler.model.launch import Launch
from tests.support.linked import CALM, PATIENCE_S, QUICK, Scheduler, on_event_loop, until

# The lease by which the injected fault recognizes its message.
POISON = "31"
# The silence is long enough for an answer from a slow machine.
SLOWER = msgspec.structs.replace(QUICK, silence_s=3.0)


@on_event_loop
async def test_a_closed_stream_makes_a_node_silent_and_its_leases_continue_when_it_is_back():
    """A partitioned node is silent, not lost; if it is back in time, the job continues under the same lease."""
    async with Scheduler() as scheduler:
        async with scheduler.peer("n1") as peer:
            await peer.join()
            (job,) = await scheduler.submit()
            (order,) = await peer.orders()
            await peer.report(started=[order.lease])
            await peer.next("taken")
        await until(lambda: scheduler.state.nodes["n1"].state == NodeState.SILENT)
        assert order.lease in scheduler.state.leases
        async with scheduler.peer("n1") as peer:
            await peer.join(held=(order.lease,))
            assert [each.lease for each in await peer.orders()] == [order.lease]
            assert scheduler.state.jobs[job].state == JobState.RUNNING
            assert scheduler.state.jobs[job].preemptions == 0


@on_event_loop
async def test_an_agent_that_is_started_again_at_once_was_never_silent():
    """A short absence makes no fact: no lease is recalled, and the next agent process keeps the lease."""
    waits = msgspec.structs.replace(CALM, away_s=PATIENCE_S)
    async with Scheduler(pace=waits) as scheduler:
        async with scheduler.peer("n1") as peer:
            await peer.join()
            await scheduler.submit()
            (order,) = await peer.orders()
            await peer.report(started=[order.lease])
            await peer.next("taken")
        await until(lambda: "n1" in scheduler.links._silent_at_s)
        async with scheduler.peer("n1", incarnation="started again") as peer:
            await peer.join(held=(order.lease,))
            # The absence is not reported later, either.
            await until(lambda: scheduler.links._silent_at_s == {})
            assert [each.lease for each in await peer.orders()] == [order.lease]
        facts = {type(fact).__name__ for _, fact in scheduler.journal.read()}
        assert not {"NodeMoved", "LeaseRecalled", "LeasesResumed"} & facts


@on_event_loop
async def test_a_mute_node_is_given_up_and_one_that_answers_is_not():
    """After the silence, the link of a mute agent is closed; an agent that answers keeps its link."""
    async with (
        Scheduler(pace=SLOWER) as scheduler,
        scheduler.peer("mute") as mute,
        scheduler.peer("idle") as idle,
    ):

        async def answers() -> None:
            while True:
                await idle.next("alive")
                await idle.say(alive=pb.Alive())

        await idle.join()
        answering = asyncio.create_task(answers())
        await mute.join()
        await mute.ended()
        await until(lambda: scheduler.state.nodes["mute"].state != NodeState.UP)
        assert scheduler.state.nodes["idle"].state == NodeState.UP
        answering.cancel()


@on_event_loop
async def test_a_scheduler_that_was_held_up_calls_no_node_silent():
    """After a slow disk held the scheduler up for longer than the silence, no link is closed: messages still wait."""
    async with Scheduler(pace=SLOWER) as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        await asyncio.sleep(SLOWER.away_s)
        link = scheduler.links.by_name.get("n1")
        await peer.report()
        time.sleep(1.5 * SLOWER.silence_s)
        await peer.next("taken")
        assert scheduler.links.by_name.get("n1") is link
        assert not link.closed.done()


@on_event_loop
async def test_health_is_shown_and_a_broken_gpu_goes_out_of_service():
    """Memory and temperature are shown but not recorded; a fatal error is recorded as a fact, once."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(gpus=2)
        sick = pb.GpuHealth(
            index=1, memory_used_gb=3.5, temperature_c=71.0, broken="Xid 79: fell off the bus"
        )
        for _ in range(2):
            await peer.say(health=pb.Health(gpus=[sick, pb.GpuHealth(index=9, broken="none such")]))
        await until(lambda: scheduler.state.nodes["n1"].broken == {1})
        gpu = scheduler.links.view("n1").gpus[1]
        assert (gpu.memory_used_gb, gpu.temperature_c, gpu.name) == (3.5, 71.0, "V100")
        assert "Xid 79" in gpu.broken


@on_event_loop
async def test_a_withheld_gpu_stays_out_until_its_agent_or_an_operator_releases_it(wording):
    """Either the agent reports the GPU as free, or an operator resumes the node, and its agent releases the GPU."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(gpus=2)
        why = "job 7 may have left processes on it: 4711 (python)"
        held = pb.Health(gpus=[pb.GpuHealth(index=1, withheld=why)])
        node = scheduler.state.nodes["n1"]
        for _ in range(2):
            await peer.say(health=held)
            await until(lambda: node.withheld == {1})
            (warning,) = withheld_warnings(scheduler.state, scheduler.links)
            assert ("n1:1" in warning, why in warning) == (True, True)
            wording(warning)
            await peer.say(health=pb.Health())
            await until(lambda: not node.withheld)
        await peer.say(health=held)
        await until(lambda: node.withheld)
        scheduler.world.send(NodeCommand(node="n1", action="resume", user="ann"))
        await peer.next("let_go")
        assert not node.withheld
        assert withheld_warnings(scheduler.state, scheduler.links) == []


@on_event_loop
async def test_an_agent_that_does_not_read_holds_up_no_other_and_gets_the_newest_set():
    """Thousands of sets for an agent that does not read take the space of one; when it reads, it gets the last."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("deaf") as deaf,
        scheduler.peer("other") as other,
    ):
        await deaf.join()
        await other.join()
        await scheduler.submit(launch=Launch(command=("true",), env={"BIG": "x" * 100_000}))
        await until(lambda: scheduler.state.leases)
        lease = next(iter(scheduler.state.leases.values())).lease
        on_deaf = msgspec.structs.replace(lease, gpus=("deaf:0",))
        for generation in range(100, 2100):
            scheduler.links.send_leases(SendLeases("deaf", 1, generation, (on_deaf,) * 20))
            if generation % 20 == 0:
                await asyncio.sleep(0)
        await other.report()
        await other.next("taken")
        received = 0
        while (await deaf.next("desired")).desired.generation < 2099:
            received += 1
        assert received < 500


@on_event_loop
async def test_a_message_that_is_too_large_ends_the_stream_and_nothing_else():
    """100 MB are refused by their size, unread."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as good,
        scheduler.peer("n2", options=(("grpc.max_send_message_length", -1),)) as bad,
    ):
        await good.join()
        await bad.join()
        await bad.report(started=["x" * 100_000_000])
        assert await bad.ended() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await good.report()
        await good.next("taken")


# --------------------------------------------------------------------------------------------------- restarts


@on_event_loop
async def test_a_scheduler_that_was_killed_takes_its_leases_up_again():
    """In the new epoch, the node keeps the lease that it still runs: same lease, same attempt, no preemption."""
    first = Scheduler()
    await first.__aenter__()
    async with first.peer("n1") as peer:
        await peer.join()
        (job,) = await first.submit()
        (order,) = await peer.orders()
        await peer.report(started=[order.lease])
        await peer.next("taken")
        await first.die()
    async with Scheduler(journal=first.journal, port=first.port) as second, second.peer("n1") as peer:
        welcome = await peer.join(held=(order.lease,))
        assert welcome.epoch == 2
        (again,) = await peer.orders()
        assert (again.lease, again.attempt, again.epoch) == (order.lease, 1, 1)
        assert second.state.jobs[job].state == JobState.RUNNING


@on_event_loop
async def test_a_scheduler_that_stops_calls_no_node_silent():
    """Streams end because the scheduler stops, so no fact records a lost node."""
    scheduler = Scheduler()
    async with scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        await scheduler.submit()
        await peer.orders()
    facts = [type(fact).__name__ for _, fact in scheduler.journal.read()]
    assert "NodeJoined" in facts
    assert not {"NodeMoved", "LeaseRecalled"} & set(facts)


@on_event_loop
async def test_a_scheduler_whose_stop_takes_long_calls_no_node_silent():
    """Also not one whose link was lost shortly before: it may come back to the next process in time."""
    scheduler = Scheduler()
    async with scheduler:
        async with scheduler.peer("n1") as peer:
            await peer.join()
        await until(lambda: not scheduler.links.by_name)
        scheduler.links.stop()
        scheduler.links._check_all(scheduler.world.now_s() + 3600.0)
    assert scheduler.state.nodes["n1"].state == NodeState.UP


@on_event_loop
async def test_a_node_that_does_not_come_back_after_a_restart_is_silent():
    """A node that disappeared while the scheduler was down counts as silent after the usual time."""
    first = Scheduler()
    async with first, first.peer("n1") as peer:
        await peer.join()
    async with Scheduler(journal=first.journal, pace=QUICK) as second:
        assert second.state.nodes["n1"].state == NodeState.UP
        await until(lambda: second.state.nodes["n1"].state == NodeState.LOST)


@on_event_loop
async def test_an_agent_that_is_to_stop_gets_nothing_new_until_it_is_back():
    """An agent that is to stop drains its node; the Hello of its next agent resumes it."""
    async with Scheduler() as scheduler:
        async with scheduler.peer("n1") as peer:
            await peer.join()
            await peer.say(leaving=pb.Leaving())
            await until(lambda: scheduler.state.nodes["n1"].state == NodeState.DRAINING)
        async with scheduler.peer("n1", incarnation="the next") as peer:
            await peer.join()
            await until(lambda: scheduler.state.nodes["n1"].state == NodeState.UP)


@on_event_loop
async def test_a_node_that_an_operator_drained_stays_drained_when_its_agent_restarts():
    """The agent's leaving and return do not undo an operator's drain."""
    async with Scheduler() as scheduler:
        async with scheduler.peer("n1") as peer:
            await peer.join()
            await scheduler.world.ask(NodeCommand(node="n1", action="drain", user="ann"))
            await peer.say(leaving=pb.Leaving())
            await peer.report()
            await peer.next("taken")
        async with scheduler.peer("n1", incarnation="the next") as peer:
            await peer.join()
            await peer.report()
            await peer.next("taken")
            assert scheduler.state.nodes["n1"].drained


@on_event_loop
async def test_an_agent_whose_node_is_removed_is_dismissed_for_good():
    """When a drained node is removed, its agent gets a final goodbye, and the node does not reappear."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        for action in ("drain", "remove"):
            await scheduler.world.ask(NodeCommand(node="n1", action=action))
        assert (await peer.next("goodbye")).goodbye.reason == "removed"
        await peer.ended()
        await asyncio.sleep(2 * scheduler.pace.away_s)
        assert scheduler.state.nodes == {}


@on_event_loop
async def test_a_report_that_the_core_fails_on_costs_its_link_and_in_the_end_drains_the_node():
    """The agent gets the error and may link again; at the third error its node is drained."""
    async with Scheduler(rescued=True) as scheduler:
        handlers = scheduler.core._on
        real = handlers[NodeReport]

        def on_report(out: Any, message: NodeReport) -> None:
            assert POISON not in message.started
            real(out, message)

        handlers[NodeReport] = on_report
        async with scheduler.peer("n2") as other:
            await other.join()
            for turn in range(NODE_FAILURES_MAX):
                async with scheduler.peer("n1") as peer:
                    await peer.join()
                    assert scheduler.state.nodes["n1"].state == NodeState.UP
                    await peer.report(started=[POISON])
                    with pytest.raises(grpc.aio.AioRpcError) as ended:
                        await peer.next("taken")
                    assert ended.value.code() == grpc.StatusCode.INTERNAL
                    assert f"error {turn + 1}" in str(ended.value.details())
            assert scheduler.state.nodes["n1"].state == NodeState.DRAINING
            async with scheduler.peer("n1") as peer:
                await peer.join()
                number = await peer.report(started=[POISON])
                assert (await peer.next("taken")).taken.number == number
            await other.report()
            await other.next("taken")


@on_event_loop
async def test_a_hello_that_the_core_fails_on_is_refused():
    """The agent gets a goodbye with the number of the error; other agents are accepted."""
    async with Scheduler(rescued=True) as scheduler:
        real = scheduler.core._on[NodeHello]

        def on_hello(out: Any, message: NodeHello) -> None:
            real(out, message)
            assert message.spec.name != "n1"

        scheduler.core._on[NodeHello] = on_hello
        async with scheduler.peer("n1") as peer, scheduler.peer("n2") as other:
            await peer.hello()
            goodbye = (await peer.next("goodbye")).goodbye
            assert (goodbye.reason, "error 1" in goodbye.text) == ("refused", True)
            await other.join()
        assert list(scheduler.state.nodes) == ["n2"]
