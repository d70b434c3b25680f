"""Files that exist in full or not at all: written under a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

Write = Callable[[BinaryIO], None]
BLOCK_BYTES = 1 << 20


class ChecksumFile:
    """A file for writing that computes the CRC-32 and size of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.crc32 = 0
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size_bytes += len(view)
        while view:
            view = view[self._file.write(view) :]
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""


def replace(path: Path, write: Write, before_rename: Callable[[], object] = lambda: None) -> dict[str, int]:
    """Make or replace a file by calling `write`; return its CRC-32 and size. The file is durable on return.

    If `before_rename` raises, an existing file is not replaced.
    """
    # Random, because ranks on other nodes may have the same pid.
    new_path = path.with_name(f".{path.name}.{os.urandom(6).hex()}.new")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new_path, flags, 0o666), "wb", buffering=0) as file:
            checksum_file = ChecksumFile(cast(BinaryIO, file))
            write(cast(BinaryIO, checksum_file))
            os.fsync(file.fileno())
        before_rename()
        os.replace(new_path, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new_path.unlink()
        raise
    flush_directory(path.parent)
    return {"crc32": checksum_file.crc32, "bytes": checksum_file.size_bytes}


def replace_bytes(path: Path, data: bytes, before_rename: Callable[[], object] = lambda: None) -> None:
    """Make or replace a file with this content, like `replace`."""

    def write(file: BinaryIO) -> None:
        file.write(data)

    replace(path, write, before_rename)


def make_directory(path: Path) -> None:
    """Make a directory and its parents, durable on return."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Flush the entries of a directory to disk, if the file system supports that."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def open_nofollow(path: Path) -> BinaryIO:
    """Open a file for reading; raise OSError if it is a symbolic link."""
    return cast(BinaryIO, os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb"))


def checksum(path: Path) -> dict[str, int]:
    """Return the CRC-32 and size of a file."""
    crc32 = size_bytes = 0
    with open_nofollow(path) as file:
        while block := file.read(BLOCK_BYTES):
            crc32 = zlib.crc32(block, crc32)
            size_bytes += len(block)
    return {"crc32": crc32, "bytes": size_bytes}
