"""The output of jobs, relayed from their nodes to readers: the `LogSource` of the API.

Attempts are read one after another, but the nodes of a gang at the same time. Output that is missing is reported in the
stream as a notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.facts import Fact, GpusFilled, JobMoved, LeaseClosed, RoundPlanned
from scheduler.core.state import SchedulerState
from scheduler.live.access.status import NOT_FOUND, CallFailed
from scheduler.live.agents.node_calls import MESSAGES_WAITING_MAX, NodeCalls
from scheduler.live.data.attempts import Attempt, Attempts

# How many attempts are searched for the last lines of a job.
TAIL_ATTEMPTS_MAX = 50
# How long to wait before asking again for an attempt that has printed nothing yet.
LOOK_S = 1.0
# Facts that may begin or end an attempt.
_ATTEMPT_FACTS = (GpusFilled, JobMoved, LeaseClosed, RoundPlanned)


class LogRequest(NamedTuple):
    """A reader's request for the output of a job. `rank` None: of all ranks; `tail_lines` None: all lines."""

    job: str
    rank: int | None
    tail_lines: int | None
    follow: bool


class LogRelay:
    """Relays the output of jobs to all readers. The Feed has to call `listen`."""

    def __init__(self, calls: NodeCalls, attempts: Attempts, state: SchedulerState) -> None:
        self._calls, self._attempts, self._state = calls, attempts, state
        self._attempts_changed = asyncio.Event()

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Wake the readers if a fact may concern a job that one of them follows."""
        if any(isinstance(fact, _ATTEMPT_FACTS) for fact in facts):
            self._attempts_changed.set()
            self._attempts_changed = asyncio.Event()

    async def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield a job's output, oldest first; with `follow`, until the job is in a final state."""
        request = LogRequest(job, rank, tail_lines, follow)
        newest_read = 0
        while True:
            attempts_changed = self._attempts_changed
            # Read this before the attempts, so that no attempt can begin in between.
            is_over = self._is_over(job)
            attempts = self._attempts.of(job)
            unread = [
                each
                for each in attempts
                if (each.number == attempt if attempt else each.number > newest_read)
            ]
            tail = (
                [] if tail_lines is None or newest_read else await self._tail_of(request, tail_lines, unread)
            )
            for each, lines in tail or [(each, None) for each in unread]:
                heading = f"attempt {each.number} starts on {', '.join(each.nodes)}" if newest_read else ""
                newest_read = each.number
                async for chunk in self._read_attempt(request._replace(tail_lines=lines), each):
                    # The heading waits for the first chunk: an attempt that never ran is not shown to readers.
                    if heading:
                        yield jobs_pb2.LogChunk(job=job, attempt=each.number, notice=heading)
                        heading = ""
                    yield chunk
            later_exists = bool(attempts) and attempts[-1].number > attempt
            if attempt and not unread and (not follow or is_over or later_exists):
                raise CallFailed(NOT_FOUND, f"job '{job}' has no attempt {attempt}")
            if not follow or is_over or (attempt and unread):
                return
            await attempts_changed.wait()

    async def _tail_of(
        self, request: LogRequest, lines: int, attempts: Sequence[Attempt]
    ) -> list[tuple[Attempt, int | None]]:
        """Return the attempts that hold the last lines, oldest first, with the number of lines to read of each.

        Of each attempt, the lines of the rank that printed most are counted.
        """
        tail: list[tuple[Attempt, int | None]] = []
        for attempt in reversed(attempts[-TAIL_ATTEMPTS_MAX:]):
            tail.insert(0, (attempt, lines))
            if lines and attempt.number != attempts[0].number:
                lines -= await self._count_lines(request._replace(tail_lines=lines, follow=False), attempt)
            if lines <= 0 or attempt.number == attempts[0].number:
                break
        return tail

    async def _count_lines(self, request: LogRequest, attempt: Attempt) -> int:
        """Count the lines of the rank that printed most, including a last line without a line break."""
        complete: Counter[int] = Counter()
        has_incomplete: dict[int, bool] = {}
        async with contextlib.aclosing(self._read_attempt(request, attempt)) as chunks:
            async for chunk in chunks:
                if chunk.data:
                    complete[chunk.rank] += chunk.data.count(b"\n")
                    has_incomplete[chunk.rank] = not chunk.data.endswith(b"\n")
        return max((complete[rank] + more for rank, more in has_incomplete.items()), default=0)

    def _is_over(self, name: str) -> bool:
        """Whether a job has ended and holds no GPUs."""
        job = self._state.jobs.get(name)
        return job is None or (job.is_terminal and job.leaving is None)

    async def _read_attempt(
        self, request: LogRequest, attempt: Attempt
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield the output of all nodes of an attempt, as it arrives."""
        if len(attempt.nodes) == 1:
            async for chunk in self._read_node(request, attempt, attempt.nodes[0]):
                yield chunk
            return
        merged: asyncio.Queue[jobs_pb2.LogChunk | None] = asyncio.Queue(MESSAGES_WAITING_MAX)

        async def forward(node: str) -> None:
            async with contextlib.aclosing(self._read_node(request, attempt, node)) as chunks:
                async for chunk in chunks:
                    await merged.put(chunk)
            await merged.put(None)

        tasks = [asyncio.create_task(forward(node)) for node in attempt.nodes]
        try:
            nodes_left = len(tasks)
            while nodes_left:
                merged_chunk = await merged.get()
                if merged_chunk is None:
                    nodes_left -= 1
                else:
                    yield merged_chunk
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read_node(
        self, request: LogRequest, attempt: Attempt, node: str
    ) -> AsyncGenerator[jobs_pb2.LogChunk, None]:
        """Yield one node's output. If the link breaks during the attempt, a reader that follows waits for the next."""
        # Rank → the offset up to which the output of this rank was read.
        ends: dict[int, int] = {}
        while True:
            why, is_held = "", attempt.lease in self._state.leases
            async with contextlib.aclosing(self._read_once(request, attempt, node, bool(ends))) as parts:
                async for sent in parts:
                    if isinstance(sent, str):
                        why = sent
                        continue
                    # The offset at which a tail begins is unknown.
                    begin = 0 if request.tail_lines is None else None
                    end = ends.get(sent.rank, begin)
                    if (chunk := _new_part(sent, ends)) is not None:
                        if end is not None and chunk.data and chunk.offset > end:
                            yield _drop_notice(chunk, end)
                        yield chunk
            # The attempt has not started on this node yet, or has printed nothing.
            if not why and request.follow and is_held and not ends:
                await asyncio.sleep(LOOK_S)
                continue
            if not why:
                return
            waits = request.follow and attempt.lease in self._state.leases
            effect = "; waiting for it" if waits else ": its part of the log is left out"
            yield jobs_pb2.LogChunk(
                job=request.job, attempt=attempt.number, node=node, notice=f"{node} {why}{effect}"
            )
            if not waits or not await self._linked_again(node, attempt.lease):
                return

    async def _linked_again(self, node: str, lease: str) -> bool:
        """Wait until a node has a link again; return False if the lease ends first."""
        link = asyncio.ensure_future(self._calls.links.wait_for_link(node))
        try:
            while not link.done() and lease in self._state.leases:
                await asyncio.wait({link}, timeout=1.0)
            return link.done()
        finally:
            link.cancel()

    async def _read_once(
        self, request: LogRequest, attempt: Attempt, node: str, has_read: bool
    ) -> AsyncGenerator[jobs_pb2.LogChunk | str, None]:
        """Yield chunks until the node has no more. If the node cannot send all, yield the reason last, as a str."""
        wanted = pb.LogsWanted(
            job=request.job,
            attempt=attempt.number,
            lease=attempt.lease,
            rank=request.rank,
            tail_lines=None if has_read else request.tail_lines,
            follow=request.follow,
        )
        async with contextlib.aclosing(self._calls.ask(node, "logs_wanted", wanted)) as parts:
            async for sent in parts:
                if isinstance(sent, str):
                    yield sent
                elif sent.HasField("chunk"):
                    sent.chunk.node = node
                    sent.chunk.job, sent.chunk.attempt = request.job, attempt.number
                    yield sent.chunk


def _drop_notice(chunk: jobs_pb2.LogChunk, read_to: int) -> jobs_pb2.LogChunk:
    """Return the notice that the node has dropped the output between `read_to` and this chunk."""
    size_mb = max((chunk.offset - read_to) / 1e6, 0.1)
    notice = f"rank {chunk.rank}: {size_mb:,.1f} MB of earlier output were dropped by rotation"
    return jobs_pb2.LogChunk(job=chunk.job, attempt=chunk.attempt, node=chunk.node, notice=notice)


def _new_part(chunk: jobs_pb2.LogChunk, ends: dict[int, int]) -> jobs_pb2.LogChunk | None:
    """Return the part of a chunk that the reader does not have yet, and record in `ends` where the chunk ends."""
    if chunk.notice or not chunk.data:
        return chunk if chunk.notice else None
    read_to = ends.get(chunk.rank, 0)
    end = chunk.offset + len(chunk.data)
    if end <= read_to:
        return None
    if chunk.offset < read_to:
        chunk.data = chunk.data[read_to - chunk.offset :]
        chunk.offset = read_to
    ends[chunk.rank] = end
    return chunk
