"""Runs on nodes with CPUs: from files to figures, in sweeps, with changing nodes, and repeated from a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.core import facts as f
from scheduler.core.messages import NodeHello
from scheduler.model.errors import InvalidSpec
from scheduler.sim.engine.machines import Machines
from scheduler.sim.engine.physics import Physics
from scheduler.sim.replay.history import History
from scheduler.sim.replay.made_by import KEY, made_by
from scheduler.sim.run import Run
from scheduler.sim.runs import key, prepare
from scheduler.sim.scenario.changes import changes_of
from scheduler.sim.simulate import SimOptions, nodes, simulate
from scheduler.sim.sweep import grid
from tests.support.journals import MemoryJournal
from tests.support.wording import Wording
from traces.roofline import default_throughputs

RATES = """job_type,gpus,worker_type,cpus_per_gpu,steps_per_s
images,1,v100,,3
images,1,v100,1,1
images,1,v100,6,6
text,1,v100,,5
text,1,v100,1,5
images,1,k80,,1
text,1,k80,,1
"""
JOBS = "id,arrival_s,job_type,gpus,steps\na,0,images,1,36000\nb,0,text,1,18000\nc,0,images,1,18000\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Three jobs on one node of two GPUs and six CPUs, with free restarts."""
    rates, jobs = tmp_path / "rates.csv", tmp_path / "jobs.csv"
    rates.write_text(RATES)
    jobs.write_text(JOBS)
    return Run(
        trace=str(jobs),
        throughputs=str(rates),
        cluster={"v100": 2},
        gpus_per_node=2,
        cpus_per_node=6.0,
        policy="fifo",
        restart_s=0.0,
        checkpoint_s=0.0,
    )


def changed(run: Run, **changes: Any) -> Run:
    """Return the run with these values."""
    return msgspec.structs.replace(run, **changes)


def ends_s(run: Run) -> list[float]:
    """Return how long each job steps until its end."""
    metrics = simulate(prepare(run).options).metrics
    metrics.settle()
    jobs = metrics.jobs
    return [float(value) for value in jobs.numbers("end_s") - jobs.numbers("start_s")]


def test_jobs_end_as_their_cpus_let_them(run: Run) -> None:
    """`a` has five CPUs beside `b`, then three beside `c`; with fixed ones, or unknown ones, three all the time."""
    a, b, c = ends_s(run)
    assert b == 18_000 / 5
    # The first hour at 5 steps per second, what is left at 3, then `c` alone on the node.
    assert a == pytest.approx(3600 + (36_000 - 5 * 3600) / 3, abs=1.0)
    assert c == pytest.approx(18_000 / 3, abs=1.0)
    fixed = ends_s(changed(run, fixed_cpus=True))
    assert fixed[0] == pytest.approx(36_000 / 3, abs=1.0)
    assert ends_s(changed(run, cpus_per_node=None)) == fixed


def test_jobs_with_few_cpus_are_slower_than_in_the_table(run: Run) -> None:
    """With two CPUs on the node, each of two jobs has one, `b` is as fast as ever, and `a` has both at its end."""
    a, b, c = ends_s(changed(run, cpus_per_node=2.0))
    assert b == 18_000 / 5
    assert c == pytest.approx(18_000, abs=1.0)
    assert a == pytest.approx(3600 + 18_000 + (36_000 - 3600 - 18_000) / 2, abs=1.0)


def facts_of(options: SimOptions) -> list[tuple[float, f.Fact]]:
    """Return the journal of a run."""
    journal = MemoryJournal()
    simulate(msgspec.structs.replace(options, journal=journal))
    return list(journal.read())


@pytest.mark.parametrize("fixed", [False, True])
def test_a_replay_has_the_same_cpus(run: Run, fixed: bool) -> None:
    """A journal comes out again fact for fact, with its nodes' CPUs and the rates that its scheduler never got."""
    options = prepare(changed(run, fixed_cpus=fixed)).options
    facts = facts_of(options)
    history = History({KEY: made_by(options)})
    for at_s, fact in facts:
        history.add(at_s, fact)
    again = history.options()
    assert again.throughputs.cpu_rates == options.throughputs.cpu_rates
    assert facts_of(again) == facts


