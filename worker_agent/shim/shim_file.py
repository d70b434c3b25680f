"""shim.json: which processes belong to a run. Standard library only, because the shim uses this module."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from worker_agent.shim import process_tree, run_directory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from worker_agent.shim.run_directory import RunDirectory


def write_shim_file(run: RunDirectory, leader_pids: Iterable[int], *, ready: bool, started_s: float) -> None:
    """Write shim.json for this process, which is the shim, and its leaders."""
    shim = process_tree.look_up(os.getpid())
    leaders = [leader for pid in leader_pids if (leader := process_tree.look_up(pid))]
    content = {
        "pid": os.getpid(),
        "start_ticks": shim.start_ticks if shim else 0,
        "boot_id": process_tree.boot_id(),
        "pids": [leader.pid for leader in leaders],
        "pids_start_ticks": [leader.start_ticks for leader in leaders],
        "ready": ready,
        "running": bool(leader_pids),
        "started_s": started_s,
    }
    # The job continues even if the disk is full.
    with contextlib.suppress(OSError):
        run.write(run_directory.SHIM, content, durable=True)
