"""Gangs over several nodes start together or not at all."""

from __future__ import annotations

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.agents.gangs import Gangs, Go, Ready
from tests.support.linked import CALM, PATIENCE_S, Scheduler, story, until

NODES = ("a", "b", "c")


def test_all_are_told_to_go_when_the_last_one_is_ready():
    """Nobody before that; then everybody, with the ports of the first node whoever spoke first."""
    gangs = Gangs()
    assert gangs.on_ready(0, "c", "7", Ready(), NODES) == []
    assert gangs.on_ready(1, "a", "7", Ready(29500, 29501), NODES) == []
    told = gangs.on_ready(2, "b", "7", Ready(), NODES)
    assert told == [Go(node, "7", "a", 29500, 29501) for node in NODES]


def test_one_that_cannot_start_stops_all_at_once():
    """Who has spoken is told now, with the name of the node and its reason; who speaks later is told then."""
    gangs = Gangs()
    gangs.on_ready(0, "a", "7", Ready(1, 2), NODES)
    told = gangs.on_ready(1, "b", "7", Ready(failed="no such user"), NODES)
    assert told == [Go("a", "7", failed="b: no such user"), Go("b", "7", failed="b: no such user")]
    assert gangs.on_ready(2, "c", "7", Ready(), NODES) == [Go("c", "7", failed="b: no such user")]


def test_nobody_waits_longer_than_the_patience():
    """The missing nodes are named, and it is said once."""
    gangs = Gangs(patience_s=60.0)
    gangs.on_ready(10, "a", "7", Ready(1, 2), NODES)
    assert gangs.overdue(69.9) == []
    assert gangs.overdue(70.0) == [Go("a", "7", failed="no report from b, c within 60 s")]
    assert gangs.overdue(200.0) == []


def test_who_prepares_is_waited_for():
    """A setup takes as long as it takes; what was not heard of at all is missing."""
    gangs = Gangs(patience_s=60.0)
    assert gangs.on_preparing(0, "a", "7", NODES) == []
    gangs.on_preparing(1, "b", "7", NODES)
    gangs.on_ready(2, "a", "7", Ready(1, 2), NODES)
    gangs.on_preparing(50, "c", "7", NODES)
    assert gangs.overdue(600.0) == []
    gangs.on_ready(700, "b", "7", Ready(), NODES)
    told = gangs.on_ready(701, "c", "7", Ready(), NODES)
    assert told == [Go(node, "7", "a", 1, 2) for node in NODES]
    assert gangs.on_preparing(702, "c", "7", NODES) == []  # an agent that was started again: it will be ready


def test_who_prepares_is_told_when_that_is_in_vain():
    """Also while its setup runs, and who begins later is told at once."""
    gangs = Gangs()
    gangs.on_preparing(0, "a", "7", NODES)
    told = gangs.on_ready(1, "b", "7", Ready(failed="setup ended with exit code 7"), NODES)
    failed = "b: setup ended with exit code 7"
    assert told == [Go("a", "7", failed=failed), Go("b", "7", failed=failed)]
    assert gangs.on_preparing(2, "c", "7", NODES) == [Go("c", "7", failed=failed)]
    assert gangs.on_preparing(3, "c", "7", ()) == [Go("c", "7", failed="this lease is over")]


def test_what_was_decided_is_said_again_to_a_node_that_asks_again():
    """A Go that was lost with a link is repaired by the next GangReady, and changes for nobody."""
    gangs = Gangs()
    for node, ready in (("a", Ready(1, 2)), ("b", Ready()), ("c", Ready())):
        gangs.on_ready(0, node, "7", ready, NODES)
    assert gangs.on_ready(5, "b", "7", Ready(), NODES) == [Go("b", "7", "a", 1, 2)]
    assert gangs.on_ready(6, "a", "7", Ready(3, 4), NODES) == [Go("a", "7", "a", 1, 2)]


def test_a_scheduler_that_forgot_hears_all_of_it_anew():
    """After a restart the nodes say again that they are ready, started or not, and the Go is the same."""
    before, after = Gangs(), Gangs()
    words = (("a", Ready(1, 2)), ("b", Ready()), ("c", Ready()))
    first = [go for node, ready in words for go in before.on_ready(0, node, "7", ready, NODES)]
    assert [go for node, ready in words for go in after.on_ready(9, node, "7", ready, NODES)] == first


def test_a_lease_that_is_over_or_of_others_starts_nobody():
    """No nodes, or not among them: that node is told that it is over, and nothing is kept."""
    gangs = Gangs()
    assert gangs.on_ready(0, "a", "7", Ready(1, 2), ()) == [Go("a", "7", failed="this lease is over")]
    assert gangs.on_ready(0, "x", "7", Ready(), NODES) == [Go("x", "7", failed="this lease is over")]
    gangs.on_ready(0, "a", "8", Ready(), NODES)
    gangs.keep(lambda lease: False)
    assert (list(gangs.gathering), gangs.overdue(1e9)) == ([], [])


# ------------------------------------------------------------------------------------------------ over the stream


@story
async def test_two_nodes_meet_at_the_address_of_the_first():
    """GangReady from both, in any order; GangGo to both, with where the first node is reached."""
    waits = msgspec.structs.replace(CALM, gang_s=PATIENCE_S)
    async with (
        Scheduler(pace=waits) as scheduler,
        scheduler.peer("n1") as one,
        scheduler.peer("n2") as two,
    ):
        await one.join(address="10.1.1.1")
        await two.join(address="10.1.1.2")
        await scheduler.submit(gpus=2)
        (first,), (second,) = await one.orders(), await two.orders()
        lease = first.lease
        lead, other = (one, two) if first.node_rank == 0 else (two, one)
        await other.say(gang_ready=pb.GangReady(lease=lease))
        await lead.say(gang_ready=pb.GangReady(lease=lease, master_port=29500, coordinator_port=29501))
        go = (await other.next("gang_go")).gang_go
        address = first.master_address
        assert go == pb.GangGo(lease=lease, master_address=address, master_port=29500, coordinator_port=29501)
        assert (await lead.next("gang_go")).gang_go == go
        assert second.master_address == address


@story
async def test_a_node_that_keeps_silent_about_a_gang_lets_nobody_start():
    """After the patience the other one is told, with the name of the node that is missing."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as one,
        scheduler.peer("n2") as two,
    ):
        await one.join()
        await two.join()
        await scheduler.submit(gpus=2)
        (order,), _ = await one.orders(), await two.orders()
        await one.say(gang_ready=pb.GangReady(lease=order.lease, master_port=1, coordinator_port=2))
        assert "no report from n2" in (await one.next("gang_go")).gang_go.failed


@story
async def test_readiness_for_a_cancelled_job_is_answered_with_no():
    """A lease on its way out starts nothing any more."""
    from scheduler.core.messages import JobCommand

    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(gpus=2)
        (job,) = await scheduler.submit()
        (order,) = await peer.orders()
        await peer.report(started=[order.lease])
        await peer.next("taken")
        await scheduler.world.ask(JobCommand(job=job, action="cancel"))
        await until(lambda: scheduler.state.leases[order.lease].phase == "stopping")
        await peer.say(gang_ready=pb.GangReady(lease=order.lease))
        assert (await peer.next("gang_go")).gang_go.failed == "this lease is over"
