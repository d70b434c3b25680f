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


class Wish:
    """Whether the user wants the command to stop."""

    stop = False


@contextmanager
def interruptible() -> Iterator[Wish]:
    """Take the first Ctrl-C as a request to stop; the second ends the command at once."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def stop(number: int, frame: Any) -> None:
        if wish.stop:
            raise KeyboardInterrupt
        wish.stop = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield wish
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def bar(words: str) -> Iterator[Callable[[str, float | None], None]]:
    """Show a bar with the time left; nothing where standard error is no terminal.

    Yields the function that says what is being done, and which part of it is done; None where that is not known.
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
    task = progress.add_task(words, total=None)

    def show(words: str, part: float | None) -> None:
        progress.update(task, description=words, total=None if part is None else 1.0, completed=part or 0.0)

    with progress:
        yield show
