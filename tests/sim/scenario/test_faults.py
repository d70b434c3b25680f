"""Faults: machines that crash, links that break, spot nodes that leave, and a network that loses messages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Exit, HeldLease, NodeCommand, NodeHello, NodeReport, NodeSilent
from scheduler.model.cluster import NodeSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.scenario.faults import NodeEvent, capacity, failures, read_events, strike
from tests.sim.engine.test_machines import Cluster, lease, report
from tests.support.faulty_link import FaultyLink
from tests.support.wording import Wording
from traces.errors import TraceError
from traces.time_series import CapacityChange
from worker_agent.core.messages import Limits

# ------------------------------------------------------------------------------------------- machines and links


def test_a_crash_takes_the_gang_with_it() -> None:
    """The crashed node reports nothing; the other one reports the node failure, and saved steps are kept."""
    cluster = Cluster(nodes=2)
    cluster.know("a", save_every_s=4)
    gang = lease("a", "n0:0", "n1:0")
    cluster.send(0.0, "n0", gang)
    cluster.send(0.0, "n1", gang)
    assert cluster.machines.crash(10.0, "n1") == [
        report("n0", exits=(Exit("a/1", "node_failed", 160, 128, 10.0, 10.0),))
    ]
    assert cluster.machines.advance(10.0) == [NodeSilent(node="n1")]
    assert cluster.send(11.0, "n1", gang) == []
    spec = NodeSpec(name="n1", worker_type="v100", gpus=1)
    assert cluster.machines.repair(20.0, "n1") == [NodeHello(spec=spec)]
    cluster.generations["n1"] = 2
    second = lease("a", "n1:0", attempt=2)
    assert cluster.send(21.0, "n1", second) == [report("n1", 3, started=("a/2",))]
    assert cluster.machines.gangs["a/2"].steps == 128


def test_a_node_that_is_back_before_the_silence_is_noticed() -> None:
    """The scheduler gets no silence, only a hello without leases."""
    cluster = Cluster(silence_s=30.0)
    assert cluster.machines.crash(10.0, "n0") == []
    assert [type(sent) for sent in cluster.machines.repair(20.0, "n0")] == [NodeHello]
    assert cluster.machines.next_s() == math.inf


def test_a_node_that_is_cut_off_stops_at_the_end_of_its_lease() -> None:
    """An unreachable node runs on, stops its job itself, and reports the exit when the link is back."""
    cluster = Cluster(limits=Limits(late_s=0.0), silence_s=5.0)
    cluster.know("a")
    cluster.send(0.0, "n0", lease("a", ends_s=100.0))
    assert cluster.machines.cut(10.0, "n0") == []
    assert cluster.machines.advance(15.0) == [NodeSilent(node="n0")]
    assert cluster.renew(90.0, 200.0) == []
    assert cluster.run(150.0) == []
    assert cluster.machines.gangs == {}
    gone = Exit("a/1", "yielded", 1000, 1000, 100.0, 100.0)
    hello = NodeHello(
        spec=NodeSpec(name="n0", worker_type="v100", gpus=1),
        held=(HeldLease(lease="a/1", steps=1000, ran_s=100.0),),
    )
    assert cluster.machines.mend(160.0, "n0") == [hello, report(exits=(gone,))]


def test_a_link_that_is_back_in_time_changes_nothing() -> None:
    """The node still holds its lease, which is renewed as usual."""
    cluster = Cluster(limits=Limits(report_interval_s=1e6))
    cluster.know("a", steps_total=3000)
    cluster.send(0.0, "n0", lease("a", ends_s=100.0))
    cluster.machines.cut(10.0, "n0")
    hello = cluster.machines.mend(50.0, "n0")
    assert [sent.held[0].lease for sent in hello if isinstance(sent, NodeHello)] == ["a/1"]
    cluster.renew(60.0, 1000.0)
    assert [at_s for at_s, _ in cluster.run(1000.0)] == [300.0]


def test_faults_that_change_nothing_send_nothing() -> None:
    """Mending an intact link, repairing a running node and crashing a crashed one send no message."""
    machines = Cluster().machines
    assert machines.mend(1.0, "n0") == []
    assert machines.repair(1.0, "n0") == []
    machines.crash(2.0, "n0")
    machines.advance(2.0)
    assert machines.crash(3.0, "n0") == []
    assert machines.cut(3.0, "n0") == []
    assert machines.mend(3.0, "n0") == []
    assert machines.next_s() == math.inf


def test_a_stale_attempt_does_not_overwrite_the_checkpoint() -> None:
    """A node that is cut off past its lease saves late; the checkpoint of the newer attempt stays current."""
    cluster = Cluster(nodes=2, limits=Limits(late_s=0.0))
    cluster.know("a", checkpoint_s=10.0)
    cluster.send(0.0, "n0", lease("a", ends_s=100.0))
    cluster.machines.cut(10.0, "n0")
    cluster.send(90.0, "n1", lease("a", "n1:0", attempt=2))
    cluster.run(140.0)
    assert "a/1" not in cluster.machines.gangs
    assert cluster.machines.saved["a"] == ((1, 2), 0.0)


# --------------------------------------------------------------------------------------------------- schedules


def test_failures_have_the_given_rates() -> None:
    """Mean up and down times are as given, and the same seed gives each node the same failures."""
    events = failures(["n0", "n1"], mtbf_s=100.0, mttr_s=10.0, until_s=1e6, seed=4)
    own_events = [event for event in events if event.node == "n0"]
    assert own_events == failures(["n0"], mtbf_s=100.0, mttr_s=10.0, until_s=1e6, seed=4)
    assert own_events != failures(["n0"], mtbf_s=100.0, mttr_s=10.0, until_s=1e6, seed=5)
    down = [back.t_s - gone.t_s for gone, back in zip(own_events[::2], own_events[1::2], strict=True)]
    assert {
        (gone.event, back.event) for gone, back in zip(own_events[::2], own_events[1::2], strict=True)
    } == {("crash", "repair")}
    assert sum(down) / len(down) == pytest.approx(10.0, rel=0.05)
    assert len(down) == pytest.approx(1e6 / 110, rel=0.05)
    assert [event.t_s for event in events] == sorted(event.t_s for event in events)


POOL = [NodeSpec(name=f"n{i}", worker_type="v100", gpus=2) for i in range(3)]


def test_capacity_comes_and_goes_by_whole_nodes() -> None:
    """Nodes join in the order of the pool and leave in reverse order, with a notice in advance."""
    gpus_from = ((0, 6), (100, 3), (200, 4))
    changes = [CapacityChange(t_s, "v100", gpus) for t_s, gpus in gpus_from]
    assert capacity(changes, POOL, notice_s=30) == [
        NodeEvent(0, "n0", "join"),
        NodeEvent(0, "n1", "join"),
        NodeEvent(0, "n2", "join"),
        NodeEvent(70, "n2", "notice"),
        NodeEvent(70, "n1", "notice"),
        NodeEvent(100, "n2", "leave"),
        NodeEvent(100, "n1", "leave"),
        NodeEvent(200, "n1", "join"),
    ]


def test_events_are_read_from_a_file(tmp_path: Path) -> None:
    """Events in any order are read in order of time."""
    path = tmp_path / "events.csv"
    path.write_text("t_s,node,event\n20,n0,repair\n10.5,n0,crash\n\n30,n1,cut\n")
    assert read_events(path, ["n0", "n1"]) == [
        NodeEvent(10.5, "n0", "crash"),
        NodeEvent(20, "n0", "repair"),
        NodeEvent(30, "n1", "cut"),
    ]


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ("5,n7,crash", "node"),
        ("5,n0,crsh", "event"),
        ("soon,n0,crash", "t_s"),
        ("-1,n0,crash", "t_s"),
    ],
)
def test_faults_in_the_file_are_reported_with_their_line(
    tmp_path: Path, line: str, column: str, wording: Wording
) -> None:
    """The error has file, line, column and remedy."""
    path = tmp_path / "events.csv"
    path.write_text(f"t_s,node,event\n1,n0,cut\n{line}\n")
    with pytest.raises(TraceError) as refused:
        read_events(path, ["n0"])
    assert str(refused.value).startswith(f"{path}:3: {column}: ")
    wording(refused.value, folder=tmp_path)


def test_each_event_has_its_effect() -> None:
    """A notice drains the node, leaving makes it silent, and joining sends its hello and resumes it."""
    machines = Cluster().machines
    pool = {"n0": NodeSpec(name="n0", worker_type="v100", gpus=1)}
    assert strike(machines, 1.0, NodeEvent(1.0, "n0", "notice"), pool) == [
        NodeCommand(node="n0", action="drain", user="spot")
    ]
    assert strike(machines, 2.0, NodeEvent(2.0, "n0", "leave"), pool) == []
    assert machines.advance(2.0) == [NodeSilent(node="n0")]
    assert strike(machines, 3.0, NodeEvent(3.0, "n0", "join"), pool) == [
        NodeHello(spec=pool["n0"]),
        NodeCommand(node="n0", action="resume", user="spot"),
    ]


# --------------------------------------------------------------------------------------------------- bad networks


def test_a_good_network_changes_nothing() -> None:
    """A faulty link without faults delivers everything unchanged."""
    cluster = Cluster()
    link = FaultyLink(cluster.machines)
    cluster.know("a", steps_total=10)
    effect = SendLeases(node="n0", epoch=1, generation=1, leases=(lease("a"),))
    assert link.deliver(0.0, effect) == [report(started=("a/1",))]
    assert link.next_s() == 1.0
    assert [type(sent) for sent in link.advance(1.0)] == [NodeReport]


def test_a_lost_set_is_reported_at_the_next_renewal() -> None:
    """A node that receives a renewal of a newer generation reports the generation that it has."""
    cluster = Cluster()
    cluster.generations["n0"] = 5
    assert cluster.renew(0.0, 360.0) == [report(generation=0)]


@given(seed=st.integers(0, 10_000))
def test_exits_get_through_a_bad_network(seed: int) -> None:
    """However many messages are lost, doubled or late, the exit arrives, always with the same figures."""
    cluster = Cluster(report_interval_s=20.0)
    link = FaultyLink(cluster.machines, seed=seed, lost=0.4, doubled=0.3, late=0.3, until_s=500.0)
    cluster.know("a", steps_total=100)
    exits: list[Exit] = []
    # The scheduler only repeats its set of leases every ten seconds.
    for at_s in range(0, 700, 10):
        messages = link.advance(float(at_s))
        if not exits:
            messages += link.deliver(
                float(at_s), SendLeases(node="n0", epoch=1, generation=1, leases=(lease("a"),))
            )
            messages += link.deliver(float(at_s), RenewLeases(1, at_s, at_s + 1000.0, {"n0": 1}))
        exits += [end for message in messages if isinstance(message, NodeReport) for end in message.exits]
    assert {end.lease for end in exits} == {"a/1"}
    assert len(set(exits)) == 1
    assert exits[0].outcome == "finished"


def test_the_network_counts_its_faults() -> None:
    """Under heavy loss no count is zero, so a test that asks for faults gets them."""
    cluster = Cluster(nodes=20)
    link = FaultyLink(cluster.machines, seed=1, lost=0.3, doubled=0.3, late=0.3)
    link.deliver(0.0, RenewLeases(1, 1, 360.0, dict.fromkeys(cluster.generations, 3)))
    assert min(link.counts.values()) > 0
    assert isinstance(link.machines, Machines)
