"""From what a user wants started to what a shim starts. Pure: everything that has to be read was read before.

A job's `launch`, its order, the node and the account come in; start.json (docs/job-directory.md) comes out. The
environment is an allow-list: what the page lists, what the job file says, and nothing else of the agent's own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from protos.gavel.v1 import limits
from worker_agent.core.messages import Order
from worker_agent.node.users import Account
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.shim.attempt_checkpoints import attempt_name
from worker_agent.shim.process_tree import boot_id

LOG_PIECES = 4  # of each log the last so many are kept
_OF_THE_MACHINE = ("PATH", "LANG", "LC_ALL", "TZ")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LaunchError(ValueError):
    """A job's `launch` cannot be right: the field, and what is wrong with it."""


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a user wants a job started: an argument vector, or lines for a shell."""

    command: tuple[str, ...] = ()
    script: str | None = None  # lines for /bin/sh, because the user asked for a shell
    setup: str | tuple[str, ...] | None = None  # once per node before the ranks; a string: lines for /bin/sh
    venv: str | None = None  # a virtual environment, put first on PATH
    workdir: str | None = None  # a path that every node sees, or within the upload
    upload: str | None = None  # the digest of a package that is unpacked for the job
    env: dict[str, str] = {}
    env_from: dict[str, str] = {}  # name -> "secret:path" on the node
    checkpoint_dir: str | None = None  # None: a directory of the agent, by job
    ranks: Literal["per_gpu", "per_node"] = "per_gpu"
    checkpoints: Literal["per_job", "per_attempt"] = (
        "per_job"  # per_attempt: each begins with a copy of the last one's
    )
    setup_limit_s: float | None = None  # after so long the setup fails; None: as the agent has it


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent has to know of an order beside the order."""

    launch: dict[str, Any]
    name: str = ""
    user: str = ""
    rank_first: int = 0  # of the ranks on this node, when each GPU has one
    gpus_total: int = 1  # over all nodes
    array_index: int | None = None
    packed: bool = False  # another job is on the same GPUs


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What every job on this node is told alike."""

    worker_type: str
    library: Path  # holds gavel.training, and nothing else of ours
    checkpoints: Path
    devices: tuple[str, ...] = ()  # by local index, as CUDA calls them; empty: GPUs are emulated
    speed: float | None = None
    log_bytes_max: int = 16_000_000  # of one piece of a log
    log_files_max: int = LOG_PIECES
    setup_limit_s: float = 0.0  # of jobs that do not say; 0: none
    environ: dict[str, str] = {}  # the agent's own, of which a few variables are passed on


def read_launch(raw: Mapping[str, Any]) -> Launch:
    """A job's `launch`, checked; LaunchError names the first field that cannot be right."""
    try:
        launch = msgspec.convert(dict(raw), Launch)
    except msgspec.ValidationError as error:
        raise LaunchError(f"launch: {error}") from None
    field, fault = limits.program_fault(launch.command, launch.script or "")
    if fault:
        raise LaunchError(f"launch.{field}: {fault}")
    _check_strings(launch)
    limit_s = launch.setup_limit_s
    if limit_s is not None and not (math.isfinite(limit_s) and limit_s > 0):
        raise LaunchError(f"launch.setup_limit_s: {limit_s} is no number of seconds above 0")
    for field in ("venv", "checkpoint_dir", *(() if launch.upload else ("workdir",))):
        path = getattr(launch, field)
        if path is not None and not path.startswith("/"):
            raise LaunchError(f"launch.{field}: {path!r} is not an absolute path")
    if launch.upload is not None:
        if not limits.is_digest(launch.upload):
            raise LaunchError(f"launch.upload: {launch.upload!r} is not of the form sha256:<64 hex digits>")
        inside = PurePosixPath(launch.workdir or ".")
        if inside.is_absolute() or ".." in inside.parts:
            raise LaunchError(f"launch.workdir: {launch.workdir!r} is not within the upload")
    return launch


def _check_strings(launch: Launch) -> None:
    for field in ("env", "env_from"):
        for name in getattr(launch, field):
            if not limits.is_variable(name):
                raise LaunchError(f"launch.{field}: {name!r} is no name of a variable")
            if limits.is_set_by_gavel(name):
                raise LaunchError(f"launch.{field}: {name} is set by Gavel")
    both = launch.env.keys() & launch.env_from.keys()
    if both:
        raise LaunchError(f"launch.env_from: {min(both)} is in env too")
    for field, value in msgspec.to_builtins(launch).items():
        if isinstance(value, float):
            continue
        texts = (
            value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value or ()
        )
        for text in texts:
            if "\0" in text:
                raise LaunchError(f"launch.{field}: holds a NUL, which no command can")
            if len(text.encode()) > limits.TEXT_BYTES_MAX:
                raise LaunchError(
                    f"launch.{field}: longer than {limits.TEXT_BYTES_MAX} bytes; put it into a file"
                )


