"""The CPUs of simulated nodes: divided by weights among the jobs that do steps, whose rates follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.effects import RenewLeases, SendLeases
from scheduler.core.messages import Message, NodeReport
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import Lease
from scheduler.sim.engine.cpus import Claim, divide
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth, Physics
from scheduler.sim.engine.renewals import RestartingMachines
from tests.sim.engine.test_machines import lease
from traces.cpu_rates import CpuRates
from traces.throughputs import Throughputs

# `images` is twice as fast with six CPUs as with its fair share of three, `text` needs a single one, and nothing is
# known of the CPUs of `old`.
CURVES = {
    ("images", 1, "v100"): CpuRates(((1.0, 1.0), (6.0, 6.0))),
    ("images", 2, "v100"): CpuRates(((1.0, 2.0), (6.0, 12.0))),
    ("text", 1, "v100"): CpuRates(((1.0, 5.0),)),
}
TABLE = Throughputs(
    solo={
        ("images", 1, "v100"): 3.0,
        ("images", 2, "v100"): 6.0,
        ("text", 1, "v100"): 5.0,
        ("old", 1, "v100"): 4.0,
    },
    unconsolidated={("images", 2, "v100"): 3.0},
    pairs={("v100", "images", 1, "text", 1): (2.0, 4.0)},
    cpu_rates=CURVES,
)
CLAIMS = st.lists(st.builds(Claim, st.floats(0.5, 16.0), st.floats(0.0, 64.0)), min_size=1, max_size=8)


class Cluster:
    """Nodes with two GPUs and six CPUs each, and the rates that jobs have on them."""

    def __init__(
        self, nodes: int = 1, cpus: float | None = 6.0, renewals: bool = False, **physics: Any
    ) -> None:
        self.physics = Physics(TABLE, **physics)
        self.machines = (RestartingMachines if renewals else Machines)(self.physics)
        self.generations = {f"n{number}": 0 for number in range(nodes)}
        for name in self.generations:
            self.machines.join(0.0, NodeSpec(name=name, worker_type="v100", gpus=2, cpus=cpus))

    def send(self, now_s: float, node: str, *leases: Lease) -> list[Message]:
        """Send a node its next full set of leases; the name of a job begins with its type."""
        self.generations[node] += 1
        for own in leases:
            self.physics.set_truth(own.job, JobTruth(job_type=own.job.rstrip("0123456789")))
        effect = SendLeases(node=node, epoch=1, generation=self.generations[node], leases=leases)
        return self.machines.deliver(now_s, effect)

    @property
    def rates(self) -> dict[str, float]:
        """The present rate of each job."""
        return {gang.lease.job: gang.rate for gang in self.machines.gangs.values()}


def test_what_a_job_leaves_idle_goes_to_its_neighbour() -> None:
    """A job is faster while its neighbour needs less than its fair share, and as fast as before when it is alone."""
    cluster = Cluster()
    cluster.send(0.0, "n0", lease("images"))
    assert cluster.rates == {"images": 6.0}
    cluster.send(10.0, "n0", lease("images"), lease("text", "n0:1"))
    assert cluster.rates == {"images": 5.0, "text": 5.0}
    cluster.send(20.0, "n0", lease("images"), lease("images2", "n0:1"))
    assert cluster.rates == {"images": 3.0, "images2": 3.0}
    cluster.send(30.0, "n0", lease("images"))
    assert cluster.rates == {"images": 6.0}
    cluster.machines.gangs["images/1"].settle(30.0)
    assert cluster.machines.gangs["images/1"].steps == 10 * (6.0 + 5.0 + 3.0)


def test_a_new_rate_moves_the_end_of_a_job() -> None:
    """A job that gets more CPUs in the middle ends earlier."""
    cluster = Cluster()
    cluster.physics.set_truth("images2", JobTruth(job_type="images", steps_total=90.0))
    cluster.generations["n0"] += 1
    both = (lease("images"), lease("images2", "n0:1"))
    cluster.physics.set_truth("images", JobTruth(job_type="images"))
    cluster.machines.deliver(0.0, SendLeases(node="n0", epoch=1, generation=1, leases=both))
    assert cluster.machines.next_s() == 30.0
    cluster.machines.deliver(10.0, SendLeases(node="n0", epoch=1, generation=2, leases=both[1:]))
    assert cluster.machines.next_s() == 10.0 + 60.0 / 6.0
    ended = [sent for sent in cluster.machines.advance(20.0) if isinstance(sent, NodeReport)]
    assert [(exit.lease, exit.steps) for report in ended for exit in report.exits] == [("images2/1", 90.0)]


def test_fixed_cpus_stay_idle_if_their_job_needs_fewer() -> None:
    """With fixed CPUs, a job has its fair share, whatever its neighbours do."""
    cluster = Cluster(fixed_cpus=True)
    cluster.send(0.0, "n0", lease("images"))
    assert cluster.rates == {"images": 3.0}
    cluster.send(10.0, "n0", lease("images"), lease("text", "n0:1"))
    assert cluster.rates == {"images": 3.0, "text": 5.0}


def test_few_cpus_make_jobs_slower() -> None:
    """Jobs with fewer CPUs than they need are slower than in the table, but jobs without a curve are not."""
    cluster = Cluster(cpus=1.0)
    cluster.send(0.0, "n0", lease("images"), lease("text", "n0:1"))
    assert cluster.rates == {"images": 0.5, "text": 2.5}
    cluster.send(10.0, "n0", lease("images"), lease("old", "n0:1"))
    assert cluster.rates == {"images": 0.5, "old": 4.0}


@pytest.mark.parametrize("cpus", [None, 0.0])
def test_a_node_without_cpus_runs_at_the_rates_of_the_table(cpus: float | None) -> None:
    """Where nothing is known of a node's CPUs, curves play no part."""
    cluster = Cluster(cpus=cpus)
    cluster.send(0.0, "n0", lease("images"), lease("images2", "n0:1"))
    assert cluster.rates == {"images": 3.0, "images2": 3.0}


