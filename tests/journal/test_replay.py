"""Recovery: the same state as before, from whatever the journal still holds, and a report of what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.facts import EpochStarted, Fact, JobMoved, JobSubmitted
from scheduler.journal.errors import CannotReplay, Damage, DamagedJournal
from scheduler.journal.replay import recover
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobSpec, Move
from tests.journal.samples import Told, told, write
from tests.journal.toy import RULES, Toy, apply
from tests.support.journals import MemoryJournal, latest_snapshot, quarantined

COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / "journal.db"


def state_after(records: Told) -> bytes:
    """What these records add up to, without a journal."""
    state = Toy()
    for now_s, facts in records:
        for fact in facts:
            apply(state, now_s, fact)
    return state.snapshot()


def spoil(journal: SqliteJournal, *seqs: int) -> None:
    """Change one byte of these records' payloads, behind the journal's back."""
    journal.flush()
    for seq in seqs:
        (payload,) = journal._db.execute("SELECT payload FROM records WHERE seq = ?", (seq,)).fetchone()
        journal._db.execute("UPDATE records SET payload = ? WHERE seq = ?", (b"x" + payload[1:], seq))


@pytest.mark.parametrize("snapshots", [(), (1,), (20,), (20, 40), (COUNT,)])
def test_recovery_equals_what_was(path: Path, snapshots: tuple[int, ...]) -> None:
    """With or without snapshots, the state is the one that the facts led to."""
    with write(path, told(COUNT)) as journal:
        for seq in snapshots:
            journal.write_snapshot(seq, state_after(told(seq)))
        journal.compact()
    with SqliteJournal(path) as journal:
        recovered = recover(journal, RULES)
    assert recovered.state.snapshot() == state_after(told(COUNT))
    assert recovered.from_snapshot == (snapshots[-1] if snapshots else None)
    assert (recovered.damage, recovered.skipped, recovered.lost_records) == ((), (), 0)
    rest = told(COUNT)[snapshots[-1] if snapshots else 0 :]
    assert recovered.facts_applied == sum(len(facts) for _, facts in rest)


def test_memory_recovers_too() -> None:
    """Recovery knows nothing of files."""
    journal = MemoryJournal()
    for now_s, facts in told(COUNT):
        journal.append(now_s, facts)
    assert recover(journal, RULES).state.snapshot() == state_after(told(COUNT))


def test_every_beginning_of_a_journal_is_a_journal(path: Path) -> None:
    """Cut after any record, what is left adds up to the state at that time."""
    with write(path, told(COUNT)):
        pass
    for left in reversed(range(COUNT)):
        with SqliteJournal(path, durable=False) as journal:
            journal._db.execute("DELETE FROM records WHERE seq > ?", (left,))
            assert recover_again(journal, path) == state_after(told(left))


def recover_again(journal: SqliteJournal, path: Path) -> bytes:
    """Close it, and recover in a new run."""
    journal.close()
    with SqliteJournal(path, durable=False) as again:
        return recover(again, RULES).state.snapshot()


def test_when_a_record_was_lost_is_a_date() -> None:
    """Of a cluster; simulations count their seconds from 0."""
    for after_s, words in (
        (1_795_330_000.0, "2026-11-22 06:46:40 UTC"),
        (90.0, "90 s"),
        (1e300, "1e+300 s"),
    ):
        assert f"(written after {words})" in str(Damage(1, 2, "gone", after_s=after_s))


def test_a_lost_record_costs_only_what_was_in_it(path: Path) -> None:
    """Submissions after the damage are all there; the report says which record, when, and what did not fit."""
    records = [
        *told(COUNT),
        (40.0, [JobMoved(job="10", move=Move.START), JobMoved(job="11", move=Move.START)]),
    ]
    with write(path, records) as journal:
        spoil(journal, 10)
    with SqliteJournal(path) as journal:
        recovered = recover(journal, RULES)
        assert set(recovered.state.jobs) == {str(n) for n in range(1, COUNT + 1)} - {"10"}
        assert recovered.state.jobs["11"] == "running"
        assert recovered.report() == [
            "record 10 is lost (written after 4.5 s and before 5.5 s): its checksum is wrong",
            f"record {COUNT + 1}: JobMoved does not fit: '10' is unknown",
        ]
        assert recovered.lost_records == 1
        assert [str(damage) for damage in quarantined(journal)] == [
            "record 10 is lost: its checksum is wrong"
        ]
        assert quarantined(journal)[0].payload is not None
    with SqliteJournal(path) as journal:
        again = recover(journal, RULES)
        assert (again.state.snapshot(), again.damage) == (recovered.state.snapshot(), ())
        assert again.from_snapshot == journal.last_seq


def test_damage_before_a_snapshot_costs_nothing(path: Path) -> None:
    """What a sound snapshot covers need not be readable."""
    with write(path, told(COUNT)) as journal:
        journal.write_snapshot(20, state_after(told(20)))
        spoil(journal, 3, 4, 20)
        recovered = recover(journal, RULES, strict=True)
    assert recovered.state.snapshot() == state_after(told(COUNT))
    assert recovered.damage == ()


def test_a_damaged_snapshot_costs_nothing(path: Path) -> None:
    """The one before it and the records since lead to the same state; it is put aside, and a new one made."""
    with write(path, told(COUNT)) as journal:
        journal.write_snapshot(20, state_after(told(20)))
        journal.write_snapshot(40, state_after(told(40)))
        journal.compact()
        journal._db.execute("UPDATE snapshots SET payload = x'00' WHERE seq = 40")
        recovered = recover(journal, RULES)
        assert recovered.report() == ["snapshot 40 is lost: its checksum is wrong"]
        assert (recovered.from_snapshot, recovered.lost_records) == (20, 0)
        assert recovered.state.snapshot() == state_after(told(COUNT))
        snapshot = latest_snapshot(journal)
        assert snapshot is not None
        assert snapshot.seq == COUNT


def test_a_snapshot_that_cannot_be_restored_is_passed_over(path: Path) -> None:
    """Bytes that pass their checksum and make no sense to the state are damage as well."""
    with write(path, told(COUNT)) as journal:
        journal.write_snapshot(20, b"no state")
        recovered = recover(journal, RULES)
    assert recovered.from_snapshot is None
    assert recovered.state.snapshot() == state_after(told(COUNT))
    assert "cannot be restored" in recovered.report()[0]


def test_strict_recovery_stops_at_damage_and_changes_nothing(path: Path) -> None:
    """Who asks for it gets the damage instead of a state."""
    with write(path, told(COUNT)) as journal:
        spoil(journal, 10)
        with pytest.raises(DamagedJournal, match="record 10 is lost") as caught:
            recover(journal, RULES, strict=True)
        assert caught.value.damage is not None
        assert caught.value.damage.first == 10
        assert quarantined(journal) == []
        assert latest_snapshot(journal) is None


def test_a_fact_that_never_fitted_is_set_aside(path: Path) -> None:
    """A bug, not damage: recovery names the fact, goes on with all others, and the next start meets it no more."""
    records: Told = [
        (0.0, [EpochStarted(epoch=1)]),
        (1.0, [JobSubmitted(job="1", spec=JobSpec()), JobMoved(job="7", move=Move.START)]),
        (2.0, [JobMoved(job="1", move=Move.START)]),
    ]
    with write(path, records) as journal:
        with pytest.raises(CannotReplay, match="record 2: JobMoved does not apply"):
            recover(journal, RULES, strict=True)
        recovered = recover(journal, RULES)
        assert recovered.state.jobs == {"1": "running"}
        assert recovered.set_aside == (records[1][1][1],)
        assert (recovered.lost_records, recovered.report()) == (
            1,
            ["record 2: JobMoved does not fit: '7' is unknown"],
        )
        again = recover(journal, RULES)
    assert (again.set_aside, again.report(), again.state.jobs) == ((), [], recovered.state.jobs)


def test_a_fact_that_fails_half_way_leaves_nothing() -> None:
    """What it had changed before it raised is undone, and many such facts are set aside one by one."""
    journal = MemoryJournal()
    for at_s, facts in told(COUNT):
        journal.append(at_s, facts)
    submitted = [fact.job for _, facts in told(COUNT) for fact in facts if isinstance(fact, JobSubmitted)]

    def half(state: Toy, now_s: float, fact: Fact) -> None:
        RULES.apply(state, now_s, fact)
        if isinstance(fact, JobSubmitted) and int(fact.job) % 3 == 0:
            raise OverflowError("infinite")

    recovered = recover(journal, replace(RULES, apply=half))
    assert list(recovered.state.jobs) == [job for job in submitted if int(job) % 3]
    assert len(recovered.set_aside) >= len(submitted) // 3


def test_after_damage_every_invariant_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts that would make the state contradict itself are skipped, those beside them in the same record are not."""
    monkeypatch.setattr(Toy, "running_max", 1)
    records: Told = [
        (1.0, [JobSubmitted(job="1", spec=JobSpec()), JobSubmitted(job="2", spec=JobSpec())]),
        (2.0, [JobMoved(job="1", move=Move.START)]),
        (3.0, [JobMoved(job="1", move=Move.PREEMPT)]),
        (4.0, [JobMoved(job="2", move=Move.START), JobSubmitted(job="3", spec=JobSpec())]),
    ]
    with write(path, records) as journal:
        spoil(journal, 3)
        recovered = recover(journal, RULES)
    assert recovered.state.jobs == {"1": "running", "2": "queued", "3": "queued"}
    assert recovered.report()[1:] == ["record 4: JobMoved does not fit: 2 jobs run, 1 may"]
    assert recovered.state.now_s == 4.0


def test_much_damage_is_got_over(path: Path) -> None:
    """Every third record lost, in a journal longer than what is tried at a time."""
    with write(path, told(3000)) as journal:
        spoil(journal, *range(3, 3000, 3))
        recovered = recover(journal, RULES)
    assert len(recovered.state.jobs) == 3000 - 999
    assert (recovered.lost_records, recovered.skipped) == (999, ())


def test_a_reader_recovers_without_writing(path: Path) -> None:
    """Looking at a damaged journal shows the same state, and leaves it as it is."""
    with write(path, told(COUNT)) as journal:
        spoil(journal, 10)
    before = path.read_bytes()
    with SqliteJournal(path, read_only=True) as journal:
        assert recover(journal, RULES).lost_records == 1
    assert path.read_bytes() == before
