"""What a process knows of its lease, kept up to date by one background thread.

Every 50 ms, and whenever another rank says something, the thread looks at `lease.json`, carries on the
agreement between ranks (`agreement.py`) and, once a second, writes the progress. It touches the loop in one
way only: through the limit of the gate (`gate.py`). A renewed lease changes a number that nobody waits for.

SIGTERM means the same as the lease's `ask_s`: save and end. It is taken over only where the script has left it
at its default, and only under a lease. SIGINT is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

from gavel.training.environment import Run, run_of
from gavel.training.errors import StaleAttempt
from gavel.training.gang.agreement import Decision, Where
from gavel.training.gang.links import ChairLink, MemberLink
from gavel.training.gate import Gate
from gavel.training.lease import Lease, LeaseFile
from gavel.training.progress import Progress

log = logging.getLogger("gavel.training")

LOOK_S = 0.05
FLUSH_S = 0.25  # the last word of this rank to the others is waited for so long,
FLUSH_WAITS = 20  # and so often: when the machine stands still, that is one time only
AFTER_SIGNAL_S = 5.0  # what is left after a SIGTERM of which the lease says nothing


class Session:
    """One process under one lease."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.gate = Gate()
        self.progress = Progress(run.run_dir, run.rank, run.epoch, run.attempt)
        self.save_every_s: float | None = None
        self._file = LeaseFile(run.run_dir / "lease.json")
        self._signalled_s: float | None = None
        self._alone_s: float | None = None  # when to stop without the others; set once asked
        self._ended_at: int | None = None
        self._said = threading.Event()
        self._saved_s = time.monotonic()
        self._silent_since_s = time.monotonic()
        self._told = self._failed = self._closed = False
        link = ChairLink if run.rank == 0 else MemberLink
        self._link: ChairLink | MemberLink = link(run, self._promise, self._heed)
        self._wake_from, self._wake = socket.socketpair()
        for end in (self._wake_from, self._wake):
            end.setblocking(False)
        self._file.read()
        self._thread = threading.Thread(target=self._watch, name="gavel", daemon=True)

    def start(self) -> None:
        """Begin to watch, and show it: who does not read the lease is signalled as soon as it is over."""
        with contextlib.suppress(OSError):
            (self.run.run_dir / f"heeds-{self.run.rank}").touch()
        self._thread.start()
        self._take_sigterm()

    def begin(self, done: int, saved: int, total: int | None, every_steps: int | None) -> None:
        """A loop opens that has done so many steps, as many as are saved, and has so many to do in all."""
        self.gate.open(done, total, every_steps)
        self.progress.begin(saved)
        self._saved_s = time.monotonic()
        self._take_sigterm()

    # ---------------------------------------------------------------------------- for the loop's thread

    @property
    def lease(self) -> Lease | None:
        """The lease as last read."""
        return self._file.lease

    def time_left_s(self) -> float:
        """Until the job should save and end: 0 when it should, infinite while nobody has said.

        StaleAttempt once it must not save any more.
        """
        self.check_lease_as_known()
        if self._signalled_s is not None or self.gate.stopping:
            return 0.0
        lease = self._file.lease
        return float("inf") if lease is None else lease.time_left_s(self._file.now_s())

    def patience_s(self, wanted_s: float) -> float:
        """How long something may be waited for, so that there is time to end before the kill."""
        lease = self._file.lease
        return wanted_s if lease is None else min(wanted_s, max(1.0, lease.kill_s - time.monotonic() - 1.0))

    def check_lease_as_known(self) -> None:
        """`check_lease` for every step: without a look at the file while the lease as last read goes on."""
        lease = self._file.lease
        if lease is not None and lease.late_s(self._file.now_s()) is not None:
            self.check_lease()

    def check_lease(self) -> None:
        """Raise StaleAttempt if this process ought to be dead: suspended for so long, it must not write any more.

        The file is read anew: what the other thread saw last may be as old as the suspension.
        """
        lease = self._file.read()
        late_s = None if lease is None else lease.late_s(self._file.now_s())
        if late_s is not None:
            raise StaleAttempt(
                f"attempt {self.run.attempt} should have been gone {late_s:.1f} s ago, as its lease ended; a newer one "
                "may run elsewhere, so nothing is saved any more"
            )

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """While a checkpoint is being written: that time is not spent on steps."""
        self.progress.save_begins()
        try:
            yield
        finally:
            self.progress.save_ends(None)
            self._saved_s = time.monotonic()

    def end(self, finished: bool, steps: int) -> None:
        """The last word of this rank, to the agent and to the other ranks. SIGTERM ends it again.

        StaleAttempt where nobody may hear it any more.
        """
        self.check_lease()
        self.progress.end("finished" if finished else "yielded", steps)
        if finished and self.run.world > 1:
            self._ended_at = steps
            with contextlib.suppress(OSError):
                self._wake.send(b"!")
            any(self._said.wait(FLUSH_S) for _ in range(FLUSH_WAITS))
        self._leave_sigterm()

    def close(self) -> None:
        """Watch no longer."""
        self._closed = True
        if self._thread.is_alive():
            self._thread.join()
        self.forget()

    # --------------------------------------------------------------------------------- the other thread

    def _watch(self) -> None:
        while not self._closed:
            try:
                self._tick(time.monotonic())
                self._wait()
            except Exception:  # a fault of ours must not leave the job without its end
                if not self._failed:
                    log.exception(
                        "gavel: a fault of Gavel's; the lease is watched on, and this is not said again"
                    )
                self._failed = True
                time.sleep(LOOK_S)

    def _tick(self, now_s: float) -> None:
        lease = self._file.read()
        left_s = self._asked_left_s(now_s, lease)
        if left_s is not None:
            if self._alone_s is None:
                self._link.ask(now_s, left_s)
            self._alone_s = min(self._alone_s or float("inf"), now_s + 0.75 * left_s)
            if now_s >= self._alone_s:
                self.gate.stop_here_unless_decided()
        if self._ended_at is not None and not self._said.is_set():
            self._link.ended(self._ended_at)
            self._said.set()
        self._save_if_due(now_s)
        self._link.tick(now_s)
        self.progress.write_if_due(now_s, self.gate.done)
        if lease is None and not self._told and now_s - self._silent_since_s > AFTER_SIGNAL_S:
            self._told = True
            log.warning("gavel: there is no lease in %s; going on until SIGTERM", self.run.run_dir)

    def _asked_left_s(self, now_s: float, lease: Lease | None) -> float | None:
        """Until the first SIGTERM, or the kill after it; None while nobody wants this job to end."""
        if self._signalled_s is not None:
            until_s = self._signalled_s + AFTER_SIGNAL_S
            return max(0.2, (min(until_s, lease.kill_s) if lease is not None else until_s) - now_s)
        if lease is None or now_s < lease.ask_s:
            return None
        return max(0.2, (lease.signal_s if now_s < lease.signal_s else lease.kill_s) - now_s)

    def _save_if_due(self, now_s: float) -> None:
        every_s = self.save_every_s
        if every_s is not None and self.gate.looping and now_s - self._saved_s >= every_s:
            self._saved_s = now_s
            self._link.save(now_s)

    def _promise(self, where: Where) -> int:
        return self.gate.promise(where.patience_s, then_stop=where.stop)

    def _heed(self, decision: Decision) -> None:
        self.gate.decide(decision.step, decision.stop)

    def _wait(self) -> None:
        poll = select.poll()  # not select(): a job may have thousands of files open
        for each in [self._wake_from, *self._link.sockets()]:
            if each.fileno() >= 0:
                poll.register(each, select.POLLIN)
        poll.poll(LOOK_S * 1000)
        with contextlib.suppress(OSError):
            self._wake_from.recv(64)

    # ------------------------------------------------------------------------------------------ signals

    def _take_sigterm(self) -> None:
        with contextlib.suppress(ValueError):  # not in the main thread: left as it is
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)

    def _leave_sigterm(self) -> None:
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_sigterm(self, *_: object) -> None:
        self._signalled_s = time.monotonic()

    def forget(self) -> None:
        """In a child process: neither its sockets nor its signals are the child's business."""
        self._link.close()
        self._wake.close()
        self._wake_from.close()
        self._leave_sigterm()


_lock = threading.Lock()
_session: Session | None = None
_of_parent = False


def current() -> Session | None:
    """This process's session, started when it is first asked for; None outside Gavel."""
    global _session  # noqa: PLW0603 - a process has one lease
    with _lock:
        if _session is None and not _of_parent:
            run = run_of()
            if run is not None:
                _session = Session(run)
                _session.start()
        return _session


def check_lease() -> None:
    """Raise StaleAttempt if this process must not save any more; nothing outside Gavel."""
    known = current()
    if known is not None:
        known.check_lease()


def _forget() -> None:
    """In a forked child, such as a worker of a data loader: it has no thread, and no part in the lease."""
    global _session, _lock, _of_parent  # noqa: PLW0603
    _lock = threading.Lock()
    if _session is not None:
        _of_parent = True
        with contextlib.suppress(Exception):
            _session.forget()
        _session = None


os.register_at_fork(after_in_child=_forget)
