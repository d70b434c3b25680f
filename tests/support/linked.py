"""Both ends of the agents' stream in a test: a scheduler that listens on loopback, and agents that behave in any way.

async with Scheduler() as scheduler:
    # This agent speaks the protocol by hand.
    async with scheduler.peer("n1") as peer:
        await peer.hello()
        welcome = (await peer.next("welcome")).welcome
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.core.core import Core
from scheduler.core.effects import Solve
from scheduler.core.messages import SubmitJobs
from scheduler.drive import drive
from scheduler.journal.recovery import recover_scheduler
from scheduler.live.access.auth import by_certificate
from scheduler.live.access.interceptor import Guard
from scheduler.live.access.limits import CallSlots
from scheduler.live.access.people import PeopleConfig
from scheduler.live.agents.connections import Connections
from scheduler.live.agents.links import Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.agents.node_calls import NodeCalls
from scheduler.live.agents.service import AgentsService
from scheduler.live.clock import Clock
from scheduler.live.data.attempts import Attempts
from scheduler.live.feed import Feed
from scheduler.live.pace import Pace
from scheduler.live.rescue.durable_state import DurableState
from scheduler.live.rescue.rescue import Rescue
from scheduler.live.world import LiveWorld
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import Launch
from scheduler.solving import answer
from tests.support.journals import MemoryJournal
from worker_agent.core.messages import Desired, Event, Order
from worker_agent.runs.rendezvous import Rendezvous

PATIENCE_S = 60.0
QUICK = Pace(report_interval_s=0.2, silence_s=0.9, away_s=0.1, duplicate_s=0.3, gang_s=5.0, proof_s=2.0)
CALM = Pace(report_interval_s=10.0, silence_s=60.0, away_s=0.4, duplicate_s=0.3, gang_s=0.5, proof_s=1.0)


def on_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run this test on an event loop."""
    import functools
    import inspect

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 3 * PATIENCE_S))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run


async def until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(patience_s):
        while not condition():
            await asyncio.sleep(0.003)


