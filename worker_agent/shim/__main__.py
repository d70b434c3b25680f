"""`python -m worker_agent.shim RUN_DIR`: owns the processes of one lease, and outlives the agent.

Small, standard library only, one thread, started by exec in a session of its own. It obeys the deadlines of
lease.json on the monotonic clock whoever else is alive, and says in exit.json how everything ended
(docs/job-directory.md). Rules:
- ranks are told by SIGTERM to their leaders alone; what is killed is killed with all that descends from it, and all
  that is in the run's control group, where it has one (control_groups.py);
- nobody waits for those to end by themselves who do not read lease.json: they have their SIGTERM at once;
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
from worker_agent.shim.log_pump import PiecewiseLog, pump
from worker_agent.shim.run_directory import RunDirectory

LOOK_INTERVAL_S = 0.05
GRACE_S = 5.0  # from one rank's death, or a signal to the shim, to the killing of what is left
DRAIN_S, DRAIN_WAITS = 0.005, 1000  # for the output of a job that has ended to reach its log

OUR_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_STOPS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGQUIT))


class Shim:
    """One run, from its start.json to its exit.json."""

    def __init__(self, run: RunDirectory, start: dict[str, Any], lock: int) -> None:
        self.run, self.start, self._lock = run, start, lock
        self.lease = str(start["lease"])
        self.ranks = [int(rank["rank"]) for rank in start["ranks"]]
        deadlines = read_deadlines(run, self.lease)
        if deadlines is None or not self.ranks:
            raise SystemExit("lease.json is damaged, or start.json has no ranks: nothing was started")
        self.deadlines = deadlines
        self._noted = deadlines.note
        self._seen = run.version(run_directory.LEASE)
        self._ending = False
        self.leaders: dict[int, int] = {}  # pid -> rank
        self.codes: dict[int, int] = {}
        self.first: int | None = None
        self.signalled = self.killed = False  # by the lease
        self._down_s = math.inf  # when a rank's death takes the rest
        self._ready = False  # of a gang over nodes: this part can start
        self._told = False  # leaders have had their SIGTERM
        self._killed: set[int] = set()  # children that have had their SIGKILL
        self.started_s = time.monotonic()
        self._group = ControlGroup(start["group"]) if start.get("group") else None
        self._entrance = None if self._group is None else self._group.open_entrance()
        self._exit = ExitFile(run, len(self.ranks))
        self._out: dict[int, int] = {}  # rank -> where its output goes
        self._notes = -1
        self._pump = self._start_pump()

    # ------------------------------------------------------------------------------------------------- the run

    def carry_out(self) -> None:
        """Set up, run, end, and say how."""
        error = ""
        self._say_who()
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
        """Whether the lease is over before the ranks run: then they never do, and the log says why."""
        now_s = time.monotonic()  # before the look, as in _watch
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

            env = {"PATH": os.defpath}  # without a checkpoint directory, which would be made empty
            act = partial(begin, own["directory"], own["name"])
            self._prepare("its checkpoint directory", [], env, instead=act)

    def _set_up(self) -> None:
        setup = self.start.get("setup")
        if setup:
            limit_s = self.start.get("setup_limit_s") or math.inf
            self._prepare("setup", setup, self.start["ranks"][0]["env"], limit_s)

    def _prepare(
        self, what: str, argv: list[str], env: dict[str, str], limit_s: float = math.inf, **more: Any
    ) -> None:
        """Run something to its end before the ranks; CannotStart where it fails or takes too long."""
        rank, until_s = self.ranks[0], time.monotonic() + limit_s
        self._down_s = until_s
        self._spawn(rank, argv, env, **more)
        self._watch()
        self._down_s = math.inf
        if not self._may_start():
            return
        code = self.codes.get(rank)
        if code == -signal.SIGKILL and time.monotonic() >= until_s:
            self.codes.clear()  # the signal was ours
            raise CannotStart(f"{what} did not end within {limit_s:g} s (setup_limit): nothing was started")
        if code:
            raise CannotStart(f"{what} ended with {_ending(code)}: nothing was started")
        if not self._is_too_late(f"the lease was over before {what} was ready"):
            self.codes.clear()

    def _meet(self) -> dict[str, str]:
        """What the ranks' environment says of meeting. A gang over nodes goes when all of them are ready, or never.

        So whatever can go wrong here is tried before this part says that it is ready.
        """
        venv = self.start["ranks"][0]["env"].get("VIRTUAL_ENV")  # the setup may have made it
        if venv and not os.path.isdir(f"{venv}/bin"):
            raise CannotStart(f"virtual environment {venv}: there is no {venv}/bin on this node")
        if not self.start.get("gathers"):
            return {}
        first = self.start["ranks"][0]
        self._spawn(self.ranks[0], first["argv"], first["env"], rehearse=True)
        self._watch()
        self.codes.clear()
        self._ready = True
        self._say_who()
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
        self._say_who()

    def _watch(self) -> None:
        """Until no process is left: reap, look at the lease, obey it."""
        while True:
            self._reap()
            now_s = time.monotonic()  # before the look: were we stopped in between, a renewal would be missed
            self._look_at_lease()
            if self._obey(now_s):
                return
            self._wait()

    def _wait(self) -> None:
        """For a signal, or the time of the next look."""
        got = signal.sigtimedwait(OUR_SIGNALS, LOOK_INTERVAL_S)
        if got is not None and got.si_signo in _STOPS:
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
            if pid == self._pump:
                self._pump = 0
            rank = self.leaders.pop(pid, None)
            if rank is not None:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                if self.codes[rank] and self.first is None:
                    self.first = rank
                    self._down_s = time.monotonic() + GRACE_S

    def _look_at_lease(self) -> None:
        version = self.run.version(run_directory.LEASE)
        if version != self._seen:
            self._seen = version
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
        """Do what is due; True when there is nothing left to do."""
        by_lease = now_s >= self.deadlines.kill_s
        if not self.leaders or by_lease or now_s >= self._down_s:
            if by_lease and self.leaders and self.first is None and not self.killed:
                self.killed = True
                self.note(f"killed: the lease is over {self._reason()}".rstrip())
            return self._kill() and not self.leaders
        if not self._told:
            if self.first is not None:
                self._told = True
                self.note(
                    f"rank {self.first} ended with {_ending(self.codes[self.first])}: the others are stopped"
                )
                self._signal_leaders()
            elif now_s >= self.deadlines.signal_s or (
                now_s >= self.deadlines.ask_s and not self.run.is_heeded()
            ):
                self._told = self.signalled = True
                self.note(f"SIGTERM: the lease is over {self._reason()}".rstrip())
                self._signal_leaders()
        return False

    def _kill(self) -> bool:
        """Kill all that there is; True when there was nothing.

        Whoever forks and leaves, again and again, is gone before a look through all processes is over. But as each
        one leaves, its child becomes ours: we are woken, find it at once, and are faster than it.
        """
        fresh = set(process_tree.children()) - self._killed - {self._pump}
        for pid in fresh:  # not reaped yet: the pid is theirs
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._killed |= fresh
        if self._group is not None and not self._group.kill():
            return False
        return not fresh and not process_tree.kill_all(self._belongings, self._reap)

    def _signal_leaders(self) -> None:
        for pid in self.leaders:  # ours, and not reaped yet: the pid is theirs
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def _belongings(self) -> list[process_tree.Process]:
        return process_tree.descendants(os.getpid(), without=(self._pump,))

    def _reason(self) -> str:
        return f"({self.deadlines.why})" if self.deadlines.why else ""

    # ----------------------------------------------------------------------------------------------- processes

    def _spawn(self, rank: int, argv: list[str], env: dict[str, str], **more: Any) -> None:
        """Start a leader in a session of its own; CannotStart says what is wrong with it. `more`: see turn_into."""
        heard, said = os.pipe()
        shim = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(heard)
            more |= {"shim": shim, "out": self._out[rank], "said": said, "default": OUR_SIGNALS}
            turn_into(self.start, argv, env, entrance=self._entrance, **more)
        os.close(said)
        self.leaders[pid] = rank
        with os.fdopen(heard, "rb") as file:
            trouble = file.read(4096).decode(errors="replace")  # ends when it executes something else
        if trouble:
            raise CannotStart(trouble)

    def _start_pump(self) -> int:
        """A process of its own between the ranks' output and the disk; its pid."""
        logs = self.run.open_logs()
        bytes_max, files_max = int(self.start["log_bytes_max"]), int(self.start["log_files_max"])
        sources = {}
        for rank in self.ranks:
            read, self._out[rank] = os.pipe()
            sources[read] = PiecewiseLog(logs, f"rank-{rank}.log", bytes_max, files_max)
        notes, self._notes = os.pipe()
        os.set_blocking(self._notes, False)  # a stuck disk must not hold up the shim
        first = sources[notes] = next(iter(sources.values()))
        pid = os.fork()
        if not pid:
            try:
                for fd in (*self._out.values(), self._notes, self._exit.fd, self._lock):
                    os.close(fd)
                for text in self.start.get("notes") or ():  # here, so that no output overtakes them
                    first.write(_line(text))
                names, env = self.start.get("spec", {}).get("secrets", ()), self.start["ranks"][0]["env"]
                pump(sources, [env[name] for name in names])
            finally:
                os._exit(0)
        for fd in (*sources, logs):
            os.close(fd)
        return pid

    def note(self, text: str) -> None:
        """A line of ours in the log of the first rank."""
        with contextlib.suppress(OSError):
            os.write(self._notes, _line(text))

    # --------------------------------------------------------------------------------------------------- words

    def _say_who(self) -> None:
        me = process_tree.look_up(os.getpid())
        leaders = [found for pid in self.leaders if (found := process_tree.look_up(pid))]
        who = {
            "pid": os.getpid(),
            "start_ticks": me.start_ticks if me else 0,
            "boot_id": process_tree.boot_id(),
            "pids": [leader.pid for leader in leaders],
            "pids_start_ticks": [leader.start_ticks for leader in leaders],
            "ready": self._ready,
            "running": bool(self.leaders),
            "started_s": self.started_s,
        }
        with contextlib.suppress(OSError):  # a full disk is no reason to stop a job
            self.run.write(run_directory.SHIM, who, durable=True)

    def _finish(self, error: str) -> None:
        """All output to the logs, then exit.json: the last thing that happens."""
        for fd in (*self._out.values(), self._notes):
            os.close(fd)
        end_s = time.monotonic()
        for _ in range(DRAIN_WAITS):  # counted, not timed: if the machine stands still, so does the pump
            self._reap()
            if not self._pump:
                break
            signal.sigtimedwait(OUR_SIGNALS, DRAIN_S)
        said = {
            "codes": {str(rank): code for rank, code in sorted(self.codes.items())},
            "first": self.first,
            "signalled": self.signalled,
            "killed": self.killed,
            "started_s": self.started_s,
            "ended_s": end_s,
            "error": error[:1000],
        }
        try:
            self._exit.write(said)
        except OSError as trouble:
            raise SystemExit(f"exit.json cannot be written: {trouble}") from trouble
        if self._group is not None:
            self._group.remove()


def _line(note: str) -> bytes:
    return f"[gavel: {note}]\n".encode()


def _ending(code: int) -> str:
    try:
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def main(path: str) -> None:
    """Carry out the run in this directory, unless somebody does or it is over."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_BLOCK, OUR_SIGNALS)
    run = RunDirectory(path)
    lock = run.lock()
    if lock is None or run.has(run_directory.EXIT):
        raise SystemExit(f"{path}: somebody carries it out already, or it is over")
    start = run.read(run_directory.START, owner=os.geteuid())
    if start is None:
        raise SystemExit(f"{path}: start.json cannot be read")
    process_tree.adopt_orphans()
    if start.get("uid") is not None:
        process_tree.forbid_new_privileges()
    Shim(run, start, lock).carry_out()


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # all is said and on disk; the agent waits for nothing but the end
