"""`python -m worker_agent.shim.container_removal`: kill and remove the containers of a run, as the job's user.

For runtimes whose containers are no descendants of the shim. The program gets the content of start.json as its input,
because the job may have removed the file. It tries again until the runtime confirms that no container is left. The shim
runs it before it writes exit.json; if the shim was killed, the agent runs it. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from worker_agent.shim import container_commands as commands
from worker_agent.shim.child import drop_to

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# How long one command of the runtime may take, and the pause after a failure.
_LIMIT_S, _PAUSE_S = 60.0, 1.0


def needed_for_removal(start: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of start.json that this program needs; nothing if the run has no containers to remove."""
    container = start.get("container") or {}
    if container.get("runtime") not in commands.DETACHED:
        return {}
    return {
        "container": {key: container[key] for key in ("runtime", "program", "run")},
        "ranks": [{"env": start["ranks"][0]["env"]}],
        **{key: start[key] for key in ("uid", "gid", "groups")},
    }


def start_removal(start: Mapping[str, Any], stderr: int) -> subprocess.Popen[bytes]:
    """Start this program, which ends with 0 when no container of the run is left. `start`: as in start.json."""
    # A pipe could be too small for the environment of the job.
    content = os.memfd_create("start.json")
    try:
        os.write(content, json.dumps(start).encode())
        os.lseek(content, 0, os.SEEK_SET)
        return subprocess.Popen(
            [sys.executable, "-S", "-m", "worker_agent.shim.container_removal"],
            env={"PYTHONPATH": str(_ROOT)},
            stdin=content,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/",
        )
    finally:
        os.close(content)


def remove_all(program: str, run: str, env: Mapping[str, str]) -> bool:
    """Kill and remove the containers of a run; return whether none was left, or print why that is unknown."""
    try:
        ids = _output(commands.list_containers(program, run), env).split()
        if ids:
            _output(commands.remove_containers(program, ids), env)
        return not ids
    except subprocess.CalledProcessError as error:
        _warn(error.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        _warn(str(error))
    time.sleep(_PAUSE_S)
    return False


def _output(command: list[str], env: Mapping[str, str]) -> str:
    result = subprocess.run(
        command, env=env, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=True
    )
    return result.stdout


def _warn(trouble: str) -> None:
    last_line = (trouble.strip().splitlines() or ["no reason given"])[-1]
    sys.stderr.write(f"[gavel: the containers of this run cannot be removed yet: {last_line[:500]}]\n")
    sys.stderr.flush()


def main(start: Mapping[str, Any]) -> None:
    """Remove the containers of a run."""
    container = start["container"]
    if container["runtime"] not in commands.DETACHED:
        return
    env = start["ranks"][0]["env"]
    drop_to(start["uid"], start["gid"], start["groups"])
    os.chdir("/")
    while not remove_all(container["program"], container["run"], env):
        pass


if __name__ == "__main__":
    main(json.load(sys.stdin))
