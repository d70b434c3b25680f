"""Simulated machines: leases become processes, processes do steps, and nodes report them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Exit, Message, NodeHello, NodeReport, Progress
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import Bundle, Lease
from scheduler.sim.engine.machines import VOID_MAX, Machines
from scheduler.sim.engine.physics import CODE_FAULT, CODE_NO_RATE, JobTruth, Physics
from traces.throughputs import Throughputs
from worker_agent.core.messages import Limits

TABLE = Throughputs(
    solo={
        ("cnn", 1, "v100"): 10.0,
        ("lm", 1, "v100"): 4.0,
        ("cnn", 2, "v100"): 16.0,
        ("cnn", 4, "v100"): 24.0,
    },
    unconsolidated={("cnn", 2, "v100"): 8.0},
    pairs={("v100", "cnn", 1, "lm", 1): (6.0, 3.0)},
)


class Cluster:
    """Machines, and the messages that a scheduler sends to them."""

    def __init__(self, nodes: int = 1, gpus: int = 1, **options: Any) -> None:
        self.physics = Physics(TABLE, **options.pop("physics", {}))
        self.machines = Machines(self.physics, **options)
        self.hellos = [
            self.machines.join(0.0, NodeSpec(name=f"n{i}", worker_type="v100", gpus=gpus))
            for i in range(nodes)
        ]
        self.round_number = 0
        self.generations = dict.fromkeys((f"n{i}" for i in range(nodes)), 0)

    def know(self, job: str, **truth: Any) -> None:
        """Set how a job behaves, by default with type cnn."""
        self.physics.set_truth(job, JobTruth(**{"job_type": "cnn", **truth}))

    def send(self, now_s: float, node: str, *leases: Lease) -> list[Message]:
        """Send a node its next full set of leases."""
        self.generations[node] += 1
        effect = SendLeases(node=node, epoch=1, generation=self.generations[node], leases=leases)
        return self.machines.deliver(now_s, effect)

    def renew(self, now_s: float, ends_s: float) -> list[Message]:
        """Renew the leases of all nodes."""
        self.round_number += 1
        effect = RenewLeases(
            epoch=1, round_number=self.round_number, ends_s=ends_s, generations=dict(self.generations)
        )
        return self.machines.deliver(now_s, effect)

    def run(self, until_s: float) -> list[tuple[float, NodeReport]]:
        """Let time pass; return the reports, with their times."""
        reports = []
        while (at_s := self.machines.next_s()) <= until_s:
            reports += [(at_s, sent) for sent in self.machines.advance(at_s) if isinstance(sent, NodeReport)]
        return reports


def lease(job: str, *gpus: str, attempt: int = 1, ends_s: float = 1e9) -> Lease:
    """Return a lease for a job on these GPUs, by the name job/attempt."""
    return Lease(
        id=f"{job}/{attempt}",
        job=job,
        bundle=Bundle((job,), "v100", len(gpus)),
        attempt=attempt,
        epoch=1,
        gpus=gpus or ("n0:0",),
        round_number=0,
        ends_s=ends_s,
    )


def report(node: str = "n0", generation: int = 1, **fields: Any) -> NodeReport:
    """Return a node's report with these fields."""
    return NodeReport(node=node, generation=generation, **fields)


def test_a_node_says_hello_when_it_joins() -> None:
    """A node that joins sends one hello without leases, and nothing else."""
    cluster = Cluster()
    assert cluster.hellos == [[NodeHello(spec=NodeSpec(name="n0", worker_type="v100", gpus=1))]]
    assert cluster.machines.next_s() == math.inf
    with pytest.raises(ValueError, match="'n0'"):
        cluster.machines.join(1.0, NodeSpec(name="n0", worker_type="v100", gpus=1))


def test_a_job_runs_to_its_end() -> None:
    """A job starts at once, takes its restart time, steps at its rate, and its exit has the figures."""
    cluster = Cluster()
    cluster.know("a", steps_total=100, restart_s=5)
    assert cluster.send(0.0, "n0", lease("a")) == [report(started=("a/1",))]
    assert cluster.run(1000) == [(15.0, report(exits=(Exit("a/1", "finished", 100, 100, 10.0, 15.0),)))]


def test_ends_of_stopped_leases_are_forgotten() -> None:
    """However often a job is stopped, only its last start determines its end; earlier ends are dropped."""
    cluster = Cluster()
    cluster.know("a", steps_total=10_000)
    times = 4 * VOID_MAX
    for attempt in range(1, times + 1):
        cluster.send(float(attempt), "n0", lease("a", attempt=attempt))
        if attempt < times:
            cluster.send(attempt + 0.5, "n0")
    assert len(cluster.machines._due) <= VOID_MAX + 3
    ends_s = times + (10_000 - 5.0 * (times - 1)) / 10.0
    assert [at_s for at_s, sent in cluster.run(ends_s + 1.0) if sent.exits] == [ends_s]


