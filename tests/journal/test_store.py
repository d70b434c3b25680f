"""The journal in a file: appended records are read back, and every error says what to do."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest

from scheduler.core.facts import EpochStarted, Fact
from scheduler.drive import Journal as DrivenJournal
from scheduler.journal import layout
from scheduler.journal.errors import (
    AppendFailed,
    Damage,
    DiskFull,
    JournalBusy,
    JournalError,
    NewerJournal,
    NotAJournal,
    Unwritable,
)
from scheduler.journal.record import Journal, Record
from scheduler.journal.store import SqliteJournal
from tests.journal.samples import numbered, sound_records, write
from tests.support.journals import MemoryJournal, digest, latest_snapshot
from tests.support.wording import Wording


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the journal."""
    return tmp_path / "journal.db"


@pytest.mark.parametrize("durable", [True, False])
def test_appended_records_are_read(path: Path, durable: bool) -> None:
    """Records are read back unchanged and in order, in the same run and in the next."""
    with write(path, numbered(20), durable=durable) as journal:
        assert sound_records(journal) == numbered(20)
    with SqliteJournal(path) as journal:
        assert sound_records(journal) == numbered(20)
        assert list(journal.read()) == [(now_s, fact) for now_s, facts in numbered(20) for fact in facts]
        assert [record.seq for record in journal.records(after=15)] == [16, 17, 18, 19, 20]
        assert journal.last_seq == 20


def test_every_journal_can_be_driven(path: Path) -> None:
    """Each kind of journal has what the loop and recovery need."""
    with SqliteJournal(path) as file:
        journals: list[Journal] = [file, MemoryJournal()]
        driven: list[DrivenJournal] = [file, MemoryJournal()]
        assert len(journals) == len(driven)
        for journal in journals:
            journal.append(1.0, [EpochStarted(epoch=1)])
            assert journal.last_seq == 1


def test_an_empty_journal_reads_as_nothing(path: Path) -> None:
    """A new journal holds no record and no snapshot."""
    with SqliteJournal(path) as journal:
        assert (list(journal.scan()), latest_snapshot(journal), journal.last_seq) == ([], None, 0)
    with SqliteJournal(path) as journal:
        assert (list(journal.scan()), latest_snapshot(journal), journal.last_seq) == ([], None, 0)


def test_no_facts_make_no_record(path: Path) -> None:
    """An outcome without facts is not written."""
    with SqliteJournal(path) as journal:
        journal.append(1.0, [])
        assert journal.last_seq == 0


def test_huge_records_come_back_whole(path: Path) -> None:
    """A record of many megabytes, over thousands of pages, is read like any other."""
    records = [*numbered(2), *numbered(1, size_bytes=20_000_000), *numbered(1)]
    with write(path, records, durable=True):
        pass
    with SqliteJournal(path) as journal:
        assert sound_records(journal) == records


def test_many_facts_are_one_record(path: Path) -> None:
    """A record of 100,000 facts is read as one."""
    facts: list[Fact] = [EpochStarted(epoch=n) for n in range(100_000)]
    with SqliteJournal(path) as journal:
        journal.append(1.0, facts)
        assert list(journal.scan()) == [Record(1, 1.0, facts)]


def test_numbering_continues(path: Path) -> None:
    """The records of the next run are numbered from where the last run ended."""
    with write(path, numbered(3)):
        pass
    with write(path, numbered(2)) as journal:
        assert [record.seq for record in journal.scan() if isinstance(record, Record)] == [1, 2, 3, 4, 5]


def test_the_file_has_the_documented_pragmas(path: Path) -> None:
    """The pragmas of docs/journal-format.md hold, whatever the defaults of the SQLite build."""
    with SqliteJournal(path) as journal:
        pragmas = {
            name: journal._db.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "application_id",
                "user_version",
                "page_size",
                "journal_mode",
                "synchronous",
                "locking_mode",
            )
        }
    assert pragmas == {
        "application_id": 0x4741564C,
        "user_version": 1,
        "page_size": 4096,
        "journal_mode": b"wal",
        "synchronous": 2,
        "locking_mode": b"exclusive",
    }


def test_payloads_are_readable_json(path: Path) -> None:
    """A payload is JSON that has the type of each fact."""
    with write(path, numbered(3)):
        pass
    db = sqlite3.connect(path)
    (text,) = db.execute("SELECT CAST(payload AS TEXT) FROM records WHERE seq = 3").fetchone()
    db.close()
    assert [fact["type"] for fact in json.loads(text)] == ["JobSubmitted", "JobMoved"]


