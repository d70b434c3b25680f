"""Turn an order into the content of start.json (docs/job-directory.md). Pure: nothing is read from the disk.

The scheduler has checked the launch; the checks of paths and ranks here protect this node. A rank's environment has
only the variables that docs/job-directory.md lists and those of the job file. No other variable of the agent reaches a
job.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from worker_agent.core.messages import Launch, Order
from worker_agent.node.users import Account
from worker_agent.runs.container import INSIDE_ONLY, container_entry
from worker_agent.runs.cpu_shares import loader_workers
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.shim.attempt_checkpoints import attempt_name
from worker_agent.shim.process_tree import boot_id
from worker_agent.shim.run_directory import directory_name

# The file with the plan of a lease.
PLAN = "plan.json"
# How many pieces of each log are kept (log_pump.py).
LOG_PIECES = 4
# Variables of the agent's environment that jobs receive.
_PASSED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ")
# Used if the agent has no PATH itself.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LaunchError(ValueError):
    """This node cannot start the job; the message names the wrong field and the fault."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of this node that are the same for every job."""

    worker_type: str
    # The directory with gavel.training for jobs (node/job_library.py).
    library: Path
    checkpoints: Path
    # The names of the GPUs for CUDA_VISIBLE_DEVICES, by local index; empty if the GPUs are emulated.
    devices: tuple[str, ...] = ()
    # The speed of declared GPUs, by which jobs on emulated GPUs pace their steps; None for detected GPUs.
    speed: float | None = None
    # The CPUs and the number of GPUs of the node, for fair shares. If the CPUs are not known, jobs get no GAVEL_CPUS.
    cpus: float = 0.0
    gpus: int = 0
    # The size of one piece of a log, and how many pieces are kept.
    log_bytes_max: int = 16_000_000
    log_files_max: int = LOG_PIECES
    # The limit for the setup of jobs that have none of their own; 0: no limit.
    setup_limit_s: float = 0.0
    # Whether jobs may have terminals, and how long they continue without a client if they do not say.
    terminals: bool = True
    terminal_keep_s: float = 600.0
    # The agent's own environment.
    environ: dict[str, str] = {}
    # The settings of containers, and the directory of fetched images.
    container_runtime: str = ""
    container_mounts: str = "/"
    images: Path = Path("/")