def test_a_stopped_job_saves_and_continues_elsewhere() -> None:
    """A stopped job saves for its checkpoint time; the next attempt continues from there, on any node."""
    cluster = Cluster(nodes=2)
    cluster.know("a", steps_total=200, checkpoint_s=2)
    cluster.send(0.0, "n0", lease("a"))
    assert cluster.send(10.0, "n0") == []
    assert cluster.run(1000)[0] == (
        12.0,
        report(generation=2, exits=(Exit("a/1", "yielded", 100, 100, 10.0, 12.0),)),
    )
    cluster.send(20.0, "n1", lease("a", "n1:0", attempt=2))
    assert (30.0, report("n1", exits=(Exit("a/2", "finished", 200, 200, 10.0, 10.0),))) in cluster.run(1000)


def test_a_change_at_one_instant_is_one_report() -> None:
    """With free restarts and checkpoints, one report has the exit of the old job and the start of the new one."""
    cluster = Cluster()
    cluster.know("a")
    cluster.know("b")
    cluster.send(0.0, "n0", lease("a"))
    assert cluster.send(10.0, "n0", lease("b")) == [
        report(generation=2, started=("b/1",), exits=(Exit("a/1", "yielded", 100, 100, 10.0, 10.0),))
    ]


def test_a_gpu_waits_for_the_job_that_leaves_it() -> None:
    """The new job starts when the old one has saved, and not when the scheduler sends its lease."""
    cluster = Cluster()
    cluster.know("a", checkpoint_s=3)
    cluster.know("b", steps_total=10)
    cluster.send(0.0, "n0", lease("a"))
    assert cluster.send(10.0, "n0", lease("b")) == []
    assert [at_s for at_s, _ in cluster.run(1000)] == [13.0, 14.0]


def test_packed_jobs_slow_each_other_down_while_both_step() -> None:
    """Alone 10 steps/s, in a pair 6: the rate changes when the partner starts stepping and when it ends."""
    cluster = Cluster()
    cluster.know("a", steps_total=1000)
    cluster.know("b", job_type="lm", steps_total=30, restart_s=5)
    cluster.send(0.0, "n0", lease("a"), lease("b"))
    reports = cluster.run(1000)
    assert reports[0] == (15.0, report(exits=(Exit("b/1", "finished", 30, 30, 10.0, 15.0),)))
    # 5 s alone, 10 s beside b, and the other 890 steps alone again.
    assert reports[1] == (104.0, report(exits=(Exit("a/1", "finished", 1000, 1000, 104.0, 104.0),)))


def test_a_gang_begins_when_all_its_nodes_have_started() -> None:
    """The first node's ranks wait for the others; each node reports the exit with the gang's figures."""
    cluster = Cluster(nodes=2)
    cluster.know("a", steps_total=160)
    gang = lease("a", "n0:0", "n1:0")
    assert cluster.send(0.0, "n0", gang) == [report(started=("a/1",))]
    assert cluster.machines.next_s() == 3600.0
    assert cluster.send(5.0, "n1", gang) == [report("n1", started=("a/1",))]
    assert cluster.run(1000) == [
        (15.0, report("n0", exits=(Exit("a/1", "finished", 160, 160, 10.0, 15.0),))),
        (15.0, report("n1", exits=(Exit("a/1", "finished", 160, 160, 10.0, 10.0),))),
    ]


def test_a_gang_spread_over_more_nodes_than_it_needs_is_slower() -> None:
    """A gang of two spread over two nodes does 8 steps/s instead of 16, unless rates are always consolidated."""
    for always, at_s in ((False, 10.0), (True, 5.0)):
        cluster = Cluster(nodes=2, gpus=2, physics={"always_consolidated": always})
        cluster.know("a", steps_total=80)
        gang = lease("a", "n0:1", "n1:0")
        cluster.send(0.0, "n0", gang)
        cluster.send(0.0, "n1", gang)
        assert [exited_s for exited_s, _ in cluster.run(100)] == [at_s, at_s]


def test_a_gang_stops_as_one() -> None:
    """If one node stops the gang, all ranks agree on the step, save and exit."""
    cluster = Cluster(nodes=2)
    cluster.know("a", checkpoint_s=1)
    gang = lease("a", "n0:0", "n1:0")
    cluster.send(0.0, "n0", gang)
    cluster.send(0.0, "n1", gang)
    cluster.send(10.0, "n0")
    gone = Exit("a/1", "yielded", 160, 160, 10.0, 11.0)
    assert cluster.run(100) == [
        (11.0, report("n0", 2, exits=(gone,))),
        (11.0, report("n1", exits=(gone,))),
    ]


