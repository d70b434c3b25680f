"""A daemon in a test: the live world, its loop and the services for users, on a real server on loopback.

async with Live(folder) as live:
    # The test chooses the user.
    jobs = live.jobs()
    await jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec()]))
    # The core is handed a node; there is no agent.
    await live.node("n1", gpus=2)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message as Proto
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc import aio
from grpc_status import rpc_status

from protos.gavel.v1 import cluster_pb2_grpc, history_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from scheduler.core.core import Core
from scheduler.core.effects import RefuseNode, RenewLeases, SendLeases, Solve
from scheduler.core.messages import Exit, NodeHello, NodeReport, Progress
from scheduler.drive import drive
from scheduler.journal.recovery import recover_scheduler
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.status import UNAVAILABLE, CallFailed
from scheduler.live.api.services import KEEPING, SERVER_OPTIONS, People
from scheduler.live.clock import Clock
from scheduler.live.config import Keeping
from scheduler.live.data.attempts import Attempts
from scheduler.live.feed import Feed
from scheduler.live.node_views import NodeDetails, Sources
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.world import LiveWorld
from scheduler.model.cluster import NodeSpec
from scheduler.model.lease import Phase
from scheduler.solving import answer
from tests.support.journals import MemoryJournal

# The longest wait in a test; no test passes because this time is over.
DEADLINE_S = 60.0
Story = Callable[..., Awaitable[None]]


def spec(**fields: Any) -> jobs_pb2.JobSpec:
    """Return a job that can be submitted."""
    launch = fields.pop("launch", None) or jobs_pb2.Launch(command=["true"])
    return jobs_pb2.JobSpec(**fields, launch=launch)


def with_daemon(**options: Any) -> Callable[[Story], Callable[..., None]]:
    """Run this test, which may use fixtures, on a new daemon with these options."""

    def decorate(story: Story) -> Callable[..., None]:
        def test(tmp_path: Path, **fixtures: Any) -> None:
            async def run() -> None:
                async with Live(tmp_path, **options) as live:
                    await story(live, **fixtures)

            asyncio.run(run())

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        test.__module__ = story.__module__
        folder = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        _, *fixtures = inspect.signature(story).parameters.values()
        test.__signature__ = inspect.Signature([folder, *fixtures])  # type: ignore[attr-defined]
        return test

    return decorate


class Problem(Exception):
    """The code, fields and text of a failed call."""

    def __init__(self, error: grpc.RpcError) -> None:
        status = rpc_status.from_call(error)
        assert status is not None, f"no details: {error}"
        self.code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        self.text = status.message
        self.reason = self.field = ""
        self.retry_s: float | None = None
        for detail in status.details:
            for kind in (
                error_details_pb2.ErrorInfo(),
                error_details_pb2.BadRequest(),
                error_details_pb2.RetryInfo(),
            ):
                if detail.Unpack(kind):
                    self._take(kind)
        super().__init__(f"{self.code.name} {self.reason} {self.field}: {self.text}")

    def _take(self, detail: Any) -> None:
        if isinstance(detail, error_details_pb2.ErrorInfo):
            assert detail.domain == "gavel"
            self.reason = detail.reason
        elif isinstance(detail, error_details_pb2.BadRequest):
            (violation,) = detail.field_violations
            self.field = violation.field
        else:
            self.retry_s = detail.retry_delay.ToNanoseconds() / 1e9


async def problem_of(call: Awaitable[Any]) -> Problem:
    """Return how this call fails; fail the test if it does not."""
    try:
        answer = await asyncio.wait_for(call, DEADLINE_S)
    except grpc.RpcError as error:
        return Problem(error)
    raise AssertionError(f"the call did not fail, but returned {answer}")


class Nodes:
    """A stand-in for the links: the test sets the logs of jobs and the status of nodes."""

    def __init__(self, chunks: list[jobs_pb2.LogChunk] | None = None) -> None:
        self.chunks = chunks or []
        # The files of every job, and for each call of FetchFiles its pieces or the error that ends it.
        self.lists: list[jobs_pb2.FileList] = []
        self.pieces: list[list[jobs_pb2.FilePiece | Exception]] = []
        self.fetches: list[jobs_pb2.FetchFilesRequest] = []
        self.asked: list[tuple[Any, ...]] = []
        self.news: dict[str, NodeDetails] = {}
        # What a terminal says about how long it waits for a client.
        self.keep_s = 600.0
        self.sent: list[Any] = []
        self.trouble: Exception | None = None
        self.open = 0
        self.over = False
        # Jobs whose node is away.
        self.away: set[str] = set()

    async def read_logs(
        self, job: str, attempt: int, rank: int | None, tail_lines: int | None, follow: bool
    ) -> AsyncIterator[jobs_pb2.LogChunk]:
        """Yield the chunks that the test stored for this job; when following, wait until cancelled (unless `over`)."""
        self.asked.append((job, attempt, rank, tail_lines, follow))
        self.open += 1
        try:
            if self.trouble is not None:
                raise self.trouble
            if job in self.away:
                raise CallFailed(UNAVAILABLE, f"the node of job {job} is away")
            for chunk in self.chunks:
                if chunk.job in ("", job):
                    yield chunk
            if follow and not self.over:
                await asyncio.Event().wait()
        finally:
            self.open -= 1

    async def connect(
        self, lease: str, opening: jobs_pb2.OpenConnection, requests: Any, limit: Any
    ) -> AsyncIterator[jobs_pb2.FromJob]:
        """Send back the user's data, until it ends; an error that `limit` returns is raised."""
        self.asked.append((lease, opening))
        yield jobs_pb2.FromJob(opened=jobs_pb2.ConnectionOpened(tty=True, keep_s=self.keep_s))
        ended = asyncio.ensure_future(limit)
        while True:
            message = asyncio.ensure_future(anext(requests))
            await asyncio.wait({message, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                message.cancel()
                raise ended.result()
            if message.result().end:
                ended.cancel()
                yield jobs_pb2.FromJob(exit_code=0)
                return
            yield jobs_pb2.FromJob(data=message.result().data)

    async def list_files(
        self, job: Any, request: jobs_pb2.ListFilesRequest
    ) -> AsyncIterator[jobs_pb2.FileList]:
        """Yield the lists that the test stored."""
        for listed in self.lists:
            yield listed

    async def fetch_files(
        self, job: Any, request: jobs_pb2.FetchFilesRequest
    ) -> AsyncIterator[jobs_pb2.FilePiece]:
        """Yield the pieces that the test stored for this call, and record the request."""
        self.fetches.append(request)
        for piece in self.pieces.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield piece

    def view(self, node: str) -> NodeDetails | None:
        """Return the status that the test set."""
        return self.news.get(node)

    def cut_off(self, node: str, why: str) -> bool:
        """Record the call, and return whether the node is linked."""
        self.sent.append((node, why))
        return node in self.news


class _Solver:
    """A solver that answers at once, in this process."""

    def __init__(self, world: LiveWorld) -> None:
        self._world = world

    def ask(self, question: Solve) -> None:
        """Hand the answer to the world."""
        self._world.send(answer(question))


class SetClock(Clock):
    """A clock that the test sets."""

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    def now_s(self) -> float:
        """Return the time that the test set."""
        return self.at_s


class Live:
    """A daemon. With the `journal` of an earlier one, it continues from that."""

    def __init__(
        self,
        folder: Path,
        *,
        auth: str = "none",
        config: PeopleConfig | None = None,
        journal: Any = None,
        credentials: grpc.ServerCredentials | None = None,
        clock: Clock | None = None,
        port: int = 0,
        nodes: Nodes | None = None,
        keeping: Keeping = KEEPING,
        channels: Sequence[Channel] = (),
    ) -> None:
        self.port = port
        self.folder, self.auth = folder, auth
        self.config = config or PeopleConfig()
        self.journal = MemoryJournal() if journal is None else journal
        self.nodes = nodes or Nodes()
        self._credentials = credentials
        self._clock = clock
        self.keeping, self.channels = keeping, channels
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Live:
        recovered = recover_scheduler(self.journal)
        self.core = Core(recovered.state)
        self.feed = Feed(self.journal)
        self.world = LiveWorld(self.core, self._clock or Clock(recovered.state.now_s))
        self.world.handlers |= dict.fromkeys((SendLeases, RenewLeases, RefuseNode), self.nodes.sent.append)
        self.world.handlers[Solve] = _Solver(self.world).ask
        outcome = self.core.take_over(self.world.now_s())
        self.feed.append(outcome.now_s, outcome.facts)
        for effect in outcome.effects:
            self.world.perform(effect)
        attempts = Attempts()
        self.feed.listen(attempts.listen)
        self.people = People(
            self.world,
            self.feed,
            Sources(self.nodes, self.nodes, self.nodes, self.nodes),
            self.folder,
            self.config,
            self.auth,
            attempts=attempts,
            keeping=self.keeping,
            channels=self.channels,
        )
        self.server = aio.server(interceptors=[self.people.guard], options=SERVER_OPTIONS)
        for add, servicer in self.people.services():
            add(servicer, self.server)
        if self._credentials is None:
            self.port = self.server.add_insecure_port(f"127.0.0.1:{self.port}")
        else:
            self.port = self.server.add_secure_port(f"127.0.0.1:{self.port}", self._credentials)
        self._loop = asyncio.create_task(drive(self.core, self.world, self.feed))
        self._closing.push_async_callback(self._stop)
        await self._closing.enter_async_context(self.people)
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.stop(0.2)
        await self._closing.aclose()

    async def _stop(self) -> None:
        self.world.stop()
        if not self._loop.done():
            await asyncio.wait_for(self._loop, DEADLINE_S)

    async def ended(self) -> None:
        """Wait for the loop to end; it ends by itself only after an error."""
        await asyncio.wait_for(asyncio.shield(self._loop), DEADLINE_S)

    # --------------------------------------------------------------------------------------------------- callers

    def channel(self, **options: Any) -> aio.Channel:
        """Open a new connection, which closes with the daemon."""
        channel = aio.insecure_channel(
            f"127.0.0.1:{self.port}",
            options=[("grpc.max_receive_message_length", 64 * 1024 * 1024), *options.items()],
        )
        self._closing.push_async_callback(channel.close)
        return channel

    def jobs(self, user: str = "ann", token: str = "") -> Any:
        """The service Jobs, as this user."""
        return _As(jobs_pb2_grpc.JobsStub(self.channel()), user, token)

    def cluster(self, user: str = "ann", token: str = "") -> Any:
        """The service Cluster, as this user."""
        return _As(cluster_pb2_grpc.ClusterStub(self.channel()), user, token)

    def history(self, user: str = "ann", token: str = "") -> Any:
        """The service History, as this user."""
        return _As(history_pb2_grpc.HistoryStub(self.channel()), user, token)

    def tokens(self, user: str = "ann", token: str = "") -> Any:
        """The service Access, as this user."""
        return _As(cluster_pb2_grpc.AccessStub(self.channel()), user, token)

    # ----------------------------------------------------------------------------------------------------- nodes

    async def node(self, name: str = "n1", gpus: int = 2, worker_type: str = "v100", **more: Any) -> None:
        """Let a node join."""
        self.world.send(NodeHello(spec=NodeSpec(name=name, worker_type=worker_type, gpus=gpus, **more)))
        await self.until(lambda: name in self.world.state.nodes)

    async def report(
        self,
        node: str,
        started: tuple[str, ...] = (),
        progress: tuple[Progress, ...] = (),
        exits: tuple[Exit, ...] = (),
        trouble: str | None = None,
        idle_s: dict[str, float] | None = None,
        measured: dict[str, dict[str, float]] | None = None,
    ) -> None:
        """Let a node report; return when the report is durable."""
        durable = asyncio.Event()
        generation = self.world.state.nodes[node].generation
        report = NodeReport(
            node=node,
            generation=generation,
            started=started,
            progress=progress,
            exits=exits,
            trouble=trouble,
            idle_s=idle_s,
            measured=measured or {},
        )
        self.world.send(report, durable.set)
        await asyncio.wait_for(durable.wait(), DEADLINE_S)

    async def run_job(self, job: str, node: str = "n1") -> str:
        """Wait for this job's lease, report that its processes run, and return the lease."""
        await self.until(lambda: self._sent(job))
        lease = self.world.state.jobs[job].lease or ""
        await self.report(node, started=(lease,))
        return lease

    def _sent(self, job: str) -> bool:
        holding = self.world.state.leases.get(self.world.state.jobs[job].lease or "")
        return holding is not None and holding.phase == Phase.SENT

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is checked after every turn of the loop."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.001)


class _As:
    """A stub whose calls carry their user and a deadline."""

    def __init__(self, stub: Any, user: str, token: str) -> None:
        self._stub = stub
        self._metadata = (("authorization", f"Bearer {token}"),) if token else (("x-gavel-user", user),)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._stub, name)

        def with_metadata(request: Proto | AsyncIterator[Proto] | None = None, **more: Any) -> Any:
            return call(request, **{"metadata": self._metadata, "timeout": DEADLINE_S, **more})

        return with_metadata
