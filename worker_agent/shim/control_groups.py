"""Control groups: all processes of a run are in one group, even if they change their parents or environments.

Standard library only, because the shim uses this module, too. The agent makes a run's group below its own, in the
unified hierarchy (v2) or in the freezer's hierarchy (v1). Rules:
- a process that a rank starts is in the group from its first instruction, and can leave the group only if it may write
  to another one;
- a run is over when its group is empty: the kernel closes the files of a process, GPUs included, before the process
  leaves the group;
- a group is killed as a whole, or frozen before its processes are killed, so that none escapes by forking.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

V2, V1, V1_CPU = "cgroup v2", "cgroup v1 freezer", "cgroup v1 cpu"
_PROCESSES = "cgroup.procs"
# How many times we check whether killed processes are gone, and the pause between two checks.
_CHECKS, _CHECK_PAUSE_S = 20, 0.001


class ControlGroup:
    """The control group of one run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open_entrance(self) -> int:
        """Return a descriptor with which `enter` puts a process into the group."""
        return os.open(f"{self.path}/{_PROCESSES}", os.O_WRONLY | os.O_CLOEXEC)

    def is_empty(self) -> bool:
        """Return whether no process is left in the group or below it."""
        try:
            with open(f"{self.path}/cgroup.events") as file:
                return "populated 0" in file.read().splitlines()
        except FileNotFoundError:
            return not any(_pids(folder, "tasks") for folder in self._folders())
        except OSError:
            # A group that was removed meanwhile was empty.
            return not os.path.isdir(self.path)

    def kill(self) -> bool:
        """Kill everything in the group; return whether nothing is left."""
        for _ in range(_CHECKS):
            if self.is_empty():
                return True
            self._kill_once()
            time.sleep(_CHECK_PAUSE_S)
        return self.is_empty()

    def remove(self) -> None:
        """Remove the group and the groups below it, except those that are not empty."""
        for folder in reversed(list(self._folders())):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _kill_once(self) -> None:
        try:
            # Linux 5.14 and later have this file.
            write_file(f"{self.path}/cgroup.kill", "1")
        except OSError:
            self._set_frozen(True)
            for folder in self._folders():
                for pid in _pids(folder, _PROCESSES):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        """Freeze or thaw the group. In v1, signals reach frozen processes only after the thaw."""
        for name, value in (
            ("freezer.state", "FROZEN" if frozen else "THAWED"),
            ("cgroup.freeze", str(int(frozen))),
        ):
            with contextlib.suppress(OSError):
                write_file(f"{self.path}/{name}", value)

    def _folders(self) -> Iterator[str]:
        """Yield the folders of this group and of those below it, from the top down."""
        for folder, _, _ in os.walk(self.path):
            yield folder


def enter(entrance: int) -> None:
    """Put this process, and all processes that it will start, into a group. `entrance`: from `open_entrance`."""
    os.write(entrance, b"0")


def write_file(path: str, text: str) -> None:
    """Write to a file of a control group."""
    # Without O_CREAT, because only the kernel makes these files.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _pids(folder: str, name: str) -> list[int]:
    """Return the pids in a file of a group; none if the group is gone."""
    try:
        with open(f"{folder}/{name}") as file:
            # The kernel lists processes of other pid namespaces as 0.
            return [pid for pid in map(int, file.read().split()) if pid > 0]
    except OSError:
        return []
