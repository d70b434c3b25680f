"""The promises of the core, tested through the whole scheduler in random stories, each drawn from a seed.

A story is a cluster with a bad network, dying machines, a failing solver, users with commands, forged reports,
and a scheduler that is killed twice. It is checked after every message and at every instant (core_world.py).
STORIES=500 pytest tests/core/test_any_story.py plays more of them; the name of a failed test holds its seed.
"""

from __future__ import annotations

import os

import pytest

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.facts import JobsForgotten
from scheduler.core.invariants import check
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.journal.codec import decode_facts, encode_facts
from scheduler.journal.history import History
from scheduler.model.jobs import JobState
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from tests.support.chaos import HORIZON_S, Chaos
from tests.support.core_world import Stage, replayed
from tests.support.desk import job, node
from tests.support.journals import broken_by

STORIES = int(os.environ.get("STORIES", "16"))
LONG_S = 200_000.0


def snapshot_of(state: SchedulerState) -> bytes:
    """The snapshot of a state, with whole numbers in the form that reading gives them."""
    return SchedulerState.restore(state.snapshot()).snapshot()


def steady() -> Stage:
    """A cluster on which nothing goes wrong: gangs, pairs and single jobs that take turns."""
    stage = Stage(
        [node("n1", 2), node("n2", 2), node("k1", 1, "k80")],
        Settings(policy="las+packing", restart_cost_s=20.0),
    )
    for i in range(7):
        gpus = 1 + i % 3
        truth = JobTruth(job_type="cnn", gpus=gpus, steps_total=12_000, restart_s=20, checkpoint_s=5)
        stage.world.submit(i * 30.0, [job(name=f"j{i}", gpus=gpus, steps=12_000.0)], truth)
    return stage


@pytest.mark.parametrize("seed", range(STORIES))
def test_every_story_ends_well(seed: int) -> None:
    """P3, P4, P5, P10: no invariant breaks on the way, and after the trouble every job comes to its end."""
    story = Chaos(seed)
    stage = story.stage
    for at_s in sorted(story.luck.uniform(0, HORIZON_S) for _ in range(2)):
        stage.until(at_s)
        stage.restart(story.luck.choice((0, 3, 60)), links_drop=story.luck.random() < 0.5)
    stage.until(HORIZON_S)
    stage.until(LONG_S)
    assert {job.id: job.why for job in stage.state.active.values()} == {}
    assert stage.state.leases == {}
    assert max(stage.completions().values(), default=1) == 1
    assert snapshot_of(replayed(stage.journal.records)) == snapshot_of(stage.state)


