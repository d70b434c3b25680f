"""Starts the shims of a node, directs them through files, and watches their runs.

All state is in files (docs/job-directory.md), so that a restarted agent finds it. Everything runs in one event loop,
except slow work (a package, a flush to disk), which runs in threads. Rules:
- the agent is responsible for a run with a directory until it has reported the run's exit, even across restarts;
- no exit is reported before every process that can be found is gone;
- a renewal makes the deadlines of a lease later; they become earlier only to stop the run, and are then never renewed;
- a part of a gang starts once go.json exists; before that, `prepared` reports whether it can start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from protos.log import RepeatedLines
from worker_agent.core.messages import Event, Limits, Measured, Order, ProcessStarted, Progressed
from worker_agent.runs.containment import Containment
from worker_agent.runs.custody import Custody, list_processes
from worker_agent.runs.launch import rendezvous_environment
from worker_agent.runs.outcome import Ending, exit_event, read_ending
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.runs.run import LiveRun, write_lease, write_refusal
from worker_agent.shim import process_tree
from worker_agent.shim.container_removal import needed_for_removal
from worker_agent.shim.deadlines import Deadlines
from worker_agent.shim.run_directory import ACKNOWLEDGED, EXIT, GO, SHIM, START, RunDirectory, directory_name

LOG = logging.getLogger(__name__)
# How often running runs are checked for progress, and all runs while one of them is starting.
PROGRESS_INTERVAL_S = 0.5
STARTING_INTERVAL_S = 0.05
# How often the files of all ranks are read for what a job has measured about itself.
MEASURED_INTERVAL_S = 5.0
# How often to check a run whose processes are being killed, and one whose processes may remain.
CLEAN_UP_INTERVAL_S = 0.2
WITHHELD_INTERVAL_S = 1.0

Prepare = Callable[[RunDirectory], dict[str, Any]]


class Processes:
    """All runs of a node, and their processes."""

    def __init__(
        self,
        state: Path,
        limits: Limits,
        emit: Callable[[Event], object],
        prepared: Callable[[Order, str], object] = lambda order, trouble: None,
        *,
        containment: Containment | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`emit` is called with every event, in the thread of the event loop.

        `prepared` is called once for each part of a gang, before its exit is emitted: with an empty text if the part
        can start, otherwise with the reason.
        """
        self.runs_path = state.absolute() / "runs"
        self.runs_path.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.limits, self.emit, self.prepared, self.clock = limits, emit, prepared, clock
        self.custody = Custody(state.absolute(), containment or Containment())
        self.live: dict[str, LiveRun] = {}
        # The leases of ended runs whose exits the scheduler has not acknowledged.
        self.unacknowledged: set[str] = set()
        # Set to check all runs without delay.
        self._check_requested = asyncio.Event()
        self.repeated = RepeatedLines()

    # -------------------------------------------------------------------------------------------------- orders

    async def start(self, order: Order, ends_s: float, prepare: Prepare) -> None:
        """Start a run. `prepare`, called in a thread, fills the run's directory and returns the content of start.json.

        A ValueError of `prepare` makes the job fail; any other error counts as a failure of the node.
        """
        run = self.live[order.lease] = LiveRun(order, self.deadlines(ends_s, order.extra_save_s))
        run.packed = order.packed
        try:
            run.directory, run.ranks, run.popen = await asyncio.to_thread(self._launch, run, prepare)
        except Exception as error:
            self.log_failed_start(order, error)
            self._report_prepared(run, f"it cannot be started: {error}")
            self._close(run)
            self.emit(exit_event(order, None))
            return
        if run.popen is None:
            self.shim_gone(run)
            return
        # The deadlines may have changed meanwhile, and whether another job shares the GPUs.
        run.write_lease()
        if run.packed != order.packed:
            self.custody.weigh(order, packed=run.packed)
        self.watch_shim(run, run.popen.pid)
        self._check_requested.set()

    def go(self, lease: str, rendezvous: Rendezvous) -> None:
        """Start this node's part of a gang, all of whose nodes are ready."""
        run = self.live.get(lease)
        if run is None or run.directory is None or run.stopping or run.directory.has(GO):
            return
        ports = (rendezvous.master_port, rendezvous.coordinator_port)
        try:
            env = rendezvous_environment(rendezvous, run.order)
            run.directory.write(GO, {"lease": lease, "env": env, "ports": ports}, durable=True)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: go.json cannot be written: %(error)s",
                run.order.log_fields(error=error),
            )
            # The run's exit then counts as a failure of this node, so the other nodes stop, too.
            run.signal_shim(signal.SIGKILL)

    def call_off(self, lease: str, why: str) -> None:
        """Stop this node's part of a gang, because another part cannot start."""
        run = self.live.get(lease)
        if run is not None and not (run.directory is not None and run.directory.has(GO)):
            now_s, run.called_off = self.clock(), True
            self._stop(lease, now_s, now_s, now_s + self.limits.grace_s, why)

    def ports(self, lease: str) -> tuple[int, ...]:
        """Return the ports at which the ranks of a gang meet; empty before go.json exists."""
        ports = self.live[lease].read_own(GO).get("ports") or ()
        return tuple(int(port) for port in ports)

    def renew(self, lease: str, ends_s: float, extra_save_s: float = 0.0) -> None:
        """Move the end of a lease, or of the time to save after it, to a later time, unless its run stops already."""
        run = self.live.get(lease)
        if run is not None and not run.stopping:
            deadlines = self.deadlines(ends_s, extra_save_s)
            run.extra_save_s = extra_save_s
            if deadlines[:3] > run.deadlines[:3]:
                run.deadlines = deadlines._replace(note=run.deadlines.note)
                run.write_lease()

    def ask(self, lease: str) -> None:
        """Ask a job to checkpoint and stop."""
        now_s, limits = self.clock(), self.limits
        run = self.live.get(lease)
        signal_s = now_s + limits.ask_s + (0.0 if run is None else run.extra_save_s)
        self._stop(lease, now_s, signal_s, signal_s + limits.grace_s)

    def signal(self, lease: str) -> None:
        """Have the shim signal the leaders of a run now."""
        now_s = self.clock()
        self._stop(lease, now_s, now_s, now_s + self.limits.grace_s)

    def note(self, lease: str, text: str) -> None:
        """Add a line to the log of a run."""
        run = self.live[lease]
        run.deadlines = run.deadlines._replace(note=text)
        run.write_lease()

    def variable(self, lease: str, name: str) -> str:
        """Return an environment variable with which the first rank was started; empty if it had none."""
        ranks = self.live[lease].read_own(START).get("ranks") or [{}]
        return str(ranks[0].get("env", {}).get(name, ""))

    def runs_sharing_gpus(self, order: Order) -> list[LiveRun]:
        """Return the other runs on the GPUs of an order."""
        runs = self.live.values()
        return [
            run for run in runs if run.order is not order and not set(order.gpus).isdisjoint(run.order.gpus)
        ]

    def kill(self, lease: str) -> None:
        """Have the shim kill all processes of a run; from the second call on, the agent kills them itself."""
        now_s = self.clock()
        run = self._stop(lease, now_s, now_s, now_s)
        if run is not None:
            run.kills += 1
            run.signal_shim(signal.SIGCONT)
            if run.kills > 1 and run.directory is not None:
                process_tree.kill_all(run.processes)
                if (group := self.custody.group(lease)) is not None:
                    group.kill()

    def mark_acknowledged(self, leases: Iterable[str]) -> None:
        """Mark exits that the scheduler has acknowledged, so that a restarted agent does not report them again."""
        for lease in leases:
            self.unacknowledged.discard(lease)
            with contextlib.suppress(OSError), RunDirectory(self.path(lease)) as directory:
                directory.mark(ACKNOWLEDGED)

    def path(self, lease: str) -> Path:
        """Return the directory of a run."""
        return self.runs_path / directory_name(lease)

    def deadlines(self, ends_s: float, extra_save_s: float) -> Deadlines:
        """Return the deadlines of a lease with this end, whose job needs this much longer than usual to save."""
        ask_s = ends_s + self.limits.late_s
        signal_s = ask_s + self.limits.ask_s + extra_save_s
        return Deadlines(ask_s, signal_s, signal_s + self.limits.grace_s)

    def _stop(
        self, lease: str, ask_s: float, signal_s: float, kill_s: float, why: str = ""
    ) -> LiveRun | None:
        """Make the deadlines of a run as early as these times; signal the shim if the deadlines cannot be written."""
        run = self.live.get(lease)
        if run is not None:
            run.stopping, is_over = True, run.deadlines.ask_s <= self.clock()
            default = "its time is over" if is_over else "the scheduler has recalled the lease"
            why = why or run.why_ended or default
            run.deadlines = run.deadlines.or_earlier(ask_s, signal_s, kill_s, why)
            if not run.write_lease() and signal_s <= self.clock():
                run.signal_shim(signal.SIGTERM)
        return run

    def _launch(
        self, run: LiveRun, prepare: Prepare
    ) -> tuple[RunDirectory, tuple[int, ...], subprocess.Popen[bytes] | None]:
        """Make the directory with its files, and start the shim unless `prepare` refuses the job. Runs in a thread."""
        order = run.order
        with contextlib.suppress(FileNotFoundError):
            # An existing directory is left from an interrupted start, because runs with a shim were adopted.
            shutil.rmtree(self.path(order.lease))
        with contextlib.ExitStack() as on_error:
            directory = on_error.enter_context(RunDirectory.create(self.runs_path, order.lease))
            try:
                start = prepare(directory)
            except ValueError as error:
                write_refusal(directory, order, self.clock(), str(error))
                on_error.pop_all()
                return directory, (), None
            if start["uid"] is not None:
                os.fchown(directory.fd, start["uid"], start["gid"])
            write_lease(directory, order, run.deadlines)
            on_error.callback(self.custody.release, order.lease)
            start |= self.custody.add(order, needed_for_removal(start)).groups_to_enter
            directory.write(START, start, durable=True, mode=0o600)
            shim = self.custody.start_shim(directory)
            on_error.pop_all()
        return directory, tuple(rank["rank"] for rank in start["ranks"]), shim

    # ------------------------------------------------------------------------------------------------- watching

    async def watch(self) -> None:
        """Watch the start and the progress of all runs, until cancelled."""
        while True:
            for run in list(self.live.values()):
                try:
                    self._check(run)
                except Exception:
                    # A failed check of one run must not stop the checks of the others.
                    LOG.exception("job %(job)s, lease %(lease)s: cannot be checked", run.order.log_fields())
            starting = any(run.gathers or not run.running for run in self.live.values())
            self._check_requested.clear()
            with contextlib.suppress(TimeoutError):
                wait_s = STARTING_INTERVAL_S if starting else PROGRESS_INTERVAL_S
                await asyncio.wait_for(self._check_requested.wait(), wait_s)

    def _check(self, run: LiveRun) -> None:
        """Report what the files of a run show: it is prepared, it has started, its job has made progress."""
        if run.directory is None:
            return
        if run.gathers or not run.running:
            shim = run.read_own(SHIM)
            if shim.get("ready"):
                self._report_prepared(run)
            if not run.running and shim.get("running"):
                run.running = True
                self.emit(ProcessStarted(run.order.lease))
        if run.running and run.update_progress() and run.progress is not None:
            progress = run.progress
            self.emit(Progressed(run.order.lease, progress.steps, progress.saved, progress.stepping_s))
        now_s = self.clock()
        if run.running and now_s - run.measured_at_s >= MEASURED_INTERVAL_S:
            self._update_measured(run, now_s)

    def _update_measured(self, run: LiveRun, now_s: float) -> None:
        if run.update_measured(now_s):
            self.emit(Measured(run.order.lease, run.measured))

    def _report_prepared(self, run: LiveRun, trouble: str = "") -> None:
        """Report, once, that a part of a gang can start, or the reason why it cannot."""
        if run.gathers:
            run.gathers = False
            self.prepared(run.order, trouble)

    def watch_shim(self, run: LiveRun, pid: int) -> None:
        """Have `shim_gone` called when the shim of a run ends."""
        try:
            run.pidfd = os.pidfd_open(pid)
        except OSError:
            self.shim_gone(run)
            return
        asyncio.get_running_loop().add_reader(run.pidfd, self.shim_gone, run)

    def shim_gone(self, run: LiveRun) -> None:
        """Report the exit of a run whose shim has ended, once all its processes are gone."""
        if self.live.get(run.order.lease) is not run:
            # The run was closed meanwhile.
            return
        self._unwatch(run)
        run.reopen_directory()
        ending = read_ending(run.read_own(EXIT) or None)
        if not self._kill_remaining(run, ending):
            interval_s = WITHHELD_INTERVAL_S if run.suspects else CLEAN_UP_INTERVAL_S
            asyncio.get_running_loop().call_later(interval_s, self.shim_gone, run)
            return
        if ending is None:
            LOG.error(
                "job %(job)s, lease %(lease)s: its shim is gone and has left no exit.json",
                run.order.log_fields(),
            )
        elif not run.running and ending.codes and not ending.error and not run.called_off:
            self.emit(ProcessStarted(run.order.lease))
        run.update_progress()
        self._update_measured(run, self.clock())
        self._report_prepared(run, (ending and ending.error) or "it ended before it was ready")
        if run.called_off and not (ending and ending.error):
            # Another node is the cause, so this exit, too, counts as the failure of a node, with a running time of 0.
            event = exit_event(run.order, None)
        else:
            event = exit_event(run.order, ending, run.progress, run.last_states(), run.ran_s(self.clock()))
        run.redact()
        self.custody.release(run.order.lease)
        self._close(run)
        self.unacknowledged.add(run.order.lease)
        self.emit(event)

    def _kill_remaining(self, run: LiveRun, ending: Ending | None) -> bool:
        """Kill the known processes of a run whose shim is gone; return whether the run is over."""
        if run.confirmed_gone:
            return True
        if ending is None and run.has_containers(self.custody.removal(run.order.lease)):
            return False
        remaining = self.custody.kill_remaining(run.order.lease)
        if remaining.dying or (ending is None and process_tree.kill_all(run.processes)):
            return False
        had_suspects = bool(run.suspects)
        run.suspects = list_processes(remaining.suspects) if remaining.suspects and ending is None else ""
        if run.suspects and not had_suspects:
            LOG.error(
                "job %(job)s, lease %(lease)s: its shim was killed, and these processes may belong to the job: "
                "%(suspects)s. Its GPUs are withheld until they are gone: kill those that belong to the job or, if "
                "none does, `gavel resume` the node",
                run.order.log_fields(suspects=run.suspects),
            )
        return not run.suspects

    def log_failed_start(self, order: Order, error: BaseException) -> None:
        """Log that a job cannot be started here, with the traceback if the reason is new."""
        fields = order.log_fields(
            error=f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
        )
        times = self.repeated.count(str(fields["error"]))
        if times == 0:
            LOG.error("job %(job)s, lease %(lease)s: cannot be started", fields, exc_info=error)
        elif times is not None:
            fields["times"] = times
            LOG.error(
                "job %(job)s, lease %(lease)s: cannot be started: %(error)s (%(times)d more since the last such line)",
                fields,
            )

    def withheld(self) -> dict[int, str]:
        """Return the GPUs on which an ended job may have left processes, with the reason for each."""
        return {
            gpu: f"job {run.order.job} may have left processes on it: {run.suspects}"
            for run in self.live.values()
            if run.suspects
            for gpu in run.order.gpus
        }

    def release_withheld(self) -> None:
        """Release the withheld GPUs, because an operator has confirmed that no ended job uses them."""
        for run in list(self.live.values()):
            if run.suspects:
                run.confirmed_gone, run.suspects = True, ""
                self.shim_gone(run)

    def _unwatch(self, run: LiveRun) -> None:
        if run.pidfd is not None:
            asyncio.get_running_loop().remove_reader(run.pidfd)
            os.close(run.pidfd)
            run.pidfd = None
        if run.popen is not None:
            run.popen.poll()

    def _close(self, run: LiveRun) -> None:
        if run.directory is not None:
            run.directory.close()
        self.live.pop(run.order.lease, None)

    def close(self) -> None:
        """Close all files and stop watching; the shims continue."""
        for run in list(self.live.values()):
            self._unwatch(run)
            self._close(run)
