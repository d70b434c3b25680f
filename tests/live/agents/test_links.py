"""The scheduler's end of the stream: which agents are accepted, the messages that they receive, and their reports."""

from __future__ import annotations

import asyncio

import grpc
import msgspec
import pytest

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import JobSpec, JobState
from scheduler.model.launch import Launch
from tests.support.linked import CALM, PATIENCE_S, Scheduler, on_event_loop, until

LAUNCH = Launch(command=("python", "train.py"), env={"A": "1"}, ranks="per_node")

# --------------------------------------------------------------------------------------------------- arriving


@on_event_loop
async def test_a_node_that_sends_hello_gets_a_welcome_and_its_leases():
    """Hello → Welcome with epoch and times → the full set, empty at first; the state has all of the Hello."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        welcome = await peer.join(gpus=2, labels={"zone": "a"}, cpus=8.0, address="10.0.0.7", speed=0.5)
        assert (welcome.epoch, welcome.silence_s) == (1, 60.0)
        assert list((await peer.desired()).orders) == []
        spec = scheduler.state.nodes["n1"].spec
        assert (spec.worker_type, spec.gpus, spec.labels, spec.cpus) == ("v100", 2, {"zone": "a"}, 8.0)
        assert (spec.memory_gb, spec.gpu_memory_gb, spec.storage) == (None, 16.0, "")
        view = scheduler.links.view("n1")
        assert (view.agent_version, view.speed, view.gpus[1].name) == ("0.1.0", 0.5, "V100")
        assert scheduler.links.view("n2") is None


@on_event_loop
async def test_an_agent_of_a_release_without_plans_is_welcome_but_gets_no_plans():
    """Its Hello does not state that it takes plans: the core is told, and the next agent of the node may get plans."""
    async with Scheduler() as scheduler:
        for takes_plans in (False, True):
            async with scheduler.peer("n1") as peer:
                await peer.join(takes_plans=takes_plans)
                assert scheduler.state.nodes["n1"].spec.ignores_plans is not takes_plans


@on_event_loop
async def test_what_a_node_has_in_its_cache_reaches_the_core():
    """With the data sets that jobs name; an agent without a cache, or of a release without caches, has none."""
    async with Scheduler() as scheduler:
        key = "a" * 32
        async with scheduler.peer("n1") as peer:
            await peer.join(has_cache=True)
            await scheduler.submit(JobSpec(job_type="cnn", user="ada", steps=1e6))
            order = (await peer.next("desired")).desired
            while not order.orders:
                order = (await peer.next("desired")).desired
            content = pb.CacheContent(
                cached=[pb.CachedData(user="ada", key=key, used_bytes=4000)],
                named=[pb.NamedData(lease=order.orders[0].lease, key=key, size_bytes=8000)],
            )
            await peer.say(cache_content=content)
            book = scheduler.state.cached
            await until(lambda: book.jobs and book.nodes)
            assert book.bytes_by_node(scheduler.state.jobs["1"]) == {"n1": pytest.approx(4000, rel=0.03)}
        async with scheduler.peer("n1") as peer:
            await peer.join()
            assert book.nodes == {}


@on_event_loop
async def test_an_agent_of_another_protocol_is_dismissed_with_the_remedy(wording):
    """Version 2 gets a final goodbye, and the node is not created."""
    async with Scheduler() as scheduler, scheduler.peer() as peer:
        await peer.hello(protocol=2)
        goodbye = (await peer.next("goodbye")).goodbye
        assert goodbye.reason == "version"
        wording(goodbye.text)
        assert await peer.ended() == grpc.StatusCode.OK
        assert scheduler.state.nodes == {}


@pytest.mark.parametrize(
    ("hello", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"worker_type": "a b"}, "worker_type"),
        ({"lease_grace_s": 31.0}, "lease_margin_s"),
        ({"lease_grace_s": -1.0}, "lease_margin_s"),
        ({"lease_grace_s": float("nan")}, "lease_margin_s"),
        ({"cpus": float("inf")}, "cpus"),
        ({"speed": 1.7e308}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"labels": {"a": "x" * 257}}, "labels"),
        ({"labels": {str(n): "" for n in range(65)}}, "labels"),
        ({"agent_version": "1\n2026-01-01 INFO all is well"}, "agent_version"),
    ],
)
def test_an_impossible_node_is_refused_by_its_field(hello, field):
    """The agent gets the wrong field; the daemon keeps running and accepts the next agent."""

    @on_event_loop
    async def refused():
        async with Scheduler() as scheduler:
            async with scheduler.peer() as peer:
                await peer.hello(**hello)
                goodbye = (await peer.next("goodbye")).goodbye
                assert goodbye.reason == "refused"
                assert field in goodbye.text
            async with scheduler.peer() as peer:
                await peer.join()

    refused()


@on_event_loop
async def test_gpus_that_are_not_numbered_are_refused():
    """Leases name GPUs by index, so an inventory of GPUs 0 and 2 is refused."""
    async with Scheduler() as scheduler, scheduler.peer() as peer:
        gpus = [pb.InventoryGpu(index=0), pb.InventoryGpu(index=2)]
        await peer.say(hello=pb.Hello(protocol=1, node="n1", worker_type="v100", gpus=gpus))
        assert "numbered" in (await peer.next("goodbye")).goodbye.text


@on_event_loop
async def test_a_stream_begins_with_hello():
    """A stream that begins with anything else ends with a status that names Hello."""
    async with Scheduler() as scheduler, scheduler.peer() as peer:
        await peer.report()
        assert await peer.ended() == grpc.StatusCode.INVALID_ARGUMENT
        assert "Hello" in await peer.call.details()


@on_event_loop
async def test_a_second_agent_of_the_same_name_is_dismissed_while_the_first_one_answers():
    """The first agent keeps its link; the newcomer is asked to take another name."""
    waits = msgspec.structs.replace(CALM, duplicate_s=PATIENCE_S)
    async with Scheduler(pace=waits) as scheduler, scheduler.peer("n1") as first:
        await first.join()
        async with scheduler.peer("n1", incarnation="another") as second:
            await second.hello()
            await first.next("alive")
            await first.say(alive=pb.Alive())
            goodbye = (await second.next("goodbye")).goodbye
            assert (goodbye.reason, "--name" in goodbye.text) == ("duplicate", True)
        assert await first.report() == (await first.next("taken")).taken.number
        assert scheduler.state.nodes["n1"].state == NodeState.UP


@on_event_loop
async def test_an_agent_that_was_started_again_takes_its_name_from_one_that_does_not_answer():
    """After a machine lost power, its old stream looks alive; its next agent is accepted nevertheless."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as dead:
        await dead.join()
        async with scheduler.peer("n1", incarnation="after the power was back") as alive:
            await alive.join()
            assert await dead.ended() == grpc.StatusCode.OK
            assert scheduler.state.nodes["n1"].state == NodeState.UP


