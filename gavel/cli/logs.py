"""`gavel logs`: what a job printed goes to standard output as it is; what the reader should know to standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from gavel.cli.connecting import job_id, print_line, scheduler
from gavel.cli.wording import printable
from gavel.client import Client, LogChunk


def logs(
    job: str,
    follow: bool,
    attempt: int | None,
    rank: int | None,
    tail: int | None,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The command's body."""
    with scheduler(address, context) as client:
        name = job_id(client, job)
        show_logs(client, name, follow=follow, attempt=attempt, rank=rank, tail=tail, as_json=as_json)


def show_logs(
    client: Client,
    job: str,
    *,
    follow: bool = False,
    attempt: int | None = None,
    rank: int | None = None,
    tail: int | None = None,
    as_json: bool = False,
) -> None:
    """Until there is no more; with `follow` until the job has ended for good."""
    spec = client.get(job).spec
    several = rank is None and (spec.gpus_max or spec.gpus or 1) > 1
    chunks = client.logs(job, attempt=attempt or 0, rank=rank, tail=tail, follow=follow)
    if as_json:
        for chunk in chunks:
            print_line(chunk)
        return
    lines = Lines(several, _write, lambda words: click.echo(words, err=True))
    try:
        for chunk in chunks:
            lines.hear(chunk)
    finally:
        lines.end()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class Lines:
    """Output of one rank as it comes; of several whole lines, each with its rank before it."""

    def __init__(self, several: bool, write: Callable[[bytes], None], say: Callable[[str], None]) -> None:
        self._several, self._write, self._say = several, write, say
        self._begun: dict[tuple[int, int], bytes] = {}  # lines that have not ended
        self._at_start = True

    def hear(self, chunk: LogChunk) -> None:
        """The next piece."""
        if chunk.notice:
            self.end()
            self._say(f"-- {printable(chunk.notice)} --")
        elif not self._several:
            if chunk.data:
                self._at_start = chunk.data.endswith(b"\n")
                self._write(chunk.data)
        else:
            key = (chunk.attempt, chunk.rank)
            *whole, rest = (self._begun.pop(key, b"") + chunk.data).split(b"\n")
            if rest:
                self._begun[key] = rest
            if whole:
                self._write(b"".join(b"%d: %s\n" % (chunk.rank, line) for line in whole))

    def end(self) -> None:
        """Lines that never ended are shown too, and what follows begins a new one."""
        for (_, rank), rest in self._begun.items():
            self._write(b"%d: %s\n" % (rank, rest))
        self._begun.clear()
        if not self._at_start:
            self._write(b"\n")
            self._at_start = True
