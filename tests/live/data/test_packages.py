"""Packed work directories: sent whole, kept under their hash, read back, and removed when no job needs them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.status import CallFailed
from scheduler.live.data import packages as module
from scheduler.live.data.packages import Packages, packages_in_use
from scheduler.model.errors import InvalidSpec, NotFound
from tests.support.live import DEADLINE_S, Live, problem_of, spec, with_daemon

Code = grpc.StatusCode
SMALL = PeopleConfig(package_bytes_max=1000, packages_bytes_max=1500, package_keep_s=100.0)


def packed(name: bytes, size: int = 0) -> bytes:
    """Return an archive of one file; with `size`, a comment in its header makes it exactly this large."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as file:
        file.addfile(tarfile.TarInfo(name.decode()))
    body = gzip.compress(tar.getvalue(), mtime=0)
    comment = b"." * (size - len(body) - 1)
    return body[:3] + b"\x10" + body[4:10] + comment + b"\0" + body[10:]


def digest_of(data: bytes) -> str:
    """Return the digest that names these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def pieces(data: bytes, digest: str | None = None) -> AsyncIterator[pb.UploadPackageRequest]:
    """Yield an upload in two messages."""
    yield pb.UploadPackageRequest(digest=digest_of(data) if digest is None else digest, data=data[:10])
    yield pb.UploadPackageRequest(data=data[10:])


def left_over(live: Live) -> list[str]:
    """Return the names of files in the directory of packages that are not packages."""
    return [path.name for path in (live.folder / "packages").iterdir() if path.suffix != ".package"]


@with_daemon()
async def test_a_package_is_sent_once_and_read_back(live: Live) -> None:
    """An uploaded package can be found, read and named by a job; a second upload does no harm."""
    data = packed(b"archive")
    digest, jobs = digest_of(data), live.jobs()
    assert list((await jobs.FindPackages(pb.FindPackagesRequest(digests=[digest]))).present) == []
    for _ in range(2):
        assert len(data) == (await jobs.UploadPackage(pieces(data))).size_bytes
    request = pb.FindPackagesRequest(digests=[digest, "../x", ""])
    assert [digest] == list((await jobs.FindPackages(request)).present)
    assert data == b"".join([piece async for piece in live.people.packages.read(digest)])
    job = spec(launch=pb.Launch(command=["x"], upload=digest, workdir="src"))
    await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[job]))
    assert {digest} == packages_in_use(live.world.state)
    reopened = Packages(live.folder / "packages", PeopleConfig())
    assert reopened.has(digest)
    reopened.close()


@with_daemon(config=SMALL)
async def test_a_refused_upload_leaves_nothing_behind(live: Live) -> None:
    """An upload that is refused, for whatever reason, or cancelled leaves no file."""
    jobs = live.jobs()
    for sent, field in (
        (pieces(packed(b"abc"), digest_of(b"abd")), "data"),
        (pieces(b"abc", ""), "digest"),
        (pieces(b"abc", "sha256:../../../../etc/passwd"), "digest"),
        (pieces(b"abc", f"sha256:{'A' * 64}"), "digest"),
        (pieces(b"x" * 1001), "data"),
    ):
        problem = await problem_of(jobs.UploadPackage(sent))
        assert (Code.INVALID_ARGUMENT, field) == (problem.code, problem.field)
    await jobs.UploadPackage(pieces(packed(b"a", 900)))
    assert (await problem_of(jobs.UploadPackage(pieces(packed(b"b", 900))))).code == Code.RESOURCE_EXHAUSTED
    assert left_over(live) == []
    upload = jobs.UploadPackage()
    await upload.write(pb.UploadPackageRequest(digest=digest_of(b"x"), data=b"x"))
    await live.until(lambda: bool(left_over(live)))
    upload.cancel()
    await live.until(lambda: not left_over(live))


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    """An archive cut off in its packed bytes, in its checksum or before packing is refused; so are other files."""
    packages = Packages(tmp_path, PeopleConfig())
    whole = packed(b"a", 900)
    tar = gzip.decompress(whole)
    wrong = [
        b"hello",
        tar,
        gzip.compress(b"hello"),
        gzip.compress(tar[:1024]),
        whole[:-1] + b"x",
        whole + b"x",
    ]
    wrong += [whole[:size] for size in range(10, 900, 7)]
    for data in wrong:
        with pytest.raises(InvalidSpec, match="data"):
            asyncio.run(packages.receive(pieces(data)))
    assert list(tmp_path.iterdir()) == []
    for data in (whole, whole + b"\0" * 20, gzip.compress(tar[:900]) + gzip.compress(tar[900:])):
        assert asyncio.run(packages.receive(pieces(data))) == len(data)
    packages.close()


def test_an_upload_that_stalls_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the next piece does not come in time, the upload ends, and no file of it is left."""
    monkeypatch.setattr(module, "PIECE_S", 0.01)
    packages = Packages(tmp_path, SMALL)

    async def stuck() -> AsyncIterator[pb.UploadPackageRequest]:
        yield pb.UploadPackageRequest(digest=digest_of(b"x"), data=b"x")
        await asyncio.Event().wait()

    with pytest.raises(CallFailed, match="nothing arrived"):
        asyncio.run(packages.receive(stuck()))
    assert list(tmp_path.iterdir()) == []
    packages.close()


