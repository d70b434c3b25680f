"""Packed work directories, kept under the hash of their content.

Rules:
- a package is absent, or complete with content that matches its name: it is written to a part file, then renamed;
- an archive that was cut off before the client computed its digest is refused, too;
- file names are made only from checked digests; no link is followed below our directory;
- a package that no unfinished job names is removed after a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from protos.gavel.v1.jobs_pb2 import UploadPackageRequest
from protos.gavel.v1.limits import PACKAGE_BYTES_MAX, is_digest
from scheduler.core.state import SchedulerState
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.status import TOO_MANY, UNAVAILABLE, CallFailed
from scheduler.live.data.archive import Archive
from scheduler.live.threads import in_thread
from scheduler.model.errors import InvalidSpec, NotFound

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
# How many uploads may run at once, and how long the next piece of one may take.
UPLOADS_MAX = 16
PIECE_S = 60.0
_SUFFIX, _PART = ".package", ".part"


class Packages:
    """A directory of packages."""

    def __init__(self, folder: Path, config: PeopleConfig) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._config = config
        # Digest of a package → its size in bytes.
        self._sizes: dict[str, int] = {}
        self._uploads = 0
        # Bytes received of uploads that are not complete yet.
        self._arriving = 0
        for name in os.listdir(self._folder):
            if name.endswith(_PART):
                # A stop of the scheduler cut this upload short.
                os.unlink(name, dir_fd=self._folder)
            elif name.endswith(_SUFFIX):
                status = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    self._sizes[f"sha256:{name.removesuffix(_SUFFIX)}"] = status.st_size

    def close(self) -> None:
        """Close the directory."""
        os.close(self._folder)

    def has(self, digest: str) -> bool:
        """Whether this package exists."""
        return digest in self._sizes

    def find(self, digests: Iterable[str]) -> list[str]:
        """Return the packages among these that exist. Keep them longer, because a job is about to name them."""
        present = [digest for digest in digests if digest in self._sizes]
        for digest in present:
            with suppress(FileNotFoundError):
                os.utime(_file_name(digest), dir_fd=self._folder, follow_symlinks=False)
        return present

    async def receive(self, requests: AsyncIterator[UploadPackageRequest]) -> int:
        """Receive a package and return its size. The first message has its digest; a package may be sent again."""
        if self._uploads >= UPLOADS_MAX:
            raise CallFailed(TOO_MANY, f"{UPLOADS_MAX} packages are being uploaded already", retry_s=10.0)
        self._uploads += 1
        try:
            return await self._receive(requests)
        finally:
            self._uploads -= 1

    async def _receive(self, requests: AsyncIterator[UploadPackageRequest]) -> int:
        digest, size, sha256, archive = "", 0, hashlib.sha256(), Archive()
        part = f"{secrets.token_hex(16)}{_PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(part, flags, 0o600, dir_fd=self._folder)
        try:
            async for piece in _with_timeout(requests):
                digest = digest or _valid_digest(piece.digest)
                size += len(piece.data)
                self._arriving += len(piece.data)
                self._check_size(size)
                await in_thread(partial(_write, file, sha256, archive, piece.data))
            if not digest:
                raise InvalidSpec("digest", "is missing: the first message must have it")
            actual = f"sha256:{sha256.hexdigest()}"
            if actual != digest:
                raise InvalidSpec("data", f"does not match its digest: it has {actual}; send it again")
            archive.check()
            await in_thread(partial(self._keep, file, part, digest))
            self._sizes[digest] = size
            return size
        except BaseException:
            _remove(part, self._folder)
            raise
        finally:
            self._arriving -= size
            os.close(file)

    def _check_size(self, size: int) -> None:
        size_max = min(self._config.package_bytes_max, PACKAGE_BYTES_MAX)
        if size > size_max:
            raise InvalidSpec(
                "data",
                f"is more than {size_max:,} bytes: leave out files that the job does not need, "
                "or put them where every node can read them",
            )
        if sum(self._sizes.values()) + self._arriving > self._config.packages_bytes_max:
            raise CallFailed(TOO_MANY, "there is no space left for packages; ask an operator")

    def _keep(self, file: int, part: str, digest: str) -> None:
        """Give a part file its final name, durably."""
        os.fsync(file)
        os.rename(part, _file_name(digest), src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the content in pieces. Raise NotFound if there is no such package."""
        if not self.has(_valid_digest(digest)):
            raise NotFound(f"there is no package {digest}")
        file = os.open(_file_name(digest), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        try:
            while data := await in_thread(partial(os.read, file, CHUNK_BYTES)):
                yield data
        finally:
            os.close(file)

    def sweep(self, keep: Iterable[str], now_s: float | None = None) -> list[str]:
        """Remove the packages that are not in `keep` and are older than package_keep_s; return their digests."""
        now_s = time.time() if now_s is None else now_s
        removed: list[str] = []
        for digest in self._sizes.keys() - set(keep):
            try:
                age_s = now_s - os.stat(_file_name(digest), dir_fd=self._folder).st_mtime
                if age_s < self._config.package_keep_s:
                    continue
                os.unlink(_file_name(digest), dir_fd=self._folder)
            except OSError as error:
                log.warning(
                    "package %(package)s could not be removed: %(error)s", {"package": digest, "error": error}
                )
                if not isinstance(error, FileNotFoundError):
                    continue
            del self._sizes[digest]
            removed.append(digest)
        return removed


def packages_in_use(state: SchedulerState) -> set[str]:
    """Return the packages that unfinished jobs name."""
    return {job.spec.launch.upload for job in state.active.values() if job.spec.launch is not None} - {""}


async def _with_timeout(requests: AsyncIterator[UploadPackageRequest]) -> AsyncIterator[UploadPackageRequest]:
    """Yield each piece; raise CallFailed if one takes too long, because a stalled upload must not keep its place."""
    pieces = aiter(requests)
    while True:
        try:
            async with asyncio.timeout(PIECE_S):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise CallFailed(UNAVAILABLE, f"nothing arrived for {PIECE_S:g} s; send it again") from None
        yield piece


def _valid_digest(digest: str) -> str:
    if not is_digest(digest):
        raise InvalidSpec("digest", "must be 'sha256:' and 64 hexadecimal digits in small letters")
    return digest


def _file_name(digest: str) -> str:
    return f"{digest.removeprefix('sha256:')}{_SUFFIX}"


def _write(file: int, sha256: Any, archive: Archive, data: bytes) -> None:
    sha256.update(data)
    archive.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
