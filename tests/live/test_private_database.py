"""Damaged SQLite files beside the journal, and files that are not regular files."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import grpc
import pytest

from protos.gavel.v1 import cluster_pb2, cluster_pb2_grpc
from scheduler.journal.errors import NotAJournal
from scheduler.journal.store import SqliteJournal
from scheduler.live.config import DaemonConfig
from scheduler.live.daemon import Daemon
from scheduler.live.private_database import CannotOpen, open_private
from tests.support.wording import Wording

SCHEMA = "CREATE TABLE IF NOT EXISTS entry (name TEXT)"


def config(folder: Path, **settings: str) -> DaemonConfig:
    """The configuration of a daemon in this directory, on a port of its own."""
    return DaemonConfig(data_dir=str(folder), listen="127.0.0.1:0", **settings)  # type: ignore[arg-type]


def status(folder: Path) -> cluster_pb2.Status:
    """Start a daemon there, and return its status."""

    async def story() -> cluster_pb2.Status:
        async with Daemon(config(folder)) as daemon, grpc.aio.insecure_channel(str(daemon.listen)) as channel:
            return await cluster_pb2_grpc.ClusterStub(channel).GetStatus(
                cluster_pb2.GetStatusRequest(), metadata=(("x-gavel-user", "ann"),)
            )

    return asyncio.run(story())


def damage_pages(path: Path) -> None:
    """Create a database of many pages, and overwrite some in the middle."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(SCHEMA)
        db.executemany("INSERT INTO entry VALUES (?)", [("x" * 500,) for _ in range(1000)])
    db.close()
    with path.open("r+b") as file:
        file.seek(20 * 4096)
        file.write(b"\xff" * 20 * 4096)


@pytest.mark.parametrize("damage", [damage_pages, lambda path: path.write_bytes(b"no database" * 1000)])
def test_a_damaged_database_is_kept_under_another_name(tmp_path: Path, damage):
    """Each damaged file gets the next number, with a warning that names it and what was lost."""
    path = tmp_path / "usage.db"
    for number in (1, 2):
        damage(path)
        old = path.read_bytes()
        db, warning = open_private(path, SCHEMA, loss="nothing of value")
        assert db.execute("SELECT count(*) FROM entry").fetchone() == (0,)
        db.close()
        assert f"usage.db.damaged-{number}: nothing of value" in warning
        assert (tmp_path / f"usage.db.damaged-{number}").read_bytes() == old
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_sound_database_is_opened_without_a_warning(tmp_path: Path):
    """Its rows are there at the next start, and there is no warning."""
    for count in range(2):
        db, warning = open_private(tmp_path / "usage.db", SCHEMA, loss="nothing of value")
        assert (db.execute("SELECT count(*) FROM entry").fetchone(), warning) == ((count,), "")
        db.execute("INSERT INTO entry VALUES ('one')")
        db.close()


def test_the_daemon_replaces_damaged_books_with_a_warning(tmp_path: Path):
    """The daemon starts, and `status` names each damaged file and what is lost."""
    status(tmp_path)
    for name in ("usage.db", "attempts.db"):
        (tmp_path / name).write_bytes(b"no database" * 1000)
    warnings = [line for line in status(tmp_path).warnings if ".damaged-1" in line]
    assert [line.split()[0] for line in warnings] == ["attempts.db", "usage.db"]
    assert not [line for line in status(tmp_path).warnings if ".damaged-" in line]


def test_damaged_or_empty_tokens_end_the_start(tmp_path: Path):
    """A scheduler that lost its tokens admits no user and has forgotten revoked nodes, so it does not start."""

    async def start() -> None:
        async with Daemon(config(tmp_path, auth="tokens")):
            raise AssertionError("the daemon came up")

    for content in (b"no database" * 1000, b""):
        (tmp_path / "access.db").write_bytes(content)
        with pytest.raises(CannotOpen, match=r"access\.db"):
            asyncio.run(start())
        assert not list(tmp_path.glob("access.db.damaged*"))


def test_damaged_notes_of_the_last_settings_are_replaced(tmp_path: Path):
    """The notes of the last start are compared, never decoded."""
    for name in ("settings.json", "rates.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00\x80")
    status(tmp_path)
    assert len((tmp_path / "settings.json").read_text()) == 64


@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_journal_is_a_regular_file(tmp_path: Path, name: str, make, wording: Wording):
    """A device or a pipe is refused at once, as reading it would never end."""
    make(tmp_path / name)
    for read_only in (False, True):
        with pytest.raises(NotAJournal, match=name) as refused:
            SqliteJournal(tmp_path / "journal.db", read_only=read_only)
        wording(refused.value, folder=tmp_path)


@pytest.mark.parametrize("name", ["usage.db", "settings.json"])
def test_other_files_of_the_daemon_are_regular_too(tmp_path: Path, name: str):
    """A pipe in their place ends the start, and the error names it."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(CannotOpen, match=name):
        status(tmp_path)
