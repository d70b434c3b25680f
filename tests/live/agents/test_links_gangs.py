"""Gangs over several nodes start together or not at all."""

from __future__ import annotations

import msgspec
import pytest

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.live.agents.gangs import Gangs, Go, Ready
from tests.support.linked import CALM, PATIENCE_S, Scheduler, on_event_loop, until

NODES = ("a", "b", "c")
# The reason for a node whose lease is over, or is not its own.
OVER = Gangs().on_ready(0, "a", "1", Ready(), ())[0].failed


def test_all_nodes_get_go_when_the_last_one_is_ready():
    """No node gets its Go before; then all get it, with the ports of the gang's first node."""
    gangs = Gangs()
    assert gangs.on_ready(0, "c", "7", Ready(), NODES) == []
    assert gangs.on_ready(1, "a", "7", Ready(29500, 29501), NODES) == []
    goes = gangs.on_ready(2, "b", "7", Ready(), NODES)
    assert goes == [Go(node, "7", "a", 29500, 29501) for node in NODES]


def test_nodes_with_caches_get_the_ports_of_each_other():
    """All nodes get the same ports, in the order of the ranks, and the secret of the first one."""
    gangs = Gangs()
    gangs.on_ready(0, "a", "7", Ready(1, 2, cache_port=3, cache_secret="5a"), NODES)
    gangs.on_ready(1, "b", "7", Ready(), NODES)
    goes = gangs.on_ready(2, "c", "7", Ready(cache_port=4), NODES)
    ports = (("a", 3), ("b", 0), ("c", 4))
    assert goes == [Go(node, "7", "a", 1, 2, cache_ports=ports, cache_secret="5a") for node in NODES]


@pytest.mark.parametrize(("secret", "port"), [("5a", 0), ("", 3)], ids=["no cache", "an older first node"])
def test_without_caches_or_a_secret_there_are_no_ports(secret, port):
    """The nodes then keep their data for themselves."""
    gangs = Gangs()
    gangs.on_ready(0, "a", "7", Ready(1, 2, cache_secret=secret), NODES)
    gangs.on_ready(1, "b", "7", Ready(cache_port=port), NODES)
    goes = gangs.on_ready(2, "c", "7", Ready(), NODES)
    assert goes == [Go(node, "7", "a", 1, 2) for node in NODES]


def test_a_node_that_cannot_start_stops_all_at_once():
    """Nodes that have reported get its name and reason at once; one that reports later gets them then."""
    gangs = Gangs()
    gangs.on_ready(0, "a", "7", Ready(1, 2), NODES)
    goes = gangs.on_ready(1, "b", "7", Ready(failed="no such user"), NODES)
    failed = "b: no such user"
    assert goes == [Go("a", "7", failed=failed), Go("b", "7", failed=failed)]
    assert gangs.on_ready(2, "c", "7", Ready(), NODES) == [Go("c", "7", failed=failed)]


def test_no_node_waits_longer_than_the_patience(wording):
    """The missing nodes are named, once."""
    gangs = Gangs(patience_s=60.0)
    gangs.on_ready(10, "a", "7", Ready(1, 2), NODES)
    assert gangs.fail_overdue(69.9) == []
    (go,) = gangs.fail_overdue(70.0)
    assert (go.node, go.lease, "b, c" in go.failed, "60 s" in go.failed) == ("a", "7", True, True)
    wording(go.failed)
    assert gangs.fail_overdue(200.0) == []


def test_a_node_that_prepares_is_waited_for():
    """A setup may take any time; only a node that sent nothing is missing."""
    gangs = Gangs(patience_s=60.0)
    assert gangs.on_preparing(0, "a", "7", NODES) == []
    gangs.on_preparing(1, "b", "7", NODES)
    gangs.on_ready(2, "a", "7", Ready(1, 2), NODES)
    gangs.on_preparing(50, "c", "7", NODES)
    assert gangs.fail_overdue(600.0) == []
    gangs.on_ready(700, "b", "7", Ready(), NODES)
    goes = gangs.on_ready(701, "c", "7", Ready(), NODES)
    assert goes == [Go(node, "7", "a", 1, 2) for node in NODES]
    # This agent was started again, and will be ready.
    assert gangs.on_preparing(702, "c", "7", NODES) == []


