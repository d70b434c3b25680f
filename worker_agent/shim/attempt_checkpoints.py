"""A checkpoint directory for each attempt (`checkpoints: per_attempt`), begun as a copy of the last one's.

    DIR/e00000003-a00000012/    what the attempt under lease 12 had saved when the next one began
    DIR/e00000003-a00000017/    GAVEL_CHECKPOINT_DIR of that one, under lease 17

For scripts that know nothing of Gavel: one that was suspended past its lease, and wakes up while a newer attempt runs,
writes in a directory that nobody reads any more. Files are copied, or cloned where the file system can: with links to
the same files, a stale script that writes into a file that is there would change the newer attempt's too.

The last attempt counts however it ended. One that was killed while it wrote has left what any crash leaves. A copy
during which its files changed is thrown away and made again. Of the attempts before that, the directories are deleted.

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

TRIES = 60
PAUSE_S = 1.0
_ATTEMPT = re.compile(r"e(\d{8,18})-a(\d{8,18})")
_UNFINISHED = re.compile(r"\.(e\d{8,18}-a\d{8,18})\.[0-9a-f]{12}\.new")
_BLOCK_BYTES = 1 << 24


def attempt_name(epoch: int, lease: int) -> str:
    """Return the name of an attempt's directory; `gavel.training` names attempts in the same way.

    By the number of its lease, which no other job has: a job may go on in the directory that an earlier one has left.
    """
    return f"e{epoch:08d}-a{lease:08d}"


def begin(directory: str, own: str) -> None:
    """Make the directory `own` of an attempt below `directory`, with what the last attempt had saved.

    The first attempt begins with what lies in `directory` itself. OSError where it cannot be made.
    """
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, own)
    if os.path.isdir(path):
        # Another node of the gang was first.
        return
    named = sorted((token, name) for name in os.listdir(directory) if (token := _token(name)) is not None)
    if named and named[-1] > (_token(own) or (0, 0), own):
        raise FileExistsError(errno.EEXIST, "a newer attempt has begun", named[-1][1])
    last = named[-1][1] if named else ""
    aside = os.path.join(directory, f".{own}.{os.urandom(6).hex()}.new")
    try:
        _copy_at_rest(os.path.join(directory, last), aside)
        _rename(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _delete_others(directory, keep={last, own})


def _rename(aside: str, path: str) -> None:
    try:
        os.rename(aside, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Another node of the gang was first.
        return
    _flush(os.path.dirname(path))


def _copy_at_rest(source: str, target: str) -> None:
    """Copy a directory in which nothing is written meanwhile."""
    for _ in range(TRIES):
        before = _versions(source)
        # A file that is deleted meanwhile makes us copy again.
        with contextlib.suppress(FileNotFoundError):
            _copy_directory(source, target, _is_not_copied)
            if _versions(source) == before:
                return
        shutil.rmtree(target, ignore_errors=True)
        time.sleep(PAUSE_S)
    raise OSError(errno.EBUSY, "the last attempt still writes there", source)


def _copy_directory(source: str, target: str, without: Callable[[str], bool] = lambda name: False) -> None:
    """Copy directories, files and links, to disk; pipes and the like are left out."""
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
    """Return, by path, what changes when a file is written, replaced or deleted."""
    versions = {}
    for place, directories, names in os.walk(source):
        if place == source:
            directories[:] = [name for name in directories if not _is_not_copied(name)]
        for name in names:
            path = os.path.join(place, name)
            with contextlib.suppress(FileNotFoundError):
                about = os.lstat(path)
                versions[path] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return versions


def _is_not_copied(name: str) -> bool:
    """Tell whether it is an attempt or an unfinished copy: these lie beside what the first attempt begins with."""
    return (_token(name) or _UNFINISHED.fullmatch(name)) is not None


def _delete_others(directory: str, keep: set[str]) -> None:
    """Delete attempts, finished or not, that are older than those that are kept."""
    oldest = min(token for name in keep if (token := _token(name)) is not None)
    for name in os.listdir(directory):
        unfinished = _UNFINISHED.fullmatch(name)
        token = _token(unfinished[1] if unfinished is not None else name)
        if token is not None and token < oldest:
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def _token(name: str) -> tuple[int, int] | None:
    match = _ATTEMPT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def _flush(directory: str) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)