@on_event_loop
async def test_an_agent_that_connects_again_replaces_its_old_stream():
    """The same incarnation replaces its stream at once, without a challenge and without silence in between."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as old:
        await old.join()
        since_s = scheduler.state.nodes["n1"].since_s
        async with scheduler.peer("n1") as new:
            await new.join()
            await old.ended()
            assert scheduler.state.nodes["n1"].since_s == since_s
            await new.report()
            await new.next("taken")


# ----------------------------------------------------------------------------------------------------- leases


@on_event_loop
async def test_an_order_has_everything_that_is_needed_to_start():
    """Ids, GPUs, the time that is left, ranks, and the user's launch."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(gpus=2, address="10.1.1.1")
        spec = JobSpec(name="resnet", user="ann", gpus=2, steps=500.0, launch=LAUNCH, cpus=4.0, array=(0, 3))
        await scheduler.submit(spec)
        (order,) = await peer.orders()
        assert (order.lease, order.job, order.attempt, order.epoch) == ("1", "1_0", 1, 1)
        assert (sorted(order.gpus), order.gpus_total, order.rank_first) == ([0, 1], 2, 0)
        assert (order.nodes, order.node_rank, order.master_address) == (1, 0, "10.1.1.1")
        assert (order.name, order.user, order.steps_max, order.array_index) == ("resnet", "ann", 500.0, 0)
        assert (order.worker_type, order.packed, order.cpus) == ("v100", False, 4.0)
        assert order.launch == jobs_pb2.Launch(
            command=["python", "train.py"], env={"A": "1"}, ranks=jobs_pb2.Launch.RANKS_PER_NODE
        )
        left_s = scheduler.state.round.ends_s - scheduler.world.now_s()
        assert left_s <= order.ends_in_s < left_s + PATIENCE_S


