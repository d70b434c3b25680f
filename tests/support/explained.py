"""A state for every reason that `explain` can give: the steps that lead to it, and the content of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.core.messages import (
    GiveRates,
    JobCommand,
    NodeCommand,
    NodeHello,
    NodeSilent,
    Progress,
    SetTenants,
)
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Dependency
from scheduler.model.quota import Quota
from scheduler.model.settings import TenantSpec
from tests.support.desk import Desk, exited, job, node

ROUND_S = 360.0


@dataclass(frozen=True)
class Case:
    """The job to explain; changes and other jobs that the answer must have, and the basis of its estimate."""

    desk: Desk
    job: str
    changes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    basis: str | None = None

    @property
    def state(self) -> SchedulerState:
        """Return the state in which the job is explained."""
        return self.desk.core.state


def drained(desk: Desk, name: str) -> None:
    """Let an operator drain a node."""
    desk.tell(desk.now_s, NodeCommand(node=name, action="drain"))
    desk.settle()


def command(desk: Desk, name: str, action: str) -> None:
    """Let a user act on a job."""
    desk.tell(desk.now_s, JobCommand(job=name, action=action, user="ann"))  # type: ignore[arg-type]
    desk.settle()


def ended(desk: Desk, lease: str, outcome: str = "finished", steps: float = 1000.0, name: str = "n1") -> None:
    """Let a node report that all processes of a lease have ended."""
    desk.report(name, exits=(exited(lease, outcome, steps, code=int(outcome == "failed")),))
    desk.settle()


def completed() -> Case:
    """The job has done all its steps."""
    desk = Desk(node())
    (lease,) = desk.run(job())
    ended(desk, lease)
    return Case(desk, "1")


def failed() -> Case:
    """The job crashed and may not be retried."""
    desk = Desk(node())
    (lease,) = desk.run(job())
    ended(desk, lease, "failed", 10.0)
    return Case(desk, "1", ("submit_again",))


def cancelled() -> Case:
    """A user cancelled the job while it ran."""
    desk = Desk(node())
    desk.run(job())
    command(desk, "1", "cancel")
    return Case(desk, "1", ("submit_again",))


def held() -> Case:
    """A user holds the job."""
    desk = Desk(node())
    desk.submit(job())
    command(desk, "1", "hold")
    return Case(desk, "1", ("release",))


def running() -> Case:
    """The job has a share and runs."""
    desk = Desk(node())
    desk.run(job())
    desk.until(desk.now_s + 10)
    return Case(desk, "1", ("job_ends",))


def running_backfill() -> Case:
    """The job came in the middle of a round, when a GPU was idle."""
    desk = Desk(node())
    desk.run(job(steps=1e6))
    desk.until(100)
    desk.run(job(steps=1e6))
    return Case(desk, "2")


def exploring() -> Case:
    """The scheduler has not measured the rate of such jobs there yet."""
    desk = Desk(node(), learn_rates=True)
    desk.run(job(job_type="new"))
    return Case(desk, "1")


def starting() -> Case:
    """The job's node has not reported yet that it runs."""
    desk = Desk(node())
    desk.submit(job())
    desk.until(8)
    return Case(desk, "1", basis="lease_granted")


def two_for_one(**changed: Any) -> Desk:
    """Two jobs take turns on one GPU; the first runs."""
    desk = Desk(node(gpus=1), **changed)
    desk.submit(job(steps=1e6), job(steps=1e6))
    desk.until(8)
    started(desk)
    return desk


def started(desk: Desk) -> None:
    """Let the nodes report that every lease sent to them runs."""
    for holding in list(desk.core.state.leases.values()):
        if holding.phase == "sent" and holding.started_s is None:
            for name in dict.fromkeys(gpu.rpartition(":")[0] for gpu in holding.lease.gpus):
                desk.report(name, started=(holding.lease.id,))
                desk.settle()


def running_job(desk: Desk) -> str:
    """Return the job that has GPUs."""
    return next(h.lease.job for h in desk.core.state.leases.values() if h.phase == "running")


def at_the_turn() -> tuple[Desk, str, str]:
    """Plan rounds until the GPU passes from one of the two jobs to the other."""
    desk = two_for_one(stay_rounds=0.0)
    first = running_job(desk)
    for number in range(1, 9):
        desk.until(number * ROUND_S + 7)
        if desk.job(first).lease is None:
            return desk, first, "2" if first == "1" else "1"
        started(desk)
    raise AssertionError("the jobs took no turns")


def gpus_still_busy() -> Case:
    """The job's lease waits until the previous job has left the GPU."""
    desk, first, second = at_the_turn()
    return Case(desk, second, ("exit",), (first,), "lease_granted")


