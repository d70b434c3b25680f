"""One run that the agent is responsible for: its state, and the files through which agent and shim communicate."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from worker_agent.core.messages import Order
from worker_agent.runs.outcome import Ending, Progress, read_progress
from worker_agent.shim import process_tree
from worker_agent.shim.deadlines import Deadlines
from worker_agent.shim.process_tree import Process
from worker_agent.shim.run_directory import EXIT, LEASE, SHIM, START, RunDirectory, progress_name

LOG = logging.getLogger(__name__)
_PROGRESS_BYTES_MAX = 64 << 10
_ROOT = Path(__file__).resolve().parents[2]
# These words of its command line, and its directory, tell a shim from other processes.
SHIM_WORDS = ("-m", "worker_agent.shim")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class _ShimFile(msgspec.Struct, frozen=True):
    """shim.json."""

    boot_id: str = ""
    pid: int = 0
    start_ticks: int = 0
    pids: tuple[int, ...] = ()
    pids_start_ticks: tuple[int, ...] = ()
    started_s: float = math.inf


class LiveRun:
    """A run from its order to its reported exit: its directory, shim and processes.

    The core's decisions about it are in the core's own `Run`, which simulations use, too.
    """

    def __init__(self, order: Order, deadlines: Deadlines, directory: RunDirectory | None = None) -> None:
        self.order, self.deadlines = order, deadlines
        # None until all its files are written.
        self.directory = directory
        self.ranks: tuple[int, ...] = ()
        # None if an earlier agent started the shim.
        self.popen: subprocess.Popen[bytes] | None = None
        self.pidfd: int | None = None
        # The shim as a restarted agent has found it, whatever the files say.
        self.found_shim: Process | None = None
        # Whether the core knows that it runs.
        self.running = False
        # Whether it is still unknown if this part of a gang can start.
        self.gathers = order.nodes > 1
        self.stopping = False
        # The scheduler's reason for the end of the lease.
        self.why_ended = ""
        # Whether its log mentions another job on the same GPUs.
        self.packed = False
        # Why another part of its gang cannot start.
        self.called_off = False
        self.kills = 0
        # Why its GPUs are withheld although its shim is gone.
        self.withheld = ""
        # Whether an operator has confirmed that nothing of it is left.
        self.let_go = False
        self.progress: Progress | None = None
        self._versions: dict[int, object] = {}

    @property
    def files(self) -> RunDirectory:
        """The directory; only for callers that know that it exists."""
        assert self.directory is not None
        return self.directory

    def read_own(self, name: str) -> dict[str, Any]:
        """Return the content of a file that agent or shim wrote; empty if there is none."""
        return self.files.read(name, owner=os.geteuid()) or {}

    def reopen_directory(self) -> None:
        """Open the directory that the shim made after the job had removed its own."""
        if self.directory is not None and not self.directory.is_in_place():
            with contextlib.suppress(OSError):
                again = RunDirectory(self.directory.path)
                self.directory.close()
                self.directory = again

    def write_lease(self) -> bool:
        """Write the deadlines for the shim; return False if that fails."""
        if self.directory is None:
            # They are written once there is a directory.
            return True
        try:
            write_lease(self.directory, self.order, self.deadlines)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: lease.json cannot be written: %(error)s",
                self.order.named(error=error),
            )
            return False
        return True

    def update_progress(self) -> bool:
        """Read the progress of the lowest rank that reports any; return whether it is new."""
        for rank in self.ranks:
            version = self.files.version(progress_name(rank))
            if version is None:
                continue
            if version == self._versions.get(rank):
                return False
            self._versions[rank] = version
            progress = self._progress_of(rank)
            if progress is not None:
                new, self.progress = progress != self.progress, progress
                return new
        return False

    def last_states(self) -> set[str]:
        """Return the last states that the ranks reported."""
        progress = (self._progress_of(rank) for rank in self.ranks)
        return {last.state for last in progress if last is not None}

    def _progress_of(self, rank: int) -> Progress | None:
        return read_progress(
            self.files.read(progress_name(rank), size_bytes_max=_PROGRESS_BYTES_MAX), self.order
        )

    def _shim_file(self) -> _ShimFile:
        """Return shim.json; an empty one if it is of another boot or invalid."""
        with contextlib.suppress(msgspec.ValidationError):
            content = msgspec.convert(self.read_own(SHIM), _ShimFile)
            if content.boot_id == process_tree.boot_id():
                return content
        return _ShimFile()

    # ------------------------------------------------------------------------------------------------- processes

    def shim(self) -> Process | None:
        """Return the living shim: the one that a restarted agent has found, or the one of shim.json."""
        if self.found_shim is not None and process_tree.alive(self.found_shim):
            return self.found_shim
        content = self._shim_file()
        shim = Process(content.pid, content.start_ticks)
        return shim if process_tree.alive(shim) else None

    def ran_s(self, now_s: float) -> float:
        """Return how long it has run, by shim.json."""
        return max(0.0, now_s - min(self._shim_file().started_s, now_s))

    def signal_shim(self, signum: int) -> None:
        """Signal the shim, if it is watched."""
        if self.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signum)

    def belongings(self) -> list[Process]:
        """Return the run's processes: those below the shim, those in shim.json, those with its environment."""
        processes = process_tree.started_with("GAVEL_RUN_DIR", str(self.files.path))
        if (shim := self.shim()) is not None:
            processes += process_tree.descendants(shim.pid)
        content = self._shim_file()
        for pid, start_ticks in zip(content.pids, content.pids_start_ticks, strict=False):
            if process_tree.alive(leader := Process(pid, start_ticks)):
                processes += [leader, *process_tree.descendants(pid)]
        return list(dict.fromkeys(processes))

    def redact(self) -> None:
        """Remove secrets from start.json: they must not stay with the logs."""
        start = self.read_own(START)
        names = start.get("spec", {}).get("secrets")
        if names:
            for rank in start["ranks"]:
                rank["env"] |= dict.fromkeys(names, "(secret)")
            with contextlib.suppress(OSError):
                self.files.write(START, start, mode=0o600)


def write_lease(directory: RunDirectory, order: Order, deadlines: Deadlines) -> None:
    """Write lease.json."""
    token = {"lease": order.lease, "epoch": order.epoch, "attempt": order.attempt}
    directory.write(LEASE, token | deadlines._asdict())


def start_shim(directory: RunDirectory) -> subprocess.Popen[bytes]:
    """Start the shim of a complete directory: by exec, in its own session, without open files of the agent."""
    logs = directory.open_logs()
    try:
        err = os.open("shim.log", _APPEND, 0o600, dir_fd=logs)
    finally:
        os.close(logs)
    try:
        return subprocess.Popen(
            [sys.executable, "-S", *SHIM_WORDS, str(directory.path)],
            env={"PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=err,
            stderr=err,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(err)


def write_refusal(directory: RunDirectory, order: Order, now_s: float, error: str) -> None:
    """Write the files that a shim would leave for a run that cannot start."""
    start = {"lease": order.lease, "job": order.job, "ranks": [], "order": order.record()}
    directory.write(START, start, mode=0o600)
    logs = directory.open_logs()
    try:
        with os.fdopen(os.open("rank-0.log", _APPEND, 0o644, dir_fd=logs), "w") as file:
            file.write(f"[gavel: {error}]\n")
    finally:
        os.close(logs)
    ending = Ending(error=error[:1000], started_s=now_s, ended_s=now_s)
    directory.write(EXIT, msgspec.structs.asdict(ending), durable=True)
