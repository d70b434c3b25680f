"""The agent's end of the stream to the scheduler: it connects, and reconnects whenever the link breaks.

    connect → Hello → Welcome → orders down, reports up → the link breaks → wait → connect …

Rules:
- only a Goodbye ends the link for good; after anything else the agent reconnects, after pauses that grow and differ
  between nodes;
- the agent sends nothing before the scheduler has accepted the call: sending would hide the reason of a refusal;
- times of leases count from when the scheduler sent them, not from when the agent read them;
- reports that are not durable when a link breaks are not kept here: the agent's core reports their contents again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol

import grpc
from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from worker_agent.core.messages import Event, Held, LinkDown, LinkUp, Order, Report, Taken
from worker_agent.link.connection_serving import ConnectionServing
from worker_agent.link.messages import desired_of, ready_of, rendezvous_of, renewed_of
from worker_agent.link.outgoing import Outgoing
from worker_agent.link.serving import Serving
from worker_agent.link.target import Target
from worker_agent.node.storage import CheckpointStorage
from worker_agent.runs.rendezvous import CacheOffer, Rendezvous

LOG = logging.getLogger(__name__)
BACKOFF_S, BACKOFF_MAX_S = 0.5, 10.0
# The longest pause if a setting is wrong, because waiting does not mend that.
REFUSED_BACKOFF_MAX_S = 120.0
# How long the scheduler has to accept the call.
ACCEPT_S = 5.0
# The ends of gRPC's messages when a port with TLS closes a plain connection.
_CUT_OFF = ("socket closed", "reset by peer", "end of tcp stream")
# How long the scheduler may take to welcome the agent. The scheduler may first ask for a proof of shared storage, or
# wait until another agent of this name is gone.
WELCOME_S = 45.0


class Refusal(str):
    """The reason why there is no link, if only an operator can mend that."""


class Dismissed(Exception):
    """The scheduler dismissed this agent with a Goodbye; `reason` is its code."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Node(Protocol):
    """The receiver of messages from the scheduler: `worker_agent.agent.Agent`."""

    def handle(self, event: Event) -> None:
        """Handle an event."""

    def go(self, lease: str, rendezvous: Rendezvous) -> None:
        """Start this node's part of a gang, all of whose nodes are ready."""

    def call_off(self, lease: str, why: str) -> None:
        """End this node's part of a gang, because another node cannot start its part."""

    def release_gpus(self) -> None:
        """Release the withheld GPUs, because an operator has confirmed that no process is left on them."""

    def last_lines(self, lease: str) -> str:
        """Return the end of the output of a run."""


