"""One run on this node: its state, and the files through which agent and shim communicate."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from worker_agent.core.measured import accepted, merged
from worker_agent.core.messages import Order
from worker_agent.runs.outcome import Ending, Progress, read_progress
from worker_agent.shim import process_tree
from worker_agent.shim.container_commands import DETACHED
from worker_agent.shim.container_removal import start_removal
from worker_agent.shim.deadlines import Deadlines
from worker_agent.shim.process_tree import Process
from worker_agent.shim.run_directory import EXIT, LEASE, SHIM, START, RunDirectory, is_data_set, progress_name

LOG = logging.getLogger(__name__)
_PROGRESS_BYTES_MAX = 512 << 10
# How many data sets of a run are served from the node's cache.
_DATA_SETS_MAX = 16
_ROOT = Path(__file__).resolve().parents[2]
# A shim is recognised by these words in its command line; the next word is the path of its run directory.
SHIM_WORDS = ("-m", "worker_agent.shim")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class _ShimFile(msgspec.Struct, frozen=True):
    """The content of shim.json."""

    boot_id: str = ""
    # The shim.
    pid: int = 0
    start_ticks: int = 0
    # The leaders of the ranks.
    pids: tuple[int, ...] = ()
    pids_start_ticks: tuple[int, ...] = ()
    started_s: float = math.inf


class LiveRun:
    """A run from its order to its reported exit: its directory, shim and processes.

    The core has a `Run` of its own for its decisions; simulations have only that one.
    """

    def __init__(self, order: Order, deadlines: Deadlines, directory: RunDirectory | None = None) -> None:
        self.order, self.deadlines = order, deadlines
        # None until all files of the run are written.
        self.directory = directory
        self.ranks: tuple[int, ...] = ()
        # None if an earlier agent started the shim.
        self.popen: subprocess.Popen[bytes] | None = None
        self.pidfd: int | None = None
        # The shim that a restarted agent found among the processes; it takes precedence over shim.json.
        self.adopted_shim: Process | None = None
        # Whether the start was reported to the core.
        self.running = False
        # Whether this is a part of a gang, and the agent has not yet reported whether the part can start.
        self.gathers = order.nodes > 1
        # Whether the deadlines were made earlier, so that the run stops.
        self.stopping = False
        # The scheduler's reason for the end of the lease.
        self.why_ended = ""
        # Whether the last line about sharing in the job's log says that another job is on the same GPUs.
        self.packed = False
        # Whether the run is stopped because another part of the gang cannot start.
        self.called_off = False
        # How many times `Processes.kill` was called for the run.
        self.kills = 0
        # Pids and names of processes that may belong to the run although its shim is gone. While there are any, the
        # run's GPUs are withheld.
        self.suspects = ""
        # Whether an operator has confirmed that no process of the run remains.
        self.confirmed_gone = False
        # The program that removes the containers of a run whose shim was killed.
        self.removal: subprocess.Popen[bytes] | None = None
        self.progress: Progress | None = None
        # By rank: the version of its progress file that was last read.
        self._versions: dict[int, object] = {}
        # How much longer than usual the job may take to save and end after it was asked.
        self.extra_save_s = order.extra_save_s
        # What the job has measured about itself, and when the files of its ranks were last read for that.
        self.measured: dict[str, float] = {}
        self.measured_at_s = -math.inf

    @property
    def files(self) -> RunDirectory:
        """The directory of a run that has one."""
        assert self.directory is not None
        return self.directory

    def read_own(self, name: str) -> dict[str, Any]:
        """Return the content of a file that the agent or the shim wrote; empty if there is none."""
        return self.files.read(name, owner=os.geteuid()) or {}

    def reopen_directory(self) -> None:
        """Open the directory that the shim made in place of one that the job had removed."""
        if self.directory is not None and not self.directory.is_in_place():
            with contextlib.suppress(OSError):
                new_directory = RunDirectory(self.directory.path)
                self.directory.close()
                self.directory = new_directory

    def write_lease(self) -> bool:
        """Write the deadlines for the shim; return False if that fails."""
        if self.directory is None:
            # The deadlines are written when the run has a directory.
            return True
        try:
            write_lease(self.directory, self.order, self.deadlines)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: lease.json cannot be written: %(error)s",
                self.order.log_fields(error=error),
            )
            return False
        return True

    def update_progress(self) -> bool:
        """Read the progress of the lowest rank that reports any; return whether it has changed."""
        for rank in self.ranks:
            version = self.files.version(progress_name(rank))
            if version is None:
                continue
            if version == self._versions.get(rank):
                return False
            self._versions[rank] = version
            progress = self._progress_of(rank)
            if progress is not None:
                has_changed, self.progress = progress != self.progress, progress
                return has_changed
        return False

    def update_measured(self, now_s: float) -> bool:
        """Read what the ranks here have measured about the job; return whether it has changed."""
        self.measured_at_s = now_s
        reports = (self._progress_of(rank) for rank in self.ranks)
        measured = merged(accepted(progress.measured) for progress in reports if progress is not None)
        has_changed, self.measured = measured != self.measured, measured
        return has_changed

    def data_sets(self) -> list[dict[str, Any] | None]:
        """Return what the job has written about the data sets that it reads (docs/job-directory.md)."""
        if self.directory is None:
            return []
        try:
            names = sorted(name for name in os.listdir(self.files.fd) if is_data_set(name))
        except OSError:
            return []
        return [self.files.read(name) for name in names[:_DATA_SETS_MAX]]

    def last_states(self) -> set[str]:
        """Return the last states that the ranks reported."""
        reports = (self._progress_of(rank) for rank in self.ranks)
        return {progress.state for progress in reports if progress is not None}

    def _progress_of(self, rank: int) -> Progress | None:
        return read_progress(
            self.files.read(progress_name(rank), size_bytes_max=_PROGRESS_BYTES_MAX), self.order
        )

    def _shim_file(self) -> _ShimFile:
        """Return the content of shim.json; the defaults if it is invalid or from another boot."""
        with contextlib.suppress(msgspec.ValidationError):
            content = msgspec.convert(self.read_own(SHIM), _ShimFile)
            if content.boot_id == process_tree.boot_id():
                return content
        return _ShimFile()

    # ------------------------------------------------------------------------------------------------- processes

    def shim(self) -> Process | None:
        """Return the shim if it lives: the adopted one, or the one in shim.json."""
        if self.adopted_shim is not None and process_tree.alive(self.adopted_shim):
            return self.adopted_shim
        content = self._shim_file()
        shim = Process(content.pid, content.start_ticks)
        return shim if process_tree.alive(shim) else None

    def ran_s(self, now_s: float) -> float:
        """Return how long the ranks have run, according to shim.json."""
        return max(0.0, now_s - min(self._shim_file().started_s, now_s))

    def signal_shim(self, signum: int) -> None:
        """Signal the shim, if it is watched."""
        if self.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signum)

    def processes(self) -> list[Process]:
        """Return the run's processes.

        They are descendants of the shim or of a leader in shim.json, or have this GAVEL_RUN_DIR in their environment.
        """
        processes = process_tree.started_with("GAVEL_RUN_DIR", str(self.files.path))
        if (shim := self.shim()) is not None:
            processes += process_tree.descendants(shim.pid)
        content = self._shim_file()
        for pid, start_ticks in zip(content.pids, content.pids_start_ticks, strict=False):
            if process_tree.alive(leader := Process(pid, start_ticks)):
                processes += [leader, *process_tree.descendants(pid)]
        return list(dict.fromkeys(processes))

    def has_containers(self, kept: Mapping[str, Any] | None) -> bool:
        """Return whether containers outside the process tree may remain of a run whose shim was killed; remove them.

        `kept`: the part of start.json in custody, because the job may have changed the file; None: there is none.
        """
        if self.removal is None:
            start = self.read_own(START) if kept is None else kept
            if (start.get("container") or {}).get("runtime") not in DETACHED:
                return False
            self.removal = start_removal(start, subprocess.DEVNULL)
        code = self.removal.poll()
        if code:
            # It was killed, so it is started again.
            self.removal = None
        return code != 0

    def redact(self) -> None:
        """Remove secrets from start.json, which is kept as long as the logs."""
        start = self.read_own(START)
        names = start.get("spec", {}).get("secrets")
        if names:
            for rank in start["ranks"]:
                rank["env"] |= dict.fromkeys(names, "(secret)")
            with contextlib.suppress(OSError):
                self.files.write(START, start, mode=0o600)


def write_lease(directory: RunDirectory, order: Order, deadlines: Deadlines) -> None:
    """Write the deadlines of a run to lease.json."""
    token = {"lease": order.lease, "epoch": order.epoch, "attempt": order.attempt}
    mtbf = {"mtbf_s": order.mtbf_s} if order.mtbf_s > 0 else {}
    directory.write(LEASE, token | deadlines._asdict() | mtbf)


def start_shim(directory: RunDirectory) -> subprocess.Popen[bytes]:
    """Start the shim of a run whose files are complete, in its own session and without open files of the agent."""
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
    """Write the files of a run that is refused before it has a shim: start.json, a log with the error, exit.json."""
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
