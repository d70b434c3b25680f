"""The control groups in which the agent is, below which it makes those of its runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from worker_agent.shim.control_groups import V2

# The group of the agent itself where no process may be in the group that contains those of the runs. The name is
# reserved: the groups of runs are made beside a group with this name, not below it.
AGENT = "gavel-agent"


def own_groups(root: Path, controller: str = "freezer") -> Iterator[tuple[str, str]]:
    """Yield where the agent may make groups, v2 first: the kind, and the directory that contains them.

    `controller`: that of the hierarchy of v1, which is also the end of its kind.
    """
    v1 = f"cgroup v1 {controller}"
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    own_paths = {}
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own_paths[V2] = path
        elif controller in controllers.split(","):
            own_paths[v1] = path
    homes = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        # A mount may show only the part of the hierarchy below this path.
        mounted_path, mount_point = before.split()[3:5]
        filesystem, _, *options = after.split()
        has_controller = filesystem == "cgroup" and controller in ",".join(options).split(",")
        kind = V2 if filesystem == "cgroup2" else v1 if has_controller else ""
        if kind in own_paths and ".." not in PurePosixPath(own_paths[kind]).parts:
            own_path = PurePosixPath(own_paths[kind])
            base = mounted_path if own_path.is_relative_to(mounted_path) else "/"
            own_group = root / mount_point.lstrip("/") / own_path.relative_to(base)
            is_below = kind == V2 and own_path.name == AGENT and str(own_path) != base
            # Without rights in the group above, an operator has made the agent's group by chance with this name.
            homes[kind] = str(
                own_group.parent if is_below and os.access(own_group.parent, os.W_OK) else own_group
            )
    for kind in (V2, v1):
        if kind in homes:
            yield kind, homes[kind]
