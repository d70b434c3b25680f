"""The file of the history: large ones are checked only after damage was noticed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.observe import history_file as module
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past_rows import PastRound
from scheduler.live.observe.position import Position
from scheduler.live.observe.timeline import add
from tests.support.wording import Wording

PAGE_BYTES = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with many rows."""
    path = tmp_path / "history.db"
    file = HistoryFile(path)
    add(file, [PastRound(number, *range(8)) for number in range(10_000)], Position(1, 1.0))
    file.close()
    return path


def damage(path: Path) -> None:
    """Overwrite a part in the middle of the file."""
    middle = path.stat().st_size // PAGE_BYTES // 2 * PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(b"\xff" * 4 * PAGE_BYTES)


def read_all(path: Path) -> tuple[int, str]:
    """Open the file and read it; return the number of its rounds and its warning."""
    file = HistoryFile(path)
    try:
        return len(file.rows("SELECT * FROM round")), file.warning
    finally:
        file.close()


def test_a_small_file_is_checked_at_each_start(path: Path) -> None:
    """A damaged one is replaced at once."""
    assert read_all(path) == (10_000, "")
    damage(path)
    count, warning = read_all(path)
    assert count == 0
    assert "history.db.damaged-1" in warning


def test_damage_in_a_large_file_is_noticed_where_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start does not read all of it. Once damage was noticed, a warning says so, and the next start replaces it."""
    monkeypatch.setattr(module, "CHECK_BYTES_MAX", PAGE_BYTES)
    assert read_all(path) == (10_000, "")
    damage(path)
    file = HistoryFile(path)
    assert file.warning == ""
    for _ in range(2):
        with pytest.raises(sqlite3.DatabaseError):
            file.read_long("SELECT * FROM round", (), list)
        assert "history.db is damaged" in file.warning
    file.close()
    suspect = path.with_name("history.db-suspect")
    assert suspect.stat().st_mode & 0o777 == 0o600
    count, warning = read_all(path)
    assert count == 0
    assert "history.db.damaged-1" in warning
    assert not suspect.exists()


def test_a_large_file_that_cannot_be_cleared_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage that a start itself notices does not end the start."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    db.close()
    monkeypatch.setattr(module, "CHECK_BYTES_MAX", PAGE_BYTES)
    damage(path)
    count, warning = read_all(path)
    assert count == 0
    assert "history.db.damaged-1" in warning


def test_a_file_that_cannot_be_used_is_kept_in_memory(path: Path, wording: Wording) -> None:
    """Another program may have locked the file of an earlier release: the start goes on, with a warning."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA user_version = 1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", partial(sqlite3.connect, timeout=0.0))
            file = HistoryFile(path)
        assert file.is_temporary
        wording(file.warning.replace(str(path), "history.db"))
        add(file, [PastRound(1, *range(8))], Position(1, 1.0))
        assert len(file.rows("SELECT * FROM round")) == 1
        file.close()
        other.execute("ROLLBACK")
        other.execute("PRAGMA user_version = 4")
    assert read_all(path) == (10_000, "")


def test_an_impossible_question_is_no_damage(path: Path) -> None:
    """The next start checks the file only if SQLite found it damaged, not if a query fails."""
    file = HistoryFile(path)
    for query in ("SELECT * FROM nothing", "SELECT sum(9223372036854775807) FROM round"):
        with pytest.raises(sqlite3.Error):
            file.rows(query)
    assert file.warning == ""
    assert not path.with_name("history.db-suspect").exists()
    file.close()


def test_closing_the_file_ends_a_long_question(path: Path) -> None:
    """A scheduler that stops does not wait for the seconds that an answer takes."""
    file, reading, errors = HistoryFile(path), threading.Event(), list[sqlite3.Error]()

    def take(rows: Iterable[Any]) -> None:
        for _ in rows:
            reading.set()

    def ask() -> None:
        try:
            file.read_long("SELECT a.number FROM round AS a, round AS b LIMIT 20000000", (), take)
        except sqlite3.Error as error:
            errors.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    reading.wait()
    file.close()
    asking.join()
    assert [error.sqlite_errorname for error in errors] == ["SQLITE_INTERRUPT"]
