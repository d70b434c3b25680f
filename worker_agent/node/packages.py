"""Uploaded work directories (packages). Each is unpacked once, named by its archive's hash, and copied for each run.

The contents of an archive come from a stranger, so nothing outside its directory is written or linked to, only files,
directories and symbolic links are made, and everything has a limit. A package is stored completely or not at all.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self

import msgspec

from protos.gavel.v1.limits import (
    PACKAGE_BYTES_MAX,
    PACKAGE_FILES_MAX,
    PACKAGE_PATH_CHARS_MAX,
    UNPACKED_BYTES_MAX,
    is_digest,
    leads_out,
)

# The first bytes of an archive in each format.
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20


class PackageError(ValueError):
    """A package cannot be used; the message is the reason."""


class PackageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for packages on a node."""

    archive_bytes_max: int = PACKAGE_BYTES_MAX
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX
    entries_max: int = PACKAGE_FILES_MAX
    path_length_max: int = PACKAGE_PATH_CHARS_MAX
    cache_bytes_max: int = 16 << 30


class Packages:
    """The packages of a node."""

    def __init__(self, root: Path, limits: PackageLimits | None = None) -> None:
        self.root, self.limits = root, limits or PackageLimits()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Directories that a killed agent has left.
        for unfinished in root.glob("new-*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def has(self, digest: str) -> bool:
        """Return whether this node has a package."""
        return self._path(digest).is_dir()

    def add(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Unpack and keep an archive; raise PackageError if it has another digest or breaks a rule."""
        if self.has(digest):
            return
        staging = Path(tempfile.mkdtemp(prefix="new-", dir=self.root))
        try:
            self._receive(digest, chunks, staging / "archive")
            size_bytes = unpack(staging / "archive", staging / "tree", self.limits)
            (staging / "archive").unlink()
            (staging / "size").write_text(str(size_bytes))
            # Another thread may have added the same package meanwhile.
            with contextlib.suppress(OSError):
                staging.rename(self._path(digest))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self.evict(keep=digest)

    def check_out(self, digest: str, into: Path, uid: int | None = None, gid: int | None = None) -> None:
        """Copy a package for one run, whose job may change the copy."""
        path = self._path(digest)
        try:
            # Set the time of the last use, which `evict` reads.
            os.utime(path)
            shutil.copytree(path / "tree", into, symlinks=True)
        except OSError as error:
            shutil.rmtree(into, ignore_errors=True)
            raise PackageError(f"package {digest} cannot be copied: {error}") from error
        if uid is not None:
            group = -1 if gid is None else gid
            os.chown(into, uid, group)
            for folder, directories, files in os.walk(into):
                for name in (*directories, *files):
                    os.chown(os.path.join(folder, name), uid, group, follow_symlinks=False)

    def evict(self, keep: str = "") -> None:
        """Remove the least recently used packages, except `keep`, until the rest is within the limit."""
        entries = []
        for path in self.root.glob("sha256-*"):
            with contextlib.suppress(OSError, ValueError):
                entries.append((path.stat().st_mtime_ns, int((path / "size").read_text()), path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limits.cache_bytes_max:
                return
            if keep and path == self._path(keep):
                continue
            shutil.rmtree(path, ignore_errors=True)
            total -= size

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise PackageError(f"{digest!r} is not a digest of the form sha256:<64 hex digits>")
        return self.root / digest.replace(":", "-")

    def _receive(self, digest: str, chunks: Iterable[bytes], into: Path) -> None:
        """Write an archive to a file; raise PackageError if its digest differs or it is too large."""
        hashed, size_bytes = hashlib.sha256(), 0
        with into.open("xb") as file:
            for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes > self.limits.archive_bytes_max:
                    raise PackageError(
                        f"package {digest} is larger than {self.limits.archive_bytes_max} bytes"
                    )
                hashed.update(chunk)
                file.write(chunk)
        if f"sha256:{hashed.hexdigest()}" != digest:
            raise PackageError(
                f"package {digest} arrived as sha256:{hashed.hexdigest()}: it was damaged in transit"
            )


def unpack(archive: Path, into: Path, limits: PackageLimits) -> int:
    """Unpack a tar archive into a new directory, and return the size of its files in bytes.

    Links are made last, so that nothing is ever written through one.
    """
    into.mkdir(mode=0o755)
    links: list[tuple[tuple[str, ...], str]] = []
    size_bytes = 0
    try:
        with (
            _open(archive) as stream,
            tarfile.open(fileobj=stream, mode="r|", errorlevel=2, tarinfo=_Header) as tar,
        ):
            for number, member in enumerate(tar):
                if number >= limits.entries_max:
                    raise PackageError(f"more than {limits.entries_max} entries")
                parts = _path_inside(member.name, limits)
                if member.issym():
                    links.append((parts, _target_inside("/".join(parts), member.linkname)))
                elif member.isdir():
                    _make_folder(into, parts)
                elif member.isreg():
                    size_bytes += member.size
                    if size_bytes > limits.unpacked_bytes_max:
                        raise PackageError(
                            f"unpacked, the archive is larger than {limits.unpacked_bytes_max} bytes"
                        )
                    _write(tar, member, _make_folder(into, parts[:-1]) / parts[-1])
                else:
                    raise PackageError(f"{member.name!r} is not a file, a directory or a symbolic link")
            _read_to_end(stream, limits)
        for parts, target in links:
            (_make_folder(into, parts[:-1]) / parts[-1]).symlink_to(target)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise PackageError(f"the archive cannot be unpacked: {error}") from error
    return size_bytes


class _Header(tarfile.TarInfo):
    """A header that is checked, because `tarfile` takes an invalid or missing header for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header; raise PackageError if the block is neither a header nor the end of an archive."""
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise PackageError("the archive cannot be unpacked: it is cut off or damaged") from None


def _read_to_end(stream: IO[bytes], limits: PackageLimits) -> None:
    """Read what follows the last entry, because gzip compares its checksum only at the very end."""
    remaining_bytes = limits.unpacked_bytes_max
    while piece := stream.read(_CHUNK_BYTES):
        remaining_bytes -= len(piece)
        if remaining_bytes < 0:
            raise PackageError(f"unpacked, the archive is larger than {limits.unpacked_bytes_max} bytes")


@contextlib.contextmanager
def _open(archive: Path) -> Iterator[IO[bytes]]:
    """Open a packed archive as the stream of its unpacked bytes."""
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start.startswith(_GZIP):
            with gzip.open(file) as stream:
                yield stream  # type: ignore[misc]
        elif start == _ZSTANDARD:
            try:
                zstandard = importlib.import_module("zstandard")
            except ImportError:
                raise PackageError(
                    "the archive is packed with zstd, but this node does not have Python's package zstandard: use gzip"
                ) from None
            try:
                with zstandard.ZstdDecompressor().stream_reader(file) as stream:
                    yield stream
            except zstandard.ZstdError as error:
                raise PackageError(f"the archive cannot be unpacked: {error}") from error
        else:
            raise PackageError("the archive is neither .tar.gz nor .tar.zst")


def _path_inside(name: str, limits: PackageLimits) -> tuple[str, ...]:
    """Return the components of an entry's path; raise PackageError if it leads outside or is too long."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts or "\0" in name or len(name) > limits.path_length_max:
        raise PackageError(f"{name[:200]!r} is not a path within a work directory")
    return parts


def _target_inside(link: str, target: str) -> str:
    """Return the target of a link; raise PackageError if it may lead outside."""
    if not link or "\0" in target or leads_out(link, target):
        raise PackageError(f"{link!r} is a link to {target[:200]!r}, which may be outside")
    return target


def _make_folder(root: Path, parts: tuple[str, ...]) -> Path:
    """Make a directory below the root, and return it; raise PackageError if its path leads through a link."""
    path = root
    for part in parts:
        path = path / part
        try:
            path.mkdir(mode=0o755)
        except FileExistsError:
            if path.is_symlink() or not path.is_dir():
                raise PackageError(
                    f"{'/'.join(parts)!r} leads through something that is not a directory"
                ) from None
    return path


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    if path.is_dir():
        raise PackageError(f"{member.name!r} is both a file and a directory")
    # If two entries have the same name, the later one counts, as with tar.
    path.unlink(missing_ok=True)
    mode = 0o755 if member.mode & 0o100 else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK_BYTES)
    os.utime(path, (member.mtime, member.mtime))
