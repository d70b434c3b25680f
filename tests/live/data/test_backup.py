"""A data directory as one file, and back: complete or refused, while the daemon keeps running."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.core.state import SchedulerState
from scheduler.journal import store
from scheduler.journal.store import SqliteJournal
from scheduler.live.api.upkeep import UpkeepService
from scheduler.live.data.backup import RESTORED, BackupError, backup, restore
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.position import Position
from scheduler.live.observe.timeline import Timeline, add
from tests.journal.samples import numbered, sound_records, write
from tests.support.wording import Wording


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory whose journal is closed."""
    data = tmp_path / "data"
    (data / "tls").mkdir(parents=True)
    (data / "tls" / "ca.key").write_text("secret")
    (data / "settings.json").write_text("abc")
    write(data / "journal.db", numbered(30)).close()
    return data


def test_a_restored_directory_is_the_one_that_was_backed_up(folder: Path, tmp_path: Path):
    """Records, keys and settings are the same, readable only by their owner."""
    manifest = backup(folder, tmp_path / "b.tar.gz", "1.0")
    assert (manifest.records, (tmp_path / "b.tar.gz").stat().st_mode & 0o777) == (30, 0o600)
    again = restore(tmp_path / "b.tar.gz", tmp_path / "new")
    assert again.files == manifest.files
    assert (tmp_path / "new/tls/ca.key").read_text() == "secret"
    assert (tmp_path / "new/tls/ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / "new" / RESTORED).read_text())["made_s"] == manifest.made_s
    with SqliteJournal(tmp_path / "new/journal.db") as journal:
        assert sound_records(journal) == numbered(30)


def test_a_running_daemon_backs_itself_up(folder: Path, tmp_path: Path, wording: Wording):
    """The daemon writes the archive as of one moment; another process is refused while the journal is open."""
    with SqliteJournal(folder / "journal.db") as journal:
        for now_s, facts in numbered(40)[30:]:
            journal.append(now_s, facts)
        assert backup(folder, tmp_path / "b.tar.gz", "1.0", journal=journal).records == 40
        journal.append(99.0, numbered(1)[0][1])
        assert backup(folder, tmp_path / "b.tar.gz", "1.0", journal=journal).records == 41
        with pytest.raises(BackupError) as refused:
            backup(folder, tmp_path / "b.tar.gz", "1.0")
        wording(refused.value, folder=folder, pid=os.getpid())
    restore(tmp_path / "b.tar.gz", tmp_path / "new")
    with SqliteJournal(tmp_path / "new/journal.db", strict=True) as journal:
        assert len(sound_records(journal)) == 41


def test_a_copy_is_sound_though_the_daemon_writes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy, made page by page in a thread beside appends, snapshots and compaction, is sound."""
    turns = threading.Semaphore(0)
    monkeypatch.setattr(store, "COPY_PAGES", 1)
    monkeypatch.setattr(store, "time", SimpleNamespace(sleep=lambda _: turns.acquire(timeout=20.0)))
    records = numbered(600, 500)
    with write(tmp_path / "journal.db", records[:400], durable=True) as journal:
        copying = threading.Thread(target=journal.copy_to, args=(tmp_path / "copy.db",))
        copying.start()
        for seq, (now_s, facts) in enumerate(records[400:], 401):
            journal.append(now_s, facts)
            if seq % 4 == 0:
                # There are more pages than these turns, so the copy ends after our writes.
                turns.release()
            if seq % 100 == 0:
                journal.write_snapshot(seq, b"a state")
                journal.compact()
        assert copying.is_alive()
        turns.release(100_000)
        copying.join()
        assert sound_records(journal) == records[500:]
    with SqliteJournal(tmp_path / "copy.db", strict=True) as copy:
        assert (copy.last_seq, sound_records(copy)) == (600, records[500:])
        assert [snapshot.seq for snapshot in copy.snapshots()] == [600, 500]  # type: ignore[union-attr]


def test_a_restored_history_goes_on_with_the_restored_journal(folder: Path, tmp_path: Path):
    """Rows that the daemon writes after the journal was copied do not make the history that of another journal."""
    history = HistoryFile(folder / "history.db")

    class WritesMeanwhile(SqliteJournal):
        def copy_to(self, path: str | Path, is_wanted: Callable[[], bool] = lambda: True) -> None:
            super().copy_to(path, is_wanted)
            self.append(99.0, numbered(1)[0][1])
            add(history, [], Position(self.last_seq, 99.0))

    with WritesMeanwhile(folder / "journal.db") as journal:
        add(history, [], Position(journal.last_seq, numbered(30)[-1][0]))
        backup(folder, tmp_path / "b.tar.gz", "1.0", journal=journal)
    restore(tmp_path / "b.tar.gz", tmp_path / "new")
    restored = HistoryFile(tmp_path / "new/history.db")
    with SqliteJournal(tmp_path / "new/journal.db") as journal:
        assert list(Timeline(restored, journal, SchedulerState()).warnings()) == []


def test_other_calls_have_their_turn_while_the_journal_is_copied(folder: Path):
    """The copy runs in a thread; if the caller hangs up, its files are removed only after the thread has ended."""
    began, served, done = threading.Event(), threading.Event(), []

    class Slow:
        def copy_to(self, path: Path, is_wanted: object) -> None:
            began.set()
            assert served.wait(20.0), "no other call had a turn"
            path.write_bytes(b"")
            done.append(path)

    async def story() -> None:
        parts = UpkeepService(Slow(), folder, "1.0").Backup(pb.BackupRequest(), None)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(anext(parts))
        await asyncio.to_thread(began.wait, 20.0)
        asking.cancel()
        await asyncio.sleep(0)
        served.set()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
    assert len(done) == 1
    assert not list(folder.glob("backup-*"))


def test_a_cancelled_backup_ends_before_its_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """If the caller disconnects and the scheduler stops meanwhile, copying ends before its files are removed."""
    began, cancelled, copies = threading.Event(), threading.Event(), []

    def pause(_: float) -> None:
        began.set()
        assert cancelled.wait(20.0), "the caller did not leave"
        copies.append(list(folder.glob("backup-*/journal.db")))

    async def story() -> None:
        parts = UpkeepService(journal, folder, "1.0").Backup(pb.BackupRequest(), None)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(anext(parts))
        await asyncio.to_thread(began.wait, 20.0)
        # Cancelled by the caller, and by the port that closes.
        for _ in range(2):
            asking.cancel()
            await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.get_running_loop().shutdown_default_executor()

    monkeypatch.setattr(store, "COPY_PAGES", 1)
    monkeypatch.setattr(store, "time", SimpleNamespace(sleep=pause))
    with SqliteJournal(folder / "journal.db") as journal:
        asyncio.run(story())
    assert [len(files) for files in copies] == [1], "one more step at most, and its file is still there"
    assert not list(folder.glob("backup-*"))


def test_a_directory_without_a_journal_is_not_backed_up(tmp_path: Path, wording: Wording):
    """The error names the directory, and no archive is left."""
    with pytest.raises(BackupError, match=r"journal\.db") as refused:
        backup(tmp_path, tmp_path / "b.tar.gz", "1.0")
    wording(refused.value, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_not_overwritten(folder: Path, tmp_path: Path, wording: Wording):
    """The files in it stay."""
    backup(folder, tmp_path / "b.tar.gz", "1.0")
    before = sorted(path.name for path in folder.rglob("*"))
    with pytest.raises(BackupError) as refused:
        restore(tmp_path / "b.tar.gz", folder)
    wording(refused.value, folder=folder)
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_an_older_archive_stays_when_the_new_one_fails(folder: Path, tmp_path: Path):
    """A damaged journal is not backed up over a good archive."""
    archive = tmp_path / "b.tar.gz"
    backup(folder, archive, "1.0")
    good = archive.read_bytes()
    (folder / "journal.db").write_bytes(b"\0" * 8192)
    with pytest.raises(BackupError, match="fsck"):
        backup(folder, archive, "1.0")
    assert archive.read_bytes() == good
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data"]


def tampered(archive: Path, change: str) -> None:
    """Return a damaged copy of an archive: with a changed byte, without a member, or with another one."""
    with tarfile.open(archive, "r:gz") as tar:
        members = [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    with tarfile.open(archive, "w:gz") as tar:
        import io

        for member, content in members:
            if change == "drop" and member.name == "settings.json":
                continue
            if change == "flip" and member.name == "settings.json":
                content = b"abd"
            if change == "newer" and member.name == "manifest.json":
                content = content.replace(b'"format": 1', b'"format": 9')
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if change == "escape":
            extra = tarfile.TarInfo("../evil")
            tar.addfile(extra, io.BytesIO(b""))
        if change == "link":
            extra = tarfile.TarInfo("settings.json")
            extra.type, extra.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(extra)


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ("drop", "settings.json"),
        ("flip", "settings.json"),
        ("newer", "newer"),
        ("escape", "../evil"),
        ("link", "settings.json"),
    ],
)
def test_an_altered_archive_restores_nothing(
    folder: Path, tmp_path: Path, change: str, culprit: str, wording: Wording
):
    """No half-restored directory is left, however the archive was altered."""
    backup(folder, tmp_path / "b.tar.gz", "1.0")
    tampered(tmp_path / "b.tar.gz", change)
    with pytest.raises(BackupError, match=culprit) as refused:
        restore(tmp_path / "b.tar.gz", tmp_path / "new")
    wording(refused.value, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data"]


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_a_file_that_is_no_archive_is_not_restored(folder: Path, tmp_path: Path, content: bytes | None):
    """An empty file, another file, and one that was cut off are refused."""
    archive = tmp_path / "b.tar.gz"
    backup(folder, archive, "1.0")
    archive.write_bytes(archive.read_bytes()[:-200] if content is None else content)
    with pytest.raises(BackupError, match=r"b.tar.gz"):
        restore(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()
