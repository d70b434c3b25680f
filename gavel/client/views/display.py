"""A view of a queue that updates: in a notebook its cell, on a terminal its lines; elsewhere a line for each change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gavel.client.queue import Queue
from gavel.client.views.html import html, tag
from gavel.client.views.text import text
from protos.files.errors import printable

if TYPE_CHECKING:
    from rich.live import Live


Show = Callable[[Queue, str], None]


@contextmanager
def showing() -> Iterator[Show]:
    """Yield a function that shows the state of a queue and, if that is out of date, the reason.

    What it has shown last stays visible.
    """
    if _is_notebook():
        yield _Cell().show
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            yield partial(_draw, live)
    else:
        yield _Lines().show


def _is_notebook() -> bool:
    # IPython sets `kernel` only where its output goes to a notebook.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Cell:
    """The output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, queue: Queue, trouble: str) -> None:
        """Replace what the cell shows."""
        from IPython.display import display

        data = {"text/html": html(queue) + tag("div", trouble), "text/plain": text(queue)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _draw(live: Live, queue: Queue, trouble: str) -> None:
    """Draw the lines of a terminal again."""
    from rich.text import Text

    words = "\n".join(filter(None, (text(queue), printable(trouble))))
    live.update(Text(words, no_wrap=True, overflow="ellipsis"), refresh=True)


class _Lines:
    """A file or a pipe: a line for each job whose state or place has changed."""

    def __init__(self) -> None:
        self._printed: dict[str, object] = {}
        self._trouble = ""

    def show(self, queue: Queue, trouble: str) -> None:
        """Print what has changed."""
        for job in queue:
            place = job.placement and (job.placement.gpus, job.placement.phase)
            state = (job.state, job.why, place)
            if self._printed.get(job.id) != state:
                self._printed[job.id] = state
                print(text(job), flush=True)
        if trouble and not self._trouble:
            print(trouble, flush=True)
        self._trouble = trouble