def test_meta_is_kept(path: Path) -> None:
    """Metadata of a journal can be read in the next run."""
    with SqliteJournal(path) as journal:
        journal.set_meta("made_by", '{"seed": 7}')
    with SqliteJournal(path) as journal:
        assert journal.meta == {"format": "1", "made_by": '{"seed": 7}'}


# Equal journals


def test_equal_facts_have_equal_digests(tmp_path: Path) -> None:
    """Journals with the same records have equal digests, however they were written; other records change the digest."""
    digests = []
    for durable in (True, False):
        with write(tmp_path / f"{durable}.db", numbered(30), durable=durable) as journal:
            digests.append(digest(journal))
    memory = MemoryJournal()
    for now_s, facts in numbered(30):
        memory.append(now_s, facts)
    with write(tmp_path / "other.db", [*numbered(29), (15.5, numbered(30)[29][1])]) as other:
        assert digest(other) != digest(memory)
    with write(tmp_path / "shorter.db", numbered(29)) as shorter:
        assert digest(shorter) != digest(memory)
    assert digests == [digest(memory)] * 2


# Snapshots and compaction


def test_the_latest_snapshot_is_found(path: Path) -> None:
    """Snapshots are listed with the newest first."""
    with write(path, numbered(9)) as journal:
        for seq in (3, 9, 6):
            journal.write_snapshot(seq, b"state %d" % seq)
        snapshot = latest_snapshot(journal)
        assert snapshot == (9, b"state 9")
        assert list(journal.snapshots()) == [
            (9, b"state 9"),
            (6, b"state 6"),
            (3, b"state 3"),
        ]


def test_compaction_keeps_the_records_of_two_snapshots(path: Path, wording: Wording) -> None:
    """Records are removed once two snapshots cover them, so that one damaged snapshot loses nothing."""
    with write(path, numbered(9)) as journal:
        assert journal.compact() == 0
        journal.write_snapshot(3, b"three")
        assert journal.compact() == 0
        journal.write_snapshot(5, b"five")
        journal.write_snapshot(7, b"seven")
        assert journal.compact() == 5
        assert list(journal.snapshots()) == [(7, b"seven"), (5, b"five")]
        assert [record.seq for record in journal.records()] == [6, 7, 8, 9]
        assert journal.compact() == 0
    with SqliteJournal(path) as journal:
        assert journal.last_seq == 9
        damage = next(journal.scan())
        assert isinstance(damage, Damage)
        assert (damage.first, damage.last, damage.before_s) == (1, 5, 3.0)
        wording(damage)
        assert [type(record) for record in journal.scan(after=5)] == [Record] * 4


def test_numbering_survives_compaction_of_everything(path: Path) -> None:
    """A number is never used again, even when no record is left."""
    with write(path, numbered(4)) as journal:
        journal.write_snapshot(3, b"three")
        journal.write_snapshot(4, b"four")
        journal._db.execute("DELETE FROM records")
    with SqliteJournal(path) as journal:
        assert journal.last_seq == 4


def test_nothing_is_deleted_for_a_damaged_snapshot(path: Path) -> None:
    """Compaction reads snapshots back before it relies on them."""
    with write(path, numbered(9)) as journal:
        journal.write_snapshot(3, b"three")
        journal.write_snapshot(5, b"five")
        journal._db.execute("UPDATE snapshots SET payload = x'00' WHERE seq = 5")
        assert journal.compact() == 0
        assert len(list(journal.records())) == 9


def test_a_snapshot_needs_its_record(path: Path) -> None:
    """A snapshot after a record that does not exist is refused."""
    with write(path, numbered(2)) as journal, pytest.raises(ValueError, match="2"):
        journal.write_snapshot(3, b"")


# Errors


def test_a_second_process_gets_the_pid_of_the_first(path: Path, wording: Wording) -> None:
    """A journal that a process has open cannot be opened again, not even to read; the error has the process's id."""
    with SqliteJournal(path):
        for read_only in (False, True):
            with pytest.raises(JournalBusy, match=rf"journal\.db .*\b{os.getpid()}\b") as refused:
                SqliteJournal(path, read_only=read_only)
            wording(refused.value, folder=path.parent, pid=os.getpid())
    with SqliteJournal(path):
        pass


def test_a_file_that_another_program_has_locked_is_refused(path: Path, wording: Wording) -> None:
    """While another program holds a transaction on the file, the journal is not opened."""
    with write(path, numbered(1)):
        pass
    stranger = sqlite3.connect(path, isolation_level=None)
    stranger.execute("PRAGMA journal_mode=DELETE")
    stranger.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalBusy, match=r"journal\.db") as refused:
        SqliteJournal(path)
    wording(refused.value, folder=path.parent)
    stranger.close()


