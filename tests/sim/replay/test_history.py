"""A journal as a workload: facts that live journals lack are filled in, or reported in the notes."""

import math
from typing import Any

import pytest
from msgspec import structs

from scheduler.core import facts as f
from scheduler.core.messages import (
    Configure,
    Exit,
    GiveRates,
    JobCommand,
    NodeCommand,
    NodeReport,
    SetPrices,
    UpdateJob,
)
from scheduler.model.changes import JobChanges
from scheduler.model.cluster import NodeSpec, NodeState
from scheduler.model.jobs import Dependency, JobSpec, Move
from scheduler.model.notify import Notify
from scheduler.model.plans import Plan
from scheduler.model.settings import Settings
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import JobTruth, Physics
from scheduler.sim.engine.world import Arrival
from scheduler.sim.replay.history import CHANGED_NODE, UNKNOWN_DEPENDENCY, History
from scheduler.sim.replay.made_by import KEY, made_by
from scheduler.sim.replay.past_work import (
    GUESSED_RATES,
    NO_STEPS,
    NOT_REPEATED,
    UNFINISHED,
    UNKNOWN_RATES,
    UNKNOWN_WORK,
)
from scheduler.sim.simulate import SimOptions, simulate
from tests.support.journals import MemoryJournal
from tests.support.story import lease
from traces.roofline import default_throughputs
from traces.throughputs import Throughputs

# The clock of a live journal.
START_S = 1.7e9


class Past:
    """Facts of a live scheduler, in hours from its start."""

    def __init__(self) -> None:
        self.history = History()
        self.add(0, f.Configured(settings=Settings(policy="las", seed=3)))
        self.add(0, f.NodeJoined(spec=NodeSpec(name="box", worker_type="a100", gpus=3)))

    def add(self, at_h: float, fact: f.Fact) -> None:
        """Add a fact."""
        self.history.add(START_S + at_h * 3600, fact)

    def run(self, at_h: float, job: str, number: str, steps: float, **end: float) -> None:
        """Add a lease of an hour, with its grant, start and exit."""
        self.add(at_h, f.GpusFilled(granted=(lease(number, job, "a100", "box:0"),)))
        self.add(at_h, f.LeasesStarted(leases=(number,)))
        stepping_s = end.get("stepping_s", 3600.0)
        outcome = "finished" if end.get("finished", 1) else "yielded"
        over = Exit(number, outcome, steps, steps, stepping_s, 3600.0)
        self.add(at_h + 1, f.LeaseClosed(exit=over))

    def jobs(self) -> dict[str, JobTruth]:
        """The truth about each job in the replay."""
        return {
            name: truth
            for arrival in self.history.options().arrivals
            for name, truth in zip(arrival.names, arrival.truths, strict=True)
        }

    def rate(self, job: str) -> float:
        """The true rate of a job, alone on an A100."""
        options, truth = self.history.options(), self.jobs()[job]
        physics = Physics(options.throughputs)
        physics.set_truth(job, truth)
        return physics.rate(lease("1", job, "a100", "box:0"), "a100", consolidated=True)


def test_time_starts_with_the_journal() -> None:
    """Arrivals count from the first fact, and the replay has the same settings except the policy."""
    past = Past()
    past.add(2, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=7200.0, name="first")))
    past.run(3, "1", "1", 7200.0)
    options = past.history.options(policy="fifo")
    (first,) = options.arrivals
    assert (first.at_s, first.truths[0].steps_total, first.spec.name) == (7200.0, 7200.0, "first")
    assert (options.settings, options.seed) == (Settings(policy="fifo", seed=3), 3)


def test_a_job_restarts_in_the_time_that_it_measured() -> None:
    """The truth and the scheduler's belief have the job's own times; of a gang, those of its slowest node."""
    past = Past()
    for number in ("1", "2", "3"):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=3600.0)))
        past.run(0, number, number, 3600.0)
    for job, node, values in (
        ("1", "", {"start_s": 70.0, "final_save_s": 5.0}),
        ("1", "", {"start_s": 7.0, "load_s": 3.0}),
        ("2", "n1", {"start_s": 9.0, "final_save_s": 5.0}),
        ("2", "n2", {"start_s": 4.0, "final_save_s": 9000.0}),
        ("3", "", {"start_s": 4.0}),
    ):
        past.add(1, f.JobMeasured(job=job, worker_type="a100", gpus=1, values=values, node=node))
    times = {name: (truth.restart_s, truth.checkpoint_s) for name, truth in past.jobs().items()}
    assert times == {"1": (10.0, 5.0), "2": (9.0, 600.0), "3": (0.0, 0.0)}
    costs = [arrival.spec.restart_cost_s for arrival in past.history.options().arrivals]
    assert costs == [15.0, 609.0, None]
    arrivals = past.history.options(restart_s=2.0).arrivals
    assert [(it.truths[0].restart_s, it.spec.restart_cost_s) for it in arrivals] == [(2.0, None)] * 3
    assert simulate(past.history.options()).metrics.submitted


