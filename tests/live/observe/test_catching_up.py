"""A file that lacks rows, or belongs to another journal or release, is completed from the journal at the start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler.core.apply import apply
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.store import SqliteJournal
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.timeline import Timeline
from tests.live.observe.test_ledger import played
from tests.live.observe.test_timeline import made_again, played_into, rows_of
from tests.support.journals import MemoryJournal
from tests.support.wording import Wording


def compacted(path: Path, records: Sequence[tuple[float, Sequence[Fact]]]) -> SqliteJournal:
    """Return a journal that has lost the first third of these records to compaction, and the state after it."""
    journal, state = SqliteJournal(path), SchedulerState()
    for number, (now_s, facts) in enumerate(records, 1):
        journal.append(now_s, facts)
        for fact in facts:
            apply(state, now_s, fact)
        if number in (len(records) // 3, 2 * len(records) // 3):
            journal.write_snapshot(journal.last_seq, state.snapshot())
    assert journal.compact() > 0
    return journal


def began(file: HistoryFile, journal: Any) -> list[str]:
    """Begin a timeline on this file and journal; return its warnings."""
    return list(Timeline(file, journal, SchedulerState()).warnings())


def test_what_the_journal_lacks_is_named(tmp_path: Path, wording: Wording) -> None:
    """A new file has the leases since the oldest snapshot, and a file that is too old has a gap: warnings say when."""
    records = played(7200)
    with compacted(tmp_path / "journal.db", records) as journal:
        file = HistoryFile(None)
        wording("\n".join(began(file, journal)))
        whole = MemoryJournal()
        state = played_into(whole, records)
        rows = file.rows("SELECT * FROM lease")
        every_row = made_again(whole, state)
        assert rows == every_row[every_row.index(rows[0]) :][: len(rows)]
        assert len(rows) > 5
        assert began(file, journal) == []
        old = HistoryFile(None)
        short = MemoryJournal()
        played_into(short, records[:10])
        began(old, short)
        wording("\n".join(began(old, journal)))
        assert old.rows("SELECT * FROM lease")[-len(rows) :] == rows


def test_a_file_of_another_journal_is_emptied(tmp_path: Path, wording: Wording) -> None:
    """Ids of leases and jobs begin anew with a new journal, so leases of the old one are not mixed with its own."""
    file = HistoryFile(None)
    journals = [MemoryJournal(), MemoryJournal()]
    states = [
        played_into(journal, played(seed)) for journal, seed in zip(journals, (7300, 7301), strict=True)
    ]
    assert began(file, journals[0]) == []
    wording("\n".join(began(file, journals[1])))
    assert rows_of(file) == made_again(journals[1], states[1])
    wording("\n".join(began(file, MemoryJournal())))
    assert rows_of(file) == []


def test_a_file_of_another_journal_is_known_by_its_identity(tmp_path: Path, wording: Wording) -> None:
    """Also where the other journal has compacted away the record up to which the file is complete."""
    file, fresh = HistoryFile(None), HistoryFile(None)
    with SqliteJournal(tmp_path / "a.db") as journal:
        played_into(journal, played(7300)[:5])
        assert began(file, journal) == []
    with compacted(tmp_path / "b.db", played(7301)) as journal:
        wording("\n".join(began(file, journal)))
        began(fresh, journal)
        identity = journal.identity
    assert rows_of(file) == rows_of(fresh)
    with SqliteJournal(tmp_path / "b.db") as journal:
        assert journal.identity == identity
        assert began(file, journal) == []


def test_a_file_of_another_release_is_made_again(tmp_path: Path) -> None:
    """Tables of another form are dropped, and made from the journal; ended jobs stay."""
    journal = MemoryJournal()
    state = played_into(journal, played(7400))
    path = tmp_path / "history.db"
    file = HistoryFile(path)
    began(file, journal)
    with file.transaction() as db:
        db.execute("DROP TABLE lease")
        db.execute("CREATE TABLE lease (id TEXT)")
        db.execute("PRAGMA user_version = 999")
        db.execute("INSERT INTO job (id) SELECT '1' WHERE 0")
    file.close()
    file = HistoryFile(path)
    assert began(file, journal) == []
    assert rows_of(file) == made_again(journal, state)