@pytest.mark.parametrize("seed", range(1000, 1000 + STORIES // 4))
def test_a_journal_cut_anywhere_is_a_place_to_start_from(seed: int) -> None:
    """Replaying any number of records gives a sound state, which another process can take over."""
    story = Chaos(seed, jobs=8)
    story.stage.until(HORIZON_S)
    records = story.stage.journal.records
    state, restored = SchedulerState(), SchedulerState()
    for at, (now_s, facts) in enumerate(records):
        for target in (state, restored):
            for fact in decode_facts(encode_facts(facts)):
                apply(target, now_s, fact)
        check(state)
        if at % 7 == 0:
            restored = SchedulerState.restore(restored.snapshot())
            assert restored.snapshot() == snapshot_of(state)
            heir = Core(SchedulerState.restore(state.snapshot()))
            outcome = heir.take_over(now_s)
            check(heir.state)
            assert {type(effect).__name__ for effect in outcome.effects} >= {"WakeAt"}
    assert snapshot_of(restored) == snapshot_of(state) == snapshot_of(story.stage.state)


@pytest.mark.parametrize("seed", range(2000, 2000 + STORIES // 4))
def test_caches_beside_the_state_decide_nothing(seed: int) -> None:
    """A scheduler that drops all its caches and continues from a snapshot writes the same records."""
    usual, forgetful = Chaos(seed), Chaos(seed)
    usual.stage.until(HORIZON_S)
    stage = forgetful.stage
    for number in range(60):
        stage.until(number * HORIZON_S / 60)
        stage.core.state = SchedulerState.restore(stage.state.snapshot())
        stage.core._kinds = Kinds()
    stage.until(HORIZON_S)
    assert [encode_facts(facts) for _, facts in stage.journal.records] == [
        encode_facts(facts) for _, facts in usual.stage.journal.records
    ]


@pytest.mark.parametrize("seed", range(3000, 3000 + STORIES // 4))
def test_forgetting_ended_jobs_decides_nothing(seed: int) -> None:
    """P14: a scheduler that keeps forgetting ended jobs, and is killed, decides as one that keeps them all."""
    usual, forgetful = Chaos(seed), Chaos(seed)
    for number in range(400):
        forgetful.stage.world.at((number + 0.123) * HORIZON_S / 100, forgetful.forget)
    for story in (usual, forgetful):
        story.stage.until(HORIZON_S / 2)
        story.stage.restart(3.0)
        story.stage.until(LONG_S)
    kept, forgotten = usual.stage.state, forgetful.stage.state
    facts = [fact for _, facts in forgetful.stage.journal.records for fact in facts]
    gone = [name for fact in facts if isinstance(fact, JobsForgotten) for name in fact.jobs]
    assert sorted(gone) == sorted(set(kept.jobs) - set(forgotten.jobs)), "each once"
    assert gone
    assert [fact for fact in facts if not isinstance(fact, JobsForgotten)] == [
        fact for _, facts in usual.stage.journal.records for fact in facts
    ]
    assert broken_by(History(), forgetful.stage.journal.read()) == []
    assert snapshot_of(replayed(forgetful.stage.journal.records)) == snapshot_of(forgotten)


@pytest.mark.parametrize("at_s", [100.0, 349.0, 351.0, 357.0, 358.5, 360.0, 361.0, 700.0, 719.0, 1000.0])
@pytest.mark.parametrize("links_drop", [False, True])
def test_a_restart_in_time_stops_no_job(at_s: float, links_drop: bool) -> None:
    """P6: leases are adopted, not restarted; the same processes continue, and no step is lost."""
    stage = steady()
    stage.until(at_s)
    ends_s = {lease: stage.state.lease_end_s(stage.state.leases[lease]) for lease in stage.real.gangs}
    before = {lease: gang for lease, gang in stage.real.gangs.items() if ends_s[lease] > at_s + 0.5}
    stage.restart(0.4, links_drop=links_drop)
    stage.until(at_s + 0.45)
    assert {lease: stage.real.gangs.get(lease) for lease in before} == before
    assert all(stage.state.jobs[gang.lease.job].node_failures == 0 for gang in before.values())
    steps = {job.id: job.steps_done for job in stage.state.jobs.values()}
    while stage.state.active:
        stage.until(stage.world.now_s + 100)
        new_steps = {job.id: job.steps_done for job in stage.state.jobs.values()}
        assert all(new_steps[name] >= steps[name] for name in steps), "steps only rise"
        steps = new_steps
    assert {job.state for job in stage.state.jobs.values()} == {JobState.COMPLETED}
    assert sum(job.node_failures + job.failures for job in stage.state.jobs.values()) == 0
    done = {name: steps for name, (_, steps) in stage.real.saved.items()}
    assert done == {job.id: job.spec.steps for job in stage.state.jobs.values()}


@pytest.mark.parametrize("downtime_s", [100.0, 500.0, 5000.0])
def test_a_long_absence_loses_leases_and_no_work(downtime_s: float) -> None:
    """A scheduler that is back after its leases ended gets all exits, and every job continues from its checkpoint."""
    stage = steady()
    stage.until(500.0)
    saved = dict(stage.real.saved)
    stage.restart(downtime_s)
    stage.until(stage.world.now_s + 20_000)
    assert {job.state for job in stage.state.jobs.values()} == {JobState.COMPLETED}
    assert all(stage.real.saved[name][1] >= steps for name, (_, steps) in saved.items())
