"""The agent's end of the stream to the scheduler: connects, says hello, and connects again, for ever.

    connect → Hello → Welcome → orders down, reports up → the link breaks → wait → connect …

Rules:
- only a Goodbye ends it; whatever else goes wrong is tried again, later and later, and never by all nodes at once;
- nothing is said before the scheduler has let us in: a word to a call that it refused would drown the reason;
- times of leases count from when they were sent, not from when they were read;
- what was not taken when a link breaks is not kept here: the agent's core says it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from worker_agent.core.messages import Event, Held, LinkDown, LinkUp, Order, Report, Taken
from worker_agent.link.log_serving import LogServing
from worker_agent.link.messages import desired_of, renewed_of
from worker_agent.link.outgoing import Outgoing
from worker_agent.link.target import Target
from worker_agent.node.storage import CheckpointStorage
from worker_agent.runs.rendezvous import Rendezvous

LOG = logging.getLogger(__name__)
BACKOFF_S, BACKOFF_MAX_S = 0.5, 10.0

# Where time does not help, because a setting is wrong: the wait grows on.
REFUSED_BACKOFF_MAX_S = 120.0
FIRST_SIGN_S = 5.0  # for which the scheduler is let speak first
_CUT_OFF = ("socket closed", "reset by peer", "end of tcp stream")  # as by a port with TLS
WELCOME_S = 45.0  # a proof of shared storage, or another agent of this name, may have to be waited for


class Refusal(str):
    """Why there is no link, where only a person can mend it."""


class Dismissed(Exception):
    """The scheduler said goodbye: `reason` is its code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Node(Protocol):
    """What the link tells: `worker_agent.agent.Agent`."""

    def tell(self, event: Event) -> None:
        """Something happened."""

    def go(self, lease: str, meeting: Rendezvous) -> None:
        """All nodes of a gang are ready."""

    def nobody_starts(self, lease: str, why: str) -> None:
        """One of them cannot start."""

    def let_go(self) -> None:
        """An operator says that nothing is left on the GPUs that are withheld."""

    def last_lines(self, lease: str) -> str:
        """The end of what a run printed."""


