"""How the processes of a run are held together on this node: found out once, when the agent starts.

By a control group of its own for each run where the agent may make some; systemd's `Delegate=yes` is enough, and so is
root on most machines. Where not, by descent alone: orphans of a run become children of its shim, or of the agent when
the shim was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from worker_agent.shim.control_groups import V1, V2, ControlGroup
from worker_agent.shim.process_tree import Process, look_up
from worker_agent.shim.run_directory import directory_name

SUBREAPER = "subreaper"
_REMOVALS, _REMOVAL_S = 50, 0.01
_TIMEOUT_S = 30.0
# Prints the pid of the process that becomes the parent of an orphan.
_WHO_ADOPTS = (
    "import os, signal\n"
    "read_end, write_end = os.pipe()\n"
    "parent = os.fork()\n"
    "if parent == 0:\n"
    "    orphan = os.fork()\n"
    "    if orphan == 0: signal.pause()\n"
    "    os.write(write_end, str(orphan).encode())\n"
    "    os._exit(0)\n"
    "orphan = int(os.read(read_end, 20))\n"
    "os.waitpid(parent, 0)\n"
    "print(open(f'/proc/{orphan}/stat').read().rpartition(')')[2].split()[1])\n"
    "os.kill(orphan, signal.SIGKILL)\n"
)


class NoControlGroups(Exception):
    """Control groups are asked for, and none can be made here: why."""


class Containment(NamedTuple):
    """The way in which processes are held together. `home`: where the groups of runs are made."""

    kind: str = SUBREAPER
    home: str = ""

    @property
    def is_certain(self) -> bool:
        """Whether no process leaves it by forking, even after the agent or a shim was killed."""
        return bool(self.home)

    @property
    def words(self) -> str:
        """The line for the log that says how jobs are contained."""
        if self.home:
            return f"the processes of a job are contained by {self.kind}, in {self.home}"
        return (
            "the processes of a job are contained by descent alone (subreaper): if agent and shim are killed, GPUs can"
            " be withheld until an operator has looked; control groups would be certain (docs/install.md)"
        )

    def make_group(self, lease: str) -> str:
        """Make the control group of a run; its path, or nothing where there are none."""
        if not self.home:
            return ""
        path = f"{self.home}/gavel-{directory_name(lease)}-{secrets.token_hex(4)}"
        os.mkdir(path, 0o755)
        return path


def find_containment(wanted: str = "auto", root: Path = Path("/")) -> Containment:
    """The best that there is on this node; NoControlGroups where that is not what is asked for."""
    if wanted == SUBREAPER:
        return Containment()
    trouble = "the kernel has neither cgroup v2 nor the freezer of v1, or they are not mounted"
    for kind, home in _own_groups(root):
        try:
            _try_out(home)
        except (OSError, subprocess.SubprocessError) as error:
            trouble = f"{home}: {error}"
        else:
            return Containment(kind, home)
    if wanted == "cgroup":
        raise NoControlGroups(trouble)
    return Containment()


def who_adopts() -> Process | None:
    """Return the process that adopts this one's orphans when it is gone; None where that cannot be found out.

    Call it before this process adopts orphans itself.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [sys.executable, "-S", "-E", "-c", _WHO_ADOPTS],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return look_up(int(done.stdout))
    return None


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    """The control groups that this process is in, v2 first: the kind, and the directory."""
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    own = {}
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own[V2] = path
        elif "freezer" in controllers.split(","):
            own[V1] = path
    homes = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        within, point = before.split()[3:5]
        filesystem, _, *options = after.split()
        kind = V2 if filesystem == "cgroup2" else V1 if _is_freezer(filesystem, options) else ""
        if kind in own and ".." not in PurePosixPath(own[kind]).parts:
            place = PurePosixPath(own[kind])
            inside = place.relative_to(within) if place.is_relative_to(within) else place.relative_to("/")
            homes[kind] = str(root / point.lstrip("/") / inside)
    for kind in (V2, V1):
        if kind in homes:
            yield kind, homes[kind]


def _is_freezer(filesystem: str, options: list[str]) -> bool:
    return filesystem == "cgroup" and "freezer" in ",".join(options).split(",")


def _try_out(home: str) -> None:
    """Make a group, have a process enter it, and remove it; OSError or SubprocessError where one cannot."""
    path = f"{home}/gavel-probe-{os.getpid()}-{secrets.token_hex(4)}"
    os.mkdir(path, 0o755)
    group = ControlGroup(path)
    try:
        subprocess.run(
            ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", f"{path}/cgroup.procs"],
            check=True,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
        )
        if not group.kill():
            raise OSError("what is in it cannot be ended")
    finally:
        for _ in range(_REMOVALS):
            group.remove()
            if not os.path.isdir(path):
                break
            time.sleep(_REMOVAL_S)
