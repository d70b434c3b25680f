"""Control groups, which contain all processes of a run, however these change their parents, sessions and environments.

Standard library only: the shim uses it too. A run's group is made by the agent, below its own, in the unified hierarchy
(v2) or in that of the freezer (v1). Rules:
- a process that a rank starts is in the group from its first instruction, and leaves it only if it may write to
  another group;
- a run is over when its group is empty: a process is in it until the kernel has closed its files, GPUs among them;
- a group that is not empty is frozen or killed as a whole, so that no process in it can escape by forking.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

V2, V1 = "cgroup v2", "cgroup v1 freezer"
_PROCESSES = "cgroup.procs"
# How often we check that killed processes are gone, and the pause between two checks.
_LOOKS, _LOOK_S = 20, 0.001


class ControlGroup:
    """The control group of one run."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open_entrance(self) -> int:
        """Return a descriptor for `enter`."""
        return os.open(f"{self.path}/{_PROCESSES}", os.O_WRONLY | os.O_CLOEXEC)

    def is_empty(self) -> bool:
        """Return whether no process is left in the group or below it."""
        try:
            with open(f"{self.path}/cgroup.events") as file:
                return "populated 0" in file.read().splitlines()
        except FileNotFoundError:
            return not any(_pids(folder, "tasks") for folder in self._folders())
        except OSError:
            # It was removed while we read it, so it was empty.
            return not os.path.isdir(self.path)

    def kill(self) -> bool:
        """Kill everything in the group; return whether nothing is left."""
        for _ in range(_LOOKS):
            if self.is_empty():
                return True
            self._kill_once()
            time.sleep(_LOOK_S)
        return self.is_empty()

    def remove(self) -> None:
        """Remove the group and those below it, as far as they are empty."""
        for folder in reversed(list(self._folders())):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def _kill_once(self) -> None:
        try:
            # Linux 5.14 and later have this file.
            _write(f"{self.path}/cgroup.kill", "1")
        except OSError:
            self._set_frozen(True)
            for folder in self._folders():
                for pid in _pids(folder, _PROCESSES):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        """Freeze or thaw the group: frozen processes cannot fork while they are killed. In v1, signals arrive at the
        thaw."""
        for name, value in (
            ("freezer.state", "FROZEN" if frozen else "THAWED"),
            ("cgroup.freeze", str(int(frozen))),
        ):
            with contextlib.suppress(OSError):
                _write(f"{self.path}/{name}", value)

    def _folders(self) -> Iterator[str]:
        """Yield the folders of this group and of those below it, from the top down."""
        for folder, _, _ in os.walk(self.path):
            yield folder


def enter(entrance: int) -> None:
    """Put this process, and everything it will start, into the group of `ControlGroup.open_entrance`."""
    os.write(entrance, b"0")


def _write(path: str, text: str) -> None:
    # Without O_CREAT: the file is one of the kernel's, or it is not there.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _pids(folder: str, name: str) -> list[int]:
    try:
        with open(f"{folder}/{name}") as file:
            # The kernel lists processes of other pid namespaces as 0.
            return [pid for pid in map(int, file.read().split()) if pid > 0]
    except OSError:
        return []
