"""Recovery: the state that the journal's sound records lead to, and a report of the lost ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.facts import EpochStarted, Fact, JobMoved, JobSubmitted
from scheduler.journal.errors import CannotReplay, Damage, DamagedJournal
from scheduler.journal.replay import recover
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobSpec, Move
from tests.journal.samples import Records, numbered, write
from tests.journal.toy import RULES, Toy, apply
from tests.support.journals import MemoryJournal, latest_snapshot, quarantined
from tests.support.wording import Wording

COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the journal."""
    return tmp_path / "journal.db"


def state_after(records: Records) -> bytes:
    """Return the state after these records, without a journal."""
    state = Toy()
    for now_s, facts in records:
        for fact in facts:
            apply(state, now_s, fact)
    return state.snapshot()


def spoil(journal: SqliteJournal, *seqs: int) -> None:
    """Change one byte of these records' payloads directly in the database."""
    journal.flush()
    for seq in seqs:
        (payload,) = journal._db.execute("SELECT payload FROM records WHERE seq = ?", (seq,)).fetchone()
        journal._db.execute("UPDATE records SET payload = ? WHERE seq = ?", (b"x" + payload[1:], seq))


@pytest.mark.parametrize("snapshots", [(), (1,), (20,), (20, 40), (COUNT,)])
def test_recovery_equals_the_state_before(path: Path, snapshots: tuple[int, ...]) -> None:
    """With or without snapshots, the state is the one that the facts lead to."""
    with write(path, numbered(COUNT)) as journal:
        for seq in snapshots:
            journal.write_snapshot(seq, state_after(numbered(seq)))
        journal.compact()
    with SqliteJournal(path) as journal:
        recovered = recover(journal, RULES)
    assert recovered.state.snapshot() == state_after(numbered(COUNT))
    assert recovered.from_snapshot == (snapshots[-1] if snapshots else None)
    assert (recovered.damage, recovered.skipped, recovered.lost_records) == ((), (), 0)
    rest = numbered(COUNT)[snapshots[-1] if snapshots else 0 :]
    assert recovered.facts_applied == sum(len(facts) for _, facts in rest)


def test_a_journal_in_memory_recovers_too() -> None:
    """Recovery works on journals in memory, because it needs no files."""
    journal = MemoryJournal()
    for now_s, facts in numbered(COUNT):
        journal.append(now_s, facts)
    assert recover(journal, RULES).state.snapshot() == state_after(numbered(COUNT))


def test_every_beginning_of_a_journal_is_a_journal(path: Path) -> None:
    """Cut after any record, the journal leads to the state at that time."""
    with write(path, numbered(COUNT)):
        pass
    for count in reversed(range(COUNT)):
        with SqliteJournal(path, durable=False) as journal:
            journal._db.execute("DELETE FROM records WHERE seq > ?", (count,))
            assert recover_again(journal, path) == state_after(numbered(count))


def recover_again(journal: SqliteJournal, path: Path) -> bytes:
    """Close the journal, and recover from it in a new run."""
    journal.close()
    with SqliteJournal(path, durable=False) as reopened:
        return recover(reopened, RULES).state.snapshot()


def test_the_time_of_a_loss_is_a_date_or_seconds() -> None:
    """A live scheduler's times are dates; a simulation counts seconds from 0."""
    for after_s, time in (
        (1_795_330_000.0, "2026-11-22 06:46:40 UTC"),
        (90.0, "90 s"),
        (1e300, "1e+300 s"),
    ):
        assert f" {time})" in str(Damage(1, 2, "gone", after_s=after_s))


def test_a_lost_record_costs_only_its_own_facts(path: Path, wording: Wording) -> None:
    """No other submission is lost; the report has the lost record, its time, and later facts that do not apply."""
    records = [
        *numbered(COUNT),
        (40.0, [JobMoved(job="10", move=Move.START), JobMoved(job="11", move=Move.START)]),
    ]
    with write(path, records) as journal:
        spoil(journal, 10)
    with SqliteJournal(path) as journal:
        recovered = recover(journal, RULES)
        assert set(recovered.state.jobs) == {str(n) for n in range(1, COUNT + 1)} - {"10"}
        assert recovered.state.jobs["11"] == "running"
        (damage,) = recovered.damage
        assert (damage.first, damage.last, damage.after_s, damage.before_s) == (10, 10, 4.5, 5.5)
        wording("\n".join(recovered.report()))
        assert recovered.lost_records == 1
        (kept,) = quarantined(journal)
        assert (kept.first, kept.last) == (10, 10)
        assert kept.payload is not None
        wording(kept)
    with SqliteJournal(path) as journal:
        again = recover(journal, RULES)
        assert (again.state.snapshot(), again.damage) == (recovered.state.snapshot(), ())
        assert again.from_snapshot == journal.last_seq


def test_damage_before_a_snapshot_costs_nothing(path: Path) -> None:
    """Records that a sound snapshot covers need not be readable."""
    with write(path, numbered(COUNT)) as journal:
        journal.write_snapshot(20, state_after(numbered(20)))
        spoil(journal, 3, 4, 20)
        recovered = recover(journal, RULES, strict=True)
    assert recovered.state.snapshot() == state_after(numbered(COUNT))
    assert recovered.damage == ()


