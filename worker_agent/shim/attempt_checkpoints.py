"""A checkpoint directory for each attempt (`checkpoints: per_attempt`), begun as a copy of the previous attempt's.

    DIR/e00000003-a00000012/    the checkpoints of the attempt under lease 12
    DIR/e00000003-a00000017/    GAVEL_CHECKPOINT_DIR of the next attempt, under lease 17, begun as a copy

This is for scripts that do not use Gavel's library. If such a script is suspended past its lease and wakes up while a
newer attempt runs, it writes to a directory that is no longer read. Files are copied, or cloned if the file system can
do that. Hard links would not be enough: when a stale script writes to a file, the new attempt's file would change, too.

Each attempt begins with the files of the previous attempt, however that one ended. If the previous attempt was killed
while it wrote a file, that file may be incomplete, as after any crash. If files change during the copy, the copy is
discarded and made again. The directories of all older attempts are deleted.

Standard library only: it runs in a child of the shim, as the job's user, and on each node of a gang.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Callable

# How many times a copy is tried, until no file changes meanwhile, and the pause between two tries.
TRIES = 60
PAUSE_S = 1.0
_ATTEMPT = re.compile(r"e(\d{8,18})-a(\d{8,18})")
_UNFINISHED = re.compile(r"\.(e\d{8,18}-a\d{8,18})\.[0-9a-f]{12}\.new")
_BLOCK_BYTES = 1 << 24


def attempt_name(epoch: int, lease: int) -> str:
    """Return the name of an attempt's directory; `gavel.training` names attempts in the same way.

    The name contains the lease because a job may continue in an earlier job's directory, and no two jobs share a lease.
    """
    return f"e{epoch:08d}-a{lease:08d}"


def begin(directory: str, own: str) -> None:
    """Make the directory `own` of an attempt below `directory`, as a copy of the previous attempt's.

    The first attempt begins with the files in `directory` itself. Raises OSError if the directory cannot be made.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, own)
    if os.path.isdir(path):
        # Another node of the gang was first.
        return
    attempts = sorted((token, name) for name in os.listdir(directory) if (token := _token(name)) is not None)
    if attempts and attempts[-1] > (_token(own) or (0, 0), own):
        raise FileExistsError(errno.EEXIST, "a newer attempt has begun", attempts[-1][1])
    previous = attempts[-1][1] if attempts else ""
    aside = os.path.join(directory, f".{own}.{os.urandom(6).hex()}.new")
    try:
        _copy_unchanged(os.path.join(directory, previous), aside)
        _rename(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _delete_older(directory, keep={previous, own})


def _rename(aside: str, path: str) -> None:
    try:
        os.rename(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another node of the gang was first.
        return
    _flush(os.path.dirname(path))


def _copy_unchanged(source: str, target: str) -> None:
    """Copy a directory, again if a file changed meanwhile; raise OSError if files keep changing."""
    for _ in range(TRIES):
        before = _versions(source)
        # A file that was deleted meanwhile is also a reason to copy again.
        with contextlib.suppress(FileNotFoundError):
            _copy_directory(source, target, _is_attempt)
            if _versions(source) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(PAUSE_S)
    raise OSError(errno.EBUSY, "the previous attempt is still writing there", source)


def _copy_directory(source: str, target: str, without: Callable[[str], bool] = lambda name: False) -> None:
    """Copy the directories, files and links in a directory durably, but no pipes, sockets or devices."""
    os.mkdir(target)
    with os.scandir(source) as entries:
        for entry in entries:
            copy = os.path.join(target, entry.name)
            if without(entry.name):
                continue
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), copy)
            elif entry.is_dir():
                _copy_directory(entry.path, copy)
            elif entry.is_file():
                _copy_file(entry.path, copy)
    shutil.copystat(source, target)
    _flush(target)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _BLOCK_BYTES):
                pass
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            shutil.copyfileobj(old, new, _BLOCK_BYTES)
        new.flush()
        os.fsync(new.fileno())
    shutil.copystat(source, target)


def _versions(source: str) -> dict[str, tuple[int, int, int]]:
    """Return the version of each file, by path; the version changes if the file is written or replaced."""
    versions = {}
    for folder, directories, names in os.walk(source):
        if folder == source:
            directories[:] = [name for name in directories if not _is_attempt(name)]
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                versions[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return versions


def _is_attempt(name: str) -> bool:
    """Return whether this is the name of an attempt or of an unfinished copy; neither is copied into an attempt."""
    return (_token(name) or _UNFINISHED.fullmatch(name)) is not None


def _delete_older(directory: str, keep: set[str]) -> None:
    """Delete the attempts, and unfinished copies of attempts, that are older than all in `keep`."""
    oldest = min(token for name in keep if (token := _token(name)) is not None)
    for name in os.listdir(directory):
        unfinished = _UNFINISHED.fullmatch(name)
        token = _token(unfinished[1] if unfinished is not None else name)
        if token is not None and token < oldest:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def _token(name: str) -> tuple[int, int] | None:
    """Return epoch and lease of the attempt with this name; None if it is not the name of an attempt."""
    match = _ATTEMPT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def _flush(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