def test_a_node_that_prepares_in_vain_gets_the_reason():
    """The reason comes while its setup runs; a node that begins later gets it at once."""
    gangs = Gangs()
    gangs.on_preparing(0, "a", "7", NODES)
    goes = gangs.on_ready(1, "b", "7", Ready(failed="setup ended with exit code 7"), NODES)
    failed = "b: setup ended with exit code 7"
    assert goes == [Go("a", "7", failed=failed), Go("b", "7", failed=failed)]
    assert gangs.on_preparing(2, "c", "7", NODES) == [Go("c", "7", failed=failed)]
    assert gangs.on_preparing(3, "c", "7", ()) == [Go("c", "7", failed=OVER)]


def test_a_decision_is_repeated_to_a_node_that_asks_again():
    """A Go that was lost with a link is repeated, unchanged, after the next GangReady."""
    gangs = Gangs()
    for node, ready in (("a", Ready(1, 2)), ("b", Ready()), ("c", Ready())):
        gangs.on_ready(0, node, "7", ready, NODES)
    assert gangs.on_ready(5, "b", "7", Ready(), NODES) == [Go("b", "7", "a", 1, 2)]
    assert gangs.on_ready(6, "a", "7", Ready(3, 4), NODES) == [Go("a", "7", "a", 1, 2)]


def test_a_scheduler_that_was_restarted_decides_the_same():
    """After a restart the nodes report again that they are ready, started or not, and the Go is the same."""
    before, after = Gangs(), Gangs()
    words = (("a", Ready(1, 2)), ("b", Ready()), ("c", Ready()))
    first = [go for node, ready in words for go in before.on_ready(0, node, "7", ready, NODES)]
    assert [go for node, ready in words for go in after.on_ready(9, node, "7", ready, NODES)] == first


def test_a_lease_that_is_over_or_on_other_nodes_starts_nothing(wording):
    """A node that does not hold the lease gets a refusal, and nothing is stored."""
    gangs = Gangs()
    wording(OVER)
    assert gangs.on_ready(0, "a", "7", Ready(1, 2), ()) == [Go("a", "7", failed=OVER)]
    assert gangs.on_ready(0, "x", "7", Ready(), NODES) == [Go("x", "7", failed=OVER)]
    gangs.on_ready(0, "a", "8", Ready(), NODES)
    gangs.keep(lambda lease: False)
    assert gangs.fail_overdue(1e9) == []


# ------------------------------------------------------------------------------------------------ over the stream


@on_event_loop
async def test_two_nodes_meet_at_the_address_of_the_first():
    """Both nodes send GangReady, in any order, and get GangGo with the first node's address."""
    waits = msgspec.structs.replace(CALM, gang_s=PATIENCE_S)
    async with (
        Scheduler(pace=waits) as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
    ):
        await n1.join(address="10.1.1.1")
        await n2.join(address="10.1.1.2")
        await scheduler.submit(gpus=2)
        (first,), (second,) = await n1.orders(), await n2.orders()
        lease = first.lease
        lead, other = (n1, n2) if first.node_rank == 0 else (n2, n1)
        await other.say(gang_ready=pb.GangReady(lease=lease))
        await lead.say(gang_ready=pb.GangReady(lease=lease, master_port=29500, coordinator_port=29501))
        go = (await other.next("gang_go")).gang_go
        address = first.master_address
        assert go == pb.GangGo(lease=lease, master_address=address, master_port=29500, coordinator_port=29501)
        assert (await lead.next("gang_go")).gang_go == go
        assert second.master_address == address


@on_event_loop
async def test_a_node_that_does_not_report_keeps_its_gang_from_starting(wording):
    """After the patience the other node gets the name of the missing one."""
    async with (
        Scheduler() as scheduler,
        scheduler.peer("n1") as n1,
        scheduler.peer("n2") as n2,
    ):
        await n1.join()
        await n2.join()
        await scheduler.submit(gpus=2)
        (order,), _ = await n1.orders(), await n2.orders()
        await n1.say(gang_ready=pb.GangReady(lease=order.lease, master_port=1, coordinator_port=2))
        failed = (await n1.next("gang_go")).gang_go.failed
        assert "n2" in failed
        wording(failed)


@on_event_loop
async def test_readiness_for_a_cancelled_job_is_refused():
    """A lease that is being stopped starts no process."""
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
        assert (await peer.next("gang_go")).gang_go.failed == OVER
