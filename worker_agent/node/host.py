"""CPUs and memory that this agent may use: those of the machine, within the limits of its container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GB = 1e9
# In cgroup v1 a number near 2^63 stands for "no limit".
_UNLIMITED_BYTES = 1 << 60


def cpus(root: Path = Path("/")) -> float:
    """Return the number of CPUs: those of the affinity mask, or fewer if a quota allows fewer."""
    count = float(len(os.sched_getaffinity(0)))
    for folder in _groups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            quota, period = _quota(folder)
            if quota > 0:
                count = min(count, quota / period)
    return count


def memory_gb(root: Path = Path("/")) -> float:
    """Return the memory of the machine, or less if a limit allows less."""
    size_bytes = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        size_bytes = 1024.0 * int(next(line for line in lines if line.startswith("MemTotal:")).split()[1])
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            # The word "max" in the file means that there is no limit.
            with contextlib.suppress(OSError, ValueError):
                limit = int((folder / name).read_text())
                if 0 < limit < _UNLIMITED_BYTES:
                    size_bytes = min(size_bytes, float(limit))
    return size_bytes / _GB


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Return the directories of this process's control groups: each group before the one that contains it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            # Version 2 has one hierarchy for all controllers; version 1 has one for each controller.
            top = base
        elif controller in controllers.split(","):
            top = base / controllers
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _quota(folder: Path) -> tuple[float, float]:
    """Return the CPU time that a control group may use per period, and the period."""
    with contextlib.suppress(FileNotFoundError):
        quota, period = (folder / "cpu.max").read_text().split()
        return float(quota), float(period)
    return float((folder / "cpu.cfs_quota_us").read_text()), float((folder / "cpu.cfs_period_us").read_text())
