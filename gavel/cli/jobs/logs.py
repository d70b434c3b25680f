"""`gavel logs`: what a job printed goes to standard output, what the reader should know to standard error.

Into a file or a pipe output goes as it is; a terminal gets it by `terminal_text`.
Of an array one member after the other, or with `--follow` all at once: a thread for each reads its stream.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from queue import Queue

import click

from gavel.cli.faults import Fault
from gavel.cli.io.job_text import few, why_with_exit_code
from gavel.cli.io.session import REFUSED, failure, job_id, members, print_line, scheduler
from gavel.cli.io.terminal_text import TerminalText
from gavel.cli.io.wording import printable
from gavel.client import Client, GavelError, Job, JobState, LogChunk
from gavel.client.results import ACTIVE

FOLLOWED_MAX = 32  # streams at once
SILENT_MAX = 10  # members that are asked after because they printed nothing
WAITING_MAX = 64  # pieces that were read and not yet shown

Chunks = Iterator[LogChunk]


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
        found = members(client, job_id(client, job))
        show_logs(client, found, follow=follow, attempt=attempt, rank=rank, tail=tail, as_json=as_json)


def show_logs(
    client: Client,
    found: Sequence[Job],
    *,
    follow: bool = False,
    attempt: int | None = None,
    rank: int | None = None,
    tail: int | None = None,
    as_json: bool = False,
) -> None:
    """Of a job, or of members of an array. Until there is no more; with `follow` until all have ended for good."""
    if rank is not None:
        _check_rank(found, rank)
    if not follow or attempt:  # of those that have something to show, if there are any
        found = [job for job in found if job.attempt >= (attempt or 1)] or found[:1]
    streams = [
        client.logs(job.id, attempt=attempt or 0, rank=rank, tail=tail, follow=follow, patience_s=math.inf)
        for job in found
    ]
    chunks = at_once(streams) if follow and len(found) > 1 and _few(found) else in_turn(streams)
    heard: set[str] = set()
    if as_json:
        for chunk in chunks:
            heard |= {chunk.job} if chunk.data else set()
            print_line(chunk)
        _say_why_nothing(client, found, heard)
        return
    several = rank is None and any(_ranks_most(job) > 1 for job in found)
    terminal = TerminalText(_write) if sys.stdout.isatty() else None
    write = terminal.write if terminal else _write
    lines = Lines(several, write, lambda words: click.echo(words, err=True), members=len(found) > 1)
    try:
        for chunk in chunks:
            heard |= {chunk.job} if chunk.data else set()
            lines.hear(chunk)
    finally:
        lines.end()
        if terminal:
            terminal.end()
    if rank and not heard:
        _say_who_printed(client, found[0], attempt, rank)
    else:
        _say_why_nothing(client, found, heard)


def _ranks_most(job: Job) -> int:
    """That it can have: one for each GPU, fewer where it starts one per node."""
    return job.spec.gpus_max or job.spec.gpus or 1


def _check_rank(found: Sequence[Job], rank: int) -> None:
    most = max(_ranks_most(job) for job in found)
    if rank >= most:
        there = "rank 0 only" if most == 1 else f"ranks 0 to {most - 1}"
        raise Fault(f"--rank {rank}: job {found[0].id} has {there}")


def _say_who_printed(client: Client, job: Job, attempt: int | None, rank: int) -> None:
    """A rank may be silent, or not be there: at this width, or with one rank per node."""
    chunks = client.logs(job.id, attempt=attempt or 0, tail=1)
    others = sorted({chunk.rank for chunk in chunks if chunk.data})
    there = f"; there is output of rank {few([str(one) for one in others], 16)}" if others else ""
    click.echo(f"-- rank {rank} of job {job.id} has printed nothing{there} --", err=True)


def _say_why_nothing(client: Client, found: Sequence[Job], heard: Set[str]) -> None:
    """How jobs ended that printed nothing, as `gavel show` has it; of an array only those that failed."""
    silent = [client.get(job.id) for job in found[:SILENT_MAX] if job.id not in heard]
    for job in silent:
        if len(found) > 1 and job.state is not JobState.FAILED:
            continue
        why = why_with_exit_code(job)
        so_far = "" if job.state.is_final else " so far"
        click.echo(
            printable(
                f"-- job {job.id} has printed nothing{so_far}: {job.state}{f' ({why})' if why else ''} --"
            ),
            err=True,
        )
        click.echo(
            "".join(f"  {printable(line)}\n" for line in job.last_lines.splitlines()), err=True, nl=False
        )


def _few(found: Sequence[Job]) -> bool:
    """Whether so many can be followed; a fault where not."""
    going = [job.id for job in found if job.state in ACTIVE]
    if len(going) > FOLLOWED_MAX:
        raise failure(
            REFUSED,
            f"{len(going)} members have not ended, and at most {FOLLOWED_MAX} are followed at once: name one, "
            f"such as {going[0]}",
        )
    return True


def in_turn(streams: Sequence[Chunks]) -> Chunks:
    """One after the other, to the last; then the first error."""
    failed: GavelError | None = None
    for chunks in streams:
        try:
            yield from chunks
        except GavelError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def at_once(streams: Sequence[Chunks]) -> Chunks:
    """Of all of them, as it comes; once all are over, the first error."""
    came: Queue[LogChunk | Exception | None] = Queue(WAITING_MAX)

    def read(chunks: Chunks) -> None:
        try:
            for chunk in chunks:
                came.put(chunk)
        except Exception as error:  # told by who reads the queue
            came.put(error)
        else:
            came.put(None)

    for chunks in streams:
        threading.Thread(target=read, args=(chunks,), daemon=True).start()
    failed: Exception | None = None
    left = len(streams)
    while left:
        got = came.get()
        if isinstance(got, LogChunk):
            yield got
            continue
        left -= 1
        failed = failed or got
    if failed is not None:
        raise failed


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


class Lines:
    """Output of one rank as it comes; of several, or of members, whole lines, each with where it is from before it."""

    def __init__(
        self,
        several: bool,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
        *,
        members: bool = False,
    ) -> None:
        self._several, self._members, self._write, self._say = several, members, write, say
        self._begun: dict[tuple[str, int, int], bytes] = {}  # lines that have not ended
        self._at_start = True

    def hear(self, chunk: LogChunk) -> None:
        """The next piece."""
        if chunk.notice:
            self.end(chunk.job)
            self._say(f"-- {f'{chunk.job}: ' if self._members else ''}{printable(chunk.notice)} --")
        elif not self._several and not self._members:
            if chunk.data:
                self._at_start = chunk.data.endswith(b"\n")
                self._write(chunk.data)
        else:
            key = (chunk.job, chunk.attempt, chunk.rank)
            *whole, rest = (self._begun.pop(key, b"") + chunk.data).split(b"\n")
            if rest:
                self._begun[key] = rest
            if whole:
                self._write(b"".join(self._line(chunk.job, chunk.rank, line) for line in whole))

    def end(self, job: str | None = None) -> None:
        """Lines (of this job) that never ended are shown too, and what follows begins a new one."""
        for key in [key for key in self._begun if job in (None, key[0])]:
            self._write(self._line(key[0], key[2], self._begun.pop(key)))
        if not self._at_start:
            self._write(b"\n")
            self._at_start = True

    def _line(self, job: str, rank: int, line: bytes) -> bytes:
        parts = ([job] if self._members else []) + ([str(rank)] if self._several else [])
        return b"%s: %s\n" % (".".join(parts).encode(), line)