def launch_of(order: Order) -> Launch:
    """Return the launch of an order; raise LaunchError if it has no command or a path that is not allowed."""
    launch = order.launch
    if launch is None or not (launch.command or launch.script):
        raise LaunchError("launch.command is missing")
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
    rendezvous: Rendezvous | None,
    *,
    run_dir: Path,
    secrets: Mapping[str, str] | None = None,
    work: Path | None = None,
    node_env: Mapping[str, str] | None = None,
    runtimes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the content of start.json.

    `rendezvous`: None for a part of a gang, which gets it with go.json. `work`: the unpacked upload. `node_env`:
    variables for sharing GPUs and for the node's cache; directories among them exist in containers, too. `runtimes`:
    the programs of the container runtimes on this node.
    """
    base = _environment(order, launch, node, account, run_dir) | dict(secrets or {}) | dict(node_env or {})
    return {
        "lease": order.lease,
        "job": order.job,
        "name": order.name,
        "epoch": order.epoch,
        "attempt": order.attempt,
        "boot_id": boot_id(),
        "terminal": _terminal(launch, node, order),
        # An image need not have the shell of the user.
        "login_shell": ["/bin/sh" if launch.container else account.login_shell],
        "setup": ["/bin/sh", "-ec", launch.setup] if launch.setup else None,
        "setup_limit_s": launch.setup_limit_s or node.setup_limit_s or None,
        "own_checkpoints": own_checkpoints(launch, node, order),
        "ranks": _ranks(order, launch, base, rendezvous),
        "cwd": _work_directory(launch, account, run_dir, work),
        "container": _container(order, launch, node, account, run_dir, node_env or {}, runtimes or {}),
        "uid": account.uid,
        "gid": account.gid,
        "groups": list(account.groups),
        "log_bytes_max": node.log_bytes_max,
        "log_files_max": node.log_files_max,
        "gathers": rendezvous is None,
        "order": order.record(),
        # Without an upload, outputs stay in the work directory of the user.
        "outputs": list(launch.outputs) if work else [],
        "spec": {"user": order.user, "packed": order.packed, "secrets": sorted(launch.env_from)},
    }


def _ranks(
    order: Order, launch: Launch, base: Mapping[str, str], rendezvous: Rendezvous | None
) -> list[dict[str, Any]]:
    """Return the ranks on this node. `base`: the variables of all ranks."""
    if launch.ranks == "per_gpu":
        first, count, world = order.rank_first, max(1, len(order.gpus)), max(1, order.world_size)
    else:
        first, count, world = order.node_rank, 1, order.nodes
    if first + count > world:
        raise LaunchError(
            f"the order is for ranks {first} to {first + count - 1}, but the job has {world} ranks"
        )
    rendezvous_env = {} if rendezvous is None else rendezvous_environment(rendezvous, order)
    argv = list(launch.command) if launch.command else ["/bin/sh", "-c", launch.script]
    return [
        {
            "rank": first + local,
            "argv": argv,
            "env": {**base, **_rank_environment(first + local, local, count, world, order), **rendezvous_env},
        }
        for local in range(count)
    ]


def _terminal(launch: Launch, node: NodeFacts, order: Order) -> dict[str, Any] | None:
    """Return the terminal of an interactive job; None for other jobs."""
    if launch.terminal is None:
        return None
    if not node.terminals:
        raise LaunchError("terminals are off on this node (`terminals` in the settings of its agent)")
    if order.nodes > 1:
        raise LaunchError(
            f"an interactive job needs GPUs of one node, and got some of {order.nodes}: ask for fewer, or name a node "
            "with enough free ones (--node)"
        )
    keep_s = node.terminal_keep_s if launch.terminal.keep_s is None else launch.terminal.keep_s
    return msgspec.structs.asdict(launch.terminal) | {"keep_s": keep_s}


def _work_directory(launch: Launch, account: Account, run_dir: Path, work: Path | None) -> str:
    if work:
        return str(work / (launch.workdir or "."))
    # The home directory of the user is not in containers.
    return launch.workdir or str(run_dir if launch.container else account.home)


def _container(
    order: Order,
    launch: Launch,
    node: NodeFacts,
    account: Account,
    run_dir: Path,
    node_env: Mapping[str, str],
    runtimes: Mapping[str, str],
) -> dict[str, Any] | None:
    if launch.container is None:
        return None
    chosen = {"workdir": "" if launch.upload else launch.workdir, "checkpoint_dir": launch.checkpoint_dir}
    # The parents of the directories of this run and job: the same for all, as not every image can take new paths.
    own = [
        str(run_dir.parent),
        *node_env.values(),
        *([] if launch.checkpoint_dir else [str(node.checkpoints)]),
    ]
    return container_entry(
        launch.container,
        programs=runtimes,
        default_runtime=node.container_runtime,
        allowed=node.container_mounts,
        own=[path for path in own if path.startswith("/")],
        chosen={field: path for field, path in chosen.items() if path},
        env=launch.env,
        library=str(node.library),
        gpus=_devices(node, order),
        store=str(image_store(node, account)),
        run=str(run_dir),
    )


def image_store(node: NodeFacts, account: Account) -> Path:
    """Return the directory for the images that the jobs of a user fetch."""
    return node.images / directory_name(account.name)


def _devices(node: NodeFacts, order: Order) -> list[str]:
    return [node.devices[gpu] for gpu in order.gpus] if node.devices else []


def _environment(
    order: Order, launch: Launch, node: NodeFacts, account: Account, run_dir: Path
) -> dict[str, str]:
    """Return the variables that are the same for all ranks."""
    env = {name: node.environ[name] for name in _PASSED_VARIABLES if name in node.environ}
    env.setdefault("PATH", _PATH)
    if account.uid is None and "TMPDIR" in node.environ:
        env["TMPDIR"] = node.environ["TMPDIR"]
    env |= {
        "HOME": str(account.home),
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.login_shell,
        # Python's output must reach the log immediately, so that none is lost when the job is killed.
        "PYTHONUNBUFFERED": "1",
    }
    only_inside = INSIDE_ONLY if launch.container else ()
    env |= {name: value for name, value in launch.env.items() if name not in only_inside}
    if launch.venv:
        env["VIRTUAL_ENV"] = launch.venv
        env["PATH"] = f"{launch.venv}/bin:{env['PATH']}"
    job_path = env.get("PYTHONPATH")
    env["PYTHONPATH"] = f"{node.library}:{job_path}" if job_path else str(node.library)
    env |= {
        "CUDA_VISIBLE_DEVICES": ",".join(_devices(node, order)),
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
    if node.cpus:
        env["GAVEL_CPUS"] = str(loader_workers(order, cpus=node.cpus, gpus=node.gpus))
    if order.plan:
        env["GAVEL_PLAN"] = str(run_dir / PLAN)
    return env


def _rank_environment(rank: int, local: int, count: int, world: int, order: Order) -> dict[str, str]:
    """Return the variables that differ between ranks."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(count),
        "NODE_RANK": str(order.node_rank),
    }


