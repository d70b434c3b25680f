"""The files of jobs, relayed from their nodes to readers: the `FileSource` of the API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.live.access.status import NOT_FOUND, UNAVAILABLE, CallFailed
from scheduler.live.agents.node_calls import NodeCalls
from scheduler.live.data.attempts import Attempt, Attempts
from scheduler.model.jobs import Job

# How many of the last attempts are searched for one that has run.
ATTEMPTS_SEARCHED_MAX = 10
# How fast all readers together are served. More would delay the other calls of the same event loop.
BYTES_PER_S = 120e6
# For how long less than that can be made up for.
CREDIT_S = 0.05


class FileRelay:
    """Relays files of jobs to all readers."""

    def __init__(self, calls: NodeCalls, attempts: Attempts) -> None:
        self._calls, self._attempts = calls, attempts
        # When the pieces that were relayed so far are paid for, at BYTES_PER_S; on the event loop's clock.
        self._paid_s = 0.0

    async def list_files(
        self, job: Job, request: jobs_pb2.ListFilesRequest
    ) -> AsyncGenerator[jobs_pb2.FileList, None]:
        """Yield the files of each node of an attempt, node by node; one message for each node that sends none."""
        attempts = self._attempts.of(job.id)
        if request.attempt:
            attempts = [attempt for attempt in attempts if attempt.number == request.attempt]
        if not attempts:
            which = f"has no attempt {request.attempt}" if request.attempt else "has not run yet"
            raise CallFailed(NOT_FOUND, f"job '{job.id}' {which}")
        searched = attempts[-ATTEMPTS_SEARCHED_MAX:]
        # An attempt that never began has no files; the one before it may have.
        while len(searched) > 1 and not await self._has_files(job, searched[-1]):
            searched.pop()
        for node in searched[-1].nodes:
            async for listed in self._list_node(job, searched[-1], node, request):
                yield listed

    async def _has_files(self, job: Job, attempt: Attempt) -> bool:
        """Return whether a node has files of this attempt, or cannot be node_request."""

        async def ask(node: str) -> bool:
            places = jobs_pb2.ListFilesRequest()
            lists = [listed async for listed in self._list_node(job, attempt, node, places)]
            return any(listed.missing or listed.places.logs or listed.places.outputs for listed in lists)

        return any(await asyncio.gather(*map(ask, attempt.nodes)))

    async def _list_node(
        self, job: Job, attempt: Attempt, node: str, request: jobs_pb2.ListFilesRequest
    ) -> AsyncGenerator[jobs_pb2.FileList, None]:
        node_request = jobs_pb2.ListFilesRequest(
            job=job.id, attempt=attempt.number, paths=request.paths, checkpoints=request.checkpoints
        )
        wanted = self._wanted(job, attempt)
        wanted.list.CopyFrom(node_request)
        async with contextlib.aclosing(self._ask(node, wanted)) as parts:
            async for sent in parts:
                if isinstance(sent, str):
                    yield jobs_pb2.FileList(node=node, attempt=attempt.number, missing=sent)
                elif sent.HasField("list"):
                    sent.list.node = node
                    yield sent.list

    async def fetch_files(
        self, job: Job, request: jobs_pb2.FetchFilesRequest
    ) -> AsyncGenerator[jobs_pb2.FilePiece, None]:
        """Yield the content of files from one node. Raises CallFailed if the node cannot send all."""
        attempts = {attempt.number: attempt for attempt in self._attempts.of(job.id)}
        attempt = attempts.get(request.attempt)
        if attempt is None or request.node not in attempt.nodes:
            raise CallFailed(
                NOT_FOUND, f"job '{job.id}' has no attempt {request.attempt} on node '{request.node}'"
            )
        wanted = self._wanted(job, attempt)
        wanted.fetch.CopyFrom(request)
        async with contextlib.aclosing(self._ask(request.node, wanted)) as parts:
            async for sent in parts:
                if isinstance(sent, str):
                    raise CallFailed(UNAVAILABLE, f"{request.node} {sent}", retry_s=5.0)
                if sent.HasField("piece"):
                    yield sent.piece
                    await self._pace(len(sent.piece.data))

    async def _pace(self, size_bytes: int) -> None:
        """Wait as long as this many bytes take at the rate of all readers together."""
        now_s = asyncio.get_running_loop().time()
        self._paid_s = max(self._paid_s, now_s - CREDIT_S) + size_bytes / BYTES_PER_S
        await asyncio.sleep(max(self._paid_s - now_s, 0.0))

    def _wanted(self, job: Job, attempt: Attempt) -> pb.FilesWanted:
        launch = job.spec.launch
        return pb.FilesWanted(
            lease=attempt.lease, user=job.spec.user, checkpoint_dir=launch.checkpoint_dir if launch else ""
        )

    def _ask(self, node: str, wanted: pb.FilesWanted) -> AsyncGenerator[pb.SentFiles | str, None]:
        link = self._calls.links.by_name.get(node)
        if link is not None and not link.hello.sends_files:
            return _only(
                f"runs version {link.hello.agent_version} of Gavel, which sends no files: upgrade it"
            )
        return self._calls.ask(node, "files_wanted", wanted)


async def _only(trouble: str) -> AsyncGenerator[pb.SentFiles | str, None]:
    yield trouble
