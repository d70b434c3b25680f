"""Taking up the runs of the agent before this one: those that live, and exits that the scheduler may not know of.

A job may have changed or removed what is in its directory. Whether it runs is seen by its shim, and by the records in
custody (custody.py), which are no part of that directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from worker_agent.core.messages import Order, ProcessFound
from worker_agent.node.mps import ALONE
from worker_agent.runs.outcome import NOTHING
from worker_agent.runs.run import SHIM_WORDS, LiveRun, Moments
from worker_agent.shim import process_tree
from worker_agent.shim.run_directory import EXIT, LEASE, SHIM, START, TOLD, RunDirectory

if TYPE_CHECKING:
    from worker_agent.runs.supervisor import Processes
    from worker_agent.shim.process_tree import Process

LOG = logging.getLogger(__name__)
STARTING_INTERVAL_S = 0.05
UNKNOWN_S = 5.0  # for a run to be gone whose directory makes no sense


def find_runs(processes: Processes) -> None:
    """Take up every run that may have processes, or whose exit may not have been reported."""
    shims = process_tree.session_leaders(*SHIM_WORDS)
    processes.custody.spare(shims.values())
    kept = processes.custody.orders()
    runs = processes.runs_path
    paths = {path for path in map(Path, shims) if path.parent == runs}
    for path in sorted(paths.union(runs.iterdir(), (runs / name for name in kept))):
        shim, order = shims.get(str(path)), kept.get(path.name)
        try:
            with contextlib.ExitStack() as unless_taken:
                directory = unless_taken.enter_context(_opened(path, order))
                if shim is None and _is_over(processes, directory, order):
                    continue
                _find_one(processes, directory, shim, order)
                unless_taken.pop_all()
        except (OSError, msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
            LOG.error("%s: left as it is, because it cannot be read: %s", path, error)
            if shim is not None:
                _end_unknown(processes, path, shim, order)


def _opened(path: Path, order: Order | None) -> RunDirectory:
    """The directory of a run; made again if the job has removed it."""
    if order is not None and not os.path.lexists(path):
        path.mkdir(mode=0o700)
        (path / "logs").mkdir(mode=0o755)
    return RunDirectory(path)


def _is_over(processes: Processes, directory: RunDirectory, order: Order | None) -> bool:
    """Whether there is nothing to take up of a run that has no shim."""
    if order is not None and processes.custody.clear(order.lease):
        return False
    if not (directory.has(TOLD) or _never_started(directory)):
        return False
    if order is not None:
        processes.custody.release(order.lease)
    return True


def _find_one(
    processes: Processes, directory: RunDirectory, shim: Process | None, order: Order | None
) -> None:
    start = directory.read(START, owner=os.geteuid()) or {}
    if order is None:
        order = msgspec.convert(start["order"], Order)
    processes.custody.take_up(order, shim)
    run = LiveRun(order, processes.moments(order.ends_s), directory)
    run.found_shim = shim
    with contextlib.suppress(msgspec.ValidationError):
        run.moments = msgspec.convert(run.read_own(LEASE), Moments)
    run.note = str(run.read_own(LEASE).get("note", ""))
    run.packed = run.note != ALONE if run.note else bool(start.get("spec", {}).get("packed"))
    run.ranks = tuple(int(rank["rank"]) for rank in start.get("ranks", ()))
    run.running = run.read_own(SHIM).get("running") is not False  # it is where nobody says otherwise
    run.gathers = bool(start.get("gathers"))
    run.look_at_progress()
    ran_s, progress = run.ran_s(processes.clock()) if run.running else None, run.progress or NOTHING
    found = msgspec.structs.replace(order, ends_s=run.moments.ask_s - processes.limits.late_s)
    processes.live[order.lease] = run
    processes.emit(ProcessFound(found, ran_s, progress.steps, progress.saved, progress.stepping_s))
    _take_up(processes, run)


def _take_up(processes: Processes, run: LiveRun) -> None:
    """Watch the shim of a run that was found, or report the exit."""
    shim = run.shim()
    if shim is not None:
        processes.watch_shim(run, shim.pid)
        if run.pidfd is not None and run.shim() != shim:  # gone in between
            processes.shim_gone(run)
    elif run.files.has(EXIT) or run.files.has(SHIM) or _is_free(run.files):
        processes.shim_gone(run)
    else:  # its shim holds the lock, but has not said its pid yet
        asyncio.get_running_loop().call_later(STARTING_INTERVAL_S, _take_up, processes, run)


def _end_unknown(processes: Processes, path: Path, shim: Process, order: Order | None) -> None:
    """Nobody can answer for this run: all of it is gone before anybody is told that its GPUs are free."""
    LOG.error("%s: it runs, and nobody can tell for what: it is ended", path)
    end_s = time.monotonic() + UNKNOWN_S
    while process_tree.alive(shim) and time.monotonic() < end_s:
        if not process_tree.kill_all(lambda: process_tree.descendants(shim.pid)):
            process_tree.send(shim, signal.SIGKILL)  # last: it is by the shim that they are found
        time.sleep(STARTING_INTERVAL_S)
    if order is not None:
        processes.custody.clear(order.lease)


def _never_started(directory: RunDirectory) -> bool:
    """Whether the agent died before there was a shim, and none will come: the directory is removed then."""
    if not directory.has(START):
        shutil.rmtree(directory.path)
        return True
    lock = directory.lock()  # a shim that comes late finds it taken, or the file gone
    if lock is None:
        return False
    try:
        if directory.has(EXIT) or directory.has(SHIM):
            return False
        shutil.rmtree(directory.path)
        return True
    finally:
        os.close(lock)


def _is_free(directory: RunDirectory) -> bool:
    """Whether no shim is there."""
    try:
        lock = directory.lock()
    except FileNotFoundError:  # the job has removed what a shim would need to begin
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None
