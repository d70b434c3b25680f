"""Results as text: in one line for `repr`, in full for `print`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch

from rich.cells import cell_len

from gavel.client.queue import Queue
from gavel.client.results import Allocation, Explanation, Job, Share
from gavel.client.views.job_text import counts_by_state, job_on, job_progress, job_why
from gavel.client.views.queue_rows import ENDED_HEADS, HEADS, cells
from gavel.client.views.units import count_of, short_number, span
from protos.files.errors import printable

# The most rows of a table; what is left out is counted below it.
ROWS_MAX = 60
SHARE_HEADS = ("job", "GPUs", "share", "due", "received", "steps/s")


@singledispatch
def summary(result: object) -> str:
    """Return a result in one line; a queue as a table."""
    return object.__repr__(result)


@singledispatch
def text(result: object) -> str:
    """Return a result in full."""
    return summary(result)


@summary.register
def _(job: Job) -> str:
    return f"<Job {text(job).removeprefix('job ')}>"


@text.register
def _(job: Job) -> str:
    name = f" '{job.spec.name}'" if job.spec.name else ""
    done = "" if job.state.is_final else job_progress(job)
    return printable(f"job {job.id}{name}: {', '.join(filter(None, (state_words(job), done)))}")


def state_words(job: Job) -> str:
    """Return the state of a job with its place or its reason: `running on v100×2 (n1)`, `queued (after 3)`."""
    if job.placement is not None and job.state == "running":
        if job.placement.phase != "running":
            return f"starting on {job_on(job)}"
        return f"running on {job_on(job)} ({', '.join(job.placement.nodes)})"
    # A job that has not ended may have a reason too: a running one that is being stopped, for example.
    why = job_why(job)
    return f"{job.state.value}{f' ({why})' if why else ''}"


@summary.register
def _(explanation: Explanation) -> str:
    return printable(
        f"<Explanation of job {explanation.job}: {explanation.state.value} ({explanation.reason})>"
    )


@text.register
def _(explanation: Explanation) -> str:
    return "\n".join(map(printable, explanation.rendered.rstrip("\n").split("\n")))


@summary.register
def _(allocation: Allocation) -> str:
    return printable(
        f"<Allocation {allocation.number} by {allocation.policy}: {count_of(len(allocation.shares), 'share')}>"
    )


@text.register
def _(allocation: Allocation) -> str:
    rows = [share_cells(share) for share in allocation.shares[:ROWS_MAX]]
    return "\n".join(
        [
            *allocation_notes(allocation),
            *_table(SHARE_HEADS, rows),
            *rest(len(rows), len(allocation.shares), "share"),
        ]
    )


def allocation_notes(allocation: Allocation) -> Iterator[str]:
    """Yield the policy of an allocation, what went wrong, and the prices, a line each."""
    yield printable(f"allocation {allocation.number} by {allocation.policy}")
    if allocation.failed:
        yield printable(f"failed: {allocation.failed}")
    elif not allocation.optimal:
        yield "not optimal: the solver stopped early"
    yield from map(printable, allocation.notes)
    prices = {kind: price for kind, price in allocation.price_per_gpu.items() if price == price}
    if prices:
        yield printable(
            f"price per GPU: {', '.join(f'{kind} {price:.3g}' for kind, price in prices.items())}"
        )


def share_cells(share: Share) -> tuple[str, ...]:
    """Return the cells of SHARE_HEADS."""
    label = f" ({share.label})" if share.label else ""
    return (
        *(" with ".join(share.jobs), f"{share.worker_type}×{share.gpus}{label}", f"{100 * share.share:.0f}%"),
        *(span(share.entitled_s), span(share.received_s), short_number(share.rate)),
    )


@summary.register
@text.register
def _(queue: Queue) -> str:
    heads, rows = queue_table(queue)
    return "\n".join(
        [queue_title(queue), *_table(heads, rows), *rest(len(rows), queue.total, "job")]
        if rows
        else ["no jobs"]
    )


def queue_title(queue: Queue) -> str:
    """Return the number of listed jobs, in all and by state."""
    return f"{count_of(len(queue), 'job')}: {counts_by_state(queue)}"


def queue_table(queue: Queue) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the column heads and the first rows of a queue."""
    ended = any(job.ended for job in queue)
    return (ENDED_HEADS if ended else HEADS), [cells(job, queue.at, ended) for job in queue[:ROWS_MAX]]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        padded = [cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def rest(listed: int, total: int | None, thing: str) -> Iterator[str]:
    """Yield how many rows a table leaves out, if any."""
    if total is None:
        yield "and more"
    elif total > listed:
        yield f"and {count_of(total - listed, f'more {thing}')}"
