"""Recovery of the real scheduler: from the journal of a simulated week with gangs, packing and failing nodes."""

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
        """Damage in the place of what is lost."""
        for record in self._records[after:]:
            yield Damage(record.seq, record.seq, "lost") if record.seq in self._lost else record


@dataclass(frozen=True)
class Lived:
    """A run that took place: its records, and the state it ended with."""

    records: list[Record]
    state: SchedulerState

    def ids(self, *states: JobState) -> set[str]:
        """Jobs that ended in one of these."""
        return {job.id for job in self.state.jobs.values() if job.state in states}


@pytest.fixture(scope="module")
def lived() -> Lived:
    """The simulated week."""
    cores: list[Core] = []

    class Seen(Core):
        def __init__(self, state: SchedulerState | None = None) -> None:
            super().__init__(state)
            cores.append(self)

    journal = MemoryJournal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "Core", Seen)
        simulation.simulate(msgspec.structs.replace(prepare(RUN).options, journal=journal))
    return Lived(list(journal.records()), cores[0].state)


def told(state: SchedulerState) -> bytes:
    """All of a state; a whole number in the place of a real one, which is the same to us, as reading it makes it."""
    return SchedulerState.restore(state.snapshot()).snapshot()


def test_recovery_equals_the_state_that_lived(lived: Lived, tmp_path: Path) -> None:
    """What the journal adds up to is what the scheduler had in memory, byte for byte."""
    path = tmp_path / "journal.db"
    with SqliteJournal(path, durable=False) as journal:
        for record in lived.records:
            journal.append(record.now_s, record.facts)
    with SqliteJournal(path, durable=False) as journal:
        recovered = recover_scheduler(journal)
    assert told(recovered.state) == told(lived.state)
    assert recovered.report() == []
    assert recovered.facts_applied == sum(len(record.facts) for record in lived.records) > 1000


def test_cut_after_any_record_the_state_is_sound(lived: Lived) -> None:
    """Wherever the scheduler was killed, every invariant holds in what it starts from."""
    state = SchedulerState()
    for record in lived.records:
        for fact in record.facts:
            apply(state, record.now_s, fact)
        check(state)


def test_a_snapshot_anywhere_leads_to_the_same_state(lived: Lived) -> None:
    """A snapshot and what came after it are worth as much as everything from the start."""
    for seq in random.Random(5).sample(range(1, len(lived.records)), 12):
        journal = Lossy(lived.records, set())
        state = SchedulerState()
        for record in lived.records[:seq]:
            for fact in record.facts:
                apply(state, record.now_s, fact)
        journal.write_snapshot(seq, state.snapshot())
        recovered = recover_scheduler(journal)
        assert recovered.from_snapshot == seq
        assert told(recovered.state) == told(lived.state)


def test_a_lost_record_takes_nothing_along(lived: Lived) -> None:
    """Whichever record is lost, the state is sound, every other submission is there, and every other completion."""
    leases = {
        lease.id: lease.job
        for record in lived.records
        for fact in record.facts
        if isinstance(fact, RoundPlanned | GpusFilled)
        for lease in fact.granted
    }
    for seq in random.Random(7).sample(range(2, len(lived.records)), 25):
        recovered = recover_scheduler(Lossy(lived.records, {seq}))
        check(recovered.state)
        jobs = recovered.state.jobs
        facts = lived.records[seq - 1].facts
        submitted = {fact.job for fact in facts if isinstance(fact, JobSubmitted)}
        assert set(jobs) == set(lived.state.jobs) - submitted
        granted = {
            lease.job for f in facts if isinstance(f, RoundPlanned | GpusFilled) for lease in f.granted
        }
        ended = {leases[fact.exit.lease] for fact in facts if isinstance(fact, LeaseClosed)}
        completed = lived.ids(JobState.COMPLETED) - submitted
        again = {job for job in completed if jobs[job].state != JobState.COMPLETED}
        assert again <= granted | ended, f"without record {seq}"
        assert (recovered.lost_records, recovered.damage[0].first) == (1, seq)


def test_many_lost_records_leave_a_sound_state(lived: Lived) -> None:
    """A lost block of records, and a tenth of all at random: what is left is sound and holds every other submission."""
    chance = random.Random(9)
    size = len(lived.records)
    for lost in (set(range(size // 3, size // 3 + 40)), set(chance.sample(range(2, size), size // 10))):
        recovered = recover_scheduler(Lossy(lived.records, lost))
        check(recovered.state)
        submitted = {
            f.job for seq in lost for f in lived.records[seq - 1].facts if isinstance(f, JobSubmitted)
        }
        assert set(recovered.state.jobs) == set(lived.state.jobs) - submitted
        assert recovered.lost_records == len(lost)


def test_fitting_changes_nothing_where_nothing_is_lost(lived: Lived) -> None:
    """After damage that cost nothing, every fact still counts as it is."""
    nothing: list[Fact] = [EpochStarted(epoch=1)]
    records = [Record(1, 0.0, nothing), *(record._replace(seq=record.seq + 1) for record in lived.records)]
    recovered = recover(Lossy(records, {1}), replace(RULES, lost=None))
    assert recovered.skipped == ()
    assert told(recovered.state) == told(lived.state)


def test_who_waits_for_a_lost_job_is_held() -> None:
    """Nobody knows whether the lost job succeeded, so a person decides."""
    first = JobSubmitted(job="1", spec=JobSpec())
    second = JobSubmitted(job="2", spec=JobSpec(), blocked_by=("1",))
    recovered = recover_scheduler(Lossy([Record(1, 0.0, [first]), Record(2, 1.0, [second])], {1}))
    job = recovered.state.jobs["2"]
    assert (job.state, job.why) == (
        JobState.HELD,
        "the records of job 1, which it depends on, are lost",
    )
