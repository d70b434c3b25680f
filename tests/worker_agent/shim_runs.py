"""Runs in tests: a run directory, a real shim, and ways to wait for what must become true."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from worker_agent.shim import process_tree
from worker_agent.shim.control_groups import ControlGroup
from worker_agent.shim.process_tree import boot_id
from worker_agent.shim.run_directory import EXIT, LEASE, SHIM, START, RunDirectory

ROOT = Path(__file__).resolve().parents[2]
# Long enough for a busy machine.
PATIENCE_S = 60.0
T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """Wait for the first true answer and return it; fail if none comes in time."""
    end_s = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.005)
    return answer


def in_time(story: Callable[[float], bool], *, first_s: float) -> None:
    """Run a story in which something must happen within some seconds; it returns False if that took too long.

    Then the story runs again with more time, as a busy machine may suspend any process.
    """
    within_s = first_s
    while not story(within_s):
        within_s *= 5
        assert within_s < PATIENCE_S, "the story was late each time"


def stop(pid: int) -> None:
    """Send SIGSTOP, and wait until the process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs this code and starts quickly."""
    return [sys.executable, "-S", "-E", "-c", code, *map(str, arguments)]


def gone(pid: int) -> bool:
    """Whether no living process has this pid."""
    return process_tree.look_up(pid) is None


def end_groups(folder: Path) -> None:
    """End and remove the control groups of all runs of the agents whose state is below a folder."""
    for path in folder.glob("**/custody/*.json"):
        record = json.loads(path.read_text())
        group = ControlGroup(record["group"])
        if group.path and group.kill():
            group.remove()
            if record["cpu_group"]:
                ControlGroup(record["cpu_group"]).remove()


class ShimRun:
    """One run directory, and the shim that executes it."""

    def __init__(
        self,
        runs: Path,
        *argvs: list[str],
        lease: str = "17",
        moments: tuple[float, float, float] = (1e3, 1e3, 1e3),
        **start: Any,
    ) -> None:
        runs.mkdir(exist_ok=True)
        self.run = RunDirectory.create(runs, lease)
        if start.get("uid"):
            os.fchown(self.run.fd, start["uid"], start.get("gid") or -1)
        self.path, self.lease_id = self.run.path, lease
        self.shim: subprocess.Popen[bytes] | None = None
        ranks = [
            {"rank": rank, "argv": argv, "env": {"PATH": os.environ["PATH"], "GAVEL_RUN_DIR": str(self.path)}}
            for rank, argv in enumerate(argvs)
        ]
        start = {"cwd": str(self.path), "uid": None, "gid": None, "groups": [], **start}
        start = {"log_bytes_max": 1 << 20, "log_files_max": 4, **start}
        self.run.write(START, {"lease": lease, "boot_id": boot_id(), "ranks": ranks, **start})
        self.lease(*moments)

    def lease(
        self, ask_in_s: float, signal_in_s: float, kill_in_s: float, why: str = "", note: str = ""
    ) -> dict[str, float]:
        """Write the three times of the lease, counted from now, and `note`, which the shim then logs."""
        now_s = time.monotonic()
        times = {"ask_s": now_s + ask_in_s, "signal_s": now_s + signal_in_s, "kill_s": now_s + kill_in_s}
        words = {"lease": self.lease_id, "epoch": 1, "attempt": 1, "why": why, "note": note}
        self.run.write(LEASE, words | times)
        return times

    def start(self, first: str = "") -> ShimRun:
        """Start the shim, as the agent does. `first`: a statement that its process runs before.

        A fork of this process, in which other tests may have started gRPC, might hang.
        """
        argv = [sys.executable, "-S", "-m", "worker_agent.shim", str(self.path)]
        if first:
            argv = [
                sys.executable,
                "-c",
                f"{first}\nimport os, sys; os.execv(sys.argv[1], sys.argv[1:])",
                *argv,
            ]
        return self._start(argv)

    def start_by(self, program: str) -> ShimRun:
        """Start a shim of the test's own: a program that gets the directory."""
        return self._start([sys.executable, "-S", "-c", program, str(self.path)])

    def _start(self, argv: list[str]) -> ShimRun:
        environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        # Not a pipe: every process that holds its other end would be waited for.
        self.err = tempfile.TemporaryFile()  # noqa: SIM115
        self.shim = subprocess.Popen(argv, env=environ, start_new_session=True, stderr=self.err)
        return self

    def running(self) -> dict[str, Any]:
        """Wait until the ranks run, and return shim.json."""
        return wait_for(lambda: (state := self.run.read(SHIM)) and state["running"] and state)

    def runs_or_ran(self) -> None:
        """Wait until the ranks run, or all is over already."""
        wait_for(lambda: self.run.has(EXIT) or (self.run.read(SHIM) or {}).get("running"))

    def ended(self, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the shim's end, and return exit.json."""
        assert self.shim is not None
        self.shim.wait(within_s)
        trouble = self.troubles()
        assert "Traceback" not in trouble
        exit = self.run.read(EXIT)
        assert exit is not None, trouble
        return exit

    def troubles(self) -> str:
        """The shim's stderr."""
        self.err.seek(0)
        return self.err.read().decode()

    def log(self, rank: int = 0) -> str:
        """The output of a rank, from all pieces that exist."""
        logs = self.path / "logs"
        pieces = sorted(logs.glob(f"rank-{rank}.log.*"), key=lambda path: int(path.suffix[1:]))
        return "".join(path.read_text() for path in [*pieces, logs / f"rank-{rank}.log"] if path.exists())

    def says(self, text: str, rank: int = 0) -> str:
        """Wait until a line with this text is in the log, and return the line."""
        return wait_for(lambda: next((s for s in self.log(rank).splitlines() if text in s), None))

    def close(self) -> None:
        """End everything that is left."""
        if self.shim is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.shim.pid, signal.SIGCONT)
            process_tree.kill_all(lambda: process_tree.descendants(self.shim.pid) if self.shim else [])
            self.shim.kill()
            self.shim.wait()
            self.err.close()
        process_tree.kill_all(lambda: process_tree.started_with("GAVEL_RUN_DIR", str(self.path)))
        self.run.close()


@contextlib.contextmanager
def shim_run(runs: Path, *argvs: list[str], **start: Any) -> Iterator[ShimRun]:
    """A run whose shim is started, and of which nothing is left afterwards."""
    run = ShimRun(runs, *argvs, **start)
    try:
        yield run.start()
    finally:
        run.close()
