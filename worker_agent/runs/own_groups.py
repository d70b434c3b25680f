"""The control groups in which the agent is, below which it makes those of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from worker_agent.shim.control_groups import V1, V2

# The group of the agent itself where no process may be in the group that contains those of the runs.
AGENT = "gavel-agent"


def own_groups(root: Path, controller: str = "freezer") -> Iterator[tuple[str, str]]:
    """Yield where the agent may make groups, v2 first: the kind, and the directory that contains them.

    `controller`: that of the hierarchy of v1.
    """
    try:
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    own_paths = {}
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            own_paths[V2] = path.removesuffix(f"/{AGENT}") or "/"
        elif controller in controllers.split(","):
            own_paths[V1] = path
    homes = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        # A mount may show only the part of the hierarchy below this path.
        mounted_path, mount_point = before.split()[3:5]
        filesystem, _, *options = after.split()
        has_controller = filesystem == "cgroup" and controller in ",".join(options).split(",")
        kind = V2 if filesystem == "cgroup2" else V1 if has_controller else ""
        if kind in own_paths and ".." not in PurePosixPath(own_paths[kind]).parts:
            own_path = PurePosixPath(own_paths[kind])
            base = mounted_path if own_path.is_relative_to(mounted_path) else "/"
            homes[kind] = str(root / mount_point.lstrip("/") / own_path.relative_to(base))
    for kind in (V2, V1):
        if kind in homes:
            yield kind, homes[kind]