def test_a_job_without_a_curve_uses_its_fair_share() -> None:
    """It leaves nothing to its neighbour, and runs at its rate in the table."""
    cluster = Cluster()
    cluster.send(0.0, "n0", lease("images"), lease("old", "n0:1"))
    assert cluster.rates == {"images": 3.0, "old": 4.0}


def test_a_gang_is_as_fast_as_where_it_has_the_fewest_cpus() -> None:
    """A neighbour on either node slows the whole gang down, as a factor on the rate of a spread gang."""
    cluster = Cluster(nodes=2)
    gang = lease("images", "n0:0", "n1:0")
    for name in ("n0", "n1"):
        cluster.send(0.0, name, gang)
    assert cluster.rates == {"images": 6.0}
    cluster.send(10.0, "n1", gang, lease("images2", "n1:1"))
    assert cluster.rates == {"images": 3.0, "images2": 3.0}
    cluster.send(20.0, "n1", gang, lease("text", "n1:1"))
    assert cluster.rates == {"images": 5.0, "text": 5.0}
    cluster.send(30.0, "n0", gang, lease("images3", "n0:1"))
    assert cluster.rates == {"images": 3.0, "text": 5.0, "images3": 3.0}


def test_a_pair_divides_the_cpus_of_its_gpus() -> None:
    """Two jobs on the same GPUs have half of their CPUs each, and are never faster than the pair's rates."""
    cluster = Cluster()
    pair = (lease("images"), lease("text"))
    cluster.send(0.0, "n0", *pair)
    assert cluster.rates == {"images": 2.0, "text": 4.0}
    cluster.send(10.0, "n0", *pair, lease("images2", "n0:1"))
    # The text job needs 0.8 CPUs for its rate in the pair. Two thirds of the rest go to the job with a GPU of its own.
    assert cluster.rates == {
        "images": pytest.approx(5.2 / 3),
        "text": 4.0,
        "images2": pytest.approx(10.4 / 3),
    }
    cluster.send(20.0, "n0", pair[0], lease("images2", "n0:1"))
    assert cluster.rates == {"images": 3.0, "images2": 3.0}


def test_a_pair_that_does_not_fit_takes_no_cpus() -> None:
    """A job that cannot run here fails beside another one, too, and leaves that one as fast as it was."""
    cluster = Cluster()
    cluster.send(0.0, "n0", lease("text"))
    cluster.physics.set_truth("images", JobTruth(job_type="images", rates={"v100": 0.0}))
    cluster.machines.deliver(
        10.0, SendLeases(node="n0", epoch=1, generation=2, leases=(lease("text"), lease("images")))
    )
    assert cluster.rates == {"text": 5.0}