def test_measured_rates_replace_a_table() -> None:
    """Without given rates, measured ones are pooled over jobs of a type: 2 and 1 steps per second are 1.5."""
    past = Past()
    for number, steps in (("1", 7200.0), ("2", 3600.0)):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=steps)))
        past.run(0, number, number, steps)
    assert past.history.options().throughputs.rate("x", 1, "a100") == pytest.approx(1.5)


def test_a_jobs_own_rates_are_its_own() -> None:
    """A job's own rates replace the table's for this job only."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 4.0)], pairs=[("a100", "x", "y", 1, 1.0, 2.0)]))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=10.0, rates={"a100": 9.0})))
    past.add(0, f.JobSubmitted(job="2", spec=JobSpec(job_type="x", steps=10.0)))
    assert (past.rate("1"), past.rate("2")) == (9.0, 4.0)
    table = past.history.options().throughputs
    assert table.pairs["a100", "y", 1, "x", 1] == (2.0, 1.0)


def test_unknown_work_is_the_work_that_was_done() -> None:
    """A job without a number of steps had as many as it did; one that did none is left out, and noted."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    for number in ("1", "2", "3"):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x")))
    past.run(0, "1", "1", 500.0)
    past.run(1, "3", "2", 700.0, finished=0)
    assert {name: truth.steps_total for name, truth in past.jobs().items()} == {"1": 500.0, "3": 700.0}
    assert past.history.notes == {UNKNOWN_WORK: 1, UNFINISHED: 1}


def test_updates_are_repeated_and_their_limits_count() -> None:
    """A job that failed at the limit of an update had more steps to do than it did."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x")))
    changes = JobChanges(time_limit_s=3600.0)
    past.add(0.5, f.JobUpdated(job="1", changes=changes, by="ann"))
    past.run(1, "1", "1", 3600.0, finished=0)
    past.add(2, f.JobMoved(job="1", move=Move.FAIL))
    assert past.history.options().commands == ((1800.0, UpdateJob(job="1", changes=changes, user="ann")),)
    assert past.jobs()["1"].steps_total > 3600.0


def test_a_job_that_reports_no_steps_takes_as_long_as_it_did() -> None:
    """An hour of processes becomes 3600 steps at one per second on any type, and is noted."""
    past = Past()
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(reports_steps=False)))
    past.run(0, "1", "1", 0.0, stepping_s=0.0)
    assert (past.jobs()["1"].steps_total, past.rate("1")) == (3600.0, 1.0)
    assert past.history.notes == {NO_STEPS: 1}


def test_a_fault_is_replayed_at_the_same_step() -> None:
    """A job that failed for good fails at the same step; one that recovered does not fail, which is noted."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    for number in ("1", "2"):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=9000.0, retries=1)))
        past.add(0, f.GpusFilled(granted=(lease(number, number, "a100", "box:0"),)))
        past.add(1, f.LeaseClosed(exit=Exit(number, "failed", 800.0, 0.0, 800.0, 830.0, 1)))
    past.add(1, f.JobMoved(job="1", move=Move.FAIL))
    past.run(2, "2", "3", 9000.0)
    assert past.jobs()["1"].fails_at_steps == 800.0
    assert past.jobs()["2"].fails_at_steps == math.inf
    assert past.history.notes == {NOT_REPEATED: 1}


def test_a_job_type_is_as_fast_on_a_type_it_never_ran_on() -> None:
    """An unknown rate is taken from another type, and noted, so that no job fails under another policy."""
    past = Past()
    past.add(0, f.NodeJoined(spec=NodeSpec(name="old", worker_type="k80", gpus=1)))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="new", steps=7200.0)))
    past.run(0, "1", "1", 7200.0)
    assert past.history.options().throughputs.rate("new", 1, "k80") == 2.0
    assert past.history.notes == {GUESSED_RATES: 1}


