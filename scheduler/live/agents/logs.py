"""What jobs printed, from the nodes they ran on to whoever reads: `LogSource` for the services for people.

A reader's attempts are read one after the other, the nodes of a gang side by side. An agent sends as fast as the
reader reads, because between them wait a few chunks and no more. What cannot be had is said in the stream, as a
notice; nothing is ever left out in silence.
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
ANSWER_S = 15.0  # from LogsWanted to the first word
TAIL_ATTEMPTS_MAX = 50  # so many attempts at most are looked through for the last lines
LOOK_S = 1.0  # between two questions for an attempt that has printed nothing yet
_STIRRING = (GpusFilled, JobMoved, LeaseClosed, RoundPlanned)
Queue = asyncio.Queue["pb.SentLogs | None"]


class Wanted(NamedTuple):
    """What a reader asked for."""

    job: str
    rank: int | None
    tail_lines: int | None
    follow: bool


class _Call:
    """One node's part of one reading. `None` in the queue: look at `broken`."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.queue: Queue = asyncio.Queue(CHUNKS_WAITING_MAX)
        self.left = asyncio.Event()  # the reader has gone
        self.broken = False  # the stream ended before it said so, with all this still to be read


class LogRelay:
    """All readings that go on. Give `listen` to the Feed."""

    def __init__(
        self, links: Links, attempts: Attempts, state: SchedulerState, answer_s: float = ANSWER_S
    ) -> None:
        self._links, self._attempts, self._state = links, attempts, state
        self._answer_s = answer_s
        self._calls: dict[str, _Call] = {}
        self._stirred = asyncio.Event()

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Something has changed, perhaps for a job that somebody follows."""
        if any(isinstance(fact, _STIRRING) for fact in facts):
            self._stirred.set()
            self._stirred = asyncio.Event()

    # -------------------------------------------------------------------------------------------- from the nodes

    async def receive(self, requests: AsyncIterator[pb.SentLogs], names: Sequence[str] | None) -> None:
        """One node's answer to LogsWanted. `names`: those of its certificate; None: it has none."""
        call: _Call | None = None
        ended = False
        try:
            async for sent in requests:
                if call is None:
                    call = self._calls.get(sent.call)
                    if call is None:
                        return  # nobody reads it any more
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

    # ------------------------------------------------------------------------------------------------ for people

    async def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """What a job printed, oldest first; with `follow` until it has ended for good."""
        wanted = Wanted(job, rank, tail_lines, follow)
        told = 0  # the newest attempt that was begun
        while True:
            stirred = self._stirred
            over = self._is_over(job)  # looked at first, so that no attempt comes in between
            known = self._attempts.of(job)
            todo = [one for one in known if (one.number == attempt if attempt else one.number > told)]
            end = [] if tail_lines is None or told else await self._end_of(wanted, tail_lines, todo)
            for one, lines in end or [(one, None) for one in todo]:
                heading = f"attempt {one.number} starts on {', '.join(one.nodes)}" if told else ""
                told = one.number
                async for chunk in self._read_attempt(wanted._replace(tail_lines=lines), one):
                    if heading:  # only now: an attempt whose turn passed before it ran is none to readers
                        yield jobs_pb2.LogChunk(job=job, attempt=one.number, notice=heading)
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
        """The attempts that hold the last lines, oldest first, and how many lines of each to read.

        Lines are those of the rank that printed most.
        """
        end: list[tuple[Attempt, int | None]] = []
        for one in reversed(attempts[-TAIL_ATTEMPTS_MAX:]):
            end.insert(0, (one, lines))
            if lines and one.number != attempts[0].number:
                lines -= await self._count_lines(wanted._replace(tail_lines=lines, follow=False), one)
            if lines <= 0 or one.number == attempts[0].number:
                break
        return end

    async def _count_lines(self, wanted: Wanted, one: Attempt) -> int:
        ends: Counter[int] = Counter()
        rest: dict[int, int] = {}
        async with contextlib.aclosing(self._read_attempt(wanted, one)) as chunks:
            async for chunk in chunks:
                if chunk.data:
                    ends[chunk.rank] += chunk.data.count(b"\n")
                    rest[chunk.rank] = not chunk.data.endswith(b"\n")
        return max((ends[rank] + rest[rank] for rank in rest), default=0)

    def _is_over(self, job: str) -> bool:
        found = self._state.jobs.get(job)
        return found is None or (found.is_terminal and found.leaving is None)

    async def _read_attempt(self, wanted: Wanted, one: Attempt) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """All nodes of an attempt, side by side."""
        if len(one.nodes) == 1:
            async for chunk in self._read_node(wanted, one, one.nodes[0]):
                yield chunk
            return
        merged: asyncio.Queue[jobs_pb2.LogChunk | None] = asyncio.Queue(CHUNKS_WAITING_MAX)

        async def pour(node: str) -> None:
            async with contextlib.aclosing(self._read_node(wanted, one, node)) as chunks:
                async for chunk in chunks:
                    await merged.put(chunk)
            await merged.put(None)

        pouring = [asyncio.create_task(pour(node)) for node in one.nodes]
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
        self, wanted: Wanted, one: Attempt, node: str
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """One node's part. When its link breaks while the attempt goes on, a follower waits for it to come back."""
        said: dict[int, int] = {}  # rank → the offset behind what was read
        while True:
            why, held = "", one.lease in self._state.leases
            async with contextlib.aclosing(self._read_once(wanted, one, node, bool(said))) as parts:
                async for sent in parts:
                    if isinstance(sent, str):
                        why = sent
                        continue
                    known = (
                        0 if wanted.tail_lines is None else None
                    )  # of a tail, nobody knows where it begins
                    end = said.get(sent.rank, known)
                    if (chunk := _new_part(sent, said)) is not None:
                        if end is not None and chunk.data and chunk.offset > end:
                            yield _dropped(chunk, end)
                        yield chunk
            if not why and wanted.follow and held and not said:
                await asyncio.sleep(LOOK_S)  # it is to start there, or has printed nothing
                continue
            if not why:
                return
            wait = wanted.follow and one.lease in self._state.leases
            rest = "; waiting for it" if wait else ": its part of the log is left out"
            yield jobs_pb2.LogChunk(
                job=wanted.job, attempt=one.number, node=node, notice=f"{node} {why}{rest}"
            )
            if not wait or not await self._back(node, one.lease):
                return

    async def _back(self, node: str, lease: str) -> bool:
        """Wait until a node has a link again; False when its lease is over before that."""
        coming = asyncio.ensure_future(self._links.come_back(node))
        try:
            while not coming.done() and lease in self._state.leases:
                await asyncio.wait({coming}, timeout=1.0)
            return coming.done()
        finally:
            coming.cancel()

    async def _read_once(
        self, wanted: Wanted, one: Attempt, node: str, again: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk | str, None]:
        """Chunks, until the node has no more; text as the last thing: why there is no more although there should be."""
        link = self._links.linked(node)
        if link is None:
            yield "cannot be reached"
            return
        name = secrets.token_hex(16)
        call = self._calls[name] = _Call(node)
        asking = pb.LogsWanted(
            call=name,
            job=wanted.job,
            attempt=one.number,
            lease=one.lease,
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
                    sent.chunk.job, sent.chunk.attempt = wanted.job, one.number
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
    """Hand a chunk on, at the reader's pace; False when the reader has gone."""
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
    """The next chunk; or why there is none."""
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
    """What a reader is told of what the node does not have any more."""
    size_mb = max((chunk.offset - had) / 1e6, 0.1)
    notice = f"rank {chunk.rank}: {size_mb:,.1f} MB of earlier output were dropped by rotation"
    return jobs_pb2.LogChunk(job=chunk.job, attempt=chunk.attempt, node=chunk.node, notice=notice)


def _new_part(chunk: jobs_pb2.LogChunk, said: dict[int, int]) -> jobs_pb2.LogChunk | None:
    """What of a chunk the reader does not have yet."""
    if chunk.notice or not chunk.data:
        return chunk if chunk.notice else None
    had = said.get(chunk.rank, 0)
    end = chunk.offset + len(chunk.data)
    if end <= had:
        return None
    if chunk.offset < had:
        chunk.data = chunk.data[had - chunk.offset :]
        chunk.offset = had
    said[chunk.rank] = end
    return chunk
