"""The directory of a run: its files, opened only below it (docs/job-directory.md).

Standard library only, and little of it: the shim uses it too, and a job waits for every import. The directory may
belong to a hostile user: every file is opened relative to the directory's descriptor, never through a link, and trusted
only if it is a regular file of the right owner. A file that cannot be read counts as missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

START, LEASE, SHIM, EXIT = "start.json", "lease.json", "shim.json", "exit.json"
# Written for a part of a gang once all its nodes are ready.
GO = "go.json"
LOGS = "logs"
# An empty file, created once the scheduler has the exit.
TOLD = "told"
# The prefixes of files by which ranks show that they read lease.json.
_HEEDING = ("heeds-", "progress-")

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_NAME_LENGTH_MAX = 100
_FILE_BYTES_MAX = 16 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_name(lease: str) -> str:
    """Return a name for the directory of a lease: different leases get different ones, and none is a path."""
    if not lease:
        raise ValueError("a lease needs an id")
    name = "".join(c if c in _SAFE else "".join(f"%{b:02X}" for b in c.encode()) for c in lease)
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _NAME_LENGTH_MAX:
        import hashlib

        # No escaped name holds a "+", so no other id gets this name.
        name = f"{name[:60]}+{hashlib.sha256(lease.encode()).hexdigest()[:32]}"
    return name


def progress_name(rank: int) -> str:
    """Return the name of the file in which a rank reports its progress."""
    return f"progress-{rank}.json"


class RunDirectory:
    """One open run directory."""

    def __init__(self, path: Path | str) -> None:
        """Open an existing directory; the last component of its path must not be a link."""
        self._path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    @property
    def path(self) -> Path:
        """The path of the directory."""
        from pathlib import Path

        return Path(self._path)

    @classmethod
    def create(cls, runs: Path, lease: str) -> RunDirectory:
        """Make the directory of a lease; FileExistsError if there is one."""
        path = runs / directory_name(lease)
        path.mkdir(mode=0o700)
        directory = cls(path)
        os.mkdir(LOGS, mode=0o755, dir_fd=directory.fd)
        return directory

    def is_in_place(self) -> bool:
        """Whether the directory is still found by its path: a job can remove its own."""
        try:
            current = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(self.fd))

    def made_again(self) -> RunDirectory:
        """Open the directory that the path names now, and make it if there is none; raise OSError if that fails."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        again = RunDirectory(self._path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(LOGS, mode=0o755, dir_fd=again.fd)
        return again

    def is_heeded(self) -> bool:
        """Whether a rank has shown that it reads lease.json. Jobs without such a rank only notice a signal."""
        try:
            return any(name.startswith(_HEEDING) for name in os.listdir(self.fd))
        except OSError:
            return True

    def close(self) -> None:
        """Close the directory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(
        self, name: str, *, owner: int | None = None, size_bytes_max: int = _FILE_BYTES_MAX
    ) -> dict[str, Any] | None:
        """Return the object in a JSON file; None if there is none that can be trusted."""
        try:
            fd = os.open(name, _READ, dir_fd=self.fd)
        except OSError:
            return None
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_size > size_bytes_max:
                return None
            if owner is not None and about.st_uid != owner:
                return None
            value = json.loads(os.read(fd, size_bytes_max))
        except (OSError, ValueError, RecursionError):
            return None
        finally:
            os.close(fd)
        return value if isinstance(value, dict) else None

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = False, mode: int = 0o644) -> None:
        """Replace a JSON file as a whole."""
        aside = f".{name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=self.fd)
        fd = os.open(aside, _CREATE, mode, dir_fd=self.fd)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(json.dumps(value).encode() + b"\n")
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.rename(aside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=self.fd)
            raise
        if durable:
            os.fsync(self.fd)

    def mark(self, name: str) -> None:
        """Make an empty file, unless it exists."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, _CREATE, 0o644, dir_fd=self.fd))

    def has(self, name: str) -> bool:
        """Return whether a file of this name exists."""
        return self.version(name) is not None

    def version(self, name: str) -> tuple[int, int, int] | None:
        """Return a value that changes whenever the file is replaced; None if there is none."""
        try:
            about = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None
        return about.st_ino, about.st_mtime_ns, about.st_size

    def open_logs(self) -> int:
        """Return a descriptor of the directory of the logs."""
        return os.open(LOGS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def lock(self) -> int | None:
        """Take the lock of this run, which its shim holds while it lives; a process that gets it knows that there is no
        shim.

        The lock is held while the returned descriptor is open; None if another process holds it.
        """
        fd = os.open(START, _READ, dir_fd=self.fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        return fd
