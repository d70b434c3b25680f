"""Logs on their way from nodes to a reader: in order, at the reader's pace, over attempts, with a notice for
everything that is missing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import NodeCommand
from scheduler.live.access.status import CallFailed
from scheduler.live.data.attempts import Attempts
from scheduler.model.lease import Bundle, Lease
from tests.support.linked import Remembering, Scheduler, on_event_loop, until
from worker_agent.core.messages import Desired, Held, LinkUp, ProcessExited, Report
from worker_agent.link.messages import sent_logs
from worker_agent.link.serving import Serving
from worker_agent.link.stream import GrpcLink
from worker_agent.link.target import Target
from worker_agent.runs.logs import Chunk


class Logging:
    """A node whose logs a test writes: `lines` by attempt; `sent` counts the lines that were read."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.scheduler, self.name = scheduler, name
        self.lines: dict[int, list[bytes]] = {}
        # Attempts that will print nothing more.
        self.done: set[int] = set()
        self.dropped_bytes = 0
        self.sent = 0
        self.left = 0
        self.trouble: Exception | None = None
        self.held: tuple[Held, ...] = ()
        serving = Serving("SendLogs", pb.SentLogs, self.read, 64)
        target = Target(address=scheduler.address)
        self.link = GrpcLink(target, self._hello, serving={"logs_wanted": serving})
        self.node = Remembering(lambda: self.link.send_hello(self.held))
        self._task: asyncio.Task[None] | None = None
        self._numbers = 0

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            protocol=1,
            node=self.name,
            incarnation=self.name,
            worker_type="v100",
            gpus=[pb.InventoryGpu(index=0)],
        )

    async def __aenter__(self) -> Logging:
        self._task = asyncio.create_task(self.link.run(self.node))
        await until(lambda: self.node.of(Desired))
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def read(self, request: pb.LogsWanted) -> AsyncIterator[pb.SentLogs]:
        """Yield lines like an agent that reads its logs."""
        if self.trouble is not None:
            raise self.trouble
        try:
            index, offset = 0, self.dropped_bytes
            lines = self.lines.get(request.attempt, [])
            if request.HasField("tail_lines"):
                index = max(0, len(lines) - request.tail_lines)
                offset += sum(map(len, lines[:index]))
            while True:
                while index < len(lines):
                    yield sent_logs(request.job, Chunk(request.attempt, 0, offset, lines[index]))
                    self.sent += 1
                    offset, index = offset + len(lines[index]), index + 1
                if not request.follow or request.attempt in self.done:
                    return
                await asyncio.sleep(0.005)
        finally:
            self.left += 1

    def exit(self, lease: str, outcome: Any = "finished") -> None:
        """Report that the processes have ended."""
        self._numbers += 1
        exit = ProcessExited(lease, outcome, 0.0, 0.0, 0.5, 1.0)
        self.link.send_report(Report(self._numbers, self.node.of(Desired)[-1].generation, (), (), (exit,)))

    def started(self, lease: str) -> None:
        """Report that the processes run."""
        self._numbers += 1
        self.link.send_report(Report(self._numbers, self.node.of(Desired)[-1].generation, (lease,)))


def reader(scheduler: Scheduler, job: str, **more: Any) -> AsyncIterator[jobs_pb2.LogChunk]:
    """Read a job's log as a user does."""
    request = {"attempt": 0, "rank": None, "tail_lines": None, "follow": False, **more}
    return scheduler.relay.read_logs(job, **request)


async def text(chunks: AsyncIterator[jobs_pb2.LogChunk]) -> str:
    """Return everything that was read, with notices in brackets."""
    parts = [f"[{chunk.notice}]" if chunk.notice else chunk.data.decode() async for chunk in chunks]
    return "".join(parts)


async def running(scheduler: Scheduler, *nodes: Logging, **fields: Any) -> tuple[str, str]:
    """Submit a job and let it run; return its id and its lease."""
    (job,) = await scheduler.submit(**fields)
    await until(lambda: scheduler.state.jobs[job].lease)
    lease = scheduler.state.jobs[job].lease
    await until(lambda: all(lease in node.node.orders for node in nodes))
    for node in nodes:
        node.started(lease)
    await until(lambda: scheduler.state.leases[lease].started_s is not None)
    return job, lease