def stopping() -> Case:
    """The job's turn is over."""
    desk, first, _ = at_the_turn()
    return Case(desk, first)


def node_silent() -> Case:
    """The job's node cannot be reached."""
    desk = Desk(node())
    desk.run(job())
    desk.tell(desk.now_s, NodeSilent(node="n1"))
    desk.settle()
    return Case(desk, "1", ("node_back",))


def dependency() -> Case:
    """Another job must succeed first."""
    desk = Desk(node())
    desk.run(job(steps=36000.0))
    desk.submit(job(after=(Dependency(job="1"),)))
    return Case(desk, "2", ("job_ends",), ("1",), "dependency_ends")


def earliest_start() -> Case:
    """The job's earliest start has not come."""
    desk = Desk(node())
    desk.submit(job(earliest_start_s=7200))
    return Case(desk, "1", ("earliest_start",), basis="earliest_start")


def retry_pause() -> Case:
    """The job's last attempt failed, and it pauses before its next one."""
    desk = Desk(node())
    (lease,) = desk.run(job(retries=9))
    ended(desk, lease, "failed", 10.0)
    return Case(desk, "1", ("retry_pause",), basis="earliest_start")


def no_nodes() -> Case:
    """The only node of the type that the job wants is drained."""
    desk = Desk(node(), node("n2", worker_type="k80"))
    desk.submit(job(worker_types=("v100",)))
    drained(desk, "n1")
    return Case(desk, "1", ("resume_node", "allow_worker_type"))


def no_fitting_node() -> Case:
    """The only node with the label that the job wants is drained."""
    desk = Desk(node(labels={"zone": "a"}), node("n2"))
    desk.submit(job(labels={"zone": "a"}))
    drained(desk, "n1")
    return Case(desk, "1", ("resume_node", "labels"))


def too_wide_now() -> Case:
    """Half of the GPUs that the job needs are drained."""
    desk = Desk(node(), node("n2"))
    desk.submit(job(gpus=4))
    drained(desk, "n2")
    return Case(desk, "1", ("more_gpus", "resume_node", "gpus_min"))


def checkpoint_elsewhere() -> Case:
    """The job's checkpoint lies on the disk of a draining node, and no other node can read it."""
    desk = Desk(node(gpus=1, storage=""))
    (lease,) = desk.run(job())
    desk.report(progress=(Progress(lease, 80.0, 60.0, 8.0),))
    desk.settle()
    desk.tell(20, NodeHello(spec=node("n2", 1, storage="")), NodeCommand(node="n1", action="drain"))
    desk.settle()
    desk.until(359)
    desk.report(exits=(exited(lease, steps=80.0),))
    desk.settle()
    return Case(desk, "1", ("resume_node", "storage"))


def no_rate() -> Case:
    """The job was accepted, and then an operator set the rate of its type on these GPUs to 0."""
    desk = Desk(node(worker_type="k80"))
    desk.submit(job(job_type="lm"))
    desk.tell(0, GiveRates(solo=[("lm", 1, "k80", 0.0)]))
    desk.settle()
    return Case(desk, "1", ("give_rate",))


def waiting_for_allocation() -> Case:
    """The job came after the last allocation, and no GPU is idle."""
    desk = Desk(node(gpus=1))
    desk.run(job(steps=1e6))
    desk.until(100)
    desk.submit(job())
    desk.until(110)
    return Case(desk, "2", ("allocation",), basis="next_allocation")


def waiting_for_round() -> Case:
    """GPUs are free, but are given out at the round's end only."""
    desk = Desk(node(), fill_mid_round=False)
    desk.run(job(steps=1e6))
    desk.until(100)
    desk.submit(job())
    desk.until(110)
    return Case(desk, "2", ("round_begins",), basis="next_round")


def no_share() -> Case:
    """First come, first served: the earlier job keeps the GPU until it ends."""
    desk = Desk(node(gpus=1), policy="fifo")
    desk.submit(job(steps=36000.0), job())
    desk.until(8)
    started(desk)
    return Case(desk, "2", ("more_gpus", "job_ends"), ("1",), "jobs_end")


def reserving() -> Desk:
    """A gang has been passed over: one GPU is free for it, the other runs a job in its minimum run time."""
    desk = Desk(node(), reserve_after=1)
    desk.submit(job(steps=1e6, min_run_s=4000), job(steps=1e6, min_run_s=1000))
    desk.until(8)
    started(desk)
    desk.submit(job(gpus=2, steps=1e6, weight=50.0), job(steps=1e6, weight=0.01))
    for number in range(1, 6):
        desk.until(number * ROUND_S + 20)
        started(desk)
    if desk.job("2").lease is not None or desk.job("2").leaving is not None:
        lease = desk.job("2").lease or desk.job("2").leaving or ""
        ended(desk, lease, "finished", 1e6)
        desk.until(desk.now_s + 1)
    return desk


