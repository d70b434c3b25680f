"""The progress of a long command on a terminal, and Ctrl-C as a request to stop in an orderly way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class StopRequest:
    """Records whether the user has asked the command to stop."""

    stop = False


@contextmanager
def interruptible() -> Iterator[StopRequest]:
    """Take the first Ctrl-C as a request to stop; the second ends the command at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def stop(number: int, frame: Any) -> None:
        if request.stop:
            raise KeyboardInterrupt
        request.stop = True

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def bar(text: str) -> Iterator[Callable[[str, float | None], None]]:
    """Show a bar with the time left, but only if standard error is a terminal.

    Yields a function that takes the bar's text and the fraction that is done: None if the fraction is unknown.
    """
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = progress.add_task(text, total=None)

    def show(text: str, fraction: float | None) -> None:
        total = None if fraction is None else 1.0
        progress.update(task, description=text, total=total, completed=fraction or 0.0)

    with progress:
        yield show