def rendezvous_environment(rendezvous: Rendezvous, order: Order) -> dict[str, str]:
    """Return the variables by which ranks find each other: those of PyTorch, of `gavel.training` and of torchrun."""
    address = rendezvous.master_address
    env = {"MASTER_ADDR": address, "MASTER_PORT": str(rendezvous.master_port)}
    if order.world_size > 1:
        env["GAVEL_COORDINATOR"] = f"{address}:{rendezvous.coordinator_port}"
    env |= _cache_environment(rendezvous, order)
    launch = order.launch
    if launch is not None and launch.ranks == "per_node":
        env |= {name: value for name, value in _torchrun(rendezvous, order).items() if name not in launch.env}
    return env


def _cache_environment(rendezvous: Rendezvous, order: Order) -> dict[str, str]:
    """Return the variables by which the nodes of a gang find the caches of each other."""
    if order.node_rank >= len(rendezvous.cache_nodes):
        return {}
    nodes = [
        (node.name, node.address, node.port) for node in rendezvous.cache_nodes if node.port and node.address
    ]
    own = rendezvous.cache_nodes[order.node_rank].name
    return {
        "GAVEL_CACHE_NODES": json.dumps({"own": own, "nodes": nodes}),
        "GAVEL_CACHE_SECRET": rendezvous.cache_secret,
    }


def _torchrun(rendezvous: Rendezvous, order: Order) -> dict[str, str]:
    """Return the defaults of torchrun's options, with which it runs one training over all GPUs of the job."""
    return {
        "PET_NNODES": str(order.nodes),
        "PET_NODE_RANK": str(order.node_rank),
        "PET_NPROC_PER_NODE": str(max(1, len(order.gpus))),
        "PET_MASTER_ADDR": rendezvous.master_address,
        "PET_MASTER_PORT": str(rendezvous.master_port),
    }


def checkpoint_directory(launch: Launch, node: NodeFacts, order: Order) -> str:
    """Return GAVEL_CHECKPOINT_DIR of an attempt: the directory of the job, or of the attempt below it."""
    own = own_checkpoints(launch, node, order)
    return os.path.join(own["directory"], own["name"]) if own else _checkpoints_of_job(launch, node, order)


def own_checkpoints(launch: Launch, node: NodeFacts, order: Order) -> dict[str, str] | None:
    """Return the directory that the shim must make for this attempt; None if all attempts share one."""
    if launch.checkpoints == "per_job":
        return None
    name = attempt_name(order.epoch, int(order.lease) if order.lease.isdecimal() else order.attempt)
    return {"directory": _checkpoints_of_job(launch, node, order), "name": name}


def _checkpoints_of_job(launch: Launch, node: NodeFacts, order: Order) -> str:
    return launch.checkpoint_dir or str(node.checkpoints / directory_name(order.job))
