"""From an order to start.json (docs/job-directory.md), which tells the shim what to start. Pure: it reads no files.

The scheduler has checked the launch; what stands here is what protects this node: paths and ranks. The environment of a
rank is an allow-list: what the page lists and what the job file says, and nothing else of the agent's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from worker_agent.core.messages import Launch, Order
from worker_agent.node.users import Account
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.shim.attempt_checkpoints import attempt_name
from worker_agent.shim.process_tree import boot_id
from worker_agent.shim.run_directory import directory_name

# How many pieces of each log are kept.
LOG_PIECES = 4
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LaunchError(ValueError):
    """A job that this node cannot start: the field at fault, and what is wrong with it."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of this node that are the same for every job."""

    worker_type: str
    # Holds gavel.training, and nothing else of Gavel.
    library: Path
    checkpoints: Path
    # By local index, in CUDA's words; empty where GPUs are emulated.
    devices: tuple[str, ...] = ()
    speed: float | None = None
    # Of one piece of a log.
    log_bytes_max: int = 16_000_000
    log_files_max: int = LOG_PIECES
    # For jobs that give no limit of their own; 0: none.
    setup_limit_s: float = 0.0
    # The agent's own environment, of which a few variables are passed on.
    environ: dict[str, str] = {}


def launch_of(order: Order) -> Launch:
    """Return how to start the job of an order; LaunchError where a path would depend on where the agent runs."""
    launch = order.launch
    if launch is None or not (launch.command or launch.script):
        raise LaunchError("launch.command: is missing")
    for field in ("venv", "checkpoint_dir", *(() if launch.upload else ("workdir",))):
        path = getattr(launch, field)
        if path and not path.startswith("/"):
            raise LaunchError(f"launch.{field}: {path!r} is not an absolute path")
    inside = PurePosixPath(launch.workdir)
    if launch.upload and (inside.is_absolute() or ".." in inside.parts):
        raise LaunchError(f"launch.workdir: {launch.workdir!r} is not within the upload")
    return launch


def start_file(
    order: Order,
    launch: Launch,
    node: NodeFacts,
    account: Account,
    meeting: Rendezvous | None,
    *,
    run_dir: Path,
    secrets: Mapping[str, str] | None = None,
    work: Path | None = None,
    more_env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return start.json. `work`: the unpacked upload; `more_env`: variables for sharing GPUs."""
    base = _environment(order, launch, node, account, run_dir) | dict(secrets or {}) | dict(more_env or {})
    per_gpu = launch.ranks == "per_gpu"
    here, first, world = (
        (max(1, len(order.gpus)), order.rank_first, max(1, order.world_size))
        if per_gpu
        else (1, order.node_rank, order.nodes)
    )
    if first + here > world:
        raise LaunchError(f"ranks {first} to {first + here - 1} are ordered here, of {world} in all")
    met = {} if meeting is None else meeting_of(meeting, world)
    argv = list(launch.command) if launch.command else ["/bin/sh", "-c", launch.script]
    ranks = [
        {
            "rank": first + local,
            "argv": argv,
            "env": base | _rank(first + local, local, here, world, order) | met,
        }
        for local in range(here)
    ]
    return {
        "lease": order.lease,
        "job": order.job,
        "name": order.name,
        "epoch": order.epoch,
        "attempt": order.attempt,
        "boot_id": boot_id(),
        "setup": ["/bin/sh", "-ec", launch.setup] if launch.setup else None,
        "setup_limit_s": launch.setup_limit_s or node.setup_limit_s or None,
        "own_checkpoints": own_checkpoints(launch, node, order),
        "ranks": ranks,
        "cwd": str(work / (launch.workdir or ".") if work else launch.workdir or account.home),
        "uid": account.uid,
        "gid": account.gid,
        "groups": list(account.groups),
        "log_bytes_max": node.log_bytes_max,
        "log_files_max": node.log_files_max,
        "gathers": meeting is None,
        "order": order.record(),
        "spec": {"user": order.user, "packed": order.packed, "secrets": sorted(launch.env_from)},
    }


def _environment(
    order: Order, launch: Launch, node: NodeFacts, account: Account, run_dir: Path
) -> dict[str, str]:
    """Return the variables that are the same for all ranks."""
    env = {name: node.environ[name] for name in _PASSED_ON if name in node.environ}
    env.setdefault("PATH", _PATH)
    if account.uid is None and "TMPDIR" in node.environ:
        env["TMPDIR"] = node.environ["TMPDIR"]
    env |= {
        "HOME": str(account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.login_shell,
        # Python's output must be in the log as it is printed, and all of it when the job is killed.
        "PYTHONUNBUFFERED": "1",
    }
    env |= launch.env
    if launch.venv:
        env["VIRTUAL_ENV"] = launch.venv
        env["PATH"] = f"{launch.venv}/bin:{env['PATH']}"
    of_job = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{node.library}:{of_job}" if of_job else str(node.library)
    env |= {
        "CUDA_VISIBLE_DEVICES": ",".join(node.devices[gpu] for gpu in order.gpus) if node.devices else "",
        "GAVEL_JOB_ID": order.job,
        "GAVEL_JOB_NAME": order.name,
        "GAVEL_ATTEMPT": str(order.attempt),
        "GAVEL_EPOCH": str(order.epoch),
        "GAVEL_LEASE": order.lease,
        "GAVEL_RUN_DIR": str(run_dir),
        "GAVEL_CHECKPOINT_DIR": checkpoint_directory(launch, node, order),
        "GAVEL_WORKER_TYPE": node.worker_type,
        "GAVEL_GPUS": str(order.world_size),
    }
    if order.steps_max is not None and math.isfinite(order.steps_max):
        env["GAVEL_STEPS"] = str(math.ceil(order.steps_max))
    if node.speed is not None:
        env["GAVEL_SPEED"] = repr(node.speed)
    if order.array_index is not None:
        env["GAVEL_ARRAY_INDEX"] = str(order.array_index)
    return env


def _rank(rank: int, local: int, here: int, world: int, order: Order) -> dict[str, str]:
    """Return the variables that differ between ranks."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(here),
        "NODE_RANK": str(order.node_rank),
    }


def meeting_of(meeting: Rendezvous, world: int) -> dict[str, str]:
    """Return the variables by which ranks find each other: PyTorch's, and one of our own."""
    env = {"MASTER_ADDR": meeting.master_address, "MASTER_PORT": str(meeting.master_port)}
    if world > 1:
        env["GAVEL_COORDINATOR"] = f"{meeting.master_address}:{meeting.coordinator_port}"
    return env


def checkpoint_directory(launch: Launch, node: NodeFacts, order: Order) -> str:
    """Return where an attempt finds and leaves its checkpoints: one place for all attempts, or one for each."""
    own = own_checkpoints(launch, node, order)
    return os.path.join(own["directory"], own["name"]) if own else _checkpoints_of_job(launch, node, order)


def own_checkpoints(launch: Launch, node: NodeFacts, order: Order) -> dict[str, str] | None:
    """Return the directory that the shim has to make first, where each attempt has one of its own."""
    if launch.checkpoints == "per_job":
        return None
    name = attempt_name(order.epoch, int(order.lease) if order.lease.isdecimal() else order.attempt)
    return {"directory": _checkpoints_of_job(launch, node, order), "name": name}


def _checkpoints_of_job(launch: Launch, node: NodeFacts, order: Order) -> str:
    return launch.checkpoint_dir or str(node.checkpoints / directory_name(order.job))
