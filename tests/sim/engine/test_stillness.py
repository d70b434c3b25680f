"""A run ends when nothing more can happen, instead of simulating rounds for thirty years."""

from __future__ import annotations

from scheduler.core.messages import Message, NodeCommand
from scheduler.model.quota import Quota
from scheduler.model.settings import Settings, TenantSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.simulate import STILL_ROUNDS, SimOptions, SimResult, simulate
from traces.throughputs import Throughputs
from traces.trace import TraceJob

TABLE = Throughputs(solo={("cnn", 1, "v100"): 1.0, ("lm", 1, "v100"): 1.0, ("lm", 1, "k80"): 0.5})
DAY_S = 86_400.0


def back(machines: Machines, now_s: float) -> list[Message]:
    """Repair the lost node."""
    return machines.repair(now_s, "v100-0")


def run(*events: tuple[float, object], policy: str = "las") -> SimResult:
    """A job for V100s and one for K80s, on one GPU of each type; the V100 is lost after ten minutes."""
    jobs = [
        TraceJob(id=name, arrival_s=0.0, job_type=name, steps=7200.0, worker_types=kinds)
        for name, kinds in (("cnn", ("v100",)), ("lm", ("k80",)))
    ]
    lost = (600.0, lambda machines, now_s: machines.crash(now_s, "v100-0"))
    return simulate(
        SimOptions(
            cluster={"v100": 1, "k80": 1},
            jobs=jobs,
            throughputs=TABLE,
            settings=Settings(policy=policy),
            events=(lost, *events),  # type: ignore[arg-type]
        )
    )


def test_a_job_that_can_never_run_again_ends_the_run() -> None:
    """The run ends soon after the last job that can run, under any kind of policy; the other job has not ended."""
    for policy in ("las", "fifo", "gandiva", "min_cost", "finish_time_fairness+packing"):
        result = run(policy=policy)
        assert (result.metrics.ended, len(result.metrics.jobs)) == (1, 2), policy
        assert result.rounds < 60 + STILL_ROUNDS, policy


def test_a_future_event_is_waited_for() -> None:
    """If the node is repaired after a month, the run continues until then, and the job ends."""
    result = run((30 * DAY_S, back))
    assert result.metrics.ended == 2
    assert result.metrics.now_s > 30 * DAY_S


def test_the_renewal_of_a_budget_is_waited_for() -> None:
    """With two GPU-hours a day, a job of five takes three days; without any budget to spend, the run ends."""
    jobs = [TraceJob(id="lm", arrival_s=0.0, job_type="lm", steps=18_000.0, tenant="org")]
    for hours, ended, days in ((2.0, 1, 3), (0.0, 0, 1)):
        org = TenantSpec(name="org", quota=Quota(gpu_hours={"day": hours}))
        options = SimOptions(
            cluster={"v100": 1}, jobs=jobs, throughputs=TABLE, settings=Settings(tenants=(org,))
        )
        result = simulate(options)
        assert result.metrics.ended == ended
        assert days - 1 <= result.metrics.now_s / DAY_S < days


def test_nodes_drained_for_good_end_the_run() -> None:
    """With both nodes drained and no event to come, the run ends with its jobs alive."""
    drained = [(60.0, NodeCommand(node=node, action="drain")) for node in ("v100-0", "k80-0")]
    assert run(*drained).rounds < 30 + STILL_ROUNDS
