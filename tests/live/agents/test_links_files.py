"""Files on their way from nodes to a reader: from the right attempt, with a line for each node that sends none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.status import CallFailed
from scheduler.live.agents.files import FileRelay
from scheduler.model.lease import Bundle, Lease
from tests.support.linked import Peer, Scheduler, on_event_loop, until
from tests.support.wording import Wording

LOGS = jobs_pb2.FilePlaces(logs="/logs")


async def job_with(scheduler: Scheduler, **attempts: str) -> tuple[Any, FileRelay]:
    """Return a job with attempts on these nodes (`a1="n1 n2"`), and the relay of files."""
    # The job may not start yet, so the scheduler itself makes no attempt.
    (name,) = await scheduler.submit(user="ann", earliest_start_s=1e6)
    leases = []
    for number, nodes in enumerate(attempts.values(), 1):
        gpus = tuple(f"{node}:0" for node in nodes.split())
        leases.append(Lease(f"l{number}", name, Bundle((name,), "v100", len(gpus)), number, 1, gpus, 1, 0.0))
    scheduler.attempts.note(leases)
    return scheduler.state.jobs[name], FileRelay(scheduler.calls, scheduler.attempts)


async def answer(peer: Peer, *sent: dict[str, Any]) -> pb.FilesWanted:
    """Answer the next FilesWanted with these messages; return it."""
    wanted = (await peer.next("files_wanted")).files_wanted
    messages = [pb.SentFiles(call=wanted.call, **fields) for fields in sent]
    await peer.stub.SendFiles(iter([*messages, pb.SentFiles(call=wanted.call, end=True)]))
    return wanted


async def lists(relay: FileRelay, job: Any, **request: Any) -> list[jobs_pb2.FileList]:
    """Return everything that the relay lists."""
    return [each async for each in relay.list_files(job, jobs_pb2.ListFilesRequest(**request))]


@on_event_loop
async def test_each_node_is_asked_for_the_files_of_its_lease() -> None:
    """The request names lease, user and attempt; the answers get the names of their nodes."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as first, scheduler.peer("n2") as two:
        for peer in (first, two):
            await peer.join(sends_files=True)
        job, relay = await job_with(scheduler, a1="n1 n2")
        listing = asyncio.create_task(lists(relay, job, paths=["out"]))
        wanted = await answer(first, {"list": jobs_pb2.FileList(attempt=1, places=LOGS)})
        await answer(two, {"list": jobs_pb2.FileList(attempt=1, unmatched=["out"])})
        assert [(each.node, each.places.logs, list(each.unmatched)) for each in await listing] == [
            ("n1", "/logs", []),
            ("n2", "", ["out"]),
        ]
        assert (wanted.lease, wanted.user, wanted.list.attempt, list(wanted.list.paths)) == (
            "l1",
            "ann",
            1,
            ["out"],
        )
        assert scheduler.calls._calls == {}


@on_event_loop
async def test_an_attempt_that_never_began_is_passed_over() -> None:
    """The files are those of the attempt before it, unless the reader names an attempt."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(sends_files=True)
        job, relay = await job_with(scheduler, a1="n1", a2="n1")
        listing = asyncio.create_task(lists(relay, job, paths=["."]))
        assert (await answer(peer, {"list": jobs_pb2.FileList(attempt=2)})).lease == "l2"
        assert (await answer(peer, {"list": jobs_pb2.FileList(attempt=1, places=LOGS)})).lease == "l1"
        assert [each.attempt for each in await listing] == [1]
        with pytest.raises(CallFailed):
            await lists(relay, job, attempt=3)


@on_event_loop
async def test_nodes_that_cannot_send_are_named(wording: Wording) -> None:
    """A node that is away, an agent of an earlier release, and first that reports an error."""
    async with Scheduler() as scheduler, scheduler.peer("old") as old, scheduler.peer("new") as new:
        await old.join()
        await new.join(sends_files=True)
        job, relay = await job_with(scheduler, a1="away old new")
        listing = asyncio.create_task(lists(relay, job, paths=["."]))
        wanted = (await new.next("files_wanted")).files_wanted
        end = pb.SentFiles(call=wanted.call, end=True, error="user 'ann' does not exist on this node")
        await new.stub.SendFiles(iter([pb.SentFiles(call=wanted.call), end]))
        for each in await listing:
            wording(f"{each.node} {each.missing}")
        for node in ("old", "elsewhere"):
            request = jobs_pb2.FetchFilesRequest(attempt=1, node=node)
            with pytest.raises(CallFailed) as failed:
                await anext(relay.fetch_files(job, request))
            wording(failed.value.text)


@on_event_loop
async def test_a_reader_who_leaves_stops_the_node() -> None:
    """The node gets a message that stops its call."""
    async with Scheduler() as scheduler, scheduler.peer("n1") as peer:
        await peer.join(sends_files=True)
        job, relay = await job_with(scheduler, a1="n1")
        request = jobs_pb2.FetchFilesRequest(attempt=1, node="n1", files=[jobs_pb2.FileWanted(path="a")])
        pieces = relay.fetch_files(job, request)
        first = asyncio.create_task(anext(pieces))
        wanted = (await peer.next("files_wanted")).files_wanted
        assert [file.path for file in wanted.fetch.files] == ["a"]

        async def endless() -> Any:
            while True:
                yield pb.SentFiles(call=wanted.call, piece=jobs_pb2.FilePiece(data=b"a"))

        call = peer.stub.SendFiles(endless())
        assert (await first).data == b"a"
        await pieces.aclose()
        stop = (await peer.next("files_wanted")).files_wanted
        assert (stop.call, stop.stop) == (wanted.call, True)
        await until(call.done)
