"""The output of jobs, relayed from their nodes to readers: the `LogSource` of the API.

Attempts are read one after another, the nodes of a gang side by side. An agent sends at the pace of the reader, because
only a few chunks wait between them. Missing output is reported in the stream as a notice; nothing is left out silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, NamedTuple

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.facts import Fact, GpusFilled, JobMoved, LeaseClosed, RoundPlanned
from scheduler.core.state import SchedulerState
from scheduler.live.access.status import FORBIDDEN, NOT_FOUND, CallFailed
from scheduler.live.agents.links import Links
from scheduler.live.data.attempts import Attempt, Attempts

CHUNKS_WAITING_MAX = 8
# How long a node may take to answer LogsWanted.
ANSWER_S = 15.0
# How many attempts are searched for the last lines.
TAIL_ATTEMPTS_MAX = 50
# How long to wait before asking again for an attempt that has printed nothing yet.
LOOK_S = 1.0
_STIRRING = (GpusFilled, JobMoved, LeaseClosed, RoundPlanned)
Queue = asyncio.Queue["pb.SentLogs | None"]


class Wanted(NamedTuple):
    """A reader's request."""

    job: str
    rank: int | None
    tail_lines: int | None
    follow: bool


class _Call:
    """One node's part of one reading. `None` in the queue means that `broken` has changed."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.queue: Queue = asyncio.Queue(CHUNKS_WAITING_MAX)
        # Set when the reader has gone.
        self.left = asyncio.Event()
        # Whether the stream broke off before its end; the queue may still hold chunks.
        self.broken = False


class LogRelay:
    """All readings in progress. Give `listen` to the Feed."""

    def __init__(
        self, links: Links, attempts: Attempts, state: SchedulerState, answer_s: float = ANSWER_S
    ) -> None:
        self._links, self._attempts, self._state = links, attempts, state
        self._answer_s = answer_s
        self._calls: dict[str, _Call] = {}
        self._stirred = asyncio.Event()

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Wake the readers if a fact may concern a job that one of them follows."""
        if any(isinstance(fact, _STIRRING) for fact in facts):
            self._stirred.set()
            self._stirred = asyncio.Event()

    # -------------------------------------------------------------------------------------------- from the nodes

    async def receive(self, requests: AsyncIterator[pb.SentLogs], names: Sequence[str] | None) -> None:
        """Receive a node's answer to LogsWanted. `names`: those of its certificate; None without certificates."""
        call: _Call | None = None
        ended = False
        try:
            async for sent in requests:
                if call is None:
                    call = self._calls.get(sent.call)
                    # The reader has gone already.
                    if call is None:
                        return
                    if names is not None and f"node:{call.node}" not in names:
                        raise CallFailed(FORBIDDEN, "these logs were asked of another node")
                ended = sent.end
                if not await _put(call, sent) or ended:
                    return
        finally:
            if call is not None and not ended:
                call.broken = True
                if not call.queue.full():
                    call.queue.put_nowait(None)

    # ----------------------------------------------------------------------------------------------- for the API

    async def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield a job's output, oldest first; with `follow`, until the job has ended for good."""
        wanted = Wanted(job, rank, tail_lines, follow)
        newest_read = 0
        while True:
            stirred = self._stirred
            # Asked before the attempts, so that no attempt can begin in between.
            over = self._is_over(job)
            known = self._attempts.of(job)
            todo = [
                each for each in known if (each.number == attempt if attempt else each.number > newest_read)
            ]
            end = [] if tail_lines is None or newest_read else await self._end_of(wanted, tail_lines, todo)
            for each, lines in end or [(each, None) for each in todo]:
                heading = f"attempt {each.number} starts on {', '.join(each.nodes)}" if newest_read else ""
                newest_read = each.number
                async for chunk in self._read_attempt(wanted._replace(tail_lines=lines), each):
                    # Only with the first chunk: an attempt that never ran is not shown to readers.
                    if heading:
                        yield jobs_pb2.LogChunk(job=job, attempt=each.number, notice=heading)
                        heading = ""
                    yield chunk
            if attempt and not todo and (not follow or over or (known and known[-1].number > attempt)):
                raise CallFailed(NOT_FOUND, f"job '{job}' has no attempt {attempt}")
            if not follow or over or (attempt and todo):
                return
            await stirred.wait()

    async def _end_of(
        self, wanted: Wanted, lines: int, attempts: Sequence[Attempt]
    ) -> list[tuple[Attempt, int | None]]:
        """Return the attempts that hold the last lines, oldest first, with the number of lines to read of each.

        The rank that printed most lines counts.
        """
        end: list[tuple[Attempt, int | None]] = []
        for attempt in reversed(attempts[-TAIL_ATTEMPTS_MAX:]):
            end.insert(0, (attempt, lines))
            if lines and attempt.number != attempts[0].number:
                lines -= await self._count_lines(wanted._replace(tail_lines=lines, follow=False), attempt)
            if lines <= 0 or attempt.number == attempts[0].number:
                break
        return end

    async def _count_lines(self, wanted: Wanted, attempt: Attempt) -> int:
        ends: Counter[int] = Counter()
        rest: dict[int, int] = {}
        async with contextlib.aclosing(self._read_attempt(wanted, attempt)) as chunks:
            async for chunk in chunks:
                if chunk.data:
                    ends[chunk.rank] += chunk.data.count(b"\n")
                    rest[chunk.rank] = not chunk.data.endswith(b"\n")
        return max((ends[rank] + rest[rank] for rank in rest), default=0)

    def _is_over(self, name: str) -> bool:
        job = self._state.jobs.get(name)
        return job is None or (job.is_terminal and job.leaving is None)

    async def _read_attempt(
        self, wanted: Wanted, attempt: Attempt
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield the output of all nodes of an attempt, as it arrives."""
        if len(attempt.nodes) == 1:
            async for chunk in self._read_node(wanted, attempt, attempt.nodes[0]):
                yield chunk
            return
        merged: asyncio.Queue[jobs_pb2.LogChunk | None] = asyncio.Queue(CHUNKS_WAITING_MAX)

        async def pour(node: str) -> None:
            async with contextlib.aclosing(self._read_node(wanted, attempt, node)) as chunks:
                async for chunk in chunks:
                    await merged.put(chunk)
            await merged.put(None)

        pouring = [asyncio.create_task(pour(node)) for node in attempt.nodes]
        try:
            left = len(pouring)
            while left:
                poured = await merged.get()
                if poured is None:
                    left -= 1
                else:
                    yield poured
        finally:
            for task in pouring:
                task.cancel()
            await asyncio.gather(*pouring, return_exceptions=True)

    async def _read_node(
        self, wanted: Wanted, attempt: Attempt, node: str
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield one node's output. If its link breaks during the attempt, a follower waits for it to return."""
        # Rank → the offset behind what was read.
        ends: dict[int, int] = {}
        while True:
            why, held = "", attempt.lease in self._state.leases
            async with contextlib.aclosing(self._read_once(wanted, attempt, node, bool(ends))) as parts:
                async for sent in parts:
                    if isinstance(sent, str):
                        why = sent
                        continue
                    # Where a tail begins is unknown.
                    begin = 0 if wanted.tail_lines is None else None
                    end = ends.get(sent.rank, begin)
                    if (chunk := _new_part(sent, ends)) is not None:
                        if end is not None and chunk.data and chunk.offset > end:
                            yield _dropped(chunk, end)
                        yield chunk
            # The attempt has not started there yet, or has printed nothing.
            if not why and wanted.follow and held and not ends:
                await asyncio.sleep(LOOK_S)
                continue
            if not why:
                return
            wait = wanted.follow and attempt.lease in self._state.leases
            rest = "; waiting for it" if wait else ": its part of the log is left out"
            yield jobs_pb2.LogChunk(
                job=wanted.job, attempt=attempt.number, node=node, notice=f"{node} {why}{rest}"
            )
            if not wait or not await self._back(node, attempt.lease):
                return

    async def _back(self, node: str, lease: str) -> bool:
        """Wait until a node has a link again; return False if the lease is over before."""
        coming = asyncio.ensure_future(self._links.come_back(node))
        try:
            while not coming.done() and lease in self._state.leases:
                await asyncio.wait({coming}, timeout=1.0)
            return coming.done()
        finally:
            coming.cancel()

    async def _read_once(
        self, wanted: Wanted, attempt: Attempt, node: str, again: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk | str, None]:
        """Yield chunks until the node has no more; if the stream broke off, yield the reason last, as text."""
        link = self._links.by_name.get(node)
        if link is None:
            yield "cannot be reached"
            return
        name = secrets.token_hex(16)
        call = self._calls[name] = _Call(node)
        asking = pb.LogsWanted(
            call=name,
            job=wanted.job,
            attempt=attempt.number,
            lease=attempt.lease,
            rank=wanted.rank,
            tail_lines=None if again else wanted.tail_lines,
            follow=wanted.follow,
        )
        link.outbox.put(pb.SchedulerMessage(logs_wanted=asking))
        ended, answered = False, False
        try:
            while True:
                sent = await _next(call, link.closed, None if answered else self._answer_s)
                if isinstance(sent, str):
                    yield sent
                    return
                answered = True
                if sent.HasField("chunk"):
                    sent.chunk.node = node
                    sent.chunk.job, sent.chunk.attempt = wanted.job, attempt.number
                    yield sent.chunk
                if sent.end:
                    ended = True
                    if sent.error:
                        yield f"says: {sent.error[:500]}"
                    return
        finally:
            del self._calls[name]
            call.left.set()
            if not ended and not link.closed.done():
                link.outbox.put(pb.SchedulerMessage(logs_wanted=pb.LogsWanted(call=name, stop=True)))


async def _put(call: _Call, sent: pb.SentLogs) -> bool:
    """Pass a chunk on at the reader's pace; return False if the reader has gone."""
    if not call.queue.full():
        call.queue.put_nowait(sent)
        return not call.left.is_set()
    putting, leaving = (
        asyncio.ensure_future(call.queue.put(sent)),
        asyncio.ensure_future(call.left.wait()),
    )
    try:
        await asyncio.wait({putting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return putting.done()
    finally:
        putting.cancel()
        leaving.cancel()


async def _next(call: _Call, closed: asyncio.Future[str], wait_s: float | None) -> pb.SentLogs | str:
    """Return the next chunk, or why there is none."""
    if call.broken and call.queue.empty():
        return "broke off"
    getting = asyncio.ensure_future(call.queue.get())
    both: set[asyncio.Future[Any]] = {getting, closed}
    try:
        await asyncio.wait(both, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            sent = getting.result()
            return "broke off" if sent is None else sent
        return "cannot be reached any more" if closed.done() else f"gave no answer within {wait_s:g} s"
    finally:
        getting.cancel()


def _dropped(chunk: jobs_pb2.LogChunk, had: int) -> jobs_pb2.LogChunk:
    """Return the notice about output that the node has dropped."""
    size_mb = max((chunk.offset - had) / 1e6, 0.1)
    notice = f"rank {chunk.rank}: {size_mb:,.1f} MB of earlier output were dropped by rotation"
    return jobs_pb2.LogChunk(job=chunk.job, attempt=chunk.attempt, node=chunk.node, notice=notice)


def _new_part(chunk: jobs_pb2.LogChunk, ends: dict[int, int]) -> jobs_pb2.LogChunk | None:
    """Return the part of a chunk that the reader does not have yet, and record where it ends."""
    if chunk.notice or not chunk.data:
        return chunk if chunk.notice else None
    had = ends.get(chunk.rank, 0)
    end = chunk.offset + len(chunk.data)
    if end <= had:
        return None
    if chunk.offset < had:
        chunk.data = chunk.data[had - chunk.offset :]
        chunk.offset = had
    ends[chunk.rank] = end
    return chunk