def test_omissions_are_noted() -> None:
    """The notes count jobs without rates, dependencies on jobs left out, and nodes that changed."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="new", steps=5.0)))
    past.add(0, f.JobSubmitted(job="2", spec=JobSpec(job_type="x", steps=5.0, after=(Dependency("1"),))))
    past.add(0, f.NodeJoined(spec=NodeSpec(name="box", worker_type="a100", gpus=4)))
    assert list(past.jobs()) == ["2"]
    assert past.history.notes == {UNKNOWN_RATES: 1, UNKNOWN_DEPENDENCY: 1, CHANGED_NODE: 1}


EVERY_FIELD: dict[str, Any] = {
    "name": "train",
    "job_type": "x",
    "gpus": 4,
    "gpus_min": 2,
    "gpus_max": 6,
    "gpus_together": 2,
    "steps": 4000.0,
    "weight": 2.0,
    "tenant": "a/b",
    "user": "ann",
    "deadline_s": 9000.0,
    "earliest_start_s": 60.0,
    "time_limit_s": 8000.0,
    "min_run_s": 120.0,
    "worker_types": ("a100",),
    "excluded_worker_types": ("k80",),
    "nodes": ("box",),
    "labels": {"site": "north"},
    "cpus": 4.0,
    "memory_gb": 16.0,
    "gpu_memory_gb": 20.0,
    "retries": 1,
    "retries_node": 2,
    "retries_preemption": 3,
    "preemptible": False,
    "packable": False,
    "reports_steps": False,
    "restart_cost_s": 12.0,
    "rates": {"a100": 5.0},
    "after": (Dependency("1", "ended"),),
    "array": (4,),
    "max_cost": 100.0,
    "launch": {"argv": ["true"]},
    "plans": (Plan(worker_type="a100", gpus=2, label="p2", rate=1.0),),
    "plans_from": "{}",
    "idle_ok": True,
    "notify": (Notify("me"),),
}


def test_the_whole_request_is_carried_over() -> None:
    """Every field of a job that a user can set is carried over; a new field has to be added here."""
    assert set(EVERY_FIELD) == set(JobSpec.__struct_fields__), "a new field: is it carried over by a replay?"
    usual = {field.name: field.default for field in structs.fields(JobSpec)}
    assert not [field for field, value in EVERY_FIELD.items() if value == usual[field]]
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=5.0)))
    past.add(1, f.JobSubmitted(job="2_4", spec=JobSpec(**EVERY_FIELD)))
    _, arrival = past.history.options().arrivals
    assert structs.asdict(arrival.spec) == EVERY_FIELD
    assert arrival.truths[0].planned == {("a100", 2): 1.0}
    assert past.history.notes == {}


SLOW = {"job_type": "x", "steps": 4000.0}
REQUESTS = [
    (0.0, JobSpec(name="first", **SLOW)),
    (10.0, JobSpec(name="late", earliest_start_s=3000.0, **SLOW)),
    (10.0, JobSpec(name="after", after=(Dependency("first", "ended"),), **SLOW)),
    (20.0, JobSpec(name="limited", time_limit_s=1000.0, **SLOW)),
    (20.0, JobSpec(name="three", array=(0, 1, 5), retries_preemption=9, min_run_s=500.0, **SLOW)),
    (30.0, JobSpec(name="last", after=(Dependency("three"),), preemptible=False, **SLOW)),
    (40.0, JobSpec(name="endless", job_type="x")),
    (50.0, JobSpec(name="faulty", retries=1, **SLOW)),
]
COMMANDS = [
    (500.0, "first", "hold"),
    (2000.0, "first", "release"),
    (1500.0, "three_1", "requeue"),
    (1600.0, "late", "hold"),
    (1700.0, "late", "release"),
    (9000.0, "endless", "cancel"),
]


def eventful() -> SimOptions:
    """A run with users' commands, limits, arrays, broken GPUs, and changes of settings and rates."""
    arrivals = []
    for at_s, spec in REQUESTS:
        truth = JobTruth(job_type="x", steps_total=spec.steps or math.inf, save_every_s=3600.0)
        if spec.name == "faulty":
            truth = structs.replace(truth, fails_at_steps=300.0)
        names = tuple(f"{spec.name}_{index}" for index in spec.array) or (spec.name,)
        arrivals.append(Arrival(at_s, spec, (truth,) * len(names), names))
    changed = Configure(settings=Settings(policy="fifo", round_s=300.0), user="ops")
    broken = NodeReport(node="a100-0", generation=0, broken_gpus=(1,))
    return SimOptions(
        cluster={"a100": 3},
        gpus_per_node=3,
        arrivals=arrivals,
        commands=[(at_s, JobCommand(job=job, action=how, user="ann")) for at_s, job, how in COMMANDS],  # type: ignore[arg-type]
        throughputs=Throughputs({("x", 1, "a100"): 1.0}, prices_per_gpu_hour={"a100": 2.0}),
        settings=Settings(policy="las"),
        events=[
            (3000.0, changed),
            (4000.0, broken),
            (5000.0, GiveRates(solo=[("x", 2, "a100", 1.5)])),
        ],
    )


