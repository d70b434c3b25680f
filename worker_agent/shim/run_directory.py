"""The directory of a run and access to its files (docs/job-directory.md).

Standard library only, and little of it, because the shim uses this module and a job waits for each of its imports. The
directory may belong to a hostile user: every file is opened relative to the directory's descriptor, never through a
link, and trusted only if it is a regular file of the right owner. A file that cannot be read counts as missing.
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
# Only for a part of a gang: written when all nodes of the gang are ready.
GO = "go.json"
LOGS = "logs"
# An empty file, made when the scheduler has acknowledged the exit.
ACKNOWLEDGED = "told"
# A rank that reads lease.json shows that by a file with one of these prefixes.
_READER_PREFIXES = ("heeds-", "progress-")

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
_NAME_LENGTH_MAX = 100
_FILE_BYTES_MAX = 16 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def directory_name(lease: str) -> str:
    """Return the name of a lease's directory: a single path component, different for every lease."""
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


def is_data_set(name: str) -> bool:
    """Return whether a file of this name states a data set that the job reads."""
    return name.startswith("cache-") and name.endswith(".json")


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
        """Make the directory of a lease; raise FileExistsError if it exists."""
        path = runs / directory_name(lease)
        path.mkdir(mode=0o700)
        directory = cls(path)
        os.mkdir(LOGS, mode=0o755, dir_fd=directory.fd)
        return directory

    def is_in_place(self) -> bool:
        """Return whether this directory is still at its path; a job can remove or replace its directory."""
        try:
            current = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(self.fd))

    def reopen(self) -> RunDirectory:
        """Open the directory that is at the path now, and make one if there is none; raise OSError if that fails."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        directory = RunDirectory(self._path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(LOGS, mode=0o755, dir_fd=directory.fd)
        return directory

    def job_reads_lease(self) -> bool:
        """Return whether a rank has shown that it reads lease.json; otherwise only a signal makes the job stop."""
        try:
            return any(name.startswith(_READER_PREFIXES) for name in os.listdir(self.fd))
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
        """Return the object in a JSON file; None if it is missing, invalid or not to be trusted.

        `owner`: the only uid whose file is trusted; None: any.
        """
        try:
            fd = os.open(name, _READ, dir_fd=self.fd)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > size_bytes_max:
                return None
            if owner is not None and status.st_uid != owner:
                return None
            value = json.loads(os.read(fd, size_bytes_max))
        except (OSError, ValueError, RecursionError):
            return None
        finally:
            os.close(fd)
        return value if isinstance(value, dict) else None

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = False, mode: int = 0o644) -> None:
        """Replace a JSON file as a whole. `durable`: flush it to disk."""
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
        """Make an empty file, unless a file of this name exists."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, _CREATE, 0o644, dir_fd=self.fd))

    def has(self, name: str) -> bool:
        """Return whether a file of this name exists."""
        return self.version(name) is not None

    def version(self, name: str) -> tuple[int, int, int] | None:
        """Return a value that changes whenever a file is replaced; None if the file does not exist."""
        try:
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def open_logs(self) -> int:
        """Return a new descriptor of the log directory."""
        return os.open(LOGS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)

    def lock(self) -> int | None:
        """Take the lock of this run; return None if another process holds it.

        A shim holds the lock while it lives, so a process that gets the lock can be sure that no shim runs. The lock is
        held while the returned descriptor is open.
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
