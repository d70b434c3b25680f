"""A journal as a workload: live journals say less than simulated ones, and what is missing is made good or told."""

import pytest

from scheduler.core import facts as f
from scheduler.core.messages import Exit, NodeCommand, SetPrices
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import Dependency, JobSpec, Move
from scheduler.model.settings import Settings
from scheduler.sim.history import History
from scheduler.sim.machines import Machines
from scheduler.sim.physics import Physics
from scheduler.sim.simulate import simulate
from tests.support.story import lease
from traces.roofline import default_throughputs
from traces.trace import TraceJob

START_S = 1.7e9  # a live journal's clock


class Past:
    """Facts of a live scheduler, in hours from its start."""

    def __init__(self) -> None:
        self.history = History()
        self.tell(0, f.Configured(settings=Settings(policy="las", seed=3)))
        self.tell(0, f.NodeJoined(spec=NodeSpec(name="box", worker_type="a100", gpus=3)))

    def tell(self, at_h: float, fact: f.Fact) -> None:
        """Any fact."""
        self.history.take(START_S + at_h * 3600, fact)

    def run(self, at_h: float, job: str, number: str, steps: float, **end: float) -> None:
        """A lease of an hour."""
        self.tell(at_h, f.GpusFilled(granted=(lease(number, job, "a100", "box:0"),)))
        self.tell(at_h, f.LeasesStarted(leases=(number,)))
        stepping_s = end.get("stepping_s", 3600.0)
        outcome = "finished" if end.get("finished", 1) else "yielded"
        over = Exit(number, outcome, steps, steps, stepping_s, 3600.0)
        self.tell(at_h + 1, f.LeaseClosed(exit=over))

    def jobs(self) -> list[TraceJob]:
        """What comes of it."""
        return list(self.history.options().jobs)


def test_time_starts_with_the_journal() -> None:
    """Arrivals count from its first fact, and the replay has the same settings but for the policy."""
    past = Past()
    past.tell(2, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=7200.0, name="first")))
    past.run(3, "1", "1", 7200.0)
    options = past.history.options(policy="fifo")
    assert [(job.arrival_s, job.steps, job.name) for job in options.jobs] == [(7200.0, 7200.0, "first")]
    assert (options.settings, options.seed) == (Settings(policy="fifo", seed=3), 3)


def test_measured_rates_stand_in_for_a_table() -> None:
    """Nobody told the scheduler anything: 7200 steps in an hour are 2 per second, pooled over jobs of the type."""
    past = Past()
    for number, steps in (("1", 7200.0), ("2", 3600.0)):
        past.tell(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=steps)))
        past.run(0, number, number, steps)
    assert past.history.options().throughputs.rate("x", 1, "a100") == pytest.approx(1.5)


def test_a_jobs_own_rates_are_its_own() -> None:
    """They replace the table's for this job alone."""
    past = Past()
    past.tell(0, f.RatesGiven(solo=[("x", 1, "a100", 4.0)], pairs=[("a100", "x", "y", 1, 1.0, 2.0)]))
    past.tell(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=10.0, rates={"a100": 9.0})))
    past.tell(0, f.JobSubmitted(job="2", spec=JobSpec(job_type="x", steps=10.0)))
    own, usual = past.jobs()
    table = past.history.options().throughputs
    assert table.rate(own.job_type, 1, "a100") == 9.0
    assert table.rate(usual.job_type, 1, "a100") == 4.0
    assert table.pair_rates("a100", ("y", 1), ("x", 1)) == (2.0, 1.0)


def test_unknown_work_is_what_was_done() -> None:
    """A job that never said its steps had as many as it did; one that did none is left out, and that is told."""
    past = Past()
    past.tell(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    for number in ("1", "2"):
        past.tell(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x")))
    past.run(0, "1", "1", 500.0)
    assert [(job.id, job.steps) for job in past.jobs()] == [("1", 500.0)]
    assert past.history.notes == {"jobs left out: nobody knows how much they had to do": 1}


def test_a_cancelled_job_runs_as_far_as_it_came() -> None:
    """Its work is what it did until then."""
    past = Past()
    past.tell(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.tell(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=1e9)))
    past.run(0, "1", "1", 500.0, finished=0)
    past.tell(1, f.JobMoved(job="1", move=Move.CANCEL))
    assert [job.steps for job in past.jobs()] == [500.0]


def test_what_is_lost_is_told() -> None:
    """No rates, dependencies, broken GPUs: each with a count."""
    past = Past()
    past.tell(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.tell(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="new", steps=5.0)))
    past.tell(0, f.JobSubmitted(job="2", spec=JobSpec(job_type="x", steps=5.0, after=(Dependency("1"),))))
    past.tell(0, f.GpusBroken(node="box", gpus=(0, 2)))
    assert [job.id for job in past.jobs()] == ["2"]
    assert past.history.notes == {
        "jobs left out: their rates are not known": 1,
        "jobs that waited for others come as if they had not": 1,
        "GPUs that broke stay whole": 2,
    }


def test_restart_and_checkpoint_times_are_the_usual_ones() -> None:
    """Of leases that ended by themselves, the time without steps; what stopped ones took beyond that."""
    past = Past()
    past.tell(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=5.0)))
    past.run(0, "1", "1", 1.0, finished=0, stepping_s=3550.0)
    past.run(1, "1", "2", 2.0, finished=0, stepping_s=0.0)
    past.run(2, "1", "3", 5.0, stepping_s=3560.0)
    assert (past.history.restart_s, past.history.checkpoint_s) == (40.0, 10.0)
    assert (History().restart_s, History().checkpoint_s) == (0.0, 0.0)


def test_nodes_come_and_go_as_they_did() -> None:
    """Lost once, however often that is said; back; drained and resumed; removed. Prices, too."""
    past = Past()
    moves = (NodeState.SILENT, NodeState.LOST, None, NodeState.DRAINING, NodeState.UP)
    for hour, state in enumerate(moves, start=1):
        if state is None:
            past.tell(hour, f.NodeJoined(spec=NodeSpec(name="box", worker_type="a100", gpus=3)))
        else:
            past.tell(hour, f.NodeMoved(node="box", state=state))
    past.tell(7, f.PricesSet(price_per_gpu_hour={"a100": 2.0}))
    past.tell(8, f.NodeRemoved(node="box"))
    machines = Machines(Physics(default_throughputs()))
    said = []
    for at_s, change in past.history.options().events:
        event = change(machines)
        said += [(at_s / 3600, machines.nodes["box"].up, event)] if not callable(event) else []
        if callable(event):
            list(event(at_s))
            said.append((at_s / 3600, machines.nodes["box"].up, None))
    assert said == [
        (0, True, None),
        (1, False, None),
        (3, True, None),
        (4, True, NodeCommand(node="box", action="drain")),
        (5, True, NodeCommand(node="box", action="resume")),
        (7, True, SetPrices(price_per_gpu_hour={"a100": 2.0})),
        (8, True, NodeCommand(node="box", action="remove")),
    ]


def test_a_live_journal_can_be_run_again() -> None:
    """Three GPUs in one box, jobs of known and of unknown length: all of them end."""
    past = Past()
    past.tell(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    for number, steps in (("1", 4000.0), ("2", None), ("3", 100.0)):
        past.tell(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=steps)))
        past.run(0, number, number, 3600.0)
    result = simulate(past.history.options(policy="fifo"))
    assert (len(result.metrics.jobs), result.metrics.ended) == (3, 3)
    assert result.metrics.cluster == {"a100": 3}