def start_file(
    order: Order,
    details: Details,
    node: NodeFacts,
    account: Account,
    meeting: Rendezvous | None,
    *,
    run_dir: Path,
    secrets: Mapping[str, str] | None = None,
    work: Path | None = None,
    more_env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the shim starts. `work`: where the upload was unpacked; `more_env`: what sharing of GPUs wants."""
    launch = read_launch(details.launch)
    base = (
        _environment(order, details, node, account, launch, run_dir)
        | dict(secrets or {})
        | dict(more_env or {})
    )
    per_gpu = launch.ranks == "per_gpu"
    here, first, world = (
        (max(1, len(order.gpus)), details.rank_first, max(1, details.gpus_total))
        if per_gpu
        else (1, order.node_rank, order.nodes)
    )
    if first + here > world:
        raise LaunchError(f"ranks {first} to {first + here - 1} are ordered here, of {world} in all")
    met = {} if meeting is None else meeting_of(meeting, world)
    argv = list(launch.command) if launch.command else ["/bin/sh", "-c", launch.script or ""]
    ranks = [
        {
            "rank": first + local,
            "argv": argv,
            "env": base | _rank(first + local, local, here, world, order) | met,
        }
        for local in range(here)
    ]
    setup = ["/bin/sh", "-ec", launch.setup] if isinstance(launch.setup, str) else list(launch.setup or ())
    return {
        "lease": order.lease,
        "job": order.job,
        "name": details.name,
        "epoch": order.epoch,
        "attempt": order.attempt,
        "boot_id": boot_id(),
        "setup": setup if launch.setup else None,
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
        "order": msgspec.to_builtins(order),
        "spec": {"user": details.user, "packed": details.packed, "secrets": sorted(launch.env_from)},
    }


def _environment(
    order: Order, details: Details, node: NodeFacts, account: Account, launch: Launch, run_dir: Path
) -> dict[str, str]:
    """What all ranks have alike."""
    env = {name: node.environ[name] for name in _OF_THE_MACHINE if name in node.environ}
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
    theirs = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{node.library}:{theirs}" if theirs else str(node.library)
    env |= {
        "CUDA_VISIBLE_DEVICES": ",".join(node.devices[gpu] for gpu in order.gpus) if node.devices else "",
        "GAVEL_JOB_ID": order.job,
        "GAVEL_JOB_NAME": details.name,
        "GAVEL_ATTEMPT": str(order.attempt),
        "GAVEL_EPOCH": str(order.epoch),
        "GAVEL_LEASE": order.lease,
        "GAVEL_RUN_DIR": str(run_dir),
        "GAVEL_CHECKPOINT_DIR": checkpoint_directory(launch, node, order),
        "GAVEL_WORKER_TYPE": node.worker_type,
        "GAVEL_GPUS": str(details.gpus_total),
    }
    if order.steps_max is not None and math.isfinite(order.steps_max):
        env["GAVEL_STEPS"] = str(math.ceil(order.steps_max))
    if node.speed is not None:
        env["GAVEL_SPEED"] = repr(node.speed)
    if details.array_index is not None:
        env["GAVEL_ARRAY_INDEX"] = str(details.array_index)
    return env


def _rank(rank: int, local: int, here: int, world: int, order: Order) -> dict[str, str]:
    """What one rank has of its own."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(here),
        "NODE_RANK": str(order.node_rank),
    }


def meeting_of(meeting: Rendezvous, world: int) -> dict[str, str]:
    """Where ranks find each other, in the words of PyTorch and our own."""
    env = {"MASTER_ADDR": meeting.master_address, "MASTER_PORT": str(meeting.master_port)}
    if world > 1:
        env["GAVEL_COORDINATOR"] = f"{meeting.master_address}:{meeting.coordinator_port}"
    return env


def checkpoint_directory(launch: Launch, node: NodeFacts, order: Order) -> str:
    """Where an attempt finds and leaves its checkpoints: one place for all attempts, or one for each."""
    own = own_checkpoints(launch, node, order)
    return os.path.join(own["directory"], own["name"]) if own else _checkpoints_of_job(launch, node, order)


def own_checkpoints(launch: Launch, node: NodeFacts, order: Order) -> dict[str, str] | None:
    """What the shim has to make first, where each attempt has a directory of its own."""
    if launch.checkpoints == "per_job":
        return None
    name = attempt_name(order.epoch, int(order.lease) if order.lease.isdecimal() else order.attempt)
    return {"directory": _checkpoints_of_job(launch, node, order), "name": name}


def _checkpoints_of_job(launch: Launch, node: NodeFacts, order: Order) -> str:
    from worker_agent.shim.run_directory import directory_name

    return launch.checkpoint_dir or str(node.checkpoints / directory_name(order.job))