@pytest.mark.parametrize("content", [b"name: a text\n", b"\0" * 10_000, b"SQLite format 3\0" + b"x" * 9000])
def test_other_files_are_refused_and_left_alone(path: Path, content: bytes, wording: Wording) -> None:
    """A file that is not a journal is refused, and stays unchanged."""
    path.write_bytes(content)
    with pytest.raises(NotAJournal, match=r"journal\.db") as refused:
        SqliteJournal(path)
    wording(refused.value, folder=path.parent)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["journal.db"]


def test_another_database_is_refused_and_left_alone(path: Path) -> None:
    """A SQLite file of another program is refused, and stays unchanged."""
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE records (seq)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(NotAJournal):
        SqliteJournal(path)
    assert path.read_bytes() == before


def test_a_missing_journal_is_not_replaced(path: Path, wording: Wording) -> None:
    """A missing file is probably a mistake; the error names the file to delete before a new journal can begin."""
    with write(path, numbered(3), durable=True):
        pass
    path.unlink()
    with pytest.raises(NotAJournal, match=r"3 records.*journal\.db\.lock") as refused:
        SqliteJournal(path)
    wording(refused.value, folder=path.parent)
    (path.parent / "journal.db.lock").unlink()
    with SqliteJournal(path) as journal:
        assert journal.last_seq == 0


def test_a_missing_folder_is_an_error(tmp_path: Path, wording: Wording) -> None:
    """A mistyped path raises JournalError, and not an error of SQLite."""
    with pytest.raises(JournalError, match="nowhere") as refused:
        SqliteJournal(tmp_path / "nowhere" / "journal.db")
    wording(refused.value, folder=tmp_path)
    with pytest.raises(NotAJournal) as missing:
        SqliteJournal(tmp_path / "journal.db", read_only=True)
    wording(missing.value, folder=tmp_path)


def test_a_later_layout_is_refused(path: Path, wording: Wording) -> None:
    """A file in the layout of a later release is refused, and not taken for a damaged one."""
    with SqliteJournal(path) as journal:
        journal.set_meta("format", "2")
        journal._db.execute("PRAGMA user_version=2")
    with pytest.raises(NewerJournal, match=r"journal\.db .*\b2\b.*\b1\b") as refused:
        SqliteJournal(path)
    wording(refused.value, folder=path.parent)


def test_later_facts_are_refused(path: Path) -> None:
    """A record of a later version stops the reader instead of being read in part."""
    from scheduler.journal.codec import VERSION, record_crc

    with SqliteJournal(path) as journal:
        later = VERSION + 1
        row = (1, 0.0, later, b"[]", record_crc(1, 0.0, later, b"[]"))
        journal._db.execute(layout.INSERT_RECORD, row)
    with SqliteJournal(path) as journal, pytest.raises(NewerJournal, match=rf"record 1 .*\b{later}\b"):
        list(journal.scan())


def test_a_full_disk_loses_no_acknowledged_record(path: Path, wording: Wording) -> None:
    """The append that does not fit raises; earlier records stay, and appends fail until the journal is reopened."""
    with SqliteJournal(path) as journal:
        journal.append(0.0, [EpochStarted(epoch=1)])
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count={pages + 1}")
        kept = 1
        with pytest.raises(DiskFull) as full:  # noqa: PT012
            for now_s, facts in numbered(10_000):
                journal.append(now_s, facts)
                kept += 1
        wording(full.value, folder=path.parent)
        with pytest.raises(AppendFailed) as failed:
            journal.append(0.0, [EpochStarted(epoch=2)])
        wording(failed.value, folder=path.parent)
    with SqliteJournal(path) as journal:
        assert [record.seq for record in journal.records()] == list(range(1, kept + 1))
        assert kept > 1
        journal.append(0.0, [EpochStarted(epoch=2)])
        assert journal.last_seq == kept + 1


def test_an_unwritable_fact_leaves_no_trace(path: Path) -> None:
    """A fact that cannot be encoded raises before anything is written, and later facts can be appended."""
    with SqliteJournal(path) as journal:
        with pytest.raises(Unwritable):
            journal.append(float("nan"), [EpochStarted(epoch=1)])
        with pytest.raises(Unwritable):
            journal.append(1.0, [EpochStarted(epoch=float("inf"))])  # type: ignore[arg-type]
        journal.append(1.0, [EpochStarted(epoch=1)])
        assert [record.seq for record in journal.records()] == [1]


def test_a_reader_changes_nothing(path: Path) -> None:
    """A reader works on a copy, and cannot append."""
    with write(path, numbered(3)):
        pass
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with SqliteJournal(path, read_only=True) as journal:
        assert sound_records(journal) == numbered(3)
        with pytest.raises(AppendFailed, match="for reading only"):
            journal.append(1.0, [EpochStarted(epoch=1)])
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