class GatedJournal:
    """A journal in memory, to which nothing is appended while `gate` is closed."""

    def __init__(self) -> None:
        self.inner = MemoryJournal()

    def append(self, now_s: float, facts: Any) -> None:
        """Keep the record; it is durable on return."""
        self.inner.append(now_s, facts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Solver:
    def __init__(self, world: LiveWorld) -> None:
        self._world = world

    def ask(self, question: Solve) -> None:
        """Answer at once."""
        self._world.send(answer(question))


class _NoRecord:
    def note(self, *entry: object) -> None:
        """Record nothing."""


class Packages:
    """The packages that a test has stored."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the package in small pieces."""
        from scheduler.model.errors import NotFound

        if digest not in self.content:
            raise NotFound(f"there is no package {digest}")
        data = self.content[digest]
        for at in range(0, len(data), 1000):
            yield data[at : at + 1000]


class Scheduler:
    """A scheduler with its links; `journal` and `port` of an earlier one restart that."""

    def __init__(
        self,
        *,
        pace: Pace = CALM,
        journal: Any = None,
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
        interceptors: tuple[aio.ServerInterceptor, ...] = (),
        attempts: Path | None = None,
        rescued: bool = False,
        joining: Any = None,
        revoked: Any = None,
    ) -> None:
        self.pace, self.port = pace, port
        self.journal = GatedJournal() if journal is None else journal
        self.packages = Packages()
        self._credentials, self._interceptors = credentials, interceptors
        self._attempts_path, self._rescued = attempts, rescued
        self._more = {k: v for k, v in {"joining": joining, "revoked": revoked}.items() if v is not None}
        self._closing = AsyncExitStack()
        # While this is not set, the scheduler takes in no message and answers none.
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __aenter__(self) -> Scheduler:
        recovered = recover_scheduler(self.journal)
        self.core = core = Core(recovered.state)
        self.feed = Feed(self.journal)
        self.world = world = LiveWorld(core, Clock(recovered.state.now_s))
        self.links = Links(world, self.pace)
        world.handlers[Solve] = _Solver(world).ask
        self.attempts = Attempts(self._attempts_path)
        self.attempts.note(holding.lease for holding in core.state.leases.values())
        self.calls = NodeCalls(self.links, answer_s=5.0)
        self.relay = LogRelay(self.calls, self.attempts, core.state)
        for listener in (self.attempts.listen, self.relay.listen, self.links.listen):
            self.feed.listen(listener)
        outcome = core.take_over(world.now_s())
        self.feed.append(outcome.now_s, outcome.facts)
        for effect in outcome.effects:
            world.perform(effect)
        self.connections = Connections(self.links, answer_s=5.0)
        self.service = service = AgentsService(
            self.links,
            self.calls,
            self.connections,
            self.packages,
            certificates=self._credentials is not None,
            **self._more,
        )
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)]
        guard = Guard(by_certificate, _NoRecord(), CallSlots(PeopleConfig()))
        self.server = aio.server(interceptors=list(self._interceptors or (guard,)), options=options)
        agents_pb2_grpc.add_AgentsServicer_to_server(service, self.server)
        address = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self.server.add_insecure_port(address)
        else:
            self.port = self.server.add_secure_port(address, self._credentials)
        rescue = None
        # As in the daemon; other tests run without a rescue, so that exceptions are raised.
        if self._rescued:
            self.feed.listen((durable := DurableState(self.journal)).listen)
            rescue = Rescue(world, self.feed, durable, self.feed.troubles)
        self._loop = asyncio.create_task(drive(core, _Held(world, self.may_answer), self.feed, None, rescue))
        self._watching = asyncio.create_task(self.links.watch())
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.links.close()
        await self.server.stop(0.2)
        await self._closing.aclose()
        self.may_answer.set()
        self.world.stop()
        await asyncio.wait_for(self._loop, PATIENCE_S)
        self._watching.cancel()
        self.attempts.close()

    async def die(self) -> None:
        """End at once, as if killed."""
        self._loop.cancel()
        self._watching.cancel()
        await asyncio.gather(self._loop, self._watching, return_exceptions=True)
        self.links.close()
        await self.server.stop(None)
        self.attempts.close()

    @property
    def address(self) -> str:
        """Return the address to which agents connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def state(self) -> Any:
        """The scheduler's state."""
        return self.world.state

    async def submit(self, *specs: JobSpec, **fields: Any) -> list[str]:
        """Submit these jobs, or one with these fields; return their ids."""
        jobs = specs or (JobSpec(**{"launch": Launch(command=("true",)), **fields}),)
        result: Mapping[str, Any] = await self.world.ask(SubmitJobs(specs=jobs))
        return list(result["jobs"])

    def peer(self, name: str = "n1", **more: Any) -> Peer:
        """Return an agent whose messages the test writes by hand."""
        return Peer(self.address, name, **more)


class _Held:
    """The world, whose next batch waits while the gate is closed."""

    def __init__(self, world: LiveWorld, gate: asyncio.Event) -> None:
        self._world, self._gate = world, gate

    async def next(self) -> Any:
        """Return the next batch, once the gate is open."""
        batch = await self._world.next()
        await self._gate.wait()
        return batch

    def perform(self, effect: Any) -> None:
        """Pass the effect on to the world."""
        self._world.perform(effect)