def test_a_cancelled_upload_writes_into_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a cancelled upload may still write, so its descriptor is not freed for the journal until then."""
    began, may_write, write = threading.Event(), threading.Event(), module._write
    (tmp_path / "packages").mkdir()
    packages, journal = Packages(tmp_path / "packages", SMALL), tmp_path / "journal"

    def late(*arguments: Any) -> None:
        began.set()
        assert may_write.wait(DEADLINE_S)
        write(*arguments)

    async def story() -> None:
        sending = asyncio.create_task(packages.receive(pieces(b"some bytes")))
        assert await asyncio.to_thread(began.wait, DEADLINE_S)
        # Cancelled by the caller, and by the port that closes.
        for _ in range(2):
            sending.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        with open(journal, "wb"):
            may_write.set()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.get_running_loop().shutdown_default_executor()

    monkeypatch.setattr(module, "_write", late)
    asyncio.run(story())
    assert (journal.read_bytes(), list((tmp_path / "packages").iterdir())) == (b"", [])
    packages.close()


def test_packages_that_no_job_names_are_removed_after_a_while(tmp_path: Path) -> None:
    """A package that an unfinished job names stays, and so does a young one; others are removed."""
    packages = Packages(tmp_path, SMALL)

    async def story() -> None:
        for data in (packed(b"kept"), packed(b"gone")):
            await packages.receive(pieces(data))

    asyncio.run(story())
    now_s = max(path.stat().st_mtime for path in tmp_path.iterdir())
    kept, gone = digest_of(packed(b"kept")), digest_of(packed(b"gone"))
    assert packages.sweep([kept], now_s + 99.0) == []
    assert [gone] == packages.sweep([kept], now_s + 101.0)
    assert (packages.has(kept), packages.has(gone), len(list(tmp_path.iterdir()))) == (True, False, 1)
    packages.close()


def test_uploads_at_the_same_time_share_the_space(tmp_path: Path) -> None:
    """Bytes under way count: of two uploads that fit alone but not together, one is refused."""
    packages = Packages(tmp_path, SMALL)

    async def story() -> None:
        complete = asyncio.Event()

        async def slow() -> AsyncIterator[pb.UploadPackageRequest]:
            yield pb.UploadPackageRequest(digest=digest_of(packed(b"a", 900)), data=packed(b"a", 900))
            await complete.wait()

        first = asyncio.create_task(packages.receive(slow()))
        while packages._arriving < 900:
            await asyncio.sleep(0.001)
        with pytest.raises(CallFailed, match="no space"):
            await packages.receive(pieces(packed(b"b", 900)))
        complete.set()
        assert await first == 900
        assert await packages.receive(pieces(packed(b"b", 500))) == 500

    asyncio.run(story())
    packages.close()


def test_a_package_that_a_client_found_is_kept_for_a_while(tmp_path: Path) -> None:
    """The client has time to submit its job, however old the package is."""
    packages = Packages(tmp_path, SMALL)
    asyncio.run(packages.receive(pieces(packed(b"old"))))
    (path,) = tmp_path.iterdir()
    os.utime(path, (0, 0))
    now_s = time.time()
    assert packages.find([digest_of(packed(b"old")), digest_of(b"none")]) == [digest_of(packed(b"old"))]
    assert packages.sweep([], now_s + 50.0) == []
    assert packages.sweep([], now_s + 200.0) == [digest_of(packed(b"old"))]
    packages.close()


def test_links_are_not_followed_and_partial_uploads_are_removed(tmp_path: Path) -> None:
    """A link in the directory is not read, a partial upload is removed, and a linked directory is refused."""
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / f"{'0' * 64}.package").symlink_to(tmp_path / "secret")
    (folder / "abc.part").write_text("half")
    packages = Packages(folder, SMALL)
    assert not packages.has(f"sha256:{'0' * 64}")
    assert not (folder / "abc.part").exists()

    async def read() -> None:
        async for _ in packages.read(f"sha256:{'0' * 64}"):
            pass

    with pytest.raises(NotFound):
        asyncio.run(read())
    packages.close()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match="link"):
        Packages(tmp_path / "link", SMALL)