@on_event_loop
async def test_a_reader_that_does_not_follow_gets_the_present_lines():
    """The reader gets all lines so far, with their node and offsets, then the end."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        node.lines[1] = [b"one\n", b"two\n"]
        job, _ = await running(scheduler, node)
        chunks = [chunk async for chunk in reader(scheduler, job)]
        assert [(c.job, c.attempt, c.rank, c.node, c.offset, c.data) for c in chunks] == [
            (job, 1, 0, "n1", 0, b"one\n"),
            (job, 1, 0, "n1", 4, b"two\n"),
        ]
        assert await text(reader(scheduler, job, tail_lines=1)) == "two\n"


@on_event_loop
async def test_the_last_lines_are_those_of_all_attempts():
    """The reader gets as many lines as it wants, from as many attempts as that takes, with a notice where one begins.

    No more attempts are read than that. One that has printed nothing yet, as after a preemption, hides nothing.
    """
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        job, _ = await running(scheduler, node)
        number = scheduler.state.jobs[job].attempt
        scheduler.attempts.note(
            Lease(f"90{index}", job, Bundle((job,), "v100", 1), index, 1, ("n1:0",), 1, 0.0)
            for index in (2, 3, 4, 5)
        )
        assert number == 1
        node.lines = {1: [b"a\n", b"b\n"], 2: [b"c\n", b"d\n", b"e\n"], 3: [], 4: [b"f\n", b"no end"]}
        node.done = {2, 3, 4, 5}
        two, four = "[attempt 2 starts on n1]", "[attempt 4 starts on n1]"
        assert await text(reader(scheduler, job, tail_lines=1)) == "no end"
        assert await text(reader(scheduler, job, tail_lines=3)) == f"e\n{four}f\nno end"
        assert await text(reader(scheduler, job, tail_lines=5)) == f"c\nd\ne\n{four}f\nno end"
        everything = f"a\nb\n{two}c\nd\ne\n{four}f\nno end"
        assert await text(reader(scheduler, job, tail_lines=7)) == everything
        assert await text(reader(scheduler, job, tail_lines=2**32 - 1)) == everything
        assert await text(reader(scheduler, job, tail_lines=0)) == ""
        assert await text(reader(scheduler, job, tail_lines=2, attempt=2)) == "d\ne\n"


@on_event_loop
async def test_a_notice_counts_what_rotation_has_dropped(wording):
    """The notice comes once, before the first remaining line; a reader of the log's end gets none."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        node.lines[1], node.dropped_bytes = [b"one\n", b"two\n"], 236_000_000
        job, _ = await running(scheduler, node)
        notice, lines = (await text(reader(scheduler, job))).split("]")
        assert ("236.0 MB" in notice, lines) == (True, "one\ntwo\n")
        wording(notice)
        assert await text(reader(scheduler, job, tail_lines=1)) == "two\n"


@on_event_loop
async def test_a_follower_stays_until_the_job_has_ended_for_good():
    """A follower gets new lines over the end of one attempt and the beginning of the next on another node."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as first:
        job, lease = await running(scheduler, first, retries=1)
        first.lines[1] = [b"attempt one\n"]
        following = asyncio.create_task(text(reader(scheduler, job, follow=True)))
        await until(lambda: first.sent)
        async with Logging(scheduler, "n2") as second:
            second.lines[2] = [b"attempt two\n"]
            second.done.add(2)
            await scheduler.world.ask(NodeCommand(node="n1", action="drain"))
            first.done.add(1)
            first.exit(lease, "failed")
            await until(lambda: second.node.orders)
            again = next(iter(second.node.orders))
            assert not following.done()
            second.exit(again)
            assert await asyncio.wait_for(following, 20) == (
                "attempt one\n[attempt 2 starts on n2]attempt two\n"
            )


@on_event_loop
async def test_a_slow_reader_slows_the_agent_and_nothing_large_waits():
    """Of 200 MB that a node could send, only a few chunks leave it before the reader takes them (back-pressure)."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        node.lines[1] = [b"x" * 1_000_000] * 200
        job, _ = await running(scheduler, node)
        chunks = reader(scheduler, job)
        assert len((await anext(chunks)).data) == 1_000_000
        await asyncio.sleep(0.5)
        assert node.sent < 40
        rest = [len(chunk.data) async for chunk in chunks]
        assert sum(rest) == 199_000_000


@on_event_loop
async def test_a_reader_that_leaves_stops_the_agent():
    """When a reader disconnects, no task or call is left on either side."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        node.lines[1] = [b"line\n"] * 3
        job, _ = await running(scheduler, node)
        chunks = reader(scheduler, job, follow=True)
        await anext(chunks)
        await chunks.aclose()
        await until(lambda: node.left)
        assert scheduler.calls._calls == {}


@on_event_loop
async def test_a_notice_names_a_node_that_is_gone_and_the_rest_is_read(wording):
    """If one of a gang's two nodes cannot be reached, a notice replaces its lines."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as first:
        async with Logging(scheduler, "n2") as second:
            first.lines[1] = second.lines[1] = [b"here\n"]
            job, _ = await running(scheduler, first, second, gpus=2)
        await until(lambda: scheduler.links.by_name.get("n2") is None)
        log = await text(reader(scheduler, job))
        notice, line = sorted(log.replace("]", "]\n").splitlines())
        assert (notice[:4], line) == ("[n2 ", "here")
        wording(notice)