def test_jobs_that_together_ask_for_too_many_cpus_share_them_in_proportion() -> None:
    """One asked for all six, the GPU of the other has a share of three: they get four and two. Alone, it has six."""
    cluster = Cluster(fixed_cpus=True)
    cluster.physics.set_truth("images", JobTruth(job_type="images"))
    cluster.physics.set_truth("images2", JobTruth(job_type="images", cpus=6.0))
    both = (lease("images"), lease("images2", "n0:1"))
    cluster.machines.deliver(0.0, SendLeases(node="n0", epoch=1, generation=1, leases=both))
    assert cluster.rates == {"images": pytest.approx(2.0), "images2": pytest.approx(4.0)}
    cluster.machines.deliver(10.0, SendLeases(node="n0", epoch=1, generation=2, leases=both[1:]))
    assert cluster.rates == {"images2": 6.0}


def test_a_crash_frees_the_cpus_of_a_gang_on_its_other_node() -> None:
    """When a node of a gang dies, the neighbours on the other node get its CPUs, and the node starts empty."""
    cluster = Cluster(nodes=2)
    gang = lease("images", "n0:0", "n1:0")
    cluster.send(0.0, "n0", gang, lease("images2", "n0:1"))
    cluster.send(0.0, "n1", gang, lease("images3", "n1:1"))
    assert cluster.rates == {"images": 3.0, "images2": 3.0, "images3": 3.0}
    cluster.machines.crash(10.0, "n1")
    assert cluster.rates == {"images2": 6.0}
    cluster.machines.repair(20.0, "n1")
    cluster.send(30.0, "n1", lease("images4", "n1:0"))
    assert cluster.rates == {"images2": 6.0, "images4": 6.0}


def test_a_job_that_does_not_fit_takes_no_cpus() -> None:
    """A job with rate 0 fails at once, and its neighbour is as fast as before."""
    cluster = Cluster()
    cluster.send(0.0, "n0", lease("images"))
    cluster.send(10.0, "n0", lease("images"), lease("unknown", "n0:1"))
    assert cluster.rates == {"images": 6.0}


def test_a_job_that_saves_and_restarts_uses_no_cpus() -> None:
    """Where renewals restart jobs, a neighbour has the CPUs of a job until that does steps again."""
    cluster = Cluster(renewals=True)
    cluster.send(0.0, "n0", lease("images", ends_s=100.0), lease("text", "n0:1", ends_s=100.0))
    truth = JobTruth(job_type="images", restart_s=5.0)
    cluster.physics.set_truth("images2", truth)
    second = lease("images2", "n0:1", ends_s=100.0)
    cluster.generations["n0"] += 1
    leases = (lease("images", ends_s=100.0), second)
    cluster.machines.deliver(10.0, SendLeases(node="n0", epoch=1, generation=2, leases=leases))
    assert cluster.rates["images"] == 6.0
    cluster.machines.advance(15.0)
    assert cluster.rates == {"images": 3.0, "images2": 3.0}
    renewal = RenewLeases(epoch=1, round_number=1, ends_s=200.0, generations=dict(cluster.generations))
    cluster.machines.deliver(90.0, renewal)
    cluster.machines.advance(90.0)
    assert cluster.rates["images"] == 6.0
    cluster.machines.advance(95.0)
    assert cluster.rates == {"images": 3.0, "images2": 3.0}


@given(st.floats(0.0, 256.0), CLAIMS, st.randoms())
def test_cpus_are_divided_by_weights(cpus: float, claims: Sequence[Claim], luck: Any) -> None:
    """Each claim gets its fair share or all it can use, no CPU is idle that one could use, and order is irrelevant."""
    shares = divide(cpus, claims)
    slack = 1e-9 * max(1.0, cpus)
    fair = [cpus * claim.weight / math.fsum(other.weight for other in claims) for claim in claims]
    for claim, share, least in zip(claims, shares, fair, strict=True):
        assert min(claim.most, least) - slack <= share <= claim.most
    assert sum(shares) <= cpus + slack
    assert sum(shares) == pytest.approx(min(cpus, math.fsum(claim.most for claim in claims)), abs=slack)
    order = list(range(len(claims)))
    luck.shuffle(order)
    shuffled = [claims[index] for index in order]
    assert sorted(zip(shuffled, divide(cpus, shuffled), strict=True)) == sorted(
        zip(claims, shares, strict=True)
    )


def test_without_claims_no_cpus_are_divided() -> None:
    """No claims, no shares."""
    assert divide(24.0, []) == []