def test_a_job_that_does_not_fit_fails_with_a_code() -> None:
    """If its rate is 0, alone or beside another job, the new job fails; the running one is not harmed."""
    cluster = Cluster()
    cluster.know("big", job_type="unknown")
    assert cluster.send(0.0, "n0", lease("big")) == [
        report(started=("big/1",), exits=(Exit("big/1", "failed", 0, 0, 0.0, 0.0, CODE_NO_RATE),))
    ]
    cluster.know("a", steps_total=200)
    # The table has no rates of cnn beside cnn.
    cluster.know("b")
    cluster.send(10.0, "n0", lease("a"))
    (sent,) = cluster.send(20.0, "n0", lease("a"), lease("b"))
    assert isinstance(sent, NodeReport)
    assert [(end.lease, end.code) for end in sent.exits if end.lease != "big/1"] == [("b/1", CODE_NO_RATE)]
    assert 30.0 in [at_s for at_s, _ in cluster.run(100)]


def test_a_failing_job_loses_its_unsaved_steps() -> None:
    """The job fails at its step in every attempt, and keeps only the steps it saved on the way."""
    cluster = Cluster()
    cluster.know("a", steps_total=1000, fails_at_steps=95, save_every_s=4)
    cluster.send(0.0, "n0", lease("a"))
    assert cluster.run(100) == [(9.5, report(exits=(Exit("a/1", "failed", 95, 80, 9.5, 9.5, CODE_FAULT),)))]
    cluster.send(10.0, "n0", lease("a", attempt=2))
    assert cluster.run(100)[0][0] == 11.5


def test_progress_comes_at_the_interval_for_all_leases_of_a_node() -> None:
    """A node sends one report per interval, with the absolute steps of all its leases."""
    cluster = Cluster(gpus=2, report_interval_s=100.0)
    cluster.know("a")
    cluster.know("b", job_type="lm")
    cluster.send(0.0, "n0", lease("a", "n0:0"), lease("b", "n0:1"))
    both = (Progress("a/1", 1000, 0, 100.0), Progress("b/1", 400, 0, 100.0))
    reports = cluster.run(250)
    assert reports[0] == (100.0, report(progress=both))
    assert [at_s for at_s, _ in reports] == [100.0, 200.0]


def test_leases_that_are_not_renewed_run_out() -> None:
    """The node itself stops the job, a moment after the end; a renewal within that moment still counts."""
    cluster = Cluster(limits=Limits(report_interval_s=1e6, late_s=1.0))
    cluster.know("a")
    cluster.send(0.0, "n0", lease("a", ends_s=100.0))
    assert cluster.machines.next_s() == 101.0
    assert cluster.renew(100.0, 200.0) == []
    assert cluster.machines.next_s() == 201.0
    assert cluster.run(1000)[0] == (201.0, report(exits=(Exit("a/1", "yielded", 2010, 2010, 201.0, 201.0),)))


def test_renewals_cost_no_wakes() -> None:
    """A thousand rounds of renewals cause no other events than the progress reports."""
    cluster = Cluster(nodes=3)
    cluster.know("a")
    cluster.send(0.0, "n0", lease("a", ends_s=360.0))
    reports = []
    for number in range(1, 1001):
        cluster.renew(number * 360.0 - 2.0, (number + 1) * 360.0)
        reports += cluster.run(number * 360.0)
    assert [at_s for at_s, _ in reports] == [3600.0 * hour for hour in range(1, 101)]


def test_a_job_that_ignores_being_asked_is_killed() -> None:
    """The job is asked, signalled and killed; it loses its unsaved steps, but the exit is not a failure of the job."""
    cluster = Cluster(limits=Limits(ask_s=10.0, grace_s=5.0))
    cluster.know("a", ignores_stop=True)
    cluster.send(0.0, "n0", lease("a"))
    assert cluster.send(10.0, "n0") == []
    gone = [end for _, sent in cluster.run(26.0) for end in sent.exits]
    assert gone == [Exit("a/1", "yielded", 250, 0, 25.0, 25.0)]


def test_noise_belongs_to_the_attempt() -> None:
    """Seed, job and attempt determine the noise; the mean over many attempts is the table's rate."""
    physics = Physics(TABLE, seed=3, noise_sigma=0.2)
    physics.set_truth("a", JobTruth(job_type="cnn"))
    rates = [physics.rate(lease("a", "n0:0", attempt=i), "v100", True) for i in range(2000)]
    assert rates[:5] == [physics.rate(lease("a", "n0:0", attempt=i), "v100", True) for i in range(5)]
    assert sum(rates) / len(rates) == pytest.approx(10.0, rel=0.02)
    assert min(rates) < 8 < 12 < max(rates)


def test_a_job_without_a_truth_is_an_error() -> None:
    """A lease for a job without a truth raises LookupError with the job's name."""
    with pytest.raises(LookupError, match="'ghost'"):
        Cluster().send(0.0, "n0", lease("ghost"))