class GrpcLink:
    """A link to one scheduler. Made first, then the agent with it, then `run(agent)`."""

    def __init__(
        self,
        target: Target,
        hello: Callable[[], pb.Hello],
        *,
        storage: CheckpointStorage | None = None,
        logs: LogServing | None = None,
        on_welcome: Callable[[pb.Welcome], None] = lambda welcome: None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """`hello`: this node as it is now, without what it holds."""
        self._target, self._hello = target, hello
        self._storage, self._logs, self._on_welcome = storage, logs, on_welcome
        self._clock, self._chance = clock, chance or random.Random()
        self._node: Node | None = None
        self._outgoing: Outgoing | None = None
        self._stub: agents_pb2_grpc.AgentsStub | None = None
        self._silence_s, self._heard_s = WELCOME_S, 0.0
        self._welcomed = self._was_linked = self._leaving = False
        self._health: pb.Health | None = None
        self._gangs: dict[str, pb.AgentMessage] = {}  # said again on a new link, until the order is gone

    # ------------------------------------------------------------------------------------------- for the agent

    def send_hello(self, held: tuple[Held, ...]) -> None:
        """The first word on a new link."""
        if self._outgoing is not None:
            hello = self._hello()
            hello.held.extend(pb.HeldLease(lease=one.lease, steps=one.steps, ran_s=one.ran_s) for one in held)
            self._outgoing.hello(hello)

    def send_report(self, report: Report) -> None:
        """A report; it is lost when there is no link."""
        if self._outgoing is not None:
            self._outgoing.report(report)

    def send_health(self, health: pb.Health) -> None:
        """How the GPUs are; said again on every new link."""
        self._health = health
        if self._outgoing is not None:
            self._outgoing.health(health)

    def send_leaving(self) -> None:
        """This agent is to stop when its jobs have ended; said again on every new link."""
        self._leaving = True
        if self._outgoing is not None:
            self._outgoing.leaving()

    def preparing(self, order: Order) -> None:
        """This node has begun to prepare its part of a gang, which may take a while."""
        self._say_of_gang(order.lease, pb.AgentMessage(gang_preparing=pb.GangPreparing(lease=order.lease)))

    def ready(self, order: Order, ports: tuple[int, ...]) -> None:
        """This part can start: the node is told `go` or `nobody_starts`."""
        master, coordinator = ports or (0, 0)
        ready = pb.GangReady(lease=order.lease, master_port=master, coordinator_port=coordinator)
        self._say_of_gang(order.lease, pb.AgentMessage(gang_ready=ready))

    def cannot_meet(self, order: Order, why: str) -> None:
        """This node is not ready and will not be: nobody shall start."""
        ready = pb.GangReady(lease=order.lease, failed=why[:500] or "it cannot start")
        self._say_of_gang(order.lease, pb.AgentMessage(gang_ready=ready))

    def _say_of_gang(self, lease: str, message: pb.AgentMessage) -> None:
        self._gangs[lease] = message
        if self._outgoing is not None:
            self._outgoing.gang(lease, message)

    async def fetch(self, digest: str) -> AsyncIterator[bytes]:
        """A package from the scheduler; OSError when it cannot be had."""
        if self._stub is None:
            raise OSError(f"package {digest} cannot be fetched: the scheduler cannot be reached")
        call = self._stub.FetchPackage(pb.FetchPackageRequest(digest=digest), metadata=self._target.metadata)
        try:
            async for part in call:
                yield part.data
        except aio.AioRpcError as error:
            raise OSError(f"package {digest} cannot be fetched: {error.details()}") from None
        finally:
            call.cancel()

    # ------------------------------------------------------------------------------------------------- the link

    async def run(self, node: Node) -> None:
        """Keep a link until the scheduler says goodbye, which is raised as Dismissed."""
        self._node = node
        failures = 0
        while True:
            self._welcomed = False
            why = await self._once(node)
            if not self._welcomed:
                why = _with_remedy(why, self._target)
            failures = 0 if self._welcomed else failures + 1
            self._was_linked |= self._welcomed
            patient = isinstance(why, Refusal) and not self._was_linked  # jobs may hang on one that was
            most_s = REFUSED_BACKOFF_MAX_S if patient else BACKOFF_MAX_S
            ceiling_s = min(BACKOFF_S * 2.0 ** min(failures, 10), most_s)
            wait_s = ceiling_s * self._chance.uniform(0.5, 1.0)
            LOG.warning(
                "no link to the scheduler at %(scheduler)s: %(why)s; again in %(wait_s).1f s",
                {"scheduler": self._target.address, "why": why, "wait_s": wait_s},
            )
            await asyncio.sleep(wait_s)

    async def _once(self, node: Node) -> str:
        """One connection, from beginning to end; why it ended."""
        try:
            channel = self._target.channel()
        except OSError as error:
            return str(error)
        stub = agents_pb2_grpc.AgentsStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Link(metadata=self._target.metadata)
        told = False
        try:
            async with asyncio.timeout(WELCOME_S):
                refused = await _let_in(call)
            if refused:
                return refused
            self._outgoing, self._stub = Outgoing(node.last_lines, self._clock), stub
            self._silence_s, self._heard_s = WELCOME_S, self._clock()
            told = True
            node.tell(LinkUp())
            return await self._converse(call, node)
        except aio.AioRpcError as error:
            return _words(error)
        except TimeoutError:
            return "no connection in time"
        except Dismissed:
            raise
        except Exception as error:  # jobs hang on this agent: it tries again whatever happens
            LOG.exception("the link broke for a fault of our own")
            return f"{type(error).__name__}: {error}"
        finally:
            self._outgoing = self._stub = None
            call.cancel()
            if self._logs is not None:
                self._logs.stop_all()
            if told:
                node.tell(LinkDown())
            await channel.close()

    async def _converse(self, call: Any, node: Node) -> str:
        """Read, write and watch; whichever ends first says why."""
        tasks = [
            asyncio.create_task(self._read(call, node)),
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._watch()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # a reader that ended knows more than a writer that failed for it
            first = next(task for task in tasks if task in done)
            if first is tasks[1] and first.exception() is not None:
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(tasks[0]), 1.0)
            return first.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: Any, node: Node) -> str:
        while (message := await call.read()) is not aio.EOF:
            now_s = self._heard_s = self._clock()
            base_s = min(now_s, message.agent_s) if message.agent_s else now_s
            self._on_message(message, base_s, node)
        status = await call.code()
        if status is grpc.StatusCode.OK:
            return "the scheduler closed it"
        return _words_of(status, await call.details())

    async def _write(self, call: Any) -> str:
        outgoing = self._outgoing
        assert outgoing is not None
        while True:
            await call.write(await outgoing.get())

    async def _watch(self) -> str:
        """Say something now and then, and notice when nothing is heard."""
        while True:
            pause_s = min(1.0, self._silence_s / 10)
            due_s = self._clock() + pause_s
            await asyncio.sleep(pause_s)
            now_s, outgoing = self._clock(), self._outgoing
            if now_s > due_s + pause_s:
                self._heard_s += (
                    now_s - due_s
                )  # it was we who did not listen: what was said may wait to be read
            if now_s - self._heard_s > self._silence_s:
                return f"nothing was heard for {self._silence_s:g} s"
            if self._welcomed and outgoing is not None and now_s - outgoing.said_s > self._silence_s / 3:
                outgoing.answer(pb.AgentMessage(alive=pb.Alive()))

    # --------------------------------------------------------------------------------------------- what is heard

    def _on_message(self, message: pb.SchedulerMessage, base_s: float, node: Node) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        match message.WhichOneof("body"):
            case "desired":
                event = desired_of(message.desired, base_s)
                listed = {order.lease for order in event.orders}
                self._gangs = {lease: part for lease, part in self._gangs.items() if lease in listed}
                node.tell(event)
            case "renewed":
                node.tell(renewed_of(message.renewed, base_s))
            case "taken":
                for number in outgoing.taken(message.taken.number):
                    node.tell(Taken(number))
            case "alive":
                outgoing.answer(pb.AgentMessage(alive=pb.Alive()))
            case "welcome":
                self._on_welcomed(message.welcome, outgoing)
            case "gang_go":
                self._on_go(message.gang_go, node)
            case "let_go":
                node.let_go()
            case "logs_wanted" if self._logs is not None and self._stub is not None:
                self._logs.on_wanted(message.logs_wanted, self._stub, self._target.metadata)
            case "storage_check":
                self._check(message.storage_check, outgoing)
            case "goodbye":
                raise Dismissed(message.goodbye.reason, message.goodbye.text)

    def _on_welcomed(self, welcome: pb.Welcome, outgoing: Outgoing) -> None:
        self._welcomed = True
        self._silence_s = welcome.silence_s or WELCOME_S
        LOG.info(
            "linked to the scheduler at %s (%s, epoch %d)",
            *(self._target.address, welcome.scheduler_version, welcome.epoch),
        )
        self._on_welcome(welcome)
        for lease, said in self._gangs.items():
            outgoing.gang(lease, said)
        if self._health is not None:
            outgoing.health(self._health)
        if self._leaving:
            outgoing.leaving()
        outgoing.welcome()

    def _on_go(self, go: pb.GangGo, node: Node) -> None:
        if go.failed:
            node.nobody_starts(go.lease, go.failed)
        else:
            node.go(go.lease, Rendezvous(go.master_address, go.master_port, go.coordinator_port))

    def _check(self, check: pb.StorageCheck, outgoing: Outgoing) -> None:
        async def answered() -> None:
            if self._storage is None:
                said = pb.StorageChecked(check=check.check, error="this node has no checkpoint directory")
            else:
                said = await self._storage.act(check)
            outgoing.answer(pb.AgentMessage(storage_checked=said))

        task = asyncio.get_running_loop().create_task(answered())
        _checking.add(task)
        task.add_done_callback(_checking.discard)


