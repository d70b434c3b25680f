"""Remove the batches that jobs of a user have prepared for each other, when none of these jobs is left.

`gavel/training/data/ring.py` has the rules: in a user's directory, a group of jobs has a directory, and in it a ring,
which has a file for each member. A member lives while it locks its file, so the kernel knows who was killed. Whoever
removes a ring first takes the lock of the group.

These directories belong to the user, and the agent may be root. So no link in them is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from worker_agent.node.trees import remove_tree

_MEMBER, _RING = "member-", "ring-"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def remove_dead_rings(staging: Path) -> None:
    """Remove the rings, of all groups in a user's directory, in which no member lives."""
    with contextlib.suppress(OSError), _opened(str(staging), _DIRECTORY) as folder:
        for group in os.listdir(folder):
            # A link, or a directory that has just been removed.
            with contextlib.suppress(OSError), _opened(group, _DIRECTORY, folder) as group_fd:
                # While a job joins the group, its new ring may have no member yet.
                if _try_lock(group_fd, fcntl.LOCK_EX):
                    _remove_dead(group_fd)


def _remove_dead(group: int) -> None:
    """Remove the dead rings of a group whose lock is held."""
    dead = [name for name in os.listdir(group) if name.startswith(_RING) and _is_dead(name, group)]
    # A dead ring stays dead, so no job has to wait until it is removed.
    fcntl.flock(group, fcntl.LOCK_UN)
    for name in dead:
        remove_tree(name, group)


def _is_dead(ring: str, group: int) -> bool:
    """Return whether no member of a ring lives; False for what is no ring, and may not keep others from going."""
    try:
        return not _is_alive(ring, group)
    except OSError:
        return False


def _is_alive(ring: str, group: int) -> bool:
    """Return whether a member of a ring lives."""
    with _opened(ring, _DIRECTORY, group) as folder:
        for name in os.listdir(folder):
            if name.startswith(_MEMBER):
                # It may have left meanwhile. A pipe in its place must not stop the agent.
                with contextlib.suppress(FileNotFoundError), _opened(name, os.O_NONBLOCK, folder) as member:
                    if not _try_lock(member, fcntl.LOCK_SH):
                        return True
    return False


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
