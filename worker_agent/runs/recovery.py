"""Adopting the runs of an earlier agent: those that live, and exits that may not have been reported.

A job may have changed or removed what is in its directory. Its shim, and the records in custody (custody.py), which
are no part of that directory, show whether it runs.
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
from worker_agent.runs.run import SHIM_WORDS, LiveRun
from worker_agent.shim import process_tree
from worker_agent.shim.deadlines import read_deadlines
from worker_agent.shim.run_directory import EXIT, SHIM, START, TOLD, RunDirectory

if TYPE_CHECKING:
    from worker_agent.runs.supervisor import Processes
    from worker_agent.shim.process_tree import Process

LOG = logging.getLogger(__name__)
STARTING_INTERVAL_S = 0.05
# How long a run whose directory makes no sense may take to end.
UNKNOWN_S = 5.0


def find_runs(processes: Processes) -> None:
    """Adopt every run that may have processes, or whose exit may not have been reported."""
    shims = process_tree.session_leaders(*SHIM_WORDS)
    processes.custody.spare(shims.values())
    kept = processes.custody.orders()
    runs = processes.runs_path
    paths = {path for path in map(Path, shims) if path.parent == runs}
    for path in sorted(paths.union(runs.iterdir(), (runs / name for name in kept))):
        shim, order = shims.get(str(path)), kept.get(path.name)
        try:
            with contextlib.ExitStack() as unless_adopted:
                directory = unless_adopted.enter_context(_opened(path, order))
                if shim is None and _is_over(processes, directory, order):
                    continue
                _adopt(processes, directory, shim, order)
                unless_adopted.pop_all()
        except (OSError, msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
            LOG.error("%s: left as it is, because it cannot be read: %s", path, error)
            if shim is not None:
                _end_unknown(processes, path, shim, order)


def _opened(path: Path, order: Order | None) -> RunDirectory:
    """Open the directory of a run, and make it again if the job has removed it."""
    if order is not None and not os.path.lexists(path):
        path.mkdir(mode=0o700)
        (path / "logs").mkdir(mode=0o755)
    return RunDirectory(path)


def _is_over(processes: Processes, directory: RunDirectory, order: Order | None) -> bool:
    """Tell whether a run without a shim leaves nothing to adopt."""
    if order is not None and processes.custody.clear(order.lease):
        return False
    if not (directory.has(TOLD) or _never_started(directory)):
        return False
    if order is not None:
        processes.custody.release(order.lease)
    return True


def _adopt(processes: Processes, directory: RunDirectory, shim: Process | None, order: Order | None) -> None:
    start = directory.read(START, owner=os.geteuid()) or {}
    if order is None:
        order = msgspec.convert(start["order"], Order)
    processes.custody.take_up(order, shim)
    deadlines = read_deadlines(directory, order.lease) or processes.deadlines(order.ends_s)
    run = LiveRun(order, deadlines, directory)
    run.found_shim = shim
    note = run.deadlines.note
    run.packed = note != ALONE if note else bool(start.get("spec", {}).get("packed"))
    run.ranks = tuple(int(rank["rank"]) for rank in start.get("ranks", ()))
    # It runs unless its shim says that it does not.
    run.running = run.read_own(SHIM).get("running") is not False
    run.gathers = bool(start.get("gathers"))
    run.update_progress()
    ran_s, progress = run.ran_s(processes.clock()) if run.running else None, run.progress or NOTHING
    order = msgspec.structs.replace(order, ends_s=deadlines.ask_s - processes.limits.late_s)
    processes.live[order.lease] = run
    processes.emit(ProcessFound(order, ran_s, progress.steps, progress.saved, progress.stepping_s))
    _watch_or_end(processes, run)


def _watch_or_end(processes: Processes, run: LiveRun) -> None:
    """Watch the shim of an adopted run, or report the run's exit."""
    shim = run.shim()
    if shim is not None:
        processes.watch_shim(run, shim.pid)
        if run.pidfd is not None and run.shim() != shim:
            # It has ended in between.
            processes.shim_gone(run)
    elif run.files.has(EXIT) or run.files.has(SHIM) or _is_free(run.files):
        processes.shim_gone(run)
    else:
        # Its shim holds the lock, but has not written its pid yet.
        asyncio.get_running_loop().call_later(STARTING_INTERVAL_S, _watch_or_end, processes, run)


def _end_unknown(processes: Processes, path: Path, shim: Process, order: Order | None) -> None:
    """End a run that cannot be adopted, before its GPUs are reported free."""
    LOG.error("%s: a shim runs here, but its files do not say for which lease: it is ended", path)
    end_s = time.monotonic() + UNKNOWN_S
    while process_tree.alive(shim) and time.monotonic() < end_s:
        if not process_tree.kill_all(lambda: process_tree.descendants(shim.pid)):
            # The shim comes last, because the others are found through it.
            process_tree.send(shim, signal.SIGKILL)
        time.sleep(STARTING_INTERVAL_S)
    if order is not None:
        processes.custody.clear(order.lease)


def _never_started(directory: RunDirectory) -> bool:
    """Remove the directory if the earlier agent died before it started a shim, and tell whether it did."""
    if not directory.has(START):
        shutil.rmtree(directory.path)
        return True
    # A shim that starts late finds the lock taken, or its file gone.
    lock = directory.lock()
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
    """Tell whether no shim holds the directory."""
    try:
        lock = directory.lock()
    except FileNotFoundError:
        # The job has removed what a shim would need to start.
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None