def facts_of(options: SimOptions) -> list[tuple[float, f.Fact]]:
    """The journal of a run."""
    journal = MemoryJournal()
    result = simulate(structs.replace(options, journal=journal))
    assert not result.refused
    return list(journal.read())


def test_an_eventful_history_comes_out_again() -> None:
    """A replay has the same facts: commands, limits, dependencies, arrays, and what operators did."""
    options = eventful()
    facts = facts_of(options)
    moves = {fact.move for _, fact in facts if isinstance(fact, f.JobMoved)}
    assert moves == {Move.HOLD, Move.RELEASE, Move.REQUEUE, Move.CANCEL, Move.RETRY, Move.FAIL}
    history = History({KEY: made_by(options)})
    for at_s, fact in facts:
        history.add(at_s, fact)
    assert facts_of(history.options()) == facts
    assert history.notes == {}


def test_jobs_that_are_left_out_leave_no_gap() -> None:
    """The other jobs get other ids, and dependencies and commands refer to the same jobs as before."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x")))
    for number in ("2_0", "2_7"):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(array=(int(number[2:]),), **SLOW)))
    waits = JobSpec(name="waits", after=(Dependency("2"),), **SLOW)
    past.add(0, f.JobSubmitted(job="3", spec=waits, blocked_by=("2_0", "2_7")))
    past.add(0.5, f.JobMoved(job="2_7", move=Move.HOLD, why="hold by ann", by="ann"))
    past.add(2, f.JobMoved(job="2_7", move=Move.RELEASE, why="release by ann", by="ann"))
    facts = facts_of(past.history.options(policy="fifo"))
    submitted = {fact.job: fact.blocked_by for _, fact in facts if isinstance(fact, f.JobSubmitted)}
    assert submitted == {"1_0": (), "1_7": (), "2": ("1_0", "1_7")}
    moved = [(at_s, fact.job, fact.by) for at_s, fact in facts if isinstance(fact, f.JobMoved) and fact.by]
    assert moved == [(1800.0, "1_7", "ann"), (7200.0, "1_7", "ann")]


def test_restart_and_checkpoint_times_are_the_usual_ones() -> None:
    """Restarts take the time without steps of finished leases; checkpoints the extra time of stopped ones."""
    past = Past()
    past.add(0, f.JobSubmitted(job="1", spec=JobSpec(job_type="x", steps=5.0)))
    past.run(0, "1", "1", 1.0, finished=0, stepping_s=3550.0)
    past.run(1, "1", "2", 2.0, finished=0, stepping_s=0.0)
    past.run(2, "1", "3", 5.0, stepping_s=3560.0)
    assert past.history.work.cost == (40.0, 10.0)
    assert History().work.cost == (0.0, 0.0)


def test_nodes_come_and_go_as_they_did() -> None:
    """A node is lost once, however often that is recorded, comes back, is drained, resumed and removed."""
    past = Past()
    moves = (NodeState.SILENT, NodeState.LOST, None, NodeState.DRAINING, NodeState.UP)
    for hour, state in enumerate(moves, start=1):
        if state is None:
            past.add(hour, f.NodeJoined(spec=NodeSpec(name="box", worker_type="a100", gpus=3)))
        else:
            past.add(hour, f.NodeMoved(node="box", state=state))
    past.add(7, f.PricesSet(price_per_gpu_hour={"a100": 2.0}))
    past.add(8, f.NodeRemoved(node="box"))
    machines = Machines(Physics(default_throughputs()))
    events = []
    for at_s, change in past.history.options().events:
        if callable(change):
            list(change(machines, at_s))
        events.append((at_s / 3600, machines.nodes["box"].up, None if callable(change) else change))
    assert events == [
        (0, True, None),
        (1, False, None),
        (3, True, None),
        (4, True, NodeCommand(node="box", action="drain")),
        (5, True, NodeCommand(node="box", action="resume")),
        (7, True, SetPrices(price_per_gpu_hour={"a100": 2.0})),
        (8, True, NodeCommand(node="box", action="remove")),
    ]


def test_a_live_journal_can_be_run_again() -> None:
    """On three GPUs of one node, jobs of known and of unknown length all end."""
    past = Past()
    past.add(0, f.RatesGiven(solo=[("x", 1, "a100", 1.0)]))
    for number, steps in (("1", 4000.0), ("2", None), ("3", 100.0)):
        past.add(0, f.JobSubmitted(job=number, spec=JobSpec(job_type="x", steps=steps)))
        past.run(0, number, number, 3600.0)
    result = simulate(past.history.options(policy="fifo"))
    assert (len(result.metrics.jobs), result.metrics.ended) == (3, 3)
    assert result.metrics.cluster == {"a100": 3}
