"""`python -m worker_agent.shim.container_removal RUN_DIR`: kill and remove the containers of a run, as the job's user.

For runtimes whose containers are no descendants of the shim. The program tries again until the runtime confirms that
none is left. The shim runs it before it writes exit.json; if the shim was killed, the agent runs it. Standard library
only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping

from worker_agent.shim import container_commands as commands
from worker_agent.shim import run_directory
from worker_agent.shim.child import drop_to
from worker_agent.shim.run_directory import RunDirectory

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# How long one command of the runtime may take, and the pause after a failure.
_LIMIT_S, _PAUSE_S = 60.0, 1.0


def start_removal(run_directory: str, stderr: int) -> subprocess.Popen[bytes]:
    """Start this program, which ends with 0 when no container of the run is left."""
    return subprocess.Popen(
        [sys.executable, "-S", "-m", "worker_agent.shim.container_removal", run_directory],
        env={"PYTHONPATH": str(_ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        cwd="/",
    )


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


def main(path: str) -> None:
    """Remove the containers of the run in this directory."""
    with RunDirectory(path) as run:
        start = run.read(run_directory.START, owner=os.geteuid())
    container = (start or {}).get("container")
    if start is None or not container or container["runtime"] not in commands.DETACHED:
        return
    env = start["ranks"][0]["env"]
    drop_to(start["uid"], start["gid"], start["groups"])
    os.chdir("/")
    while not remove_all(container["program"], container["run"], env):
        pass


if __name__ == "__main__":
    main(sys.argv[1])
