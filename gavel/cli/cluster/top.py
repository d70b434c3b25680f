"""`gavel top`: redraw the screen of `gavel.cli.cluster.top_screen` until q is pressed."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from gavel.cli.io.lines import print_lines
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.jobs.queue import as_listed

if TYPE_CHECKING:
    from gavel.cli.cluster.top_screen import Picture
    from gavel.client import Client

JOBS_SHOWN = 200
# The height of the screen for --once.
LINES_ONCE = 1000
# The keys that end the command: q, Escape and Ctrl-D.
QUIT = ("q", "Q", "\x1b", "\x04")


@click.command()
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to refresh.",
)
@click.option("--once", is_flag=True, help="Print one screen and exit, as --json does.")
@LIVE
def top(every_s: float, once: bool, session: Session) -> None:
    """Watch nodes, running jobs and the queue; q ends it."""
    from gavel.cli.cluster.top_screen import screen

    with session.client() as client:
        picture = read_picture(client)
        if session.as_json:
            parts = {name: getattr(picture, name) for name in ("at", "status", "nodes", "waiting")}
            print_json(parts | {"jobs": [as_listed(job) for job in picture.jobs]})
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            print_lines(screen(picture, shutil.get_terminal_size().columns, LINES_ONCE))
        else:
            _watch(client, picture, every_s)


def read_picture(client: Client) -> Picture:
    """Return the current state of the cluster."""
    from gavel.cli.cluster.top_screen import Picture
    from gavel.client import JobFilter

    waiting = ("queued", "preempted", "held")
    # Waiting jobs come first: a job that starts between the two calls is then in both lists, not in neither.
    queue = client.page(JobFilter(states=waiting), size=JOBS_SHOWN, brief=True)
    running = list(islice(client.list(JobFilter(states=["running"]), brief=True), JOBS_SHOWN))
    started = {job.id for job in running}
    jobs = (*running, *(job for job in queue.jobs if job.id not in started))
    return Picture(client.status(), client.nodes(), jobs, queue.total, datetime.now(UTC))


def _watch(client: Client, picture: Picture, every_s: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from gavel.cli.cluster.top_screen import screen
    from gavel.client import NotReachable

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    # Do not retry calls: the screen shows the problem, and the next refresh calls again.
    client.on_trouble, client.retry_s = None, 0.0
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            size = shutil.get_terminal_size()
            lines = screen(picture, size.columns, size.lines - 1)
            live.update(Group(*[Text.from_ansi(line.styled()) for line in lines]), refresh=True)
            if _asked_to_quit(keys, every_s):
                return
            try:
                picture = read_picture(client)
            except NotReachable as error:
                # The scheduler may come back: keep the last screen, and show the reason.
                picture = replace(picture, at=datetime.now(UTC), trouble=f"still trying: {error}")


@contextlib.contextmanager
def _keys() -> Iterator[int]:
    """Yield a file descriptor that gives each key at once; keys are not echoed."""
    descriptor = sys.stdin.fileno()
    previous = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, previous)


def _asked_to_quit(keys: int, wait_s: float) -> bool:
    until_s = time.monotonic() + wait_s
    while (left_s := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select([keys], [], [], left_s)
        if ready:
            pressed = os.read(keys, 64).decode("latin-1")
            if not pressed or pressed in QUIT or "q" in pressed.lower():
                return True
    return False
