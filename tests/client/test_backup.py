"""A backup over the network: whole, for its owner alone, and never half a file under the name that was asked for."""

from __future__ import annotations

import asyncio
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gavel import AsyncClient, Client, JobSpec
from gavel.client.atomic_file import AtomicFile
from gavel.client.errors import NotReachable, ServerError
from scheduler.live.data.backup import restore
from tests.support.daemon_thread import DaemonThread


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonThread]:
    """With a job."""
    with DaemonThread(tmp_path / "data") as daemon:
        with Client(daemon.address) as client:
            client.submit(JobSpec(command=("true",), name="kept"))
        yield daemon


def test_both_clients_write_the_whole_archive(daemon: DaemonThread, tmp_path: Path) -> None:
    """What they say is its size is its size; it can be restored; only its owner reads it; nothing else is left."""

    async def other() -> int:
        async with AsyncClient(daemon.address) as client:
            return await client.backup(tmp_path / "b.tar.gz")

    with Client(daemon.address) as client:
        sizes = [client.backup(str(tmp_path / "a.tar.gz")), asyncio.run(other())]
    archives = [tmp_path / "a.tar.gz", tmp_path / "b.tar.gz"]
    assert sizes == [path.stat().st_size for path in archives]
    assert {stat.S_IMODE(path.stat().st_mode) for path in archives} == {0o600}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz", "b.tar.gz", "data"]
    for path in archives:
        assert restore(path, tmp_path / path.name.partition(".")[0]).records > 0


def test_uploaded_directories_go_along_when_asked(daemon: DaemonThread, tmp_path: Path) -> None:
    """And not otherwise."""
    packages = tmp_path / "data" / "packages"
    packages.mkdir(exist_ok=True)
    (packages / "sha256:00").write_bytes(b"a package")
    with Client(daemon.address) as client:
        client.backup(tmp_path / "without.tar.gz")
        client.backup(tmp_path / "with.tar.gz", packages=True)
    held = []
    for kind in ("without", "with"):
        with tarfile.open(tmp_path / f"{kind}.tar.gz") as tar:
            held.append({name for name in tar.getnames() if name.startswith("packages")})
    assert held == [set(), {"packages/sha256:00"}]


def test_an_older_archive_stays_when_the_new_one_cannot_be_had(tmp_path: Path) -> None:
    """Nobody answers: an error, the old file as it was, and nothing beside it."""
    path = tmp_path / "backup.tar.gz"
    path.write_bytes(b"an older one")
    with Client("127.0.0.1:1", retry_s=0) as client, pytest.raises(NotReachable):
        client.backup(path)
    assert path.read_bytes() == b"an older one"
    assert [one.name for one in tmp_path.iterdir()] == ["backup.tar.gz"]


def test_a_stream_that_breaks_or_is_empty_leaves_nothing(tmp_path: Path) -> None:
    """Whatever ends it early; and no bytes at all are no archive."""
    path = tmp_path / "backup.tar.gz"
    with suppress(ConnectionError), AtomicFile(path) as file:
        file.write(b"half of")
        raise ConnectionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ServerError, match="nothing"), AtomicFile(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_is_asked_for(daemon: DaemonThread, tmp_path: Path) -> None:
    """The folder is missing: OSError, before the scheduler makes an archive."""
    with Client(daemon.address) as client, pytest.raises(OSError, match="No such file"):
        client.backup(tmp_path / "missing" / "b.tar.gz")
    assert not [name for name in os.listdir(tmp_path / "data") if name.startswith("backup-")]
