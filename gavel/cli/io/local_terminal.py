"""The user's own terminal during a session at the terminal of a job.

Three threads: one reads what the user types, one writes what the job prints, and the main thread waits for the end and
handles signals. In raw mode every key goes to the job, Ctrl-C too; `~.` at the beginning of a line leaves.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gavel.cli.io.wording import printable

if TYPE_CHECKING:
    from gavel.client.errors import GavelError
    from gavel.client.terminal import TerminalSession

STDIN, STDOUT, STDERR = 0, 1, 2
_READ_BYTES = 1 << 16
# What the threads report to the main thread, besides errors.
_OPENED, _LEFT, _ENDED = "opened", "left", "ended"


class Escapes:
    """Finds `~.` at the beginning of a line, as in ssh; `~~` stands for one `~`."""

    def __init__(self) -> None:
        self._at_line_start, self._after_tilde = True, False

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Return what goes to the job, and whether the user leaves."""
        passed = bytearray()
        for byte in data:
            key = bytes([byte])
            if self._after_tilde:
                self._after_tilde = False
                if key == b".":
                    return bytes(passed), True
                passed += b"~" if key == b"~" else b"~" + key
            elif self._at_line_start and key == b"~":
                self._after_tilde = True
                continue
            else:
                passed += key
            self._at_line_start = key in (b"\r", b"\n")
        return bytes(passed), False


def has_terminal() -> bool:
    """Return whether the user types and reads at a terminal."""
    return os.isatty(STDIN) and os.isatty(STDOUT)


def size() -> tuple[int, int] | None:
    """Return the rows and columns of the user's terminal; None if there is none."""
    try:
        columns, rows = os.get_terminal_size(STDOUT)
    except OSError:
        return None
    return rows, columns


def converse(session: TerminalSession) -> bool:
    """Connect the user with the terminal until its process has exited; return False if the user left before.

    Raises GavelError if the connection is lost for good.
    """
    events: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
    _start(events, lambda: _write_output(session, events))
    event = events.get()
    if event == _OPENED and session.opened is not None:
        is_raw = session.opened.tty and os.isatty(STDIN)
        with _raw_mode() if is_raw else _cooked_mode(), _resizing(session):
            _start(events, lambda: _read_input(session, events, Escapes() if is_raw else None))
            event = events.get()
    session.leave()
    if isinstance(event, BaseException):
        raise event
    return event == _ENDED


def report_trouble(error: GavelError | None, left_s: float) -> None:
    """Report a lost connection, and its return."""
    report("connected again" if error is None else f"{error.message}; reconnecting (Enter ~ . leaves)")


def report(text: str) -> None:
    """Write a line below what the job has printed, whose last line may be unfinished; also in raw mode."""
    os.write(STDERR, f"\r\n[gavel: {printable(text)}]\r\n".encode())


def _start(events: queue.SimpleQueue[Any], work: Callable[[], None]) -> None:
    """Run this in a thread that does not keep the process alive; report its error."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            events.put(error)

    threading.Thread(target=run, daemon=True).start()


def _write_output(session: TerminalSession, events: queue.SimpleQueue[Any]) -> None:
    session.on_opened = lambda: events.put(_OPENED)
    for data in session.output():
        while data:
            data = data[os.write(STDOUT, data) :]
    events.put(_ENDED if session.exit_code is not None else _LEFT)


def _read_input(session: TerminalSession, events: queue.SimpleQueue[Any], escapes: Escapes | None) -> None:
    while data := os.read(STDIN, _READ_BYTES):
        has_left = False
        if escapes is not None:
            data, has_left = escapes.feed(data)
        if data:
            session.send(data)
        if has_left:
            events.put(_LEFT)
            return
    session.end_input()


@contextmanager
def _raw_mode() -> Iterator[None]:
    """Pass every key on as it is; the terminal is as before when the block ends, also at SIGTERM and SIGHUP."""
    before = termios.tcgetattr(STDIN)
    handlers = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _cooked_mode() -> Iterator[None]:
    yield


def _exit(number: int, frame: Any) -> None:
    sys.exit(128 + number)


@contextmanager
def _resizing(session: TerminalSession) -> Iterator[None]:
    """Report each change of the terminal's size to the job."""

    def report(number: int, frame: Any) -> None:
        if new := size():
            # Not in the handler itself, which may have interrupted this thread while it holds the session's lock.
            threading.Thread(target=session.resize, args=new, daemon=True).start()

    previous = signal.signal(signal.SIGWINCH, report)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, previous)