@on_event_loop
async def test_a_follower_waits_for_a_node_that_is_away_for_a_while():
    """When a broken link is back, the follower gets a notice, then the lines printed meanwhile, none of them twice."""
    async with Scheduler() as scheduler:
        node = Logging(scheduler, "n1")
        async with node:
            node.lines[1] = [b"one\n", b"two\n"]
            job, lease = await running(scheduler, node)
            following = asyncio.create_task(text(reader(scheduler, job, follow=True)))
            await until(lambda: node.sent == 2)
        await until(lambda: scheduler.links.by_name.get("n1") is None)
        node.lines[1] += [b"three\n"]
        node.done.add(1)
        node.held = (Held(lease, 1.0, 1.0),)
        async with node:
            await until(lambda: len(node.node.of(LinkUp)) == 2 and lease in scheduler.state.leases)
            await until(lambda: node.sent > 4)
            node.exit(lease)
            log = await asyncio.wait_for(following, 20)
        assert "; waiting for it]" in log
        assert re.sub(r"\[n1 [^]]*\]", "", log) == "one\ntwo\nthree\n"


@on_event_loop
async def test_a_reader_gets_a_notice_of_trouble_on_the_node(wording):
    """The notice has the reason why a directory cannot be read."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        job, _ = await running(scheduler, node)
        node.trouble = OSError("[Errno 5] Input/output error")
        notice = await text(reader(scheduler, job))
        assert ("n1" in notice, "[Errno 5] Input/output error" in notice) == (True, True)
        wording(notice)


@on_event_loop
async def test_an_attempt_that_never_was_is_not_found():
    """Attempt 7 of a job that had one attempt is an error; a follower waits only while the attempt may still come."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        node.lines[1], node.done = [b"one\n"], {1}
        job, lease = await running(scheduler, node)
        with pytest.raises(CallFailed, match="no attempt 7"):
            await text(reader(scheduler, job, attempt=7))
        waiting = asyncio.create_task(text(reader(scheduler, job, attempt=7, follow=True)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        node.exit(lease)
        with pytest.raises(CallFailed, match="no attempt 7"):
            await asyncio.wait_for(waiting, 20)
        assert await text(reader(scheduler, job, attempt=1, follow=True)) == "one\n"


@on_event_loop
async def test_logs_of_an_ended_job_are_found_after_a_restart(tmp_path):
    """A table beside the journal keeps the nodes on which a job ran, since the state drops leases that are over."""
    first = Scheduler(attempts=tmp_path / "attempts.db")
    async with first, Logging(first, "n1") as node:
        job, lease = await running(first, node)
        node.exit(lease)
        await until(lambda: first.state.jobs[job].is_terminal)
    second = Scheduler(journal=first.journal, attempts=tmp_path / "attempts.db")
    async with second, Logging(second, "n1") as node:
        node.lines[1] = [b"still here\n"]
        assert await text(reader(second, job)) == "still here\n"


@on_event_loop
async def test_logs_without_a_reader_are_refused():
    """A stream for an unknown call ends at once; a guessed call gets nothing."""
    async with Scheduler() as scheduler, scheduler.peer() as peer:
        await peer.join()
        call = peer.stub.SendLogs(iter([pb.SentLogs(call="guessed", chunk=jobs_pb2.LogChunk(data=b"x"))]))
        assert await asyncio.wait_for(call, 10) == pb.SendLogsResponse()


@on_event_loop
async def test_an_attempt_that_never_ran_is_not_announced():
    """If an attempt's turn passes before its start, readers get no notice of it, but of the next one that prints."""
    async with Scheduler() as scheduler, Logging(scheduler, "n1") as node:
        job, _ = await running(scheduler, node)
        scheduler.attempts.note([lease(101, job, 2), lease(102, job, 3), lease(103, job, 4)])
        node.lines = {1: [b"one\n"], 3: [b"three\n"]}
        assert await text(reader(scheduler, job)) == "one\n[attempt 3 starts on n1]three\n"


# --------------------------------------------------------------------------------------------------- the table


def lease(number: int, job: str = "1", attempt: int = 1, gpus: tuple[str, ...] = ("n1:0",)) -> Lease:
    """Return a lease."""
    return Lease(str(number), job, Bundle((job,), "v100", len(gpus)), attempt, 1, gpus, 1, 0.0)


def test_attempts_are_kept_in_order_and_within_their_limit(tmp_path):
    """Each attempt has its nodes in the order of ranks and may be recorded twice; the oldest are dropped first."""
    table = Attempts(tmp_path / "attempts.db", rows_max=3)
    gang = lease(2, attempt=2, gpus=("n2:0", "n1:1", "n1:0"))
    table.note([lease(1), gang])
    table.note([gang])
    assert [(attempt.number, attempt.lease, attempt.nodes) for attempt in table.of("1")] == [
        (1, "1", ("n1",)),
        (2, "2", ("n2", "n1")),
    ]
    for number in range(3, 9):
        table.note([lease(number, job=str(number))])
    assert table.of("1") == []
    assert [attempt.lease for attempt in table.of("8")] == ["8"]
    table.close()


def test_a_damaged_table_is_set_aside(tmp_path, caplog):
    """A damaged table of addresses does not keep a scheduler from starting."""
    path = tmp_path / "attempts.db"
    path.write_bytes(b"no database, but long enough to be looked at" * 100)
    table = Attempts(path)
    table.note([lease(1)])
    assert [attempt.number for attempt in table.of("1")] == [1]
    assert path.with_name("attempts.db.damaged-1").exists()
    assert table.warning in caplog.text
    table.close()
