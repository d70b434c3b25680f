"""The session of a process under a lease, kept up to date by one background thread.

Every 50 ms, and whenever another rank sends a message, the thread reads `lease.json`, advances the agreement between
ranks (`agreement.py`) and, once a second, writes the progress. It affects the loop only through the limit of the gate
(`gate.py`). The loop does not notice when its lease is renewed.

SIGTERM has the same effect as the time `ask_s` of the lease: the job saves and ends. The handler of SIGTERM is replaced
only if the script has left it at the default, and only under a lease. The handler of SIGINT is not touched.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator

from gavel.training.environment import Run, run_of
from gavel.training.errors import StaleAttempt
from gavel.training.gang.agreement import Decision, Question
from gavel.training.gang.links import ChairLink, MemberLink
from gavel.training.gate import Gate
from gavel.training.lease import Lease, LeaseFile
from gavel.training.progress import Progress

log = logging.getLogger("gavel.training")

# The longest pause between two readings of the lease.
LOOK_S = 0.05
# A rank that ends waits FLUSH_WAITS times FLUSH_S for the thread to inform the other ranks. It waits in many
# short pieces, because a suspension of the machine uses up only one of them.
FLUSH_S = 0.25
FLUSH_WAITS = 20
# How long the process may run after a SIGTERM, but never beyond `kill_s`. Also, how long the lease file may be missing
# before a warning is logged.
AFTER_SIGNAL_S = 5.0
# How long a rank lets the threads of PyTorch run before it exits.
REST_S = 0.1


class Session:
    """One process under one lease."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gate = Gate()
        self.progress = Progress(run.run_dir, run.rank, run.epoch, run.attempt)
        self._save_every_s: float | None = None
        self._file = LeaseFile(run.run_dir / "lease.json")
        self._signalled_s: float | None = None
        # The time at which this rank stops without an agreement; set once the lease ends.
        self._stop_alone_s: float | None = None
        # The steps that this rank had done when it finished.
        self._ended_at: int | None = None
        self._end_sent = threading.Event()
        # When a checkpoint was last saved, or a periodic one last requested.
        self._saved_s = time.monotonic()
        self._created_s = time.monotonic()
        self._save_asked = False
        self._absence_logged = self._failed = self._closed = False
        link = ChairLink if run.rank == 0 else MemberLink
        self._link: ChairLink | MemberLink = link(run, self._promise, self._obey)
        self._wake_from, self._wake = socket.socketpair()
        for wake_socket in (self._wake_from, self._wake):
            wake_socket.setblocking(False)
        self._file.read()
        self._thread = threading.Thread(target=self._watch, name="gavel", daemon=True)

    def start(self) -> None:
        """Begin to watch the lease."""
        # If no rank has made such a file by `ask_s`, the job gets SIGTERM then, instead of at `signal_s`.
        with contextlib.suppress(OSError):
            (self.run.run_dir / f"heeds-{self.run.rank}").touch()
        self._thread.start()
        self._take_sigterm()

    def begin(self, done: int, total: int | None, every_steps: int | None, every_s: float | None) -> None:
        """Begin a loop. `done`: the steps done and saved so far; `total`: all steps of the job, if known."""
        self._save_every_s = every_s
        self.gate.open(done, total, every_steps)
        self.progress.begin(done)
        self._saved_s = time.monotonic()
        self._take_sigterm()

    # ---------------------------------------------------------------------------- for the loop's thread

    @property
    def lease(self) -> Lease | None:
        """The lease as last read."""
        return self._file.lease

    def time_left_s(self) -> float:
        """Return the time until the job should save and end: 0 when it should, infinite while no lease is known.

        Raise StaleAttempt if the job must no longer save.
        """
        self.check_known_lease()
        if self._signalled_s is not None or self.gate.stopping:
            return 0.0
        lease = self._file.lease
        return float("inf") if lease is None else lease.time_left_s(self._file.now_s())

    def shortened_wait_s(self, wait_s: float) -> float:
        """Return `wait_s`, shortened if necessary so that the process can end before SIGKILL."""
        lease = self._file.lease
        return wait_s if lease is None else min(wait_s, max(1.0, lease.kill_s - time.monotonic() - 1.0))

    def check_known_lease(self) -> None:
        """Check the lease like `check_lease`, but read the file only if the last known lease is over."""
        lease = self._file.lease
        if lease is not None and lease.late_s(self._file.now_s()) is not None:
            self.check_lease()

    def check_lease(self) -> None:
        """Raise StaleAttempt if this process should be dead: after a long suspension it must no longer write.

        The file is read again, because the last known lease may be older than the suspension.
        """
        lease = self._file.read()
        late_s = None if lease is None else lease.late_s(self._file.now_s())
        if late_s is not None:
            raise StaleAttempt(
                f"attempt {self.run.attempt} should have ended {late_s:.1f} s ago, with its lease; a newer one may run "
                "elsewhere, so nothing more is saved"
            )

    def ask_to_save(self) -> None:
        """Ask all ranks to save a checkpoint at a step on which they agree. Rank 0 calls this."""
        self._save_asked = True
        with contextlib.suppress(OSError):
            self._wake.send(b"!")

    @contextlib.contextmanager
    def saving(self, briefly: bool = False) -> Iterator[None]:
        """Enclose the writing of a checkpoint, so that its time does not count as stepping.

        `briefly`: the state is only copied, and written behind the loop. If `progress.save_begins` was called before,
        the time since then belongs to the checkpoint, too.
        """
        succeeded_at = None
        if not self.progress.saving:
            self.progress.save_begins(self.gate.done, briefly)
        try:
            yield
            succeeded_at = self.gate.done
        finally:
            self.progress.save_ends(None, succeeded_at)
            self._saved_s = time.monotonic()

    def end(self, finished: bool, steps: int) -> None:
        """Report the end of this rank to the agent and to the other ranks, and stop handling SIGTERM.

        Raise StaleAttempt if the attempt must no longer report.
        """
        self.check_lease()
        self.progress.end("finished" if finished else "yielded", steps)
        if finished and self.run.world > 1:
            self._ended_at = steps
            with contextlib.suppress(OSError):
                self._wake.send(b"!")
            any(self._end_sent.wait(FLUSH_S) for _ in range(FLUSH_WAITS))
        self._restore_sigterm()

    def close(self) -> None:
        """Stop watching the lease."""
        self._closed = True
        if self._thread.is_alive():
            self._thread.join()
        self.forget()

    # ---------------------------------------------------------------------------- the background thread

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._tick(time.monotonic())
                self._wait()
            # A fault in this package must not keep the job from ending in time.
            except Exception:
                if not self._failed:
                    log.exception(
                        "gavel: an internal error; the lease is still watched, and further errors are not logged"
                    )
                self._failed = True
                time.sleep(LOOK_S)

    def _tick(self, now_s: float) -> None:
        lease = self._file.read()
        left_s = self._time_to_end_s(now_s, lease)
        if left_s is not None:
            if self._stop_alone_s is None:
                self._link.ask(now_s, left_s)
            self._stop_alone_s = min(self._stop_alone_s or float("inf"), now_s + 0.75 * left_s)
            if now_s >= self._stop_alone_s:
                self.gate.stop_here_unless_decided()
        if self._ended_at is not None and not self._end_sent.is_set():
            self._link.report_end(self._ended_at)
            self._end_sent.set()
        self._save_if_due(now_s)
        self._link.tick(now_s)
        self.progress.write_if_due(now_s, self.gate.done)
        if lease is None and not self._absence_logged and now_s - self._created_s > AFTER_SIGNAL_S:
            self._absence_logged = True
            log.warning("gavel: there is no lease in %s; training continues until SIGTERM", self.run.run_dir)

    def _time_to_end_s(self, now_s: float, lease: Lease | None) -> float | None:
        """Return the time until the first SIGTERM, or until SIGKILL after it; None while the job may continue."""
        if self._signalled_s is not None:
            until_s = self._signalled_s + AFTER_SIGNAL_S
            return max(0.2, (min(until_s, lease.kill_s) if lease is not None else until_s) - now_s)
        if lease is None or now_s < lease.ask_s:
            return None
        return max(0.2, (lease.signal_s if now_s < lease.signal_s else lease.kill_s) - now_s)

    def _save_if_due(self, now_s: float) -> None:
        every_s = self._save_every_s
        if self._save_asked:
            self._save_asked = False
            self._link.save(now_s)
        elif every_s is not None and self.gate.looping and now_s - self._saved_s >= every_s:
            self._saved_s = now_s
            self._link.save(now_s)

    def _promise(self, question: Question) -> int:
        return self.gate.promise(question.patience_s, then_stop=question.stop)

    def _obey(self, decision: Decision) -> None:
        self.gate.decide(decision.step, decision.stop)

    def _wait(self) -> None:
        # Not select(): a job may have thousands of files open.
        poll = select.poll()
        for sock in [self._wake_from, *self._link.sockets()]:
            if sock.fileno() >= 0:
                poll.register(sock, select.POLLIN)
        poll.poll(LOOK_S * 1000)
        with contextlib.suppress(OSError):
            self._wake_from.recv(64)

    # ------------------------------------------------------------------------------------------ signals

    def _take_sigterm(self) -> None:
        # Outside the main thread, Python refuses to replace a handler.
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def _restore_sigterm(self) -> None:
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, *_: object) -> None:
        self._signalled_s = time.monotonic()

    def forget(self) -> None:
        """Close the sockets and stop handling SIGTERM."""
        self._link.close()
        self._wake.close()
        self._wake_from.close()
        self._restore_sigterm()


