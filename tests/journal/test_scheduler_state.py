"""Recovery of the real scheduler from the journal of a simulated week with gangs, packing and failing nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from scheduler.core.apply import apply
from scheduler.core.core import Core
from scheduler.core.facts import EpochStarted, Fact, GpusFilled, JobSubmitted, LeaseClosed, RoundPlanned
from scheduler.core.invariants import check
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import Damage
from scheduler.journal.record import Record
from scheduler.journal.recovery import RULES, recover_scheduler
from scheduler.journal.replay import recover
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobSpec, JobState
from scheduler.sim import simulate as simulation
from scheduler.sim.run import Run
from scheduler.sim.runs import prepare
from tests.support.journals import MemoryJournal
from tests.support.wording import Wording

RUN = Run(
    policy="las+packing",
    cluster={"v100": 8, "a100": 8, "t4": 8},
    gpus_per_node=4,
    workload="mixed-day",
    rate_per_h=3.0,
    jobs=60,
    mtbf_h=40.0,
    seed=3,
)


class Lossy(MemoryJournal):
    """A journal in which some records are lost."""

    def __init__(self, records: list[Record], lost: set[int]) -> None:
        super().__init__()
        self._records = list(records)
        self._lost = lost

    def scan(self, after: int = 0) -> Iterator[Record | Damage]:
        """Yield damage in the place of lost records."""
        for record in self._records[after:]:
            yield Damage(record.seq, record.seq, "lost") if record.seq in self._lost else record


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its records, and its last state."""

    records: list[Record]
    state: SchedulerState

    def ids(self, *states: JobState) -> set[str]:
        """The jobs that ended in one of these states."""
        return {job.id for job in self.state.jobs.values() if job.state in states}


@pytest.fixture(scope="module")
def finished_run() -> FinishedRun:
    """Simulate the week."""
    cores: list[Core] = []

    class RecordedCore(Core):
        def __init__(self, state: SchedulerState | None = None) -> None:
            super().__init__(state)
            cores.append(self)

    journal = MemoryJournal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "Core", RecordedCore)
        simulation.simulate(msgspec.structs.replace(prepare(RUN).options, journal=journal))
    return FinishedRun(list(journal.records()), cores[0].state)


def snapshot_of(state: SchedulerState) -> bytes:
    """Return the snapshot of a state that was restored once, so that numbers have the form in which they are read."""
    return SchedulerState.restore(state.snapshot()).snapshot()


def test_recovery_equals_the_last_state(finished_run: FinishedRun, tmp_path: Path) -> None:
    """The recovered state equals the scheduler's state in memory, byte for byte."""
    path = tmp_path / "journal.db"
    with SqliteJournal(path, durable=False) as journal:
        for record in finished_run.records:
            journal.append(record.now_s, record.facts)
    with SqliteJournal(path, durable=False) as journal:
        recovered = recover_scheduler(journal)
    assert snapshot_of(recovered.state) == snapshot_of(finished_run.state)
    assert recovered.report() == []
    assert recovered.facts_applied == sum(len(record.facts) for record in finished_run.records) > 1000


def test_cut_after_any_record_the_state_is_sound(finished_run: FinishedRun) -> None:
    """Wherever the scheduler is killed, every invariant holds in the state that it starts from."""
    state = SchedulerState()
    for record in finished_run.records:
        for fact in record.facts:
            apply(state, record.now_s, fact)
        check(state)


def test_a_snapshot_anywhere_leads_to_the_same_state(finished_run: FinishedRun) -> None:
    """A snapshot and the records after it lead to the same state as all records."""
    for seq in random.Random(5).sample(range(1, len(finished_run.records)), 12):
        journal = Lossy(finished_run.records, set())
        state = SchedulerState()
        for record in finished_run.records[:seq]:
            for fact in record.facts:
                apply(state, record.now_s, fact)
        journal.write_snapshot(seq, state.snapshot())
        recovered = recover_scheduler(journal)
        assert recovered.from_snapshot == seq
        assert snapshot_of(recovered.state) == snapshot_of(finished_run.state)


def test_a_lost_record_costs_only_its_own_facts(finished_run: FinishedRun) -> None:
    """Whichever record is lost, the state is sound and has every submission and completion of the other records."""
    leases = {
        lease.id: lease.job
        for record in finished_run.records
        for fact in record.facts
        if isinstance(fact, RoundPlanned | GpusFilled)
        for lease in fact.granted
    }
    for seq in random.Random(7).sample(range(2, len(finished_run.records)), 25):
        recovered = recover_scheduler(Lossy(finished_run.records, {seq}))
        check(recovered.state)
        jobs = recovered.state.jobs
        facts = finished_run.records[seq - 1].facts
        submitted = {fact.job for fact in facts if isinstance(fact, JobSubmitted)}
        assert set(jobs) == set(finished_run.state.jobs) - submitted
        granted = {
            lease.job for f in facts if isinstance(f, RoundPlanned | GpusFilled) for lease in f.granted
        }
        ended = {leases[fact.exit.lease] for fact in facts if isinstance(fact, LeaseClosed)}
        completed = finished_run.ids(JobState.COMPLETED) - submitted
        again = {job for job in completed if jobs[job].state != JobState.COMPLETED}
        assert again <= granted | ended, f"without record {seq}"
        assert (recovered.lost_records, recovered.damage[0].first) == (1, seq)


def test_many_lost_records_leave_a_sound_state(finished_run: FinishedRun) -> None:
    """Without a block or a random tenth of the records, the state is sound and has all other submissions."""
    chance = random.Random(9)
    size = len(finished_run.records)
    for lost in (set(range(size // 3, size // 3 + 40)), set(chance.sample(range(2, size), size // 10))):
        recovered = recover_scheduler(Lossy(finished_run.records, lost))
        check(recovered.state)
        submitted = {
            f.job for seq in lost for f in finished_run.records[seq - 1].facts if isinstance(f, JobSubmitted)
        }
        assert set(recovered.state.jobs) == set(finished_run.state.jobs) - submitted
        assert recovered.lost_records == len(lost)


def test_all_facts_apply_if_the_lost_record_changed_nothing(finished_run: FinishedRun) -> None:
    """If the lost record changed nothing, no later fact is skipped, and the state is the same."""
    nothing: list[Fact] = [EpochStarted(epoch=1)]
    records = [
        Record(1, 0.0, nothing),
        *(record._replace(seq=record.seq + 1) for record in finished_run.records),
    ]
    recovered = recover(Lossy(records, {1}), replace(RULES, loss_fact=None))
    assert recovered.skipped == ()
    assert snapshot_of(recovered.state) == snapshot_of(finished_run.state)


def test_a_job_that_waits_for_a_lost_job_is_held(wording: Wording) -> None:
    """It is unknown whether the lost job succeeded, so the job is held until a user decides."""
    first = JobSubmitted(job="1", spec=JobSpec())
    second = JobSubmitted(job="2", spec=JobSpec(), blocked_by=("1",))
    recovered = recover_scheduler(Lossy([Record(1, 0.0, [first]), Record(2, 1.0, [second])], {1}))
    job = recovered.state.jobs["2"]
    assert job.state == JobState.HELD
    wording(job.why)