def gang_reserved() -> Case:
    """GPUs are held back for a gang."""
    desk = reserving()
    return Case(desk, "3", ("more_gpus",), ("1",), "minimum_run_ends")


def reserved_for_other() -> Case:
    """A GPU is free, but held back for a gang."""
    return Case(reserving(), "4", ("other_starts",), ("3",))


def fragmented() -> Case:
    """A GPU is free, but the CPUs beside it are not."""
    desk = Desk(node(cpus=4.0))
    desk.submit(job(cpus=3.0, steps=1e6), job(cpus=3.0, steps=1e6))
    desk.until(8)
    started(desk)
    waiting = "2" if running_job(desk) == "1" else "1"
    return Case(desk, waiting, ("cpus",))


def minimum_run_of_others() -> Case:
    """The running job may not be stopped yet."""
    desk = Desk(node(gpus=1))
    desk.submit(job(steps=1e6, min_run_s=5000.0))
    desk.until(8)
    started(desk)
    desk.submit(job(steps=1e6))
    desk.until(2 * ROUND_S)
    return Case(desk, "2", ("more_gpus",), ("1",), "minimum_run_ends")


def preemption_limit() -> Case:
    """The settings allow no preemption."""
    desk = two_for_one(preemptions_max=0)
    first = running_job(desk)
    return Case(desk, "2" if first == "1" else "1", ("preemptions_max",), (first,), "jobs_end")


def turn_of_others() -> Case:
    """Two jobs share one GPU, and it is the other's turn."""
    desk = two_for_one()
    first = running_job(desk)
    return Case(desk, "2" if first == "1" else "1", ("more_gpus", "job_ends"), (first,))


def declare(desk: Desk, **limits: Quota) -> None:
    """Let an operator declare the tenant org with these limits."""
    desk.tell(desk.now_s, SetTenants(tenants=(TenantSpec(name="org", **limits),), user="opa"))
    desk.settle()


def too_wide_for_quota() -> Case:
    """The quota was lowered after the submission."""
    desk = Desk(node())
    desk.submit(job(gpus=2, tenant="org/a"))
    declare(desk, quota=Quota(gpus={"v100": 1}))
    desk.until(8)
    return Case(desk, "1", ("raise_quota",))


def quota_gpus() -> Case:
    """Another job of the tenant holds all that the quota allows, while a GPU is idle."""
    desk = Desk(node())
    declare(desk, quota=Quota(gpus={"v100": 1}))
    desk.submit(job(tenant="org/a", steps=1e6), job(tenant="org/b", steps=1e6))
    desk.until(8)
    started(desk)
    first = running_job(desk)
    return Case(desk, "2" if first == "1" else "1", ("raise_quota", "job_ends"), (first,))


def quota_budget() -> Case:
    """The tenant has spent its budget of the day, apart from a rest that is too little for a round."""
    desk = Desk(node(gpus=1))
    declare(desk, quota=Quota(gpu_hours={"day": 0.2}))
    (lease,) = desk.run(job(tenant="org/a", steps=1e6))
    desk.until(desk.core.state.round.ends_s - 1.0)
    desk.report(exits=(exited(lease),))
    desk.settle()
    desk.until(500.0)
    return Case(desk, "1", ("budget_renewed", "raise_quota"), (), "budget_renewed")


def quota_jobs() -> Case:
    """As many jobs of the user run as the quota allows, while a GPU is idle."""
    desk = Desk(node())
    declare(desk, each_user=Quota(jobs_running=1))
    desk.submit(job(tenant="org/a", user="ann", steps=1e6), job(tenant="org/b", user="ann", steps=1e6))
    desk.until(8)
    started(desk)
    first = running_job(desk)
    return Case(desk, "2" if first == "1" else "1", ("raise_quota", "job_ends"), (first,))


CASES: Sequence[Callable[[], Case]] = (
    *(completed, failed, cancelled, held, running, running_backfill, exploring, starting, gpus_still_busy),
    *(stopping, node_silent, dependency, earliest_start, no_nodes, no_fitting_node, too_wide_now, no_rate),
    *(too_wide_for_quota, quota_gpus, quota_budget, quota_jobs),
    *(checkpoint_elsewhere, retry_pause),
    *(waiting_for_allocation, waiting_for_round, no_share, gang_reserved, reserved_for_other, fragmented),
    *(minimum_run_of_others, preemption_limit, turn_of_others),
)
