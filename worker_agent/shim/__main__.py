"""`python -m worker_agent.shim RUN_DIR`: owns the processes of one lease, and outlives the agent.

The shim is small, uses only the standard library and one thread, and runs in its own session. It acts on the deadlines
in lease.json by the monotonic clock, even if the agent is dead, and writes the end of the run to exit.json
(docs/job-directory.md). Rules:
- the shim sends SIGTERM only to the leaders of the ranks, and SIGKILL to all their descendants and to all processes in
  the run's control group, if there is one (control_groups.py);
- if no rank reads lease.json, the leaders get SIGTERM as early as `ask_s`, because only a signal reaches them;
- exit.json is written after the last process has ended, in disk space that is reserved before the first starts;
- output goes through a separate process (log_pump.py), so that a slow disk delays neither deadlines nor exit codes;
- if the shim itself gets SIGTERM, the lease ends: the leaders are signalled now, and all processes killed soon after.
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
from worker_agent.shim.exit_file import ExitFile, describe_code, exit_code
from worker_agent.shim.log_pump import Output
from worker_agent.shim.preparation import Step, steps
from worker_agent.shim.rendezvous import rendezvous_of
from worker_agent.shim.run_directory import RunDirectory
from worker_agent.shim.shim_file import write_shim_file
from worker_agent.shim.terminals import Terminal, Terminals

# How often lease.json is read.
LOOK_INTERVAL_S = 0.05
# How long after the failure of a rank, or after a signal to the shim, the other processes are killed.
GRACE_S = 5.0
# The length of one wait for an ended job's output to reach its log and its terminal, and how many there are at most.
DRAIN_S, DRAIN_WAITS = 0.005, 1000

# The signals that the shim blocks and waits for, and those of them that end the lease.
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
        self._last_note = deadlines.note
        self._lease_version = run.version(run_directory.LEASE)
        # Whether the deadlines have ever become earlier, so that the lease cannot be renewed any more.
        self._is_ending = False
        # Ranks by the pids of their leaders.
        self.leaders: dict[int, int] = {}
        # Exit codes by rank.
        self.codes: dict[int, int] = {}
        # The rank that failed first.
        self.first_failed: int | None = None
        # Whether the leaders were signalled, and whether all processes were killed, because of the lease.
        self.signalled = self.killed = False
        # When all processes are killed because of a failed rank or a time limit.
        self._kill_s = math.inf
        # Whether this part of a gang can start; always False for a run that is no such part.
        self._ready = False
        # Whether SIGTERM was sent to the leaders, for any reason.
        self._leaders_signalled = False
        # The pids of children to which SIGKILL was sent.
        self._killed: set[int] = set()
        self.started_s = time.monotonic()
        paths = start.get("group"), start.get("cpu_group")
        self._group, self._cpu_group = (ControlGroup(path) if path else None for path in paths)
        entrance = None if self._group is None else self._group.open_entrance()
        cpu_entrance = None
        if self._cpu_group is not None:
            # Another program may have removed the group; the job runs without its weight, too.
            with contextlib.suppress(OSError):
                cpu_entrance = self._cpu_group.open_entrance()
        turn = partial(turn_into, start, shim=os.getpid(), default=OUR_SIGNALS)
        self._turn_into = partial(turn, entrance=entrance, cpu_entrance=cpu_entrance)
        self._exit = ExitFile(run, len(self.ranks))
        self._output = Output(run.open_logs(), start, keep_out=(self._exit.fd, lock))
        # Writes a line of Gavel into the log of the first rank.
        self.note = self._output.note
        self._terminals = Terminals(run, start, self.note)

    # ------------------------------------------------------------------------------------------------- the run

    def carry_out(self) -> None:
        """Carry out the run, from its setup to its exit.json."""
        error = ""
        self._write_shim_file()
        try:
            for step in steps(self.start):
                if self._may_start():
                    self._prepare(step)
            rendezvous_env = self._wait_for_gang() if self._may_start() else {}
            if self._may_start() and not self._is_too_late("the lease ended before the ranks could start"):
                self._start_ranks(rendezvous_env)
        except CannotStart as reason:
            error = str(reason)
            self._kill_s = -math.inf
            self.note(error)
        self._watch()
        if self.start.get("container"):
            self._remove_containers()
        self._finish(error)

    def _may_start(self) -> bool:
        return not self.signalled and not self.killed

    def _is_too_late(self, why: str) -> bool:
        """Return whether the lease is over; if so, note in the log that nothing was started, and why."""
        # The time is read before lease.json, as in `_watch`.
        now_s = time.monotonic()
        self._read_lease()
        if now_s < self.deadlines.ask_s:
            return False
        self.signalled = True
        self.note(f"nothing was started: {self.deadlines.why or why}")
        return True

    def _prepare(self, step: Step) -> None:
        """Carry out a step before the ranks start; raise CannotStart if it fails or takes too long."""
        rank, end_s = self.ranks[0], time.monotonic() + step.limit_s
        self._kill_s = end_s
        self._spawn(rank, step.argv, step.env, **step.options)
        self._watch()
        self._kill_s = math.inf
        if not self._may_start():
            return
        code = self.codes.get(rank)
        if code == -signal.SIGKILL and time.monotonic() >= end_s:
            # The shim killed the step, so its code means nothing.
            self.codes.clear()
            raise CannotStart(
                f"{step.name} did not end within {step.limit_s:g} s (setup_limit): nothing was started"
            )
        if code:
            raise CannotStart(f"{step.name} ended with {describe_code(code)}: nothing was started")
        if not self._is_too_late(f"the lease ended before {step.name} was complete"):
            self.codes.clear()

    def _wait_for_gang(self) -> dict[str, str]:
        """Wait for the other nodes of a gang, and return the variables by which its ranks find each other.

        A gang starts on all its nodes or on none. So every step of a start that can fail is tested before this part
        reports that it is ready. A job on one node does not wait; the `env` of its ranks has these variables.
        """
        # This is checked only now, because the setup may have made the virtual environment.
        venv = self.start["ranks"][0]["env"].get("VIRTUAL_ENV")
        if venv and not os.path.isdir(f"{venv}/bin"):
            raise CannotStart(f"virtual environment {venv}: there is no {venv}/bin on this node")
        if not self.start.get("gathers"):
            return {}
        first_rank = self.start["ranks"][0]
        self._spawn(self.ranks[0], first_rank["argv"], first_rank["env"], rehearse=True)
        self._watch()
        self.codes.clear()
        self._ready = True
        self._write_shim_file()
        while self._may_start():
            go = self.run.read(run_directory.GO, owner=os.geteuid(), size_bytes_max=1 << 16)
            if go is not None and go.get("lease") == self.lease:
                return rendezvous_of(go)
            if not self._is_too_late("not all nodes were ready in time"):
                self._wait()
        return {}

    def _start_ranks(self, rendezvous_env: dict[str, str]) -> None:
        terminal = self._terminals.open_own(self._output.fds[self.ranks[0]])
        self._terminals.shell_env = self.start["ranks"][0]["env"] | rendezvous_env
        for rank in self.start["ranks"]:
            self._spawn(int(rank["rank"]), rank["argv"], rank["env"] | rendezvous_env, terminal=terminal)
        self.started_s = time.monotonic()
        self._write_shim_file()

    def _watch(self) -> None:
        """Reap processes and obey the deadlines until no process is left."""
        while True:
            self._reap()
            # The time is read before lease.json: a shim that was suspended in between then sees the renewed lease.
            now_s = time.monotonic()
            self._read_lease()
            if self.leaders:
                self._terminals.open_shells(self._turn_into)
            if self._obey(now_s):
                return
            self._wait()

    def _wait(self) -> None:
        """Wait for a signal, or until lease.json has to be read again."""
        received = signal.sigtimedwait(OUR_SIGNALS, LOOK_INTERVAL_S)
        if received is not None and received.si_signo in _STOPS:
            now_s = time.monotonic()
            self._set_deadlines(
                Deadlines(now_s, now_s, now_s + GRACE_S, "the shim received a signal to stop")
            )

    def _reap(self) -> None:
        """Take the exit codes of ended children, and note the first rank that failed."""
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
            code = exit_code(status, self.start)
            self._terminals.on_exit(pid, code)
            rank = self.leaders.pop(pid, None)
            if rank is not None:
                self.codes[rank] = code
                if self.codes[rank] and self.first_failed is None:
                    self.first_failed = rank
                    self._kill_s = time.monotonic() + GRACE_S

    def _read_lease(self) -> None:
        """Take new deadlines from lease.json, and write a new note into the log."""
        version = self.run.version(run_directory.LEASE)
        if version != self._lease_version:
            self._lease_version = version
            new = read_deadlines(self.run, self.lease) or self.deadlines
            if new.note not in ("", self._last_note):
                self._last_note = new.note
                self.note(new.note)
            self._set_deadlines(new)

    def _set_deadlines(self, new: Deadlines) -> None:
        """Replace the deadlines. When they have become earlier, the lease is ending, and later ones are ignored."""
        # While the lease is ending, later deadlines can come only from an old lease.json that the job has put back.
        self._is_ending = self._is_ending or new.ask_s < self.deadlines.ask_s
        if self._is_ending:
            old = self.deadlines
            new = new.or_earlier(old.ask_s, old.signal_s, old.kill_s, old.why)
        self.deadlines = new

    def _obey(self, now_s: float) -> bool:
        """Signal or kill the processes that must end by now; return whether no process is left."""
        by_lease = now_s >= self.deadlines.kill_s
        if not self.leaders or by_lease or now_s >= self._kill_s:
            if by_lease and self.leaders and self.first_failed is None and not self.killed:
                self.killed = True
                self._note_end("killed")
            return self._kill() and not self.leaders
        if not self._leaders_signalled:
            if self.first_failed is not None:
                self._leaders_signalled = True
                code = describe_code(self.codes[self.first_failed])
                self.note(f"rank {self.first_failed} ended with {code}: the other ranks are stopped")
                self._signal_leaders()
            elif now_s >= self.deadlines.signal_s or (
                now_s >= self.deadlines.ask_s and not self.run.job_reads_lease()
            ):
                self._leaders_signalled = self.signalled = True
                self._note_end("SIGTERM")
                self._signal_leaders()
        return False

    def _kill(self) -> bool:
        """Kill all processes; return True if there were none.

        A search through all processes misses a process that keeps forking and exiting. But when such a process exits,
        its child becomes a child of the shim. The exit also wakes the shim, which finds the new child at once and kills
        it before it forks.
        """
        new_children = set(process_tree.children()) - self._killed - self._own_children
        for pid in new_children:
            # Our children are not reaped yet, so no other process can have the pid.
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._killed |= new_children
        if self._group is not None and not self._group.kill():
            return False
        return not new_children and not process_tree.kill_all(self._processes, self._reap)

    def _signal_leaders(self) -> None:
        for pid in self.leaders:
            # The leaders are not reaped yet, so no other process can have the pid.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._terminals.hang_up()

    def _processes(self) -> list[process_tree.Process]:
        """Return all processes of the job."""
        return process_tree.descendants(os.getpid(), without=self._own_children)

    @property
    def _own_children(self) -> set[int]:
        """The children of the shim that do not belong to the job: the pump, and the servers of terminals."""
        return {self._output.pump, *self._terminals.servers}

    def _note_end(self, step: str) -> None:
        """Write into the log that the lease is over. `step`: "SIGTERM" or "killed"."""
        why = f" ({self.deadlines.why})" if self.deadlines.why else ""
        self.note(f"{step}: the lease is over{why}")

    # ----------------------------------------------------------------------------------------------- processes

    def _spawn(
        self,
        rank: int,
        argv: list[str],
        env: dict[str, str],
        terminal: Terminal | None = None,
        **options: Any,
    ) -> None:
        """Start a leader in its own session; raise CannotStart if that fails. `options`: arguments of `turn_into`."""
        trouble_out, trouble_in = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(trouble_out)
            options |= {"out": self._output.fds[rank]} if terminal is None else terminal.streams
            self._turn_into(argv, env, trouble_in=trouble_in, **options)
        os.close(trouble_in)
        self.leaders[pid] = rank
        if terminal is not None:
            terminal.started(pid)
        with os.fdopen(trouble_out, "rb") as file:
            # The pipe ends when the child executes its command or exits.
            trouble = file.read(4096).decode(errors="replace")
        if trouble:
            raise CannotStart(trouble)

    def _remove_containers(self) -> None:
        """Remove the containers that are no descendants of this process, and wait until none is left."""
        from worker_agent.shim.container_removal import start_removal

        # The agent may kill the program, because it is a descendant of the shim.
        while start_removal(self.start, self._output.fds[self.ranks[0]]).wait():
            pass

    def _write_shim_file(self) -> None:
        write_shim_file(self.run, list(self.leaders), ready=self._ready, started_s=self.started_s)

    def _finish(self, error: str) -> None:
        """Wait until all output is in the logs, then write exit.json."""
        self._output.close()
        end_s = time.monotonic()
        # The waits are counted, not timed: while the machine is suspended, the pump cannot write either.
        for _ in range(DRAIN_WAITS):
            self._reap()
            if not any(self._own_children):
                break
            signal.sigtimedwait(OUR_SIGNALS, DRAIN_S)
        ending = {
            "codes": {str(rank): code for rank, code in sorted(self.codes.items())},
            "first": self.first_failed,
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
        for group in (self._group, self._cpu_group):
            if group is not None:
                group.remove()


def main(path: str) -> None:
    """Carry out the run in this directory; exit with a message if another shim carries it out or it is over."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_BLOCK, OUR_SIGNALS)
    run = RunDirectory(path)
    lock = run.lock()
    if lock is None or run.has(run_directory.EXIT):
        raise SystemExit(f"{path}: another shim already carries out this run, or the run is over")
    start = run.read(run_directory.START, owner=os.geteuid())
    if start is None:
        raise SystemExit(f"{path}: start.json cannot be read")
    process_tree.adopt_orphans()
    if start.get("uid") is not None:
        process_tree.forbid_new_privileges()
    Shim(run, start, lock).carry_out()


if __name__ == "__main__":
    main(sys.argv[1])
    # Exit without Python's clean-up: everything is on disk, and the agent is waiting for this process to end.
    os._exit(0)
