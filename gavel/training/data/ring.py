"""A ring: the directory in which the jobs of a group that run at the same time pass each other their batches.

The directory of a group has one ring while jobs of the group run. Rules:

- a job enters the ring in which a member lives, and makes a new one if there is none. So it never receives a batch that
  was left behind by jobs that were gone when it started: they may have prepared it with other code;
- no member comes to life in a ring without one, so such a ring may be removed: by the next job that joins, by the last
  one that leaves, and by the agent (`worker_agent/node/staged_batches.py`);
- a process that was suspended, and whose ring is gone, can neither read nor write in a newer one, which has another
  name.

A member lives while its process locks its file. To enter a ring, and to see whether it may go, a process holds the lock
of the group's directory, so that jobs that start together find each other. A process that is suspended at that moment
keeps the others waiting for `PATIENCE_S` at most, and then they go on without the lock. The worst that can follow is
that jobs have two rings, or that one is left behind and prepares an epoch alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator

MEMBER, _RING = "member-", "ring-"
# How long to wait for the lock of a group, and how often to try.
PATIENCE_S, WAIT_S = 2.0, 0.002


@contextlib.contextmanager
def locked(group: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> Iterator[None]:
    """Hold the lock of a group's directory, or none if that takes too long; raise OSError without a directory."""
    fd = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end_s = clock() + PATIENCE_S
        while not _try_lock(fd, fcntl.LOCK_EX) and clock() < end_s:
            sleep(WAIT_S)
        yield
    finally:
        # Closing alone would leave the lock to a process that was forked meanwhile.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def enter(group: str) -> tuple[str, list[str]]:
    """Return the ring to enter, and those that may be removed. Hold the lock until the ring has the new member."""
    rings = [os.path.join(group, name) for name in names(group, _RING)]
    dead = [ring for ring in rings if not is_alive(ring)]
    living = (ring for ring in rings if ring not in dead)
    return next(living, None) or tempfile.mkdtemp(prefix=_RING, dir=group), dead


def is_alive(ring: str) -> bool:
    """Return whether a member lives in a ring."""
    for name in names(ring, MEMBER):
        with contextlib.suppress(OSError):
            fd = os.open(os.path.join(ring, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if is_held(fd):
                    return True
            finally:
                os.close(fd)
    return False


def is_held(fd: int) -> bool:
    """Return whether a process holds the lock of its member's file."""
    # Processes that look at the same time must not take each other for the member.
    return not _try_lock(fd, fcntl.LOCK_SH)


def remove(rings: list[str]) -> None:
    """Remove rings in which no member lives, as far as possible."""
    for ring in rings:
        shutil.rmtree(ring, ignore_errors=True)


def names(folder: str, prefix: str) -> list[str]:
    """Return the names in a directory that begin with a prefix, in order; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    return []


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
