"""The container runtimes of this node: which are installed, and whether they work.

A trial runs `true` in an image that needs no registry: empty folders over which the /usr of this machine is mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from worker_agent.shim.container_commands import PROGRAMS, Container, Mount, command_line

# How long a runtime may take to answer.
_LIMIT_S = 60.0
# Folders of every Linux system that are mounted in the trial's image, and those that runtimes mount themselves.
_OF_THE_MACHINE = ("usr", "bin", "lib", "lib64")
_EMPTY = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var/tmp")


class Trial(NamedTuple):
    """The result of trying a runtime. `trouble`: the last line of its error; empty if it works."""

    runtime: str
    version: str
    trouble: str
    # Whether a command ran in a container, rather than only the runtime itself.
    ran: bool


def installed(path: str | None = None) -> dict[str, str]:
    """Return the paths of the programs of the installed runtimes. `path`: the search path; None: our own."""
    programs = {name: shutil.which(program, path=path) for name, program in PROGRAMS.items()}
    return {name: program for name, program in programs.items() if program}


def try_runtime(runtime: str, program: str) -> Trial:
    """Ask a runtime for its version, and run `true` in a container, as the current user."""
    version = _run([program, "--version"])
    first_line = (version.stdout + version.stderr).strip().partition("\n")[0]
    if runtime == "docker":
        # Docker has images of registries only, and pulling one is not for a check to decide.
        answer = _run([program, "version", "--format", "{{.Server.Version}}"])
    else:
        with tempfile.TemporaryDirectory(prefix="gavel-container-") as folder:
            answer = _run(*_trial(runtime, program, Path(folder)))
    lines = answer.stderr.strip().splitlines()
    trouble = "" if answer.returncode == 0 else lines[-1] if lines else f"exit code {answer.returncode}"
    return Trial(runtime, first_line, trouble, ran=runtime != "docker")


def _trial(runtime: str, program: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Make an image from the folders of this machine, and return the command that runs `true` in it."""
    image, home = folder / "image", folder / "home"
    for name in _EMPTY:
        (image / name).mkdir(parents=True)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (image / "etc" / name).touch()
    mounts = []
    for name in _OF_THE_MACHINE:
        path = Path("/", name)
        if path.is_symlink():
            (image / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            (image / name).mkdir()
            mounts.append(Mount(str(path), str(path), is_read_only=runtime != "charliecloud"))
    home.mkdir()
    container = Container(
        runtime=runtime,
        program=program,
        image=str(image),
        mounts=tuple(mounts),
        env={},
        image_env={},
        gpus=(),
        home=str(home),
        workdir="/",
        run=str(folder),
        uid=os.getuid(),
        gid=os.getgid(),
    )
    return command_line(container, ["true"], {"USER": "user", **os.environ})


def _run(command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=env or {"USER": "user", **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