def test_a_damaged_snapshot_costs_nothing(path: Path, wording: Wording) -> None:
    """An older snapshot leads to the same state; the damaged one is set aside, and a new one is written."""
    with write(path, numbered(COUNT)) as journal:
        journal.write_snapshot(20, state_after(numbered(20)))
        journal.write_snapshot(40, state_after(numbered(40)))
        journal.compact()
        journal._db.execute("UPDATE snapshots SET payload = x'00' WHERE seq = 40")
        recovered = recover(journal, RULES)
        (line,) = recovered.report()
        assert line.startswith("snapshot 40 ")
        wording(line)
        assert (recovered.from_snapshot, recovered.lost_records) == (20, 0)
        assert recovered.state.snapshot() == state_after(numbered(COUNT))
        snapshot = latest_snapshot(journal)
        assert snapshot is not None
        assert snapshot.seq == COUNT


def test_a_snapshot_that_cannot_be_restored_is_passed_over(path: Path) -> None:
    """A snapshot with a right checksum that cannot be restored is damage as well."""
    with write(path, numbered(COUNT)) as journal:
        journal.write_snapshot(20, b"no state")
        recovered = recover(journal, RULES)
    assert recovered.from_snapshot is None
    assert recovered.state.snapshot() == state_after(numbered(COUNT))
    assert "cannot be restored" in recovered.report()[0]


def test_strict_recovery_stops_at_damage_and_changes_nothing(path: Path) -> None:
    """Strict recovery raises the damage instead of returning a state."""
    with write(path, numbered(COUNT)) as journal:
        spoil(journal, 10)
        with pytest.raises(DamagedJournal, match="record 10 ") as caught:
            recover(journal, RULES, strict=True)
        assert caught.value.damage is not None
        assert caught.value.damage.first == 10
        assert quarantined(journal) == []
        assert latest_snapshot(journal) is None


def test_a_fact_that_does_not_apply_is_set_aside(path: Path, wording: Wording) -> None:
    """Recovery names such a fact, applies all others, and the next start does not meet it again."""
    records: Records = [
        (0.0, [EpochStarted(epoch=1)]),
        (1.0, [JobSubmitted(job="1", spec=JobSpec()), JobMoved(job="7", move=Move.START)]),
        (2.0, [JobMoved(job="1", move=Move.START)]),
    ]
    with write(path, records) as journal:
        with pytest.raises(CannotReplay, match="record 2: JobMoved") as caught:
            recover(journal, RULES, strict=True)
        wording(caught.value)
        # The traceback of this error has frames that are reading from the database.
        del caught
        recovered = recover(journal, RULES)
        assert recovered.state.jobs == {"1": "running"}
        assert recovered.failed_facts == (records[1][1][1],)
        assert recovered.lost_records == 1
        (line,) = recovered.report()
        assert line.startswith("record 2: JobMoved ")
        wording(line)
        again = recover(journal, RULES)
    assert (again.failed_facts, again.report(), again.state.jobs) == ((), [], recovered.state.jobs)


def test_a_fact_that_fails_half_way_leaves_nothing() -> None:
    """If applying a fact raises, the changes made until then are undone; many such facts are set aside one by one."""
    journal = MemoryJournal()
    for at_s, facts in numbered(COUNT):
        journal.append(at_s, facts)
    submitted = [fact.job for _, facts in numbered(COUNT) for fact in facts if isinstance(fact, JobSubmitted)]

    def half(state: Toy, now_s: float, fact: Fact) -> None:
        RULES.apply(state, now_s, fact)
        if isinstance(fact, JobSubmitted) and int(fact.job) % 3 == 0:
            raise OverflowError("infinite")

    recovered = recover(journal, replace(RULES, apply=half))
    assert list(recovered.state.jobs) == [job for job in submitted if int(job) % 3]
    assert len(recovered.failed_facts) >= len(submitted) // 3


def test_after_damage_every_invariant_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A fact that would break an invariant is skipped; the other facts of its record are applied."""
    monkeypatch.setattr(Toy, "running_max", 1)
    records: Records = [
        (1.0, [JobSubmitted(job="1", spec=JobSpec()), JobSubmitted(job="2", spec=JobSpec())]),
        (2.0, [JobMoved(job="1", move=Move.START)]),
        (3.0, [JobMoved(job="1", move=Move.PREEMPT)]),
        (4.0, [JobMoved(job="2", move=Move.START), JobSubmitted(job="3", spec=JobSpec())]),
    ]
    with write(path, records) as journal:
        spoil(journal, 3)
        recovered = recover(journal, RULES)
    assert recovered.state.jobs == {"1": "running", "2": "queued", "3": "queued"}
    (line,) = recovered.report()[1:]
    assert line.startswith("record 4: JobMoved ")
    wording(line)
    assert recovered.state.now_s == 4.0


def test_much_damage_is_survived(path: Path) -> None:
    """A long journal with every third record lost recovers all other jobs."""
    with write(path, numbered(3000)) as journal:
        spoil(journal, *range(3, 3000, 3))
        recovered = recover(journal, RULES)
    assert len(recovered.state.jobs) == 3000 - 999
    assert (recovered.lost_records, recovered.skipped) == (999, ())


def test_a_reader_recovers_without_writing(path: Path) -> None:
    """A reader of a damaged journal recovers the same state and leaves the file unchanged."""
    with write(path, numbered(COUNT)) as journal:
        spoil(journal, 10)
    before = path.read_bytes()
    with SqliteJournal(path, read_only=True) as journal:
        assert recover(journal, RULES).lost_records == 1
    assert path.read_bytes() == before