@on_event_loop
async def test_ranks_of_a_gang_are_numbered_over_its_nodes():
    """The second node's ranks begin where the first one's end, and it receives the first one's address."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
    ):
        await n1.join(gpus=2, address="10.1.1.1")
        await n2.join(gpus=2, address="10.1.1.2")
        await scheduler.submit(gpus=4)
        (first,), (second,) = await n1.orders(), await n2.orders()
        by_rank = sorted([first, second], key=lambda order: order.node_rank)
        assert [order.node_rank for order in by_rank] == [0, 1]
        assert [order.rank_first for order in by_rank] == [0, 2]
        assert {(order.nodes, order.gpus_total) for order in by_rank} == {(2, 4)}
        assert first.master_address == second.master_address
        assert first.master_address == ("10.1.1.1" if first.node_rank == 0 else "10.1.1.2")


@on_event_loop
async def test_a_report_is_acknowledged_when_it_is_durable_and_not_before():
    """While the journal cannot write, nothing is acknowledged; then the fact is there before the answer."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        await scheduler.submit()
        (order,) = await peer.orders()
        scheduler.may_answer.clear()
        number = await peer.report(started=[order.lease])
        acknowledged = asyncio.create_task(peer.next("taken"))
        await asyncio.wait({acknowledged}, timeout=0.2)
        assert not acknowledged.done()
        assert scheduler.state.leases[order.lease].started_s is None
        scheduler.may_answer.set()
        assert (await acknowledged).taken.number == number
        assert scheduler.state.leases[order.lease].started_s is not None


@on_event_loop
async def test_a_finished_job_is_completed_and_its_lease_taken_from_the_set():
    """An exit with outcome finished ends the job; the next set lacks its lease."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        (job,) = await scheduler.submit()
        (order,) = await peer.orders()
        exit = pb.Exit(lease=order.lease, outcome=pb.Exit.OUTCOME_FINISHED, steps=5, saved=5, ran_s=1.0)
        await peer.report(started=[order.lease], exits=[exit])
        await peer.next("taken")
        assert scheduler.state.jobs[job].state == JobState.COMPLETED
        await peer.orders(0)


@on_event_loop
async def test_the_last_lines_of_a_failed_attempt_stay_with_the_job():
    """The last lines are sent with the exit, and are cut if an agent sends too many."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join()
        (job,) = await scheduler.submit()
        (order,) = await peer.orders()
        lines = "x" * 100_000 + "\nKeyError: 'lr'"
        exit = pb.Exit(lease=order.lease, outcome=pb.Exit.OUTCOME_FAILED, code=3, ran_s=1.0, last_lines=lines)
        await peer.report(exits=[exit])
        await peer.next("taken")
        kept = scheduler.state.jobs[job]
        assert (kept.state, kept.last_exit) == (JobState.FAILED, 3)
        assert kept.last_lines.endswith("KeyError: 'lr'")
        assert len(kept.last_lines) <= 8192


@on_event_loop
async def test_a_report_on_the_lease_of_another_node_changes_nothing():
    """An agent reports on its own leases only."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as holder,
        scheduler.peer("n2") as other,
    ):
        await holder.join()
        (job,) = await scheduler.submit()
        (order,) = await holder.orders()
        await other.join()
        exit = pb.Exit(lease=order.lease, outcome=pb.Exit.OUTCOME_FINISHED, ran_s=1.0)
        await other.report(started=[order.lease], exits=[exit])
        await other.next("taken")
        assert scheduler.state.jobs[job].state == JobState.RUNNING
        assert scheduler.state.leases[order.lease].started_s is None


@on_event_loop
async def test_a_renewal_goes_to_all_nodes_with_the_generation_of_each():
    """From one effect, every node gets its own generation and the time that is left."""
    from scheduler.core.effects import RenewLeases

    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
    ):
        await n1.join()
        await n2.join()
        ends_s = scheduler.world.now_s() + 1000.0
        scheduler.links.renew_leases(RenewLeases(1, 7, ends_s, {"n1": 3, "n2": 4, "never linked": 5}))
        first, second = (await n1.next("renewed")).renewed, (await n2.next("renewed")).renewed
        assert [(renewed.generation, renewed.round_number, renewed.epoch) for renewed in (first, second)] == [
            (3, 7, 1),
            (4, 7, 1),
        ]
        assert 900.0 < first.ends_in_s < 1000.0


@on_event_loop
async def test_times_count_from_the_agents_own_clock():
    """A set has the latest time on the agent's clock at which it can have been sent, however long it was buffered."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        hello = pb.Hello(
            protocol=1, node="n1", worker_type="v100", gpus=[pb.InventoryGpu(index=0)], incarnation="n1-1"
        )
        await peer.say(hello=hello, sent_s=5000.0)
        sent = await peer.next("desired")
        assert 5000.0 <= sent.agent_s < 5000.0 + PATIENCE_S
        earlier_s = sent.agent_s
        # This message was on its way for long, so its bound is weaker than the current one.
        await peer.say(alive=pb.Alive(), sent_s=4000.0)
        await peer.report(generation=99)
        assert earlier_s <= (await peer.next("desired")).agent_s < 5000.0 + 2 * PATIENCE_S