def test_a_replayed_job_has_the_cpus_that_it_asked_for(run: Run) -> None:
    """What a job of a journal asked for is part of the truth about it."""
    options = prepare(run).options
    history = History({KEY: made_by(options)})
    for at_s, fact in facts_of(options):
        if isinstance(fact, f.JobSubmitted) and fact.job == "2":
            fact = msgspec.structs.replace(fact, spec=msgspec.structs.replace(fact.spec, cpus=4.0))
        history.add(at_s, fact)
    truths = [truth.cpus for arrival in history.options().arrivals for truth in arrival.truths]
    assert truths == [0.0, 4.0, 0.0]


def test_nodes_have_cpus_in_proportion_to_their_gpus(run: Run, tmp_path: Path) -> None:
    """A smaller last node has fewer CPUs, and nodes that come later have as many as the first ones."""
    assert [(spec.gpus, spec.cpus) for spec in nodes({"v100": 6}, 4, 24.0)] == [(4, 24.0), (2, 12.0)]
    assert [spec.cpus for spec in nodes({"v100": 6}, 4)] == [None, None]
    capacity = tmp_path / "capacity.csv"
    capacity.write_text("t_s,worker_type,gpus\n60,v100,4\n")
    machines = Machines(Physics(default_throughputs()))
    hellos = []
    for at_s, change in changes_of(changed(run, capacity_file=str(capacity))):
        assert callable(change)
        hellos += [message for message in change(machines, at_s) if isinstance(message, NodeHello)]
    assert [(hello.spec.name, hello.spec.cpus) for hello in hellos] == [("v100-more-0", 6.0)]


def test_runs_with_other_cpus_are_other_runs(run: Run) -> None:
    """In sweeps, runs with and without CPUs have different keys."""
    runs = grid(run, {"cpus_per_node": [None, 6.0], "fixed_cpus": [False, True]})
    assert len({key(each) for each in runs}) == 4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ideal": True}, "cpus_per_node"),
        ({"cpus_per_node": None, "fixed_cpus": True}, "fixed_cpus"),
        (
            {"throughputs": "", "workload": "mixed-day", "rate_per_h": 1.0, "trace": "", "jobs": 1},
            "cpus_per_node",
        ),
        # The table has rates by CPUs only of the other type.
        ({"cluster": {"k80": 2}}, "cpus_per_node"),
    ],
)
def test_cpus_without_effect_are_refused(
    run: Run, changes: dict[str, Any], field: str, tmp_path: Path, wording: Wording
) -> None:
    """An ideal run, a table without rates by CPUs for the cluster, and fixed CPUs of unknown number are errors."""
    with pytest.raises(InvalidSpec) as refused:
        prepare(changed(run, **changes))
    assert refused.value.field == field
    wording(refused.value, folder=tmp_path)


@pytest.mark.parametrize("cluster", [{"v100": 3}, {"v100": 2, "k80": 1}, {"v100": 1}])
def test_a_smaller_node_with_too_few_cpus_is_refused(
    run: Run, cluster: dict[str, int], wording: Wording
) -> None:
    """A node of half the size has half of the CPUs, and 0.001 are the least that a node can have."""
    with pytest.raises(InvalidSpec) as refused:
        prepare(changed(run, cluster=cluster, cpus_per_node=0.001))
    assert refused.value.field == "cpus_per_node"
    wording(refused.value)
    (*_, last) = nodes(
        cluster, 2, prepare(changed(run, cluster=cluster, cpus_per_node=0.002)).options.cpus_per_node
    )
    assert (last.gpus, last.cpus) == (1, 0.001)


def test_nodes_of_full_size_may_have_the_least_cpus(run: Run) -> None:
    """A cluster without a smaller node takes the least number."""
    assert prepare(changed(run, cpus_per_node=0.001)).options.cpus_per_node == 0.001
