"""`python -m worker_agent.shim RUN_DIR`: owns the processes of one lease, and outlives the agent.

Small, standard library only, one thread, started by exec in a session of its own. It obeys the deadlines of
lease.json on the monotonic clock, whether the agent lives or not, and records in exit.json how the run ended
(docs/job-directory.md). Rules:
- SIGTERM goes to the leaders of the ranks alone; SIGKILL goes to all their descendants as well, and to all processes
  of the run's control group, where it has one (control_groups.py);
- ranks that do not read lease.json get their SIGTERM at once, because they cannot end by themselves;
- exit.json is written when nothing is left, and its room on the disk is taken before anything starts;
- output goes through a process of its own (log_pump.py), so that a slow disk holds up neither deadlines nor codes;
- SIGTERM to the shim is an end of the lease: signal now, kill a little later.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from functools import partial
from typing import Any

from worker_agent.shim import process_tree, run_directory
from worker_agent.shim.child import CannotStart, turn_into
from worker_agent.shim.control_groups import ControlGroup
from worker_agent.shim.deadlines import Deadlines, read_deadlines
from worker_agent.shim.exit_file import ExitFile
from worker_agent.shim.log_pump import Output
from worker_agent.shim.run_directory import RunDirectory

LOOK_INTERVAL_S = 0.05
# How long after the failure of a rank, or a signal to the shim, all other processes are killed.
GRACE_S = 5.0
# How long, and how often, we wait for the output of an ended job to reach its log.
DRAIN_S, DRAIN_WAITS = 0.005, 1000

OUR_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))


class Shim:
    """One run, from its start.json to its exit.json."""

    def __init__(self, run: RunDirectory, start: dict[str, Any], lock: int) -> None:
        self.run, self.start = run, start
        self.lease = str(start["lease"])
        self.ranks = [int(rank["rank"]) for rank in start["ranks"]]
        deadlines = read_deadlines(run, self.lease)
        if deadlines is None or not self.ranks:
            raise SystemExit("lease.json is damaged, or start.json has no ranks: nothing was started")
        self.deadlines = deadlines
        self._noted = deadlines.note
        self._lease_version = run.version(run_directory.LEASE)
        self._ending = False
        # Ranks by the pids of their leaders.
        self.leaders: dict[int, int] = {}
        self.codes: dict[int, int] = {}
        # The first rank that failed.
        self.first: int | None = None
        # Because of the lease, not of a failed rank.
        self.signalled = self.killed = False
        # When the failure of one rank ends the others.
        self._down_s = math.inf
        # This part of a gang over several nodes can start.
        self._ready = False
        # The leaders were sent SIGTERM.
        self._leaders_signalled = False
        # Children that were sent SIGKILL.
        self._killed: set[int] = set()
        self.started_s = time.monotonic()
        self._group = ControlGroup(start["group"]) if start.get("group") else None
        self._entrance = None if self._group is None else self._group.open_entrance()
        self._exit = ExitFile(run, len(self.ranks))
        self._output = Output(run.open_logs(), start, keep_out=(self._exit.fd, lock))

    # ------------------------------------------------------------------------------------------------- the run

    def carry_out(self) -> None:
        """Carry the run out, from its setup to its exit.json."""
        error = ""
        self._write_shim_file()
        try:
            self._begin_checkpoints()
            if self._may_start():
                self._set_up()
            meeting = self._meet() if self._may_start() else {}
            if self._may_start() and not self._is_too_late("the lease was over before it could start"):
                self._start_ranks(meeting)
        except CannotStart as reason:
            error = str(reason)
            self._down_s = -math.inf
            self.note(error)
        self._watch()
        self._finish(error)

    def _may_start(self) -> bool:
        return not self.signalled and not self.killed

    def _is_too_late(self, why: str) -> bool:
        """Tell whether the lease is over before the ranks run. Then they never do, and the log says why."""
        # The time is read before the lease, as in `_watch`.
        now_s = time.monotonic()
        self._look_at_lease()
        if now_s < self.deadlines.ask_s:
            return False
        self.signalled = True
        self.note(f"nothing was started: {self.deadlines.why or why}")
        return True

    def _begin_checkpoints(self) -> None:
        """Give this attempt a checkpoint directory of its own, where the job wants that."""
        own = self.start.get("own_checkpoints")
        if own:
            from worker_agent.shim.attempt_checkpoints import begin

            # Without the variable of the checkpoint directory, which would be made empty.
            env = {"PATH": os.defpath}
            act = partial(begin, own["directory"], own["name"])
            self._prepare("its checkpoint directory", [], env, instead=act)

    def _set_up(self) -> None:
        setup = self.start.get("setup")
        if setup:
            limit_s = self.start.get("setup_limit_s") or math.inf
            self._prepare("setup", setup, self.start["ranks"][0]["env"], limit_s)

    def _prepare(
        self, step: str, argv: list[str], env: dict[str, str], limit_s: float = math.inf, **more: Any
    ) -> None:
        """Run a step to its end before the ranks; CannotStart where it fails or takes too long."""
        rank, until_s = self.ranks[0], time.monotonic() + limit_s
        self._down_s = until_s
        self._spawn(rank, argv, env, **more)
        self._watch()
        self._down_s = math.inf
        if not self._may_start():
            return
        code = self.codes.get(rank)
        if code == -signal.SIGKILL and time.monotonic() >= until_s:
            # We have killed it, so its code says nothing.
            self.codes.clear()
            raise CannotStart(f"{step} did not end within {limit_s:g} s (setup_limit): nothing was started")
        if code:
            raise CannotStart(f"{step} ended with {_ending(code)}: nothing was started")
        if not self._is_too_late(f"the lease was over before {step} was ready"):
            self.codes.clear()

    def _meet(self) -> dict[str, str]:
        """Wait for the other nodes of a gang, and return the variables by which its ranks meet.

        A gang starts when all its nodes are ready, or never. So whatever can fail here is tried before this part
        reports that it is ready.
        """
        # The setup may have made the virtual environment.
        venv = self.start["ranks"][0]["env"].get("VIRTUAL_ENV")
        if venv and not os.path.isdir(f"{venv}/bin"):
            raise CannotStart(f"virtual environment {venv}: there is no {venv}/bin on this node")
        if not self.start.get("gathers"):
            return {}
        first = self.start["ranks"][0]
        self._spawn(self.ranks[0], first["argv"], first["env"], rehearse=True)
        self._watch()
        self.codes.clear()
        self._ready = True
        self._write_shim_file()
        while self._may_start():
            go = self.run.read(run_directory.GO, owner=os.geteuid(), size_bytes_max=1 << 16)
            if go is not None and go.get("lease") == self.lease:
                return {str(name): str(value) for name, value in dict(go.get("env") or {}).items()}
            if not self._is_too_late("not all nodes were ready in time"):
                self._wait()
        return {}

    def _start_ranks(self, meeting: dict[str, str]) -> None:
        for rank in self.start["ranks"]:
            self._spawn(int(rank["rank"]), rank["argv"], rank["env"] | meeting)
        self.started_s = time.monotonic()
        self._write_shim_file()

    def _watch(self) -> None:
        """Reap processes and obey the lease until no process is left."""
        while True:
            self._reap()
            # The time is read before the lease: if we are suspended in between, no renewal is missed.
            now_s = time.monotonic()
            self._look_at_lease()
            if self._obey(now_s):
                return
            self._wait()

    def _wait(self) -> None:
        """Wait for a signal, or until the lease has to be read again."""
        received = signal.sigtimedwait(OUR_SIGNALS, LOOK_INTERVAL_S)
        if received is not None and received.si_signo in _STOPS:
            now_s = time.monotonic()
            self._heed(Deadlines(now_s, now_s, now_s + GRACE_S, "the shim was told to stop"))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._killed.discard(pid)
            if pid == self._output.pump:
                self._output.pump = 0
            rank = self.leaders.pop(pid, None)
            if rank is not None:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                if self.codes[rank] and self.first is None:
                    self.first = rank
                    self._down_s = time.monotonic() + GRACE_S

    def _look_at_lease(self) -> None:
        version = self.run.version(run_directory.LEASE)
        if version != self._lease_version:
            self._lease_version = version
            new = read_deadlines(self.run, self.lease) or self.deadlines
            if new.note not in ("", self._noted):
                self._noted = new.note
                self.note(new.note)
            self._heed(new)

    def _heed(self, new: Deadlines) -> None:
        """Take new deadlines. Once they moved back, later ones are those of an older file that the job has put back."""
        self._ending = self._ending or new.ask_s < self.deadlines.ask_s
        if self._ending:
            old = self.deadlines
            new = new.or_earlier(old.ask_s, old.signal_s, old.kill_s, old.why)
        self.deadlines = new

    def _obey(self, now_s: float) -> bool:
        """Do what is due; True when no process is left."""
        by_lease = now_s >= self.deadlines.kill_s
        if not self.leaders or by_lease or now_s >= self._down_s:
            if by_lease and self.leaders and self.first is None and not self.killed:
                self.killed = True
                self._note_end("killed")
            return self._kill() and not self.leaders
        if not self._leaders_signalled:
            if self.first is not None:
                self._leaders_signalled = True
                self.note(
                    f"rank {self.first} ended with {_ending(self.codes[self.first])}: the others are stopped"
                )
                self._signal_leaders()
            elif now_s >= self.deadlines.signal_s or (
                now_s >= self.deadlines.ask_s and not self.run.is_heeded()
            ):
                self._leaders_signalled = self.signalled = True
                self._note_end("SIGTERM")
                self._signal_leaders()
        return False

    def _kill(self) -> bool:
        """Kill all processes; True when there was none.

        A process that forks and exits, again and again, is gone before a look through all processes is over. But when
        it exits, its child becomes ours: we are woken, find it at once, and are faster than it.
        """
        fresh = set(process_tree.children()) - self._killed - {self._output.pump}
        for pid in fresh:
            # They are not reaped yet, so no other process can have the pid.
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._killed |= fresh
        if self._group is not None and not self._group.kill():
            return False
        return not fresh and not process_tree.kill_all(self._belongings, self._reap)

    def _signal_leaders(self) -> None:
        for pid in self.leaders:
            # They are not reaped yet, so no other process can have the pid.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _belongings(self) -> list[process_tree.Process]:
        return process_tree.descendants(os.getpid(), without=(self._output.pump,))

    def _note_end(self, step: str) -> None:
        why = f" ({self.deadlines.why})" if self.deadlines.why else ""
        self.note(f"{step}: the lease is over{why}")

    # ----------------------------------------------------------------------------------------------- processes

    def _spawn(self, rank: int, argv: list[str], env: dict[str, str], **more: Any) -> None:
        """Start a leader in a session of its own; CannotStart where that fails. `more`: arguments of `turn_into`."""
        trouble_out, trouble_in = os.pipe()
        shim = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(trouble_out)
            more |= {
                "shim": shim,
                "out": self._output.fds[rank],
                "trouble_in": trouble_in,
                "default": OUR_SIGNALS,
            }
            turn_into(self.start, argv, env, entrance=self._entrance, **more)
        os.close(trouble_in)
        self.leaders[pid] = rank
        with os.fdopen(trouble_out, "rb") as file:
            # The pipe is closed when the child executes its command.
            trouble = file.read(4096).decode(errors="replace")
        if trouble:
            raise CannotStart(trouble)

    def note(self, text: str) -> None:
        """Write a line of ours into the log of the first rank."""
        self._output.note(text)

    # --------------------------------------------------------------------------------------------------- files

    def _write_shim_file(self) -> None:
        me = process_tree.look_up(os.getpid())
        leaders = [leader for pid in self.leaders if (leader := process_tree.look_up(pid))]
        content = {
            "pid": os.getpid(),
            "start_ticks": me.start_ticks if me else 0,
            "boot_id": process_tree.boot_id(),
            "pids": [leader.pid for leader in leaders],
            "pids_start_ticks": [leader.start_ticks for leader in leaders],
            "ready": self._ready,
            "running": bool(self.leaders),
            "started_s": self.started_s,
        }
        # A full disk is no reason to stop a job.
        with contextlib.suppress(OSError):
            self.run.write(run_directory.SHIM, content, durable=True)

    def _finish(self, error: str) -> None:
        """Let all output reach the logs, then write exit.json, which comes last."""
        self._output.close()
        end_s = time.monotonic()
        # Waits are counted and not timed, because the pump stands still whenever the machine does.
        for _ in range(DRAIN_WAITS):
            self._reap()
            if not self._output.pump:
                break
            signal.sigtimedwait(OUR_SIGNALS, DRAIN_S)
        ending = {
            "codes": {str(rank): code for rank, code in sorted(self.codes.items())},
            "first": self.first,
            "signalled": self.signalled,
            "killed": self.killed,
            "started_s": self.started_s,
            "ended_s": end_s,
            "error": error[:1000],
        }
        try:
            self._exit.write(ending)
        except OSError as trouble:
            raise SystemExit(f"exit.json cannot be written: {trouble}") from trouble
        if self._group is not None:
            self._group.remove()


def _ending(code: int) -> str:
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def main(path: str) -> None:
    """Carry out the run in this directory, unless another shim does or it is over."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_BLOCK, OUR_SIGNALS)
    run = RunDirectory(path)
    lock = run.lock()
    if lock is None or run.has(run_directory.EXIT):
        raise SystemExit(f"{path}: another shim carries it out already, or it is over")
    start = run.read(run_directory.START, owner=os.geteuid())
    if start is None:
        raise SystemExit(f"{path}: start.json cannot be read")
    process_tree.adopt_orphans()
    if start.get("uid") is not None:
        process_tree.forbid_new_privileges()
    Shim(run, start, lock).carry_out()


if __name__ == "__main__":
    main(sys.argv[1])
    # Everything is on disk, and the agent is waiting for our end.
    os._exit(0)
