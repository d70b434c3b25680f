"""The variables that the agent sets for this process (docs/job-directory.md).

They are read once, checked, and then passed on as plain values. Without `GAVEL_RUN_DIR` the process is outside Gavel.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gavel.training.errors import EnvironmentFault

# The largest whole number that every JSON reader keeps exact.
STEPS_MAX = 2**53


@dataclass(frozen=True)
class Run:
    """One lease, from the point of view of one of its ranks."""

    run_dir: Path
    job: str
    lease: str
    # The epoch of the scheduler.
    epoch: int
    attempt: int
    rank: int
    # The number of ranks.
    world: int
    # The total number of steps of the job, if it is set.
    steps: int | None
    # The host and port at which rank 0 listens for the other ranks; None for a single rank.
    coordinator: tuple[str, int] | None


@dataclass(frozen=True)
class CacheNodes:
    """The nodes of a gang that keep items of its data sets, and the secret by which they know each other."""

    # The name of this node, which may keep none.
    own: str
    # By name: the host and port at which a node answers.
    addresses: dict[str, tuple[str, int]]
    secret: bytes


def run_of(env: Mapping[str, str] = os.environ) -> Run | None:
    """Return the lease of this process, or None outside Gavel."""
    if not env.get("GAVEL_RUN_DIR"):
        return None
    rank, world = ranks_of(env)
    return Run(
        run_dir=Path(env["GAVEL_RUN_DIR"]),
        job=env.get("GAVEL_JOB_ID", ""),
        lease=env.get("GAVEL_LEASE", ""),
        epoch=_whole_number(env, "GAVEL_EPOCH", 0),
        attempt=_whole_number(env, "GAVEL_ATTEMPT", 0),
        rank=rank,
        world=world,
        steps=steps_of(env),
        coordinator=_address(env) if world > 1 else None,
    )


def ranks_of(env: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, under Gavel or any other launcher."""
    rank, world = _whole_number(env, "RANK", 0), _whole_number(env, "WORLD_SIZE", 1)
    if not 0 <= rank < max(world, 1):
        raise EnvironmentFault(
            f"RANK is {rank}, WORLD_SIZE is {world}: expected a rank from 0 to WORLD_SIZE - 1"
        )
    return rank, max(world, 1)


def steps_of(env: Mapping[str, str] = os.environ) -> int | None:
    """Return the job's total number of steps (`GAVEL_STEPS`), or None if it is not set."""
    return _whole_number(env, "GAVEL_STEPS", 0) if env.get("GAVEL_STEPS") else None


def speed_of(env: Mapping[str, str] = os.environ) -> float:
    """Return the speed of an emulated GPU (`GAVEL_SPEED`); 1 if it is not set."""
    text = env.get("GAVEL_SPEED") or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise EnvironmentFault(f"GAVEL_SPEED is '{text}': expected a number above 0, such as 0.5")
    return speed


def processes_of_rank(env: Mapping[str, str] = os.environ) -> int:
    """Return how many processes share a rank of Gavel: those that torchrun has started on this node, else 1."""
    return max(_whole_number(env, "LOCAL_WORLD_SIZE", 1), 1) if env.get("TORCHELASTIC_RUN_ID") else 1


def cpus(env: Mapping[str, str] = os.environ) -> int:
    """Return how many loader workers this rank should have: `DataLoader(data, num_workers=gavel.training.cpus())`.

    Under Gavel: the rank's fair share of the node's CPUs, or more if the job or others of its type were seen to wait
    for data. Elsewhere: the CPUs on which this process may run.
    """
    workers = _whole_number(env, "GAVEL_CPUS", 0) or available_cpus()
    return max(1, -(-workers // processes_of_rank(env)))


def available_cpus() -> int:
    """Return the number of CPUs on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_nodes_of(env: Mapping[str, str] = os.environ) -> CacheNodes | None:
    """Return the nodes that share their caches in this job; None if there is only this one."""
    text = env.get("GAVEL_CACHE_NODES")
    if not text:
        return None
    try:
        fields = json.loads(text)
        addresses = {str(name): (str(host), int(port)) for name, host, port in fields["nodes"]}
        return CacheNodes(str(fields["own"]), addresses, bytes.fromhex(env["GAVEL_CACHE_SECRET"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        example = '{"own": "n1", "nodes": [["n1", "10.0.0.5", 29401]]}'
        raise EnvironmentFault(
            f"GAVEL_CACHE_NODES is '{text}': expected nodes such as {example}, and a GAVEL_CACHE_SECRET"
        ) from None


def _whole_number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= value <= STEPS_MAX:
        raise EnvironmentFault(f"{name} is '{text}': expected a whole number, such as 100")
    return value


def _address(env: Mapping[str, str]) -> tuple[str, int] | None:
    text = env.get("GAVEL_COORDINATOR", "")
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise EnvironmentFault(f"GAVEL_COORDINATOR is '{text}': expected host:port, such as 10.0.0.5:29400")
    return host.strip("[]"), int(port)
