"""Adopt the runs of an earlier agent: living runs, and ended ones whose exits may not have been reported.

A job may have changed or removed the files in its directory. So whether a run is alive is determined from its shim and
from its record in custody (custody.py), which are both outside that directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from worker_agent.core.messages import Order, ProcessFound
from worker_agent.node.mps import ALONE_NOTE
from worker_agent.node.trees import remove_tree
from worker_agent.runs.outcome import NO_PROGRESS
from worker_agent.runs.run import SHIM_WORDS, LiveRun
from worker_agent.shim import process_tree
from worker_agent.shim.deadlines import read_deadlines
from worker_agent.shim.run_directory import ACKNOWLEDGED, EXIT, SHIM, START, RunDirectory

if TYPE_CHECKING:
    from worker_agent.runs.supervisor import Processes
    from worker_agent.shim.process_tree import Process

LOG = logging.getLogger(__name__)
# How often a shim that is starting or being killed is checked.
STARTING_INTERVAL_S = 0.05
# How long we try to kill a run that we cannot adopt.
KILL_S = 5.0


def adopt_runs(processes: Processes) -> None:
    """Adopt every run that may have processes, or whose exit may not have been reported."""
    shims = process_tree.session_leaders(*SHIM_WORDS)
    processes.custody.add_shims(shims.values())
    orders = processes.custody.orders()
    runs = processes.runs_path
    paths = {path for path in map(Path, shims) if path.parent == runs}
    for path in sorted(paths.union(runs.iterdir(), (runs / name for name in orders))):
        shim, order = shims.get(str(path)), orders.get(path.name)
        try:
            with contextlib.ExitStack() as on_error:
                directory = on_error.enter_context(_open(path, order))
                if shim is None and _is_over(processes, directory, order):
                    continue
                _adopt(processes, directory, shim, order)
                on_error.pop_all()
        except (OSError, msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
            LOG.error("%s: left unchanged, because it cannot be read: %s", path, error)
            if shim is not None:
                _kill_run(processes, path, shim, order)


def _open(path: Path, order: Order | None) -> RunDirectory:
    """Open the directory of a run, and make it again if there is a record but the job has removed the directory."""
    if order is not None and not os.path.lexists(path):
        path.mkdir(mode=0o700)
        (path / "logs").mkdir(mode=0o755)
    return RunDirectory(path)


def _is_over(processes: Processes, directory: RunDirectory, order: Order | None) -> bool:
    """Return whether a run without a shim has neither processes nor an exit to report; drop its record if so."""
    if order is not None and processes.custody.kill_remaining(order.lease):
        return False
    if not (directory.has(ACKNOWLEDGED) or _remove_unstarted(directory)):
        return False
    if order is not None:
        processes.custody.release(order.lease)
    return True


def _adopt(processes: Processes, directory: RunDirectory, shim: Process | None, order: Order | None) -> None:
    """Add a run to `processes`. `order` None: there was no record in custody, so start.json must have the order."""
    start = directory.read(START, owner=os.geteuid()) or {}
    if order is None:
        order = msgspec.convert(start["order"], Order)
    processes.custody.add_adopted(order, shim)
    deadlines = read_deadlines(directory, order.lease) or processes.deadlines(
        order.ends_s, order.extra_save_s
    )
    run = LiveRun(order, deadlines, directory)
    run.adopted_shim = shim
    note = run.deadlines.note
    run.packed = note != ALONE_NOTE if note else bool(start.get("spec", {}).get("packed"))
    # The earlier agent may have had no weights, or another number of GPUs.
    processes.custody.weigh(order, packed=run.packed)
    run.ranks = tuple(int(rank["rank"]) for rank in start.get("ranks", ()))
    # Without a valid shim.json, the run counts as running.
    run.running = run.read_own(SHIM).get("running") is not False
    run.gathers = bool(start.get("gathers"))
    run.update_progress()
    ran_s, progress = run.ran_s(processes.clock()) if run.running else None, run.progress or NO_PROGRESS
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
            # The shim ended in between.
            processes.shim_gone(run)
    elif run.files.has(EXIT) or run.files.has(SHIM) or _has_no_shim(run.files):
        processes.shim_gone(run)
    else:
        # The shim holds the lock, but has not written its pid yet.
        asyncio.get_running_loop().call_later(STARTING_INTERVAL_S, _watch_or_end, processes, run)


def _kill_run(processes: Processes, path: Path, shim: Process, order: Order | None) -> None:
    """Kill a run that cannot be adopted, before its GPUs are reported free."""
    LOG.error("%s: a shim runs here, but its files do not contain its lease: the run is killed", path)
    end_s = time.monotonic() + KILL_S
    while process_tree.alive(shim) and time.monotonic() < end_s:
        if not process_tree.kill_all(lambda: process_tree.descendants(shim.pid)):
            # The shim is killed last, because the others are found as its descendants.
            process_tree.send(shim, signal.SIGKILL)
        time.sleep(STARTING_INTERVAL_S)
    if order is not None:
        processes.custody.kill_remaining(order.lease)


def _remove_unstarted(directory: RunDirectory) -> bool:
    """Remove the directory if the earlier agent died before it started a shim; return whether it was removed."""
    if not directory.has(START):
        remove_tree(directory.path)
        return True
    # A shim that starts only now exits, because the lock is taken or start.json is gone.
    lock = directory.lock()
    if lock is None:
        return False
    try:
        if directory.has(EXIT) or directory.has(SHIM):
            return False
        remove_tree(directory.path)
        return True
    finally:
        os.close(lock)


def _has_no_shim(directory: RunDirectory) -> bool:
    """Return whether no shim holds the lock of the directory."""
    try:
        lock = directory.lock()
    except FileNotFoundError:
        # The job has removed start.json, so no shim can start either.
        return True
    if lock is not None:
        os.close(lock)
    return lock is not None
