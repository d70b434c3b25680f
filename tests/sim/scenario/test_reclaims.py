"""Spot nodes that leave with a notice: their jobs save and continue on other nodes, at the cost of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scheduler.core.facts import Fact, LeaseClosed, LeasesStarted
from scheduler.core.messages import Exit
from scheduler.sim.replay.history import History
from scheduler.sim.replay.made_by import KEY, made_by
from scheduler.sim.run import Run
from scheduler.sim.scenario.changes import changes_of
from scheduler.sim.scenario.faults import NodeEvent
from scheduler.sim.scenario.reclaims import EARLY_S, requests_to_stop
from scheduler.sim.simulate import SimOptions, simulate
from tests.support.journals import MemoryJournal
from traces.costs import Cost
from traces.throughputs import Throughputs
from traces.trace import TraceJob

TABLE = Throughputs(solo={("cnn", 1, "v100"): 1.0, ("lm", 1, "v100"): 1.0})
STEPS, RESTART_S, CHECKPOINT_S, LEAVES_S = 3000.0, 30.0, 10.0, 1900.0
COSTS = {"lm": Cost(RESTART_S, 60.0)}


def run(notice_s: float | None, job_type: str = "cnn") -> tuple[SimOptions, MemoryJournal]:
    """Simulate one job on two nodes, the first of which leaves in the middle of a round."""
    events = [NodeEvent(LEAVES_S, "v100-0", "leave")]
    if notice_s is not None:
        events.insert(0, NodeEvent(LEAVES_S - notice_s, "v100-0", "notice"))
    text = "\n".join(["t_s,node,event", *(f"{at_s},{node},{event}" for at_s, node, event in events)])
    path = Path("events.csv")
    path.write_text(text + "\n")
    journal = MemoryJournal()
    options = SimOptions(
        cluster={"v100": 2},
        jobs=[TraceJob(id="a", arrival_s=0.0, job_type=job_type, steps=STEPS)],
        throughputs=TABLE,
        restart_s=RESTART_S,
        checkpoint_s=CHECKPOINT_S,
        costs=COSTS,
        save_every_s=3600.0,
        events=changes_of(
            Run(cluster={"v100": 2}, gpus_per_node=1, failures_file=str(path)),
            checkpoints_s=(CHECKPOINT_S, 60.0),
        ),
        journal=journal,
    )
    simulate(options)
    return options, journal


def exits(journal: MemoryJournal) -> list[tuple[float, Exit]]:
    """The exits of all leases, with their times."""
    return [(at_s, fact.exit) for at_s, fact in journal.read() if isinstance(fact, LeaseClosed)]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("job_type", "checkpoint_s"), [("cnn", CHECKPOINT_S), ("lm", 60.0)])
def test_a_notice_saves_the_work(job_type: str, checkpoint_s: float) -> None:
    """With a notice of 100 s, as clouds give, all steps are kept except those of the checkpoint's time."""
    _, journal = run(100.0, job_type)
    (left_s, first), (ended_s, last) = exits(journal)
    asked_s = LEAVES_S - checkpoint_s - EARLY_S
    assert (left_s, first.outcome) == (asked_s + checkpoint_s, "yielded")
    assert first.saved == pytest.approx(asked_s - RESTART_S - first_start_s(journal))
    assert last.outcome == "finished"
    assert ended_s - left_s == pytest.approx(STEPS - first.saved + RESTART_S, abs=1.0)


def first_start_s(journal: MemoryJournal) -> float:
    """The time at which the job first started."""
    return next(at_s for at_s, fact in journal.read() if isinstance(fact, LeasesStarted))


def test_without_a_notice_the_work_is_lost() -> None:
    """Without a notice nothing has been saved, and the job begins again."""
    _, journal = run(None)
    (_, first), (ended_s, _) = exits(journal)
    assert (first.outcome, first.saved) == ("node_failed", 0.0)
    assert ended_s > LEAVES_S + STEPS


def test_a_notice_shorter_than_a_checkpoint_saves_nothing() -> None:
    """Five seconds are not enough for a checkpoint of ten: the work is lost."""
    _, journal = run(5.0)
    assert exits(journal)[0][1].saved == 0.0


def test_each_job_is_stopped_as_late_as_possible() -> None:
    """The job with the longest checkpoint stops first; a node whose notice was withdrawn is left alone."""
    events = [
        NodeEvent(100.0, "a", "notice"),
        NodeEvent(150.0, "b", "notice"),
        NodeEvent(160.0, "b", "join"),
        NodeEvent(200.0, "a", "leave"),
        NodeEvent(200.0, "b", "leave"),
    ]
    assert [at_s for at_s, _ in requests_to_stop(events, (10.0, 500.0))] == [100.0, 185.0, 195.0]


def test_capacity_can_be_withdrawn_with_notice(tmp_path: Path) -> None:
    """The notice, and the jobs' time to save, come before each node that the file withdraws."""
    path = tmp_path / "capacity"
    path.write_text("t_s,worker_type,gpus\n1000,v100,1\n")
    run = Run(cluster={"v100": 2}, gpus_per_node=1, capacity_file=str(path), notice_s=120.0)
    changes = changes_of(run, checkpoints_s=(10.0,))
    assert [at_s for at_s, _ in changes] == [880.0, 985.0, 995.0, 1000.0]


def test_a_reclaim_comes_out_again_in_a_replay() -> None:
    """A replay has the same facts, the reason of the notice and the early end of the lease included."""
    options, journal = run(100.0)
    history = History({KEY: made_by(options)})
    facts: list[tuple[float, Fact]] = list(journal.read())
    for at_s, fact in facts:
        history.add(at_s, fact)
    replayed = MemoryJournal()
    simulate(replace(history.options(), journal=replayed))
    assert list(replayed.read()) == facts
