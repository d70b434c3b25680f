"""A run directory like the agent's (docs/job-directory.md), and processes that run as ranks of its job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gavel.training import session
from gavel.training.environment import run_of

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 3600.0


class RunDirectory:
    """`STATE/runs/LEASE` of one lease on one node."""

    def __init__(self, path: Path, *, epoch: int = 3, attempt: int = 2) -> None:
        self.path, self.epoch, self.attempt = path, epoch, attempt
        path.mkdir(parents=True, exist_ok=True)
        self.write_lease(ask_in_s=LONG_S)

    def write_lease(self, ask_in_s: float, signal_after_s: float = 20.0, kill_after_s: float = 5.0) -> None:
        """Write the lease: in how many seconds the job is asked to save, and how long after that it is ended."""
        ask_s = time.monotonic() + ask_in_s
        fields = {
            "lease": "17",
            "epoch": self.epoch,
            "attempt": self.attempt,
            "ask_s": ask_s,
            "signal_s": ask_s + signal_after_s,
            "kill_s": ask_s + signal_after_s + kill_after_s,
            "why": "",
        }
        aside = self.path / "lease.json.new"
        aside.write_text(json.dumps(fields))
        os.replace(aside, self.path / "lease.json")

    def progress(self, rank: int = 0) -> dict[str, Any]:
        """Return the progress of a rank; empty before its first report."""
        try:
            return json.loads((self.path / f"progress-{rank}.json").read_text())
        except FileNotFoundError:
            return {}

    def environ(self, rank: int = 0, world: int = 1, **more: object) -> dict[str, str]:
        """Return the variables that Gavel and PyTorch set."""
        variables = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world,
            "GAVEL_JOB_ID": "12",
            "GAVEL_LEASE": self.attempt,
            "GAVEL_EPOCH": self.epoch,
            "GAVEL_ATTEMPT": self.attempt,
            "GAVEL_RUN_DIR": self.path,
            **more,
        }
        return {name: str(value) for name, value in variables.items()}


@contextmanager
def under_a_lease(environ: dict[str, str]) -> Iterator[session.Session]:
    """Make this process a rank under a lease within the block."""
    run = run_of(environ)
    assert run is not None
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    own_session = session.current()
    assert own_session is not None
    assert own_session.run == run
    try:
        yield own_session
    finally:
        own_session.close()
        session._session = None
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def eventually(condition: Callable[[], Any], within_s: float = 120.0) -> Any:
    """Wait until the condition holds and return its value; fail the test if it does not in time."""
    until_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < until_s, "the condition does not hold"
        time.sleep(0.005)
    return value


def job_path(directory: Path) -> str:
    """Return a PYTHONPATH like that of jobs, with `gavel/__init__.py` and `gavel/training` only."""
    package = directory / "only" / "gavel"
    if not package.exists():
        package.mkdir(parents=True)
        (package / "__init__.py").symlink_to(ROOT / "gavel" / "__init__.py")
        (package / "training").symlink_to(ROOT / "gavel" / "training")
    return str(package.parent)


class Process:
    """One rank as a process, with its output in a file."""

    def __init__(self, argv: list[str], environ: dict[str, str], output: Path, path: str) -> None:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.output = output
        with open(output, "wb") as file:
            self.popen = subprocess.Popen(
                [sys.executable, *argv],
                env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environ},
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=output.parent,
            )

    def wait(self, within_s: float = 180.0) -> int:
        """Return the exit code; if the process does not end, fail with its output."""
        try:
            return self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.popen.send_signal(signal.SIGKILL)
            self.popen.wait()
            raise AssertionError(f"did not end within {within_s} s:\n{self.text()}") from None

    def text(self) -> str:
        """Return the output."""
        return self.output.read_text(errors="replace")

    def kill(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