class Peer:
    """The agent's end of a stream, for messages written by the test. `next` waits for a message of one kind."""

    def __init__(
        self,
        address: str,
        name: str,
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        channel: aio.Channel | None = None,
        incarnation: str = "",
        options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        self.name, self.incarnation = name, incarnation or f"{name}-1"
        self._metadata = metadata
        all_options = (("grpc.use_local_subchannel_pool", 1), *options)
        self.channel = channel or aio.insecure_channel(address, options=all_options)
        self.stub: Any = agents_pb2_grpc.AgentsStub(self.channel)  # type: ignore[no-untyped-call]
        self.call: Any = None
        self.numbers = 0
        self.waiting: list[pb.SchedulerMessage] = []
        self.acting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Peer:
        self.call = self.stub.Link(metadata=self._metadata)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.drop()

    async def drop(self) -> None:
        """Break the connection."""
        self.call.cancel()
        await self.channel.close()

    async def say(self, **body: Any) -> None:
        """Send one message, given as `report=…`."""
        await self.call.write(pb.AgentMessage(**body))

    async def hello(self, gpus: int = 1, held: tuple[str, ...] = (), **fields: Any) -> None:
        """Send the agent's hello."""
        fields = {
            "protocol": 1,
            "agent_version": "0.1.0",
            "worker_type": "v100",
            "takes_plans": True,
            **fields,
        }
        await self.say(
            hello=pb.Hello(
                node=self.name,
                incarnation=self.incarnation,
                gpus=[pb.InventoryGpu(index=i, name="V100", memory_gb=16.0) for i in range(gpus)],
                held=[pb.HeldLease(lease=lease, steps=1.0, ran_s=1.0) for lease in held],
                **fields,
            )
        )

    async def join(self, **hello: Any) -> pb.Welcome:
        """Send hello, and return the welcome to it."""
        await self.hello(**hello)
        return (await self.next("welcome")).welcome

    async def report(self, generation: int = 0, **fields: Any) -> int:
        """Send a report, and return its number."""
        self.numbers += 1
        await self.say(report=pb.Report(number=self.numbers, generation=generation, **fields))
        return self.numbers

    async def next(self, kind: str) -> pb.SchedulerMessage:
        """Return the next message of this kind; keep others for later."""
        async with asyncio.timeout(PATIENCE_S):
            for at, message in enumerate(self.waiting):
                if message.WhichOneof("body") == kind:
                    return self.waiting.pop(at)
            while True:
                message = await self.call.read()
                assert isinstance(message, pb.SchedulerMessage), f"the stream ended before {kind}"
                if message.WhichOneof("body") == kind:
                    return message
                self.waiting.append(message)

    async def desired(self, condition: Callable[[pb.Desired], bool] = lambda _: True) -> pb.Desired:
        """Return the next set of leases for which the condition holds."""
        while True:
            desired = (await self.next("desired")).desired
            if condition(desired):
                return desired

    async def orders(self, count: int = 1) -> list[pb.Order]:
        """Return the orders of the next set that has `count` of them."""
        return list((await self.desired(lambda desired: len(desired.orders) == count)).orders)

    async def ended(self) -> grpc.StatusCode:
        """Read until the stream ends, and return its status."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while isinstance(await self.call.read(), pb.SchedulerMessage):
                    pass
            except aio.AioRpcError:
                pass
            return await self.call.code()  # type: ignore[no-any-return]


class Remembering:
    """A node that records the events from its link."""

    def __init__(self, say_hello: Callable[[], None] = lambda: None) -> None:
        self.events: list[Event] = []
        self.orders: dict[str, Order] = {}
        self.gangs: dict[str, Rendezvous | str] = {}
        self.say_hello = say_hello

    def handle(self, event: Event) -> None:
        """Record the event; answer a link that is up like the core."""
        from worker_agent.core.messages import LinkUp

        self.events.append(event)
        if isinstance(event, LinkUp):
            self.say_hello()
        elif isinstance(event, Desired):
            self.orders = {order.lease: order for order in event.orders}

    def go(self, lease: str, rendezvous: Rendezvous) -> None:
        """Record the address of the gang."""
        self.gangs[lease] = rendezvous

    def call_off(self, lease: str, why: str) -> None:
        """Record that the gang does not start, and the reason."""
        self.gangs[lease] = why

    def last_lines(self, lease: str) -> str:
        """Return the last lines of a run."""
        return f"the end of {lease}"

    def of(self, kind: type) -> list[Any]:
        """Return all events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]
