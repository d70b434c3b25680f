"""The agent's hand on processes: starts shims, tells them by files, and notices how their runs go and end.

Everything is in files (docs/job-directory.md), so that a restarted agent finds it all again. One object, one event
loop; what may be slow (a package, a flush to disk) runs in a thread. Rules:
- a run that has a directory is answered for until its exit is reported, whatever happens to agent or shim;
- no exit is reported before every process that can be found is gone;
- the moments of a lease move back only to stop, and then never forward again;
- a part of a gang starts when go.json is there, and `prepared` is told before whether it can.
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

from worker_agent.core.messages import Event, Limits, Order, ProcessStarted, Progressed
from worker_agent.repeated_lines import RepeatedLines
from worker_agent.runs.containment import Containment
from worker_agent.runs.custody import Custody, words_for
from worker_agent.runs.launch import meeting_of
from worker_agent.runs.outcome import Ending, exited, read_ending
from worker_agent.runs.rendezvous import Rendezvous
from worker_agent.runs.run import LiveRun, Moments, say_moments, say_refused
from worker_agent.shim import process_tree
from worker_agent.shim.run_directory import EXIT, GO, SHIM, START, TOLD, RunDirectory, directory_name

LOG = logging.getLogger(__name__)
PROGRESS_INTERVAL_S = 0.5
STARTING_INTERVAL_S = 0.05
CLEAN_UP_INTERVAL_S = 0.2
WITHHELD_INTERVAL_S = 1.0

Prepare = Callable[[RunDirectory], dict[str, Any]]


class Processes:
    """All runs of a node."""

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
        """`emit` is told what happens, in the thread of the event loop.

        `prepared`: that a part of a gang can start, or why it cannot; always before its exit.
        """
        self.runs_path = state.absolute() / "runs"
        self.runs_path.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.limits, self.emit, self.prepared, self.clock = limits, emit, prepared, clock
        self.custody = Custody(state.absolute(), containment or Containment())
        self.live: dict[str, LiveRun] = {}
        self.untold: set[str] = set()  # ended, and the scheduler may not know
        self._stirred, self.repeated = asyncio.Event(), RepeatedLines()

    # -------------------------------------------------------------------------------------------------- orders

    async def start(self, order: Order, ends_s: float, prepare: Prepare, packed: bool = False) -> None:
        """Start a run: `prepare` fills its directory and says what goes into start.json, in a thread.

        A ValueError of `prepare` is the job's fault, and ends in an exit that says so; any other trouble is the node's.
        """
        run = self.live[order.lease] = LiveRun(order, self.moments(ends_s))
        run.packed = packed
        try:
            run.directory, run.ranks, run.popen = await asyncio.to_thread(self._launch, run, prepare)
        except Exception as error:
            self.repeated.failed_start(order, error)
            self._is_prepared(run, f"it cannot be started: {error}")
            self._close(run)
            self.emit(exited(order, None))
            return
        if run.popen is None:
            self.shim_gone(run)
            return
        run.write_lease()  # it may have moved meanwhile
        self.watch_shim(run, run.popen.pid)
        self._stirred.set()

    def go(self, lease: str, meeting: Rendezvous) -> None:
        """All nodes of a gang are ready: start."""
        run = self.live.get(lease)
        if run is None or run.directory is None or run.stopping or run.directory.has(GO):
            return
        ports = (meeting.master_port, meeting.coordinator_port)
        try:
            env = meeting_of(meeting, run.order.nodes)
            run.directory.write(GO, {"lease": lease, "env": env, "ports": ports}, durable=True)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: go.json cannot be written: %(error)s",
                run.order.named(error=error),
            )
            run.signal_shim(signal.SIGKILL)  # the node has failed it: so the other nodes do not run on alone

    def call_off(self, lease: str, why: str) -> None:
        """Another part of a gang cannot start: neither does this one."""
        run = self.live.get(lease)
        if run is not None and not (run.directory is not None and run.directory.has(GO)):
            now_s, run.called_off = self.clock(), True
            self._hasten(lease, now_s, now_s, now_s + self.limits.grace_s, why)

    def ports(self, lease: str) -> tuple[int, ...]:
        """Where the ranks of a gang were told to meet; empty before that."""
        said = self.live[lease].read_own(GO).get("ports") or ()
        return tuple(int(port) for port in said)

    def renew(self, lease: str, ends_s: float) -> None:
        """The lease goes on until then; no word to one that is being stopped."""
        run = self.live.get(lease)
        if run is not None and not run.stopping:
            moments = self.moments(ends_s)
            if moments.ask_s > run.moments.ask_s:
                run.moments = moments
                run.write_lease()

    def ask(self, lease: str) -> None:
        """It shall checkpoint and end by itself."""
        now_s, limits = self.clock(), self.limits
        signal_s = now_s + limits.ask_s
        self._hasten(lease, now_s, signal_s, signal_s + limits.grace_s)

    def signal(self, lease: str) -> None:
        """Its leaders are signalled now."""
        now_s = self.clock()
        self._hasten(lease, now_s, now_s, now_s + self.limits.grace_s)

    def note(self, lease: str, text: str) -> None:
        """A line for the log of a run."""
        run = self.live[lease]
        run.note = text
        run.write_lease()

    def variable(self, lease: str, name: str) -> str:
        """A variable of the first rank, as it was started; empty where there is none."""
        ranks = self.live[lease].read_own(START).get("ranks") or [{}]
        return str(ranks[0].get("env", {}).get(name, ""))

    def beside(self, order: Order) -> list[LiveRun]:
        """Other runs on GPUs of this one."""
        runs = self.live.values()
        return [
            run for run in runs if run.order is not order and not set(order.gpus).isdisjoint(run.order.gpus)
        ]

    def kill(self, lease: str) -> None:
        """All that belongs to it is killed now; by the agent itself, where the shim has been told before."""
        now_s = self.clock()
        run = self._hasten(lease, now_s, now_s, now_s)
        if run is not None:
            run.kills += 1
            run.signal_shim(signal.SIGCONT)
            if run.kills > 1 and run.directory is not None:
                process_tree.kill_all(run.belongings)
                if (group := self.custody.group(lease)) is not None:
                    group.kill()

    def told(self, leases: Iterable[str]) -> None:
        """The scheduler knows of these exits: a restarted agent need not tell them."""
        for lease in leases:
            self.untold.discard(lease)
            with contextlib.suppress(OSError), RunDirectory(self.path(lease)) as directory:
                directory.mark(TOLD)

    def path(self, lease: str) -> Path:
        """The directory of a run."""
        return self.runs_path / directory_name(lease)

    def moments(self, ends_s: float) -> Moments:
        """The three moments of a lease that ends then."""
        ask_s = ends_s + self.limits.late_s
        signal_s = ask_s + self.limits.ask_s
        return Moments(ask_s, signal_s, signal_s + self.limits.grace_s)

    def _hasten(
        self, lease: str, ask_s: float, signal_s: float, kill_s: float, why: str = ""
    ) -> LiveRun | None:
        """Earlier moments; the shim is told by a signal where its file cannot be written."""
        run = self.live.get(lease)
        if run is not None:
            run.stopping, over = True, run.moments.ask_s <= self.clock()
            default = "its time is over" if over else "the scheduler wants the GPUs back"
            run.moments = run.moments.or_earlier(ask_s, signal_s, kill_s, why or run.why_ended or default)
            if not run.write_lease() and signal_s <= self.clock():
                run.signal_shim(signal.SIGTERM)
        return run

    def _launch(
        self, run: LiveRun, prepare: Prepare
    ) -> tuple[RunDirectory, tuple[int, ...], subprocess.Popen[bytes] | None]:
        """In a thread: the directory, its files, and the shim."""
        order = run.order
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path(order.lease))  # of a start that was broken off: what has a shim was found
        with contextlib.ExitStack() as unless_started:
            directory = unless_started.enter_context(RunDirectory.create(self.runs_path, order.lease))
            try:
                start = prepare(directory)
            except ValueError as error:
                say_refused(directory, order, self.clock(), str(error))
                unless_started.pop_all()
                return directory, (), None
            if start["uid"] is not None:
                os.fchown(directory.fd, start["uid"], start["gid"])
            say_moments(directory, order, run.moments)
            unless_started.callback(self.custody.release, order.lease)
            start["group"] = self.custody.take(order).group
            directory.write(START, start, durable=True, mode=0o600)
            shim = self.custody.start_shim(directory)
            unless_started.pop_all()
        return directory, tuple(rank["rank"] for rank in start["ranks"]), shim

    # ------------------------------------------------------------------------------------------------- watching

    async def watch(self) -> None:
        """See how far the runs are, for ever."""
        while True:
            for run in list(self.live.values()):
                try:
                    self._look(run)
                except Exception:
                    # one blocks no other
                    LOG.exception("job %(job)s, lease %(lease)s: cannot be looked at", run.order.named())
            starting = any(run.gathers or not run.running for run in self.live.values())
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                wait_s = STARTING_INTERVAL_S if starting else PROGRESS_INTERVAL_S
                await asyncio.wait_for(self._stirred.wait(), wait_s)

    def _look(self, run: LiveRun) -> None:
        if run.directory is None:
            return
        if run.gathers or not run.running:
            shim = run.read_own(SHIM)
            if shim.get("ready"):
                self._is_prepared(run)
            if not run.running and shim.get("running"):
                run.running = True
                self.emit(ProcessStarted(run.order.lease))
        if run.running and run.look_at_progress() and run.progress is not None:
            said = run.progress
            self.emit(Progressed(run.order.lease, said.steps, said.saved, said.stepping_s))

    def _is_prepared(self, run: LiveRun, trouble: str = "") -> None:
        """A part of a gang can start, or cannot: said once."""
        if run.gathers:
            run.gathers = False
            self.prepared(run.order, trouble)

    def watch_shim(self, run: LiveRun, pid: int) -> None:
        """See to the run when its shim is gone."""
        try:
            run.pidfd = os.pidfd_open(pid)
        except OSError:
            self.shim_gone(run)
            return
        asyncio.get_running_loop().add_reader(run.pidfd, self.shim_gone, run)

    def shim_gone(self, run: LiveRun) -> None:
        """Report how it ended, when nothing is left of it."""
        if self.live.get(run.order.lease) is not run:
            return  # closed meanwhile
        self._let_go(run)
        run.find_directory_again()
        ending = read_ending(run.read_own(EXIT) or None)
        if not self._is_over(run, ending):
            interval_s = WITHHELD_INTERVAL_S if run.withheld else CLEAN_UP_INTERVAL_S
            asyncio.get_running_loop().call_later(interval_s, self.shim_gone, run)
            return
        if ending is None:
            LOG.error(
                "job %(job)s, lease %(lease)s: its shim is gone and has left no exit.json", run.order.named()
            )
        elif not run.running and ending.codes and not ending.error and not run.called_off:
            self.emit(ProcessStarted(run.order.lease))
        run.look_at_progress()
        self._is_prepared(run, (ending and ending.error) or "it ended before it was ready")
        if run.called_off and not (ending and ending.error):  # another node has failed it: this was no turn
            event = exited(run.order, None)
        else:
            event = exited(run.order, ending, run.progress, run.last_words(), run.ran_s(self.clock()))
        run.redact()
        self.custody.release(run.order.lease)
        self._close(run)
        self.untold.add(run.order.lease)
        self.emit(event)

    def _is_over(self, run: LiveRun, ending: Ending | None) -> bool:
        """Whether nothing is left of a run whose shim is gone; what is known to be its own is killed."""
        if run.let_go:
            return True
        left = self.custody.clear(run.order.lease)
        if left.dying or (ending is None and process_tree.kill_all(run.belongings)):
            return False
        withheld = run.withheld
        run.withheld = words_for(left.suspects) if left.suspects and ending is None else ""
        if run.withheld and not withheld:
            LOG.error(
                "job %(job)s, lease %(lease)s: its shim was killed, and these processes may be of the job: "
                "%(suspects)s. Its GPUs are withheld until they are gone: end those that are of the job, or, if none "
                "is, `gavel resume` the node",
                run.order.named(suspects=run.withheld),
            )
        return not run.withheld

    def withheld(self) -> dict[int, str]:
        """GPUs on which an ended job may have left processes, and what these may be."""
        return {
            gpu: f"job {run.order.job} may have left processes on it: {run.withheld}"
            for run in self.live.values()
            if run.withheld
            for gpu in run.order.gpus
        }

    def let_go(self) -> None:
        """An operator says that nothing is left of the runs whose GPUs are withheld."""
        for run in list(self.live.values()):
            if run.withheld:
                run.let_go, run.withheld = True, ""
                self.shim_gone(run)

    def _let_go(self, run: LiveRun) -> None:
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
        """Let go of everything; shims go on."""
        for run in list(self.live.values()):
            self._let_go(run)
            self._close(run)
