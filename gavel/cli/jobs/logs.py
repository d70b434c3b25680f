"""`gavel logs`: the output of a job goes to standard output, notices about it to standard error.

A file or a pipe gets the output unchanged, a terminal gets it through `terminal_text`. Members of an array are shown
one after the other; with `--follow` all at once, each stream read by a thread.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from queue import Queue
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import complete_jobs
from gavel.cli.io.outputs import say
from gavel.cli.io.session import LIVE, REFUSED, Session, print_line
from gavel.cli.io.terminal_text import TerminalText
from gavel.client.views.job_text import few, why_with_exit_code

if TYPE_CHECKING:
    from gavel.client import Client, GavelError, Job, LogChunk

    Chunks = Iterator[LogChunk]

# The most streams that are followed at once.
FOLLOWED_MAX = 32
# The most silent members for which the reason is looked up.
SILENT_MAX = 10
# The most pieces of output that are read ahead.
CHUNKS_WAITING_MAX = 64


@click.command()
@click.argument("job", shell_complete=complete_jobs())
@click.option(
    "-f", "--follow", is_flag=True, help="Follow the output, across preemptions, until the job has ended."
)
@click.option(
    "--attempt", type=click.IntRange(1), metavar="N", help="Only this attempt.  [default: all]", default=None
)
@click.option(
    "--rank", type=click.IntRange(0), metavar="N", help="Only this rank.  [default: all]", default=None
)
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(0),
    default=None,
    metavar="LINES",
    help="Only the last lines, over all attempts.",
)
@LIVE
def logs(
    job: str,
    follow: bool,
    attempt: int | None,
    rank: int | None,
    tail: int | None,
    session: Session,
) -> None:
    """Show the output of a job. With several ranks, each line begins with its rank; in an array, with its member.

    On a terminal, control characters other than colours are shown escaped; a file or a pipe gets the output unchanged.
    """
    with session.client() as client:
        jobs = client.members(job)
        show_logs(client, jobs, follow=follow, attempt=attempt, rank=rank, tail=tail, as_json=session.as_json)


def show_logs(
    client: Client,
    jobs: Sequence[Job],
    *,
    follow: bool = False,
    attempt: int | None = None,
    rank: int | None = None,
    tail: int | None = None,
    as_json: bool = False,
) -> None:
    """Show the output of a job, or of members of an array; with `follow`, until all have ended."""
    if rank is not None:
        _check_rank(jobs, rank)
    # Leave out jobs that have not had this attempt. If no job remains, keep the first, to report why it has no output.
    if not follow or attempt:
        jobs = [job for job in jobs if job.attempt >= (attempt or 1)] or jobs[:1]
    streams = [
        client.log_chunks(
            job.id, attempt=attempt or 0, rank=rank, tail=tail, follow=follow, patience_s=math.inf
        )
        for job in jobs
    ]
    if follow and len(jobs) > 1:
        _check_count(jobs)
        chunks = merged(streams)
    else:
        chunks = concatenated(streams)
    several_ranks = rank is None and any(_max_ranks(job) > 1 for job in jobs)
    printed = set()
    with nullcontext(print_line) if as_json else _printing(several_ranks, len(jobs) > 1) as show:
        for chunk in chunks:
            printed |= {chunk.job} if chunk.data else set()
            show(chunk)
    if rank and not printed and not as_json:
        _report_other_ranks(client, jobs[0], attempt, rank)
    else:
        _report_silent_jobs(client, jobs, printed)


@contextmanager
def _printing(several_ranks: bool, several_jobs: bool) -> Iterator[Callable[[LogChunk], None]]:
    """Yield the function that prints a chunk; at the end, complete the last line."""
    terminal = TerminalText(_write) if sys.stdout.isatty() else None
    lines = _Lines(terminal.write if terminal else _write, several_ranks, several_jobs)
    try:
        yield lines.add
    finally:
        lines.end()
        if terminal:
            terminal.end()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _max_ranks(job: Job) -> int:
    """Return an upper bound on the job's ranks: one per GPU."""
    return job.spec.gpus_max or job.spec.gpus or 1


def _check_rank(jobs: Sequence[Job], rank: int) -> None:
    max_ranks = max(_max_ranks(job) for job in jobs)
    if rank >= max_ranks:
        ranks = "rank 0 only" if max_ranks == 1 else f"ranks 0 to {max_ranks - 1}"
        raise Fault(f"--rank {rank}: job {jobs[0].id} has {ranks}")


