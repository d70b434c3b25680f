"""A backup over the network is complete, private to its owner, and never a partial file under its final name."""

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
    """A daemon with one job."""
    with DaemonThread(tmp_path / "data") as daemon:
        with Client(daemon.address) as client:
            client.submit(JobSpec(command=("true",), name="kept"))
        yield daemon


def test_both_clients_write_the_whole_archive(daemon: DaemonThread, tmp_path: Path) -> None:
    """Each client returns the size of its file; the file can be restored, is private, and no other file is left."""

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


def test_uploaded_directories_are_optional(daemon: DaemonThread, tmp_path: Path) -> None:
    """`packages=True` puts uploaded directories into the archive; by default the archive has none."""
    packages = tmp_path / "data" / "packages"
    packages.mkdir(exist_ok=True)
    (packages / "sha256:00").write_bytes(b"a package")
    with Client(daemon.address) as client:
        client.backup(tmp_path / "without.tar.gz")
        client.backup(tmp_path / "with.tar.gz", packages=True)
    contents = []
    for kind in ("without", "with"):
        with tarfile.open(tmp_path / f"{kind}.tar.gz") as tar:
            contents.append({name for name in tar.getnames() if name.startswith("packages")})
    assert contents == [set(), {"packages/sha256:00"}]


def test_an_older_archive_survives_a_failed_backup(tmp_path: Path) -> None:
    """When no scheduler answers, the old file stays unchanged, and no other file is left."""
    path = tmp_path / "backup.tar.gz"
    path.write_bytes(b"an older archive")
    with Client("127.0.0.1:1", retry_s=0) as client, pytest.raises(NotReachable):
        client.backup(path)
    assert path.read_bytes() == b"an older archive"
    assert [file.name for file in tmp_path.iterdir()] == ["backup.tar.gz"]


def test_a_stream_that_breaks_or_is_empty_leaves_nothing(tmp_path: Path) -> None:
    """Any early end leaves no file, and a stream without bytes is an error."""
    path = tmp_path / "backup.tar.gz"
    with suppress(ConnectionError), AtomicFile(path) as file:
        file.write(b"half of")
        raise ConnectionError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ServerError, match="nothing"), AtomicFile(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_error_before_the_call(daemon: DaemonThread, tmp_path: Path) -> None:
    """A missing folder is an OSError before the scheduler makes an archive."""
    with Client(daemon.address) as client, pytest.raises(OSError, match="No such file"):
        client.backup(tmp_path / "missing" / "b.tar.gz")
    assert not [name for name in os.listdir(tmp_path / "data") if name.startswith("backup-")]