class GrpcLink:
    """A link to one scheduler. Create the link, then the agent with it, then call `run(agent)`."""

    def __init__(
        self,
        target: Target,
        hello: Callable[[], pb.Hello],
        *,
        storage: CheckpointStorage | None = None,
        serving: Mapping[str, Serving | ConnectionServing] | None = None,
        on_welcome: Callable[[pb.Welcome], None] = lambda welcome: None,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        """`hello` describes this node as it is now, without its leases. `serving`: by field of SchedulerMessage."""
        self._target, self._hello = target, hello
        self._storage, self._serving, self._on_welcome = storage, serving or {}, on_welcome
        self._clock, self._chance = clock, chance or random.Random()
        self._node: Node | None = None
        self._outgoing: Outgoing | None = None
        self._stub: agents_pb2_grpc.AgentsStub | None = None
        # How long a link may be silent before it counts as broken, and when the last message arrived.
        self._silence_s, self._received_s = WELCOME_S, 0.0
        self._welcomed = self._was_linked = False
        # By field: messages that describe this node, sent again on every new link.
        self._standing: dict[str, pb.AgentMessage] = {}
        # By lease: the newest message about a gang, sent again on every new link until the order is gone.
        self._gangs: dict[str, pb.AgentMessage] = {}

    # ------------------------------------------------------------------------------------------- for the agent

    def send_hello(self, held: tuple[Held, ...]) -> None:
        """Send the first message of a new link."""
        if self._outgoing is not None:
            hello = self._hello()
            hello.held.extend(pb.HeldLease(lease=run.lease, steps=run.steps, ran_s=run.ran_s) for run in held)
            self._outgoing.answer(pb.AgentMessage(hello=hello))

    def send_report(self, report: Report) -> None:
        """Send a report. It is lost if there is no link."""
        if self._outgoing is not None:
            self._outgoing.report(report)

    def send_health(self, health: pb.Health) -> None:
        """Send the state of the GPUs, now and on every new link."""
        self.send_standing(pb.AgentMessage(health=health))

    def send_leaving(self) -> None:
        """Report, now and on every new link, that this agent stops when its jobs have ended."""
        self.send_standing(pb.AgentMessage(leaving=pb.Leaving()))

    def send_standing(self, message: pb.AgentMessage) -> None:
        """Send a message that describes this node, now and on every new link, in place of an older one."""
        self._standing[message.WhichOneof("body") or ""] = message
        if self._outgoing is not None:
            self._outgoing.standing(message)

    def send_preparing(self, order: Order) -> None:
        """Report that this node has begun to prepare its part of a gang, which may take a while."""
        self._send_gang_message(
            order.lease, pb.AgentMessage(gang_preparing=pb.GangPreparing(lease=order.lease))
        )

    def send_ready(self, order: Order, ports: tuple[int, ...], cache: CacheOffer) -> None:
        """Report that this node's part of a gang can start. `ports`: two for the gang's first node, else none."""
        self._send_gang_message(order.lease, pb.AgentMessage(gang_ready=ready_of(order, ports, cache)))

    def send_cannot_start(self, order: Order, why: str) -> None:
        """Report that this node's part of a gang cannot start, so that no other part does."""
        ready = pb.GangReady(lease=order.lease, failed=why[:500] or "it cannot start")
        self._send_gang_message(order.lease, pb.AgentMessage(gang_ready=ready))

    def _send_gang_message(self, lease: str, message: pb.AgentMessage) -> None:
        self._gangs[lease] = message
        if self._outgoing is not None:
            self._outgoing.gang(lease, message)

    async def fetch(self, digest: str) -> AsyncIterator[bytes]:
        """Fetch a package from the scheduler. Raises OSError if that fails."""
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
        """Keep a link until the scheduler sends a Goodbye, then raise Dismissed."""
        self._node = node
        failures = 0
        while True:
            self._welcomed = False
            why = await self._use_one_connection(node)
            if not self._welcomed:
                why = _with_remedy(why, self._target)
            failures = 0 if self._welcomed else failures + 1
            self._was_linked |= self._welcomed
            # An agent that was linked before may have jobs, so it retries soon.
            may_wait_long = isinstance(why, Refusal) and not self._was_linked
            limit_s = REFUSED_BACKOFF_MAX_S if may_wait_long else BACKOFF_MAX_S
            ceiling_s = min(BACKOFF_S * 2.0 ** min(failures, 10), limit_s)
            wait_s = ceiling_s * self._chance.uniform(0.5, 1.0)
            LOG.warning(
                "no link to the scheduler at %(scheduler)s: %(why)s; again in %(wait_s).1f s",
                {"scheduler": self._target.address, "why": why, "wait_s": wait_s},
            )
            await asyncio.sleep(wait_s)

    async def _use_one_connection(self, node: Node) -> str:
        """Connect, use the connection to its end, and return why it ended."""
        try:
            channel = self._target.channel()
        except OSError as error:
            return str(error)
        stub = agents_pb2_grpc.AgentsStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Link(metadata=self._target.metadata)
        is_up = False
        try:
            async with asyncio.timeout(WELCOME_S):
                refusal = await _refusal_of(call)
            if refusal:
                return refusal
            self._outgoing, self._stub = Outgoing(node.last_lines, self._clock), stub
            self._silence_s, self._received_s = WELCOME_S, self._clock()
            is_up = True
            node.handle(LinkUp())
            return await self._converse(call, node)
        except aio.AioRpcError as error:
            return _reason(error.code(), error.details())
        except TimeoutError:
            return "no connection in time"
        except Dismissed:
            raise
        except Exception as error:
            # Jobs depend on this agent, so it tries again whatever happens.
            LOG.exception("the link broke because of an internal error")
            return f"{type(error).__name__}: {error}"
        finally:
            self._outgoing = self._stub = None
            call.cancel()
            for serving in self._serving.values():
                serving.stop_all()
            if is_up:
                node.handle(LinkDown())
            await channel.close()

    async def _converse(self, call: Any, node: Node) -> str:
        """Read, write and watch until one of these tasks ends, and return the reason."""
        reader = asyncio.create_task(self._read(call, node))
        writer = asyncio.create_task(self._write(call))
        tasks = [reader, writer, asyncio.create_task(self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # If the writer failed, the reader soon ends as well, with a more precise reason.
            first = next(task for task in tasks if task in done)
            if first is writer and first.exception() is not None:
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(asyncio.shield(reader), 1.0)
            return first.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: Any, node: Node) -> str:
        while (message := await call.read()) is not aio.EOF:
            now_s = self._received_s = self._clock()
            base_s = min(now_s, message.agent_s) if message.agent_s else now_s
            self._on_message(message, base_s, node)
        status = await call.code()
        if status is grpc.StatusCode.OK:
            return "the scheduler closed it"
        return _reason(status, await call.details())

    async def _write(self, call: Any) -> str:
        outgoing = self._outgoing
        assert outgoing is not None
        while True:
            await call.write(await outgoing.get())

    async def _watch(self) -> str:
        """Send keepalives. Return if no message has arrived for too long."""
        while True:
            pause_s = min(1.0, self._silence_s / 10)
            due_s = self._clock() + pause_s
            await asyncio.sleep(pause_s)
            now_s, outgoing = self._clock(), self._outgoing
            if now_s > due_s + pause_s:
                # This process was suspended, so messages of the scheduler may still wait to be read.
                self._received_s += now_s - due_s
            if now_s - self._received_s > self._silence_s:
                return f"no message arrived for {self._silence_s:g} s"
            if self._welcomed and outgoing is not None and now_s - outgoing.sent_s > self._silence_s / 3:
                outgoing.answer(pb.AgentMessage(alive=pb.Alive()))

    # --------------------------------------------------------------------------------------------- messages

    def _on_message(self, message: pb.SchedulerMessage, base_s: float, node: Node) -> None:
        outgoing = self._outgoing
        assert outgoing is not None
        match message.WhichOneof("body"):
            case "desired":
                event = desired_of(message.desired, base_s)
                listed = {order.lease for order in event.orders}
                self._gangs = {lease: sent for lease, sent in self._gangs.items() if lease in listed}
                node.handle(event)
            case "renewed":
                node.handle(renewed_of(message.renewed, base_s))
            case "taken":
                for number in outgoing.on_taken(message.taken.number):
                    node.handle(Taken(number))
            case "alive":
                outgoing.answer(pb.AgentMessage(alive=pb.Alive()))
            case "welcome":
                self._on_welcomed(message.welcome, outgoing)
            case "gang_go":
                self._on_go(message.gang_go, node)
            case "let_go":
                node.release_gpus()
            case str(wanted) if wanted in self._serving and self._stub is not None:
                self._serving[wanted].on_request(getattr(message, wanted), self._stub, self._target.metadata)
            case "storage_check":
                self._check_storage(message.storage_check, outgoing)
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
        for lease, message in self._gangs.items():
            outgoing.gang(lease, message)
        for message in self._standing.values():
            outgoing.standing(message)
        outgoing.welcome()

    def _on_go(self, go: pb.GangGo, node: Node) -> None:
        if go.failed:
            node.call_off(go.lease, go.failed)
        else:
            node.go(go.lease, rendezvous_of(go))

    def _check_storage(self, check: pb.StorageCheck, outgoing: Outgoing) -> None:
        async def answer() -> None:
            if self._storage is None:
                result = pb.StorageChecked(check=check.check, error="this node has no checkpoint directory")
            else:
                result = await self._storage.act(check)
            outgoing.answer(pb.AgentMessage(storage_checked=result))

        task = asyncio.get_running_loop().create_task(answer())
        _storage_checks.add(task)
        task.add_done_callback(_storage_checks.discard)


# Without these references, the tasks could be garbage-collected before they end.
_storage_checks: set[asyncio.Task[None]] = set()


async def _refusal_of(call: Any) -> str:
    """Wait until the scheduler accepts or refuses the call. Return the reason of a refusal, or an empty text."""
    await call.wait_for_connection()
    # A timeout counts as acceptance: an older scheduler sends no initial metadata, and a proxy may delay it.
    with contextlib.suppress(TimeoutError):
        # Not asyncio.wait_for, which may swallow a cancellation.
        async with asyncio.timeout(ACCEPT_S):
            await call.initial_metadata()
    return _reason(await call.code(), await call.details()) if call.done() else ""


def _reason(status: grpc.StatusCode, details: str | None) -> str:
    """Return the reason of a failed call for the log, with a remedy if one is known."""
    text = (details or status.name.lower()).splitlines()[0][:500]
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return Refusal(f"the token is refused: {text}; see --token-file")
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return Refusal(f"refused: {text}")
    if "Failed to connect to remote host: " in text:
        return text.rpartition(": ")[2].lower()
    if text.startswith("Internal error from Core"):
        # gRPC reports this for a message sent after the end of the stream.
        return "the scheduler ended the link"
    if "WRONG_VERSION_NUMBER" in text or "HTTP_REQUEST" in text:
        return Refusal(
            "the server there does not use TLS: is --scheduler the address of its port for agents?"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text or "handshake" in text.lower():
        why = f"no trust: {text}; is the certificate from this scheduler's CA? `gavel agent join` gets one"
        return Refusal(why) if "CERTIFICATE_VERIFY_FAILED" in text else why
    return text


def _with_remedy(why: str, target: Target) -> str:
    """Add a remedy to a reason if the address seems to be the wrong one of the scheduler's two ports."""
    if target.certificates is not None and why.startswith("the token is refused"):
        return Refusal(
            "this is the port for people, which ignores certificates of agents; `agent join` printed the address of "
            f"the port for agents: {_next_port(target.address)}, unless `agents_listen` is set there"
        )
    if target.is_plain and why.lower().endswith(_CUT_OFF):
        return (
            f"{why}; if it requires certificates, get one with `gavel agent join`, with the same --state-dir"
        )
    return why


def _next_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}" if port.isdecimal() else address
