"""A data directory as one file, and back: whole or not at all, while the daemon goes on."""

from __future__ import annotations

import asyncio
import json
import tarfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from protos.gavel.v1 import cluster_pb2 as pb
from scheduler.journal import store
from scheduler.journal.store import SqliteJournal
from scheduler.live.api.upkeep import UpkeepService
from scheduler.live.data.backup import RESTORED, BackupError, backup, restore
from tests.journal.samples import held, told, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory whose journal nobody has open."""
    made = tmp_path / "data"
    (made / "tls").mkdir(parents=True)
    (made / "tls" / "ca.key").write_text("secret")
    (made / "settings.json").write_text("abc")
    write(made / "journal.db", told(30)).close()
    return made


def test_there_and_back(folder: Path, tmp_path: Path):
    """Records, keys and settings are what they were, for their owner alone."""
    made = backup(folder, tmp_path / "b.tar.gz", "1.0")
    assert (made.records, (tmp_path / "b.tar.gz").stat().st_mode & 0o777) == (30, 0o600)
    again = restore(tmp_path / "b.tar.gz", tmp_path / "new")
    assert again.files == made.files
    assert (tmp_path / "new/tls/ca.key").read_text() == "secret"
    assert (tmp_path / "new/tls/ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / "new" / RESTORED).read_text())["made_s"] == made.made_s
    with SqliteJournal(tmp_path / "new/journal.db") as journal:
        assert held(journal) == told(30)


def test_while_the_daemon_runs(folder: Path, tmp_path: Path):
    """It makes the archive itself, as of one moment; anybody else is told so."""
    with SqliteJournal(folder / "journal.db") as journal:
        for now_s, facts in told(40)[30:]:
            journal.append(now_s, facts)
        assert backup(folder, tmp_path / "b.tar.gz", "1.0", journal=journal).records == 40
        journal.append(99.0, told(1)[0][1])
        assert backup(folder, tmp_path / "b.tar.gz", "1.0", journal=journal).records == 41
        with pytest.raises(BackupError, match="is in use by process"):
            backup(folder, tmp_path / "b.tar.gz", "1.0")
    restore(tmp_path / "b.tar.gz", tmp_path / "new")
    with SqliteJournal(tmp_path / "new/journal.db", strict=True) as journal:
        assert len(held(journal)) == 41


def test_a_copy_is_sound_though_the_daemon_writes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Page by page in a thread, beside records, snapshots, and what they cover going: what is in it is in order."""
    turns = threading.Semaphore(0)
    monkeypatch.setattr(store, "COPY_PAGES", 1)
    monkeypatch.setattr(store, "time", SimpleNamespace(sleep=lambda _: turns.acquire(timeout=20.0)))
    records = told(600, 500)
    with write(tmp_path / "journal.db", records[:400], durable=True) as journal:
        copying = threading.Thread(target=journal.copy_to, args=(tmp_path / "copy.db",))
        copying.start()
        for seq, (now_s, facts) in enumerate(records[400:], 401):
            journal.append(now_s, facts)
            if seq % 4 == 0:
                turns.release()  # fewer than there are pages: it is not done before we are
            if seq % 100 == 0:
                journal.write_snapshot(seq, b"a state")
                journal.compact()
        assert copying.is_alive()
        turns.release(100_000)
        copying.join()
        assert held(journal) == records[500:]
    with SqliteJournal(tmp_path / "copy.db", strict=True) as copy:
        assert (copy.last_seq, held(copy)) == (600, records[500:])
        assert [one.seq for one in copy.snapshots()] == [600, 500]  # type: ignore[union-attr]


def test_others_have_their_turn_while_the_journal_is_copied(folder: Path):
    """And a caller who leaves does not pull the files away under the thread that copies."""
    began, heard, done = threading.Event(), threading.Event(), []

    class Slow:
        def copy_to(self, path: Path, is_wanted: object) -> None:
            began.set()
            assert heard.wait(20.0), "nobody else had a turn"
            path.write_bytes(b"")
            done.append(path)

    async def story() -> None:
        parts = UpkeepService(Slow(), folder, "1.0").Backup(pb.BackupRequest(), None)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(anext(parts))
        await asyncio.to_thread(began.wait, 20.0)
        asking.cancel()
        await asyncio.sleep(0)
        heard.set()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
    assert len(done) == 1
    assert not list(folder.glob("backup-*"))


def test_a_backup_nobody_waits_for_ends_before_its_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A caller may leave, and the scheduler stop, in the middle of it: the copying ends, then they take the rest."""
    began, left, there = threading.Event(), threading.Event(), []

    def pause(_: float) -> None:
        began.set()
        assert left.wait(20.0), "nobody left"
        there.append(list(folder.glob("backup-*/journal.db")))

    async def story() -> None:
        parts = UpkeepService(journal, folder, "1.0").Backup(pb.BackupRequest(), None)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(anext(parts))
        await asyncio.to_thread(began.wait, 20.0)
        for _ in range(2):  # by the caller, and by the port that closes
            asking.cancel()
            await asyncio.sleep(0)
        left.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.get_running_loop().shutdown_default_executor()

    monkeypatch.setattr(store, "COPY_PAGES", 1)
    monkeypatch.setattr(store, "time", SimpleNamespace(sleep=pause))
    with SqliteJournal(folder / "journal.db") as journal:
        asyncio.run(story())
    assert [len(found) for found in there] == [1], "one more step at most, and its file was there"
    assert not list(folder.glob("backup-*"))


def test_nothing_to_back_up(tmp_path: Path):
    """A directory that is none of ours is named, and no archive is left."""
    with pytest.raises(BackupError, match=r"no journal.db in .*: name the data directory"):
        backup(tmp_path, tmp_path / "b.tar.gz", "1.0")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_not_overwritten(folder: Path, tmp_path: Path):
    """What is there stays there."""
    backup(folder, tmp_path / "b.tar.gz", "1.0")
    with pytest.raises(BackupError, match="is not empty: move it away first"):
        restore(tmp_path / "b.tar.gz", folder)


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
    """Rewrite an archive: flip a byte, drop or add a member."""
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
    ("change", "message"),
    [
        ("drop", "settings.json is missing"),
        ("flip", "settings.json is damaged"),
        ("newer", "made by a newer Gavel"),
        ("escape", r"holds '../evil', which its manifest does not"),
        ("link", "which its manifest does not"),
    ],
)
def test_an_altered_archive_restores_nothing(folder: Path, tmp_path: Path, change: str, message: str):
    """Whatever was done to it, there is no half-restored directory."""
    backup(folder, tmp_path / "b.tar.gz", "1.0")
    tampered(tmp_path / "b.tar.gz", change)
    with pytest.raises(BackupError, match=message):
        restore(tmp_path / "b.tar.gz", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "data"]


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_a_file_that_is_no_archive(folder: Path, tmp_path: Path, content: bytes | None):
    """Empty, something else, cut off."""
    archive = tmp_path / "b.tar.gz"
    backup(folder, archive, "1.0")
    archive.write_bytes(archive.read_bytes()[:-200] if content is None else content)
    with pytest.raises(BackupError, match=r"b.tar.gz"):
        restore(archive, tmp_path / "new")
    assert not (tmp_path / "new").exists()