_lock = threading.Lock()
_session: Session | None = None
_in_forked_child = False


def current() -> Session | None:
    """Return the session of this process, which starts on the first call; None outside Gavel."""
    global _session  # noqa: PLW0603 - a process has one lease
    with _lock:
        if _session is None and not _in_forked_child:
            run = run_of()
            if run is not None:
                _session = Session(run)
                _session.start()
        return _session


def check_lease() -> None:
    """Raise StaleAttempt if this process must no longer save. Outside Gavel, do nothing."""
    session = current()
    if session is not None:
        session.check_lease()


@atexit.register
def _rest() -> None:
    """Let the threads of PyTorch's process groups put down the tensors of the last exchange.

    A gloo thread that does so while the interpreter is being torn down aborts the process, so a job that has done all
    its steps would count as failed. `destroy_process_group` ends these threads only if nothing else, such as a model of
    FSDP, refers to a group.
    """
    if _session is not None and _session.run.world > 1 and "torch.distributed" in sys.modules:
        time.sleep(REST_S)


def _forget() -> None:
    """Drop the session in a forked child, such as a data loader's worker, which does not act on the lease."""
    global _session, _lock, _in_forked_child  # noqa: PLW0603
    _lock = threading.Lock()
    if _session is not None:
        _in_forked_child = True
        with contextlib.suppress(Exception):
            _session.forget()
        _session = None


os.register_at_fork(after_in_child=_forget)