def _check_count(jobs: Sequence[Job]) -> None:
    active = [job.id for job in jobs if not job.state.is_final]
    if len(active) > FOLLOWED_MAX:
        raise Fault(
            f"{len(active)} members have not ended; at most {FOLLOWED_MAX} can be followed at once: name one, "
            f"such as {active[0]}",
            REFUSED,
        )


def _report_other_ranks(client: Client, job: Job, attempt: int | None, rank: int) -> None:
    """Report that this rank has printed nothing (it may not exist at the present width); list ranks with output."""
    chunks = client.log_chunks(job.id, attempt=attempt or 0, tail=1)
    others = sorted({chunk.rank for chunk in chunks if chunk.data})
    output = f"; there is output from rank {few([str(other) for other in others], 16)}" if others else ""
    say(f"-- rank {rank} of job {job.id} has printed nothing{output} --")


def _report_silent_jobs(client: Client, jobs: Sequence[Job], printed: Set[str]) -> None:
    """Report how silent jobs ended, as `gavel show` does; for an array, only the failed ones."""
    for job in [client.get(job.id) for job in jobs[:SILENT_MAX] if job.id not in printed]:
        if len(jobs) > 1 and job.state != "failed":
            continue
        why = why_with_exit_code(job)
        so_far = "" if job.state.is_final else " so far"
        state = f"{job.state}{f' ({why})' if why else ''}"
        say(f"-- job {job.id} has printed nothing{so_far}: {state} --")
        for line in job.last_lines.splitlines():
            say(f"  {line}")


def concatenated(streams: Sequence[Chunks]) -> Chunks:
    """Yield the chunks of one stream after the other; then raise the first error."""
    from gavel.client import GavelError

    failed: GavelError | None = None
    for chunks in streams:
        try:
            yield from chunks
        except GavelError as error:
            failed = failed or error
    if failed is not None:
        raise failed


def merged(streams: Sequence[Chunks]) -> Chunks:
    """Yield the chunks of all streams as they arrive; once all have ended, raise the first error."""
    # None or an error marks the end of a stream.
    queue: Queue[LogChunk | Exception | None] = Queue(CHUNKS_WAITING_MAX)

    def read(chunks: Chunks) -> None:
        try:
            for chunk in chunks:
                queue.put(chunk)
        except Exception as error:
            queue.put(error)
        else:
            queue.put(None)

    for chunks in streams:
        threading.Thread(target=read, args=(chunks,), daemon=True).start()
    failed: Exception | None = None
    open_streams = len(streams)
    while open_streams:
        entry = queue.get()
        if entry is None or isinstance(entry, Exception):
            open_streams -= 1
            failed = failed or entry
        else:
            yield entry
    if failed is not None:
        raise failed


class _Lines:
    """Prints the output of one rank as it arrives; of several ranks or members, whole lines with their origin."""

    def __init__(self, write: Callable[[bytes], None], several_ranks: bool, several_jobs: bool) -> None:
        self._write, self._ranks, self._members = write, several_ranks, several_jobs
        # Unfinished lines by job, attempt and rank.
        self._unfinished: dict[tuple[str, int, int], bytes] = {}
        self._at_start = True

    def add(self, chunk: LogChunk) -> None:
        """Print the next chunk, or its notice."""
        if chunk.notice:
            self.end(chunk.job)
            say(f"-- {f'{chunk.job}: ' if self._members else ''}{chunk.notice} --")
        elif not self._ranks and not self._members:
            if chunk.data:
                self._at_start = chunk.data.endswith(b"\n")
                self._write(chunk.data)
        else:
            key = (chunk.job, chunk.attempt, chunk.rank)
            *lines, rest = (self._unfinished.pop(key, b"") + chunk.data).split(b"\n")
            if rest:
                self._unfinished[key] = rest
            if lines:
                self._write(b"".join(self._line(chunk.job, chunk.rank, line) for line in lines))

    def end(self, job: str | None = None) -> None:
        """Print the unfinished lines, of this job or of all, and begin a new line."""
        for key in [key for key in self._unfinished if job in (None, key[0])]:
            self._write(self._line(key[0], key[2], self._unfinished.pop(key)))
        if not self._at_start:
            self._write(b"\n")
            self._at_start = True

    def _line(self, job: str, rank: int, line: bytes) -> bytes:
        parts = ([job] if self._members else []) + ([str(rank)] if self._ranks else [])
        return b"%s: %s\n" % (".".join(parts).encode(), line)
