"""One run that an agent answers for: what it knows of it, and the files by which it speaks with its shim."""

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
from worker_agent.runs.outcome import Progress, read_progress
from worker_agent.shim import process_tree
from worker_agent.shim.process_tree import Process
from worker_agent.shim.run_directory import EXIT, LEASE, SHIM, START, RunDirectory, progress_name

LOG = logging.getLogger(__name__)
_PROGRESS_BYTES_MAX = 64 << 10
_ROOT = Path(__file__).resolve().parents[2]
# A shim is known among processes by these words of its command line, and its directory.
SHIM_WORDS = ("-m", "worker_agent.shim")
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Moments(msgspec.Struct, frozen=True):
    """The three moments of a lease."""

    ask_s: float
    signal_s: float
    kill_s: float
    why: str = ""

    def or_earlier(self, ask_s: float, signal_s: float, kill_s: float, why: str) -> Moments:
        """Whatever comes first."""
        moments = min(self.ask_s, ask_s), min(self.signal_s, signal_s), min(self.kill_s, kill_s)
        return Moments(*moments, self.why or why)


class _Shim(msgspec.Struct, frozen=True):
    """shim.json."""

    boot_id: str = ""
    pid: int = 0
    start_ticks: int = 0
    pids: tuple[int, ...] = ()
    pids_start_ticks: tuple[int, ...] = ()
    started_s: float = math.inf


class LiveRun:
    """A run from its order to its reported exit."""

    def __init__(self, order: Order, moments: Moments, directory: RunDirectory | None = None) -> None:
        self.order, self.moments = order, moments
        self.directory = directory  # None until everything is written there
        self.ranks: tuple[int, ...] = ()
        self.popen: subprocess.Popen[bytes] | None = None  # None after a restart of the agent
        self.pidfd: int | None = None
        self.found_shim: Process | None = None  # after a restart of the agent, whatever the files say
        self.running = False  # said so
        self.gathers = order.nodes > 1  # until it is known whether this part of a gang can start
        self.stopping = False
        self.why_ended = ""  # as the scheduler gives the reason
        self.packed = False  # with another job on the same GPUs, as its log says
        self.note = ""  # the last line that its log was given by the agent
        self.called_off = False  # another part of its gang cannot start
        self.kills = 0
        self.withheld = ""  # why its GPUs are not given to others although its shim is gone
        self.let_go = False  # an operator says that nothing of it is left
        self.progress: Progress | None = None
        self._versions: dict[int, object] = {}

    @property
    def files(self) -> RunDirectory:
        """The directory, for those who know that there is one."""
        assert self.directory is not None
        return self.directory

    def read_own(self, name: str) -> dict[str, Any]:
        """A file that agent or shim wrote; empty where there is none."""
        return self.files.read(name, owner=os.geteuid()) or {}

    def find_directory_again(self) -> None:
        """Open the directory that the shim made in place of one that the job removed."""
        if self.directory is not None and not self.directory.is_in_place():
            with contextlib.suppress(OSError):
                again = RunDirectory(self.directory.path)
                self.directory.close()
                self.directory = again

    def write_lease(self) -> bool:
        """Say the moments; False when that is not possible."""
        if self.directory is None:
            return True  # said as soon as there is a directory
        try:
            say_moments(self.directory, self.order, self.moments, self.note)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: lease.json cannot be written: %(error)s",
                self.order.named(error=error),
            )
            return False
        return True

    def look_at_progress(self) -> bool:
        """Read the lowest rank that says anything; whether it says something new."""
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

    def last_words(self) -> set[str]:
        """The states in which the ranks were last."""
        return {said.state for rank in self.ranks if (said := self._progress_of(rank)) is not None}

    def _progress_of(self, rank: int) -> Progress | None:
        return read_progress(
            self.files.read(progress_name(rank), size_bytes_max=_PROGRESS_BYTES_MAX), self.order
        )

    def _said_by_shim(self) -> _Shim:
        """What shim.json says; nothing, when it is of another boot or makes no sense."""
        with contextlib.suppress(msgspec.ValidationError):
            said = msgspec.convert(self.read_own(SHIM), _Shim)
            if said.boot_id == process_tree.boot_id():
                return said
        return _Shim()

    # ------------------------------------------------------------------------------------------------- processes

    def shim(self) -> Process | None:
        """The living shim: as it was found, or by its own words."""
        if self.found_shim is not None and process_tree.alive(self.found_shim):
            return self.found_shim
        said = self._said_by_shim()
        shim = Process(said.pid, said.start_ticks)
        return shim if process_tree.alive(shim) else None

    def ran_s(self, now_s: float) -> float:
        """How long it has run, by the words of its shim."""
        return max(0.0, now_s - min(self._said_by_shim().started_s, now_s))

    def signal_shim(self, signum: int) -> None:
        """Signal the shim, if it is watched."""
        if self.pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, signum)

    def belongings(self) -> list[Process]:
        """What can be found: below the shim, by the pids that it wrote down, and by the environment."""
        found = process_tree.started_with("GAVEL_RUN_DIR", str(self.files.path))
        if (shim := self.shim()) is not None:
            found += process_tree.descendants(shim.pid)
        said = self._said_by_shim()
        for pid, start_ticks in zip(said.pids, said.pids_start_ticks, strict=False):
            if process_tree.alive(leader := Process(pid, start_ticks)):
                found += [leader, *process_tree.descendants(pid)]
        return list(dict.fromkeys(found))

    def redact(self) -> None:
        """Secrets are for the run alone: they do not stay with its logs."""
        start = self.read_own(START)
        names = start.get("spec", {}).get("secrets")
        if names:
            for rank in start["ranks"]:
                rank["env"] |= dict.fromkeys(names, "(secret)")
            with contextlib.suppress(OSError):
                self.files.write(START, start, mode=0o600)


def say_moments(directory: RunDirectory, order: Order, moments: Moments, note: str = "") -> None:
    """Write lease.json. `note`: a line for the log."""
    said = {"lease": order.lease, "epoch": order.epoch, "attempt": order.attempt}
    directory.write(LEASE, said | msgspec.to_builtins(moments) | {"note": note})


def start_shim(directory: RunDirectory) -> subprocess.Popen[bytes]:
    """Start the shim of a directory that has all it needs: by exec, in a session of its own, with no file of ours."""
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


def say_refused(directory: RunDirectory, order: Order, now_s: float, error: str) -> None:
    """Nothing can be started, and no shim is needed to say so; it is said where a shim would say it."""
    start = {"lease": order.lease, "job": order.job, "ranks": [], "order": msgspec.to_builtins(order)}
    directory.write(START, start, mode=0o600)
    logs = directory.open_logs()
    try:
        with os.fdopen(os.open("rank-0.log", _APPEND, 0o644, dir_fd=logs), "w") as file:
            file.write(f"[gavel: {error}]\n")
    finally:
        os.close(logs)
    said: dict[str, Any] = {
        "codes": {},
        "first": None,
        "error": error[:1000],
        "started_s": now_s,
        "ended_s": now_s,
    }
    directory.write(EXIT, said, durable=True)