_checking: set[asyncio.Task[None]] = set()


async def _let_in(call: Any) -> str:
    """Wait for the scheduler's first sign, which comes before any message: why we are refused, or nothing."""
    await call.wait_for_connection()
    with contextlib.suppress(TimeoutError):  # one of before has none, or it is held back on the way
        async with asyncio.timeout(FIRST_SIGN_S):  # wait_for may swallow that we are to stop
            await call.initial_metadata()
    return _words_of(await call.code(), await call.details()) if call.done() else ""


def _words(error: aio.AioRpcError) -> str:
    return _words_of(error.code(), error.details())


def _words_of(status: grpc.StatusCode, details: str | None) -> str:
    """For the log, with what to do where that is known."""
    text = (details or status.name.lower()).splitlines()[0][:500]
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Refusal(f"the token is refused: {text}; see --token-file")
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return Refusal(f"refused: {text}")
    if "Failed to connect to remote host: " in text:
        return text.rpartition(": ")[2].lower()
    if text.startswith("Internal error from Core"):  # gRPC's, for a word that came after the end
        return "the scheduler ended the link"
    if "WRONG_VERSION_NUMBER" in text or "HTTP_REQUEST" in text:
        return Refusal(
            "what answers there does not speak TLS: is --scheduler the address of its port for agents?"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text or "handshake" in text.lower():
        why = f"no trust: {text}; is the certificate of this scheduler's CA? `gavel agent join` gets one"
        return Refusal(why) if "CERTIFICATE_VERIFY_FAILED" in text else why
    return text


def _with_remedy(why: str, target: Target) -> str:
    """What is known of the two ports of a scheduler, where the target looks like the wrong one."""
    if target.certificates is not None and why.startswith("the token is refused"):
        return Refusal(
            "this is the port for people, where certificates do not count; agents link at another, which `agent join` "
            f"printed: {_next_port(target.address)} unless `agents_listen` is set there"
        )
    if target.is_plain and why.lower().endswith(_CUT_OFF):
        return f"{why}; if it wants certificates, `gavel agent join` gets one (then --state-dir as there)"
    return why


def _next_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}" if port.isdecimal() else address
