"""How the agent finds all processes of a run on this node. The agent chooses the way once, when it starts.

If the agent may make control groups, each run has its own. The agent may do so if systemd runs it with `Delegate=yes`
and, on most machines, if it is root. Otherwise the agent follows the descent of processes: orphans of a run become
children of its shim, or of the agent if the shim was killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from worker_agent.runs.cpu_groups import CpuGroups, allow_entry
from worker_agent.runs.own_groups import own_groups
from worker_agent.shim.control_groups import V2, ControlGroup
from worker_agent.shim.process_tree import Process, look_up
from worker_agent.shim.run_directory import directory_name

SUBREAPER = "subreaper"
# How many times we try to remove the test group, and the pause between two tries.
_REMOVALS, _REMOVAL_S = 50, 0.01
# How long a test that starts other processes may take.
_TIMEOUT_S = 30.0
# Prints the pid of the process that becomes the parent of an orphan.
_PRINT_ADOPTER = (
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
    """The configuration requires control groups, but none can be made here; the message is the reason."""


class Containment(NamedTuple):
    """How the processes of runs are found. `home`: the directory for the groups of runs; empty without groups."""

    kind: str = SUBREAPER
    home: str = ""
    # How the CPUs are divided among runs.
    cpus: CpuGroups = CpuGroups()

    @property
    def is_certain(self) -> bool:
        """Whether every process of a run is found, even after the agent or a shim was killed."""
        return bool(self.home)

    @property
    def description(self) -> str:
        """The agent's log line about how jobs are contained."""
        if self.home:
            return f"the processes of a job are contained by {self.kind}, in {self.home}"
        return (
            "the processes of a job are contained by descent alone (subreaper): if agent and shim are killed, GPUs can"
            " be withheld until an operator has checked them; control groups would prevent that (docs/install.md)"
        )

    def make_group(self, lease: str) -> str:
        """Make the control group of a run and return its path; return an empty text without control groups."""
        if not self.home:
            return ""
        path = f"{self.home}/gavel-{directory_name(lease)}-{secrets.token_hex(4)}"
        os.mkdir(path, 0o755)
        return path


def find_containment(setting: str = "auto", root: Path = Path("/")) -> Containment:
    """Return the best containment on this node; raise NoControlGroups if `setting` requires groups and there are none.

    `setting`: "auto", "cgroup" or "subreaper".
    """
    if setting == SUBREAPER:
        return Containment()
    trouble = "the kernel has neither cgroup v2 nor the freezer of v1, or they are not mounted"
    for kind, home in own_groups(root):
        try:
            if kind == V2:
                allow_entry(home)
            _test_groups(home)
        except (OSError, subprocess.SubprocessError) as error:
            trouble = f"{home}: {error}"
        else:
            return Containment(kind, home)
    if setting == "cgroup":
        raise NoControlGroups(trouble)
    return Containment()


def adopter_of_orphans() -> Process | None:
    """Return the process that will adopt the orphans of this process after its end; None if that is unknown.

    Call this function before this process itself starts to adopt orphans.
    """
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        result = subprocess.run(
            [sys.executable, "-S", "-E", "-c", _PRINT_ADOPTER],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return look_up(int(result.stdout))
    return None


def _test_groups(home: str) -> None:
    """Make a group, have a process enter it, and remove it; raise OSError or SubprocessError if that fails."""
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
            raise OSError("its processes cannot be killed")
    finally:
        for _ in range(_REMOVALS):
            group.remove()
            if not os.path.isdir(path):
                break
            time.sleep(_REMOVAL_S)
