"""The live world: messages wait in one inbox, and effects go to the links and the solver, which carry them out.

Rules:
- all waiting messages, up to BATCH_MAX, are handled as one batch, and their facts are written as one durable record:
  the disk is synced once per batch, however many messages wait;
- the function `done` of a message is called only when all consequences of the message are durable;
- effects are performed in the order in which the core returns them, and performing an effect never blocks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from scheduler.core.core import Core
from scheduler.core.effects import Effect, Reply, WakeAt
from scheduler.core.messages import (
    Configure,
    GiveRates,
    JobCommand,
    Message,
    NodeCommand,
    SetPolicy,
    SetPrices,
    SetTenants,
    SubmitJobs,
    UpdateJob,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.live.clock import Clock

Call = (
    SubmitJobs
    | JobCommand
    | UpdateJob
    | NodeCommand
    | SetPolicy
    | SetTenants
    | Configure
    | GiveRates
    | SetPrices
)
C = TypeVar("C", bound=Call)
log = logging.getLogger(__name__)
# How long a batch waits for more messages.
GATHER_S = 0.001
# The most messages in one batch; further messages wait for the next batch.
BATCH_MAX = 512


class CallRefused(Exception):
    """The core refused a call. `code` is a stable name of the reason; `field` names the field at fault, or is empty."""

    def __init__(self, text: str, code: str, field: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.field = field


class Entry(NamedTuple):
    """A message in the inbox. `done` is called when the message is durable, or `failed` if the core fails on it."""

    message: Message
    done: Callable[[], None] | None
    failed: Callable[[str], None] | None


class LiveWorld:
    """A World in real time. `send` and `ask` queue messages; everything runs on one event loop."""

    def __init__(self, core: Core, clock: Clock) -> None:
        # The core's loop and the rescue use the core, too.
        self.core = core
        self.clock = clock
        # Kind of effect → the function that carries it out. `Links` and the daemon add more. No function blocks.
        self.handlers: dict[type[Effect], Callable[[Any], None]] = {
            Reply: self._answer,
            WakeAt: self._wake_at,
        }
        self._inbox: list[Entry] = []
        # The entries that the core is handling.
        self._batch: list[Entry] = []
        # When the core began to handle them, by `time.perf_counter`.
        self.batch_began_s = 0.0
        self._filled = asyncio.Event()
        # Call → the future that receives its answer.
        self._calls: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._calls_made = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False

    @property
    def state(self) -> SchedulerState:
        """The state, to be read on the event loop. It changes only while the reader awaits."""
        return self.core.state

    @property
    def stopping(self) -> bool:
        """Whether new calls are refused."""
        return self._stopped

    def now_s(self) -> float:
        """Return the scheduler's time."""
        return self.clock.now_s()

    # ------------------------------------------------------------------------------------------------ messages in

    def send(
        self,
        message: Message,
        done: Callable[[], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Queue a message for the core. `done` is called when all consequences of the message are durable.

        If the core fails on the message, the message changes nothing, and `failed` is called with the reason instead.
        """
        self._inbox.append(Entry(message, done, failed))
        self._filled.set()

    def later(self, wait_s: float, message: Message) -> None:
        """Queue a message for the core after `wait_s`."""
        asyncio.get_running_loop().call_later(wait_s, self.send, message)

    def failed(self, message: Message, why: str) -> None:
        """Report to the sender of a message in the present batch why the core failed on it."""
        call = getattr(message, "call", "")
        if call:
            self._answer(Reply(call, {}, why, "internal"))
        for index, entry in enumerate(self._batch):
            if entry.message is message:
                del self._batch[index]
                if entry.failed is not None:
                    entry.failed(why)
                return

    async def ask(self, message: C) -> Mapping[str, Any]:
        """Send a call to the core, and return the answer when the call is durable; raise CallRefused if it is refused.

        Cancelling the caller does not undo the call.
        """
        if self._stopped:
            raise CallRefused("the scheduler is stopping; try again when it is back", "stopping")
        self._calls_made += 1
        call = f"call-{self._calls_made}"
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[call] = answer
        self.send(msgspec.structs.replace(message, call=call))
        return await answer

    def stop(self) -> None:
        """Take no more calls. The world ends once the waiting messages are handled and durable."""
        self._stopped = True
        self._filled.set()

    def give_up(self) -> None:
        """Take no more calls, and refuse the unanswered ones: the core has ended and cannot answer them."""
        self.stop()
        unanswered, self._calls = self._calls, {}
        for answer in unanswered.values():
            if not answer.done():
                text = "the scheduler stopped during the call, which may have taken effect; try again when it is back"
                answer.set_exception(CallRefused(text, "stopping"))

    # ---------------------------------------------------------------------------------------- for the core's loop

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Tell the senders of the last batch that it is durable. Return the next batch; None if the world has ended."""
        batch, self._batch = self._batch, []
        for entry in batch:
            if entry.done is not None:
                try:
                    entry.done()
                except Exception:
                    log.exception("reporting a message to its sender as durable failed")
        while not self._inbox:
            if self._stopped:
                return None
            self._filled.clear()
            await self._filled.wait()
        # Wait briefly for more messages: a record costs one sync, however many messages it holds.
        await asyncio.sleep(GATHER_S)
        self._batch, self._inbox = self._inbox[:BATCH_MAX], self._inbox[BATCH_MAX:]
        self.batch_began_s = time.perf_counter()
        return self.now_s(), [entry.message for entry in self._batch]

    def perform(self, effect: Effect) -> None:
        """Pass an effect to the part of the daemon that carries it out, if that part has been started."""
        if handler := self.handlers.get(type(effect)):
            handler(effect)

    def _answer(self, reply: Reply) -> None:
        answer = self._calls.pop(reply.call, None)
        # The caller may have left.
        if answer is None or answer.done():
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

    def _woke(self, timer: str, at_s: float) -> None:
        """Wake the core, but not before `at_s` by our clock: timers of the event loop may fire a little early."""
        if self.now_s() < at_s:
            self._wake_at(WakeAt(at_s, timer))
            return
        self._timers.pop(timer, None)
        self.send(Woke(what=timer))
