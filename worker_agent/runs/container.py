"""Turn the container of a launch into its entry of start.json. Pure: nothing is read from the disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from protos.gavel.v1 import limits
from worker_agent.core.messages import Container
from worker_agent.shim import container_commands as commands


class ContainerError(ValueError):
    """This node cannot run the container of a job; the message names the wrong field and the fault."""


# Variables of a job's `env` that only the inside gets, because the runtime needs those of the node.
INSIDE_ONLY = ("PATH", "HOME")


def container_entry(
    container: Container,
    *,
    programs: Mapping[str, str],
    default_runtime: str,
    allowed: str,
    own: Collection[str],
    chosen: Mapping[str, str],
    env: Mapping[str, str],
    library: str,
    gpus: Collection[str],
    store: str,
    run: str,
) -> dict[str, Any]:
    """Return the entry; raise ContainerError if this node cannot run the container.

    `programs`: the programs of the installed runtimes. `allowed`: the setting container_mounts. `own`: directories of
    Gavel, which are mounted under the same paths; `chosen`: those that the job chose, by field. `env`: the `env` of the
    job. `store`: the directory of fetched images. `run`: the run directory.
    """
    runtime = _runtime(container, programs, default_runtime)
    for field, path in chosen.items():
        if not limits.is_mountable(path):
            raise ContainerError(
                f"{field}: {path} cannot be mounted in a container because of its ':', ',' or '\"'"
            )
    inside = {name: env[name] for name in INSIDE_ONLY if name in env} | container.env
    if "PYTHONPATH" in inside:
        inside["PYTHONPATH"] = f"{library}:{inside['PYTHONPATH']}"
    mounts = [limits.Mount(path, path) for path in chosen.values()]
    return {
        "runtime": runtime,
        "program": programs[runtime],
        "image": container.image,
        "own": [library, *own],
        "mounts": [*mounts, *map(limits.mount_of, container.mounts)],
        "allowed": [folder for folder in allowed.split(":") if folder],
        "env": inside,
        "gpus": list(gpus),
        "store": store,
        "run": run,
    }


def _runtime(container: Container, programs: Mapping[str, str], default: str) -> str:
    """Return the job's runtime, or the node's default, or the first installed one that can run the image."""
    image, wanted = container.image, container.runtime or default
    candidates = [wanted] if wanted else [name for name in limits.CONTAINER_RUNTIMES if name in programs]
    able = [name for name in candidates if commands.can_run(name, image)]
    if wanted and wanted not in programs:
        raise ContainerError(
            f"container.runtime: {wanted} is not installed on this node{_there_are(programs)}"
        )
    if not candidates:
        names = ", ".join(limits.CONTAINER_RUNTIMES)
        raise ContainerError(
            f"container: no container runtime is installed on this node; install one of {names}"
        )
    if not able:
        others = " or ".join(name for name in limits.CONTAINER_RUNTIMES if commands.can_run(name, image))
        raise ContainerError(
            f"container.image: {' and '.join(candidates)} cannot run {image}: it needs {others}"
        )
    return able[0]


def _there_are(programs: Collection[str]) -> str:
    return f"; there are {', '.join(sorted(programs))}" if programs else ""
