"""Runs in tests: a run directory, a real shim, and waiting for what has to become true."""

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
PATIENCE_S = 60.0  # on a machine that is busy with others; on an idle one nothing takes so long
T = TypeVar("T")


def wait_for(what: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """The first true answer; fails when none comes in time."""
    end_s = time.monotonic() + within_s
    while not (answer := what()):
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.005)
    return answer


def in_time(story: Callable[[float], bool], *, first_s: float) -> None:
    """Tell a story in which something has to be done within so many seconds; False: that took too long.

    Then it is told again with more of them: a machine that is busy with others stands still when it likes.
    """
    within_s = first_s
    while not story(within_s):
        within_s *= 5
        assert within_s < PATIENCE_S, "it was late each time"


def stop(pid: int) -> None:
    """SIGSTOP, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs this code, quick to start."""
    return [sys.executable, "-S", "-E", "-c", code, *map(str, arguments)]


def gone(pid: int) -> bool:
    """Whether no living process has this pid."""
    return process_tree.look_up(pid) is None


def end_groups(folder: Path) -> None:
    """End and remove the control groups of all runs of the agents whose state is below a folder."""
    for path in folder.glob("**/custody/*.json"):
        group = ControlGroup(json.loads(path.read_text())["group"])
        if group.path and group.kill():
            group.remove()


class ShimRun:
    """One run directory, and the shim that carries it out."""

    def __init__(
        self,
        runs: Path,
        *argvs: list[str],
        lease: str = "17",
        moments: tuple[float, float, float] = (1e3, 1e3, 1e3),
        **start: Any,
    ) -> None:
        runs.mkdir(exist_ok=True)
        self.run = RunDirectory.create(runs, lease, start.get("uid") or None, start.get("gid") or None)
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
        """The three moments, from now. `note`: a line for the log, by which it is seen that they are known."""
        now_s = time.monotonic()
        times = {"ask_s": now_s + ask_in_s, "signal_s": now_s + signal_in_s, "kill_s": now_s + kill_in_s}
        words = {"lease": self.lease_id, "epoch": 1, "attempt": 1, "why": why, "note": note}
        self.run.write(LEASE, words | times)
        return times

    def start(self, first: str = "") -> ShimRun:
        """Start the shim, as the agent does. `first`: a statement for the process that becomes it.

        Not by a fork in this process: where other tests have started gRPC in it, that need not come to its end.
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
        """Start a shim of one's own: a program that is given the directory."""
        return self._start([sys.executable, "-S", "-c", program, str(self.path)])

    def _start(self, argv: list[str]) -> ShimRun:
        environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        # no pipe: whoever holds its other end would be waited for
        self.err = tempfile.TemporaryFile()  # noqa: SIM115
        self.shim = subprocess.Popen(argv, env=environ, start_new_session=True, stderr=self.err)
        return self

    def running(self) -> dict[str, Any]:
        """What shim.json says when the ranks run."""
        return wait_for(lambda: (said := self.run.read(SHIM)) and said["running"] and said)

    def runs_or_ran(self) -> None:
        """Wait until its ranks run, or all is over already."""
        wait_for(lambda: self.run.has(EXIT) or (self.run.read(SHIM) or {}).get("running"))

    def ended(self, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """What exit.json says, when the shim is gone."""
        assert self.shim is not None
        self.shim.wait(within_s)
        trouble = self.troubles()
        assert "Traceback" not in trouble
        said = self.run.read(EXIT)
        assert said is not None, trouble
        return said

    def troubles(self) -> str:
        """What the shim said on stderr."""
        self.err.seek(0)
        return self.err.read().decode()

    def log(self, rank: int = 0) -> str:
        """The output of a rank, of all pieces that there are."""
        logs = self.path / "logs"
        pieces = sorted(logs.glob(f"rank-{rank}.log.*"), key=lambda path: int(path.suffix[1:]))
        return "".join(path.read_text() for path in [*pieces, logs / f"rank-{rank}.log"] if path.exists())

    def says(self, text: str, rank: int = 0) -> str:
        """Wait until a line with this text is in the log; the line."""
        return wait_for(lambda: next((s for s in self.log(rank).splitlines() if text in s), None))

    def close(self) -> None:
        """End whatever is left."""
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
