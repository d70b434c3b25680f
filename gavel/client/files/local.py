"""The local directory into which files are fetched. Nothing is ever written outside it, nor through a link in it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from gavel.client.results.files import FileEntry

# A file that is not complete yet has this suffix.
PART = ".gavel-part"
# Times that are less than this apart count as equal, because some file systems round them.
_SAME_TIME_NS = 1_000_000_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CannotPlace(Exception):
    """A file cannot lie at its path; the message has the reason."""


class LocalFolder:
    """A local directory, made when the first file is written."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def state(self, path: str, entry: FileEntry) -> Literal["absent", "present", "different"]:
        """Return whether this file is here. Raises CannotPlace if something that is not a file has its path."""
        try:
            with self._parent(path) as (folder, name):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return "absent"
        if not stat.S_ISREG(status.st_mode):
            kind = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory"}.get(stat.S_IFMT(status.st_mode))
            raise CannotPlace(f"{self.path / path} is {kind or 'not a regular file'}: rename or remove it")
        is_same = status.st_size == entry.size_bytes and _same_time(status, entry)
        return "present" if is_same else "different"

    def part_bytes(self, path: str, entry: FileEntry) -> int:
        """Return how much of this version of a file an earlier fetch has left here."""
        try:
            with self._parent(path) as (folder, name):
                status = os.stat(name + PART, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return 0
        is_same = stat.S_ISREG(status.st_mode) and _same_time(status, entry)
        return status.st_size if is_same and status.st_size <= entry.size_bytes else 0

    def open_part(self, path: str, entry: FileEntry, offset: int) -> LocalPart:
        """Open a file to be continued at `offset`. Raises CannotPlace if it cannot lie at its path."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with self._parent(path, make=True) as (folder, name):
                fd = os.open(name + PART, _WRITE, 0o777 if entry.executable else 0o666, dir_fd=folder)
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    os.close(fd)
                    raise CannotPlace(f"{self.path / path}{PART} is not a regular file: remove it")
                os.ftruncate(fd, offset)
                os.lseek(fd, offset, os.SEEK_SET)
                return LocalPart(fd, os.dup(folder), name, entry)
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            raise CannotPlace(f"{self.path / path}: {(error.strerror or str(error)).lower()}") from None

    @contextlib.contextmanager
    def _parent(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the directory of a file, and the file's name there."""
        *folders, name = path.split("/")
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in folders:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = self._enter(folder, part)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _enter(self, folder: int, name: str) -> int:
        try:
            return os.open(name, _DIRECTORY, dir_fd=folder)
        except NotADirectoryError:
            raise CannotPlace(
                f"{name} in {self.path} is a link or a file, but has to be a directory: rename or remove it"
            ) from None


class LocalPart:
    """A file that is being fetched. It has the time of its version, so that a later fetch can continue it."""

    def __init__(self, fd: int, folder: int, name: str, entry: FileEntry) -> None:
        self._fd, self._folder, self._name, self._entry = fd, folder, name, entry
        self.size_bytes = os.lseek(fd, 0, os.SEEK_CUR)

    def write(self, data: bytes) -> None:
        """Append data."""
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
            self.size_bytes += written

    def close(self, *, complete: bool) -> None:
        """Close the file; if it is complete, give it its name."""
        times = (self._entry.modified_ns, self._entry.modified_ns)
        try:
            os.utime(self._fd, ns=times)
            if complete:
                part = self._name + PART
                os.replace(part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            os.close(self._fd)
            os.close(self._folder)


def _same_time(status: os.stat_result, entry: FileEntry) -> bool:
    return abs(status.st_mtime_ns - entry.modified_ns) < _SAME_TIME_NS
