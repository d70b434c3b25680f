"""The CPUs and the memory of a node: its machine's, or what the limits of its container allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_agent.node import host


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Return a machine of 16 GB with these control groups."""
    for name, text in {
        "proc/self/cgroup": cgroup,
        "proc/meminfo": "MemTotal: 15625000 kB\n",
        **files,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_machine_without_limits_offers_all_it_has(tmp_path: Path) -> None:
    """The node offers all of its memory and CPUs."""
    root = machine(
        tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    )
    assert host.memory_gb(root) == 16.0
    assert host.cpus(root) >= 1


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (
            "0::/a/b\n",
            {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000", "a/b/memory.max": "4000000000"},
        ),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n",
            {
                "memory/a/memory.limit_in_bytes": "4000000000",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
                "cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
        ),
    ],
)
def test_a_container_offers_only_its_limits(tmp_path: Path, cgroup: str, files: dict[str, str]) -> None:
    """The lowest limit of the group and its parents counts, in either version of control groups."""
    root = machine(tmp_path, cgroup, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert host.memory_gb(root) == 4.0
    assert host.cpus(root) == 0.5
