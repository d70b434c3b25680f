"""The live world: everything that arrives waits in one inbox, and effects go to whoever carries them out.

Rules:
- all that is waiting is one batch, and one durable record: the more there is to do, the more is done at once;
- whoever said something is told `done` when it is durable, never before;
- effects are performed in the order the core gave them, and performing one never blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from scheduler.core.core import Core
from scheduler.core.effects import Effect, RefuseNode, RenewLeases, Reply, SendLeases, Solve, WakeAt
from scheduler.core.messages import (
    Configure,
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    SetPolicy,
    SetPrices,
    SubmitJobs,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.live.clock import Clock

Call = SubmitJobs | JobCommand | NodeCommand | SetPolicy | Configure | GiveRates | SetPrices
C = TypeVar("C", bound=Call)
log = logging.getLogger(__name__)
GATHER_S = 0.001  # that a batch waits for more
BATCH_MAX = 512  # messages to a record: what comes after them has its turn soon


class CallRefused(Exception):
    """The core says no. `code` is stable; `field` names what is wrong, when it is one field."""

    def __init__(self, text: str, code: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.field = field


class Told(NamedTuple):
    """A message in the inbox, and what to call when it is durable, or when the core failed on it."""

    message: Message
    done: Callable[[], None] | None
    failed: Callable[[str], None] | None


class Links(Protocol):
    """The agents, as far as they can be reached. Nothing here waits for them."""

    def send_leases(self, effect: SendLeases) -> None:
        """This set, to this node."""
        ...

    def renew_leases(self, effect: RenewLeases) -> None:
        """The same set goes on, for all nodes that are named."""
        ...

    def refuse_node(self, effect: RefuseNode) -> None:
        """Send the agent of this node away: the core does not let it join."""
        ...


class Solver(Protocol):
    """Whoever answers a Solve, in its own time, by telling the world Solved."""

    def ask(self, question: Solve) -> None:
        """A newer question makes an older one void."""
        ...


class LiveWorld:
    """A World of real time. `tell` and `ask` put messages in; everything runs on one event loop."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core = core
        self.clock = clock
        self.links: Links | None = None
        self.solver: Solver | None = None
        self._inbox: list[Told] = []
        self._batch: list[Told] = []  # that is being handled
        self._arrived = asyncio.Event()
        self._calls: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    @property
    def state(self) -> SchedulerState:
        """For reading, on the event loop, between batches: it never changes under a reader that does not await."""
        return self._core.state

    @property
    def core(self) -> Core:
        """For explain and previews."""
        return self._core

    @property
    def stopping(self) -> bool:
        """Whether no more calls are taken."""
        return self._stopped

    def now_s(self) -> float:
        """The scheduler's time."""
        return self.clock.now_s()

    # ------------------------------------------------------------------------------------------------ messages in

    def tell(
        self,
        message: Message,
        done: Callable[[], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Queue a message for the core. `done` is called once all that follows from it is durable.

        If the core fails on the message, which then changes nothing, `failed` is called instead, with the reason.
        """
        self._inbox.append(Told(message, done, failed))
        self._arrived.set()

    def later(self, wait_s: float, message: Message) -> None:
        """Queue this message for the core in a while."""
        asyncio.get_running_loop().call_later(wait_s, self.tell, message)

    def failed(self, message: Message, why: str) -> None:
        """The core failed on a message of the present batch: tell its sender why."""
        call = getattr(message, "call", "")
        if call:
            self._answer(Reply(call, {}, why, "internal"))
        for at, told in enumerate(self._batch):
            if told.message is message:
                del self._batch[at]
                if told.failed is not None:
                    told.failed(why)
                return

    async def ask(self, message: C) -> Mapping[str, Any]:
        """The core's answer, durable; CallRefused if it says no. A caller that leaves does not undo the call."""
        if self._stopped:
            raise CallRefused("the scheduler is stopping; try again when it is back", "stopping")
        self._numbers += 1
        call = f"call-{self._numbers}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        self.tell(msgspec.structs.replace(message, call=call))
        return await answer

    def stop(self) -> None:
        """Take no more calls; what is waiting is still handled and made durable, then the world ends."""
        self._stopped = True
        self._arrived.set()

    def give_up(self) -> None:
        """The core has ended: nobody waits for an answer that does not come."""
        self.stop()
        unanswered, self._calls = self._calls, {}
        for answer in unanswered.values():
            if not answer.done():
                text = "the scheduler ends, and what was asked may not be done; try again when it is back"
                answer.set_exception(CallRefused(text, "stopping"))

    # ------------------------------------------------------------------------------------------- for the one loop

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """All that is waiting; whoever waited for the batch before is told that it is durable."""
        batch, self._batch = self._batch, []
        for told in batch:
            if told.done is not None:
                try:
                    told.done()
                except Exception:
                    log.exception("the sender of a message could not be told that it is durable")
        while not self._inbox:
            if self._stopped:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        # What arrives in this moment is in the batch too: a record costs a sync, however much is in it.
        await asyncio.sleep(GATHER_S)
        self._batch, self._inbox = self._inbox[:BATCH_MAX], self._inbox[BATCH_MAX:]
        return self.now_s(), [told.message for told in self._batch]

    def perform(self, effect: Effect) -> None:
        """Hand an effect to whoever carries it out."""
        match effect:
            case Reply():
                self._answer(effect)
            case WakeAt():
                self._wake_at(effect)
            case SendLeases() if self.links is not None:
                self.links.send_leases(effect)
            case RenewLeases() if self.links is not None:
                self.links.renew_leases(effect)
            case RefuseNode() if self.links is not None:
                self.links.refuse_node(effect)
            case Solve() if self.solver is not None:
                self.solver.ask(effect)

    def _answer(self, reply: Reply) -> None:
        answer = self._calls.pop(reply.call, None)
        if answer is None or answer.done():  # the caller has left
            return
        if reply.error:
            answer.set_exception(CallRefused(reply.error, reply.code, str(reply.result.get("field", ""))))
        else:
            answer.set_result(reply.result)

    def _wake_at(self, effect: WakeAt) -> None:
        earlier = self._timers.pop(effect.what, None)
        if earlier is not None:
            earlier.cancel()
        loop, wait_s = asyncio.get_running_loop(), effect.at_s - self.now_s()
        self._timers[effect.what] = loop.call_later(max(wait_s, 0.0), self._woke, effect.what, effect.at_s)

    def _woke(self, what: str, at_s: float) -> None:
        """The loop's timers may be a little early by our clock; the core is never woken before its time."""
        if self.now_s() < at_s:
            self._wake_at(WakeAt(at_s, what))
            return
        self._timers.pop(what, None)
        self.tell(Woke(what=what))
