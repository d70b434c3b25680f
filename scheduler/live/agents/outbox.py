"""The messages that wait to be written to one agent, however slowly it reads.

Sets of leases are complete, so only the newest set waits, with its newest renewal. They become messages at the moment
they are written, because they state the time left. All other messages wait in a short queue that drops the
oldest when it is full: each of them is sent, or requested, again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import RenewLeases, SendLeases

WAITING_MAX = 256


class Outbox:
    """The outbox of one agent: filled from the event loop, emptied by the task that writes to the stream."""

    def __init__(
        self, now_s: Callable[[], float], set_of: Callable[[SendLeases], pb.SchedulerMessage]
    ) -> None:
        self._now_s, self._set_of = now_s, set_of
        self._welcome: pb.SchedulerMessage | None = None
        self._goodbye: pb.SchedulerMessage | None = None
        self._desired: SendLeases | None = None
        self._renewed: tuple[RenewLeases, int] | None = None
        self._others: deque[pb.SchedulerMessage] = deque(maxlen=WAITING_MAX)
        self._filled = asyncio.Event()
        self._welcomed = False
        # The time at which a message was last put in.
        self.put_s = now_s()

    def welcome(self, message: pb.SchedulerMessage) -> None:
        """Send the welcome before all others; leases may follow it."""
        self._welcome = message
        self._welcomed = True
        self._fill()

    def goodbye(self, message: pb.SchedulerMessage) -> None:
        """Send this message next, and as the last one; drop all that wait."""
        self._goodbye = message
        self._fill()

    def send(self, effect: SendLeases) -> None:
        """Send this set of leases; it replaces one that waits."""
        self._desired = effect
        self._renewed = None
        self._fill()

    def renew(self, effect: RenewLeases, generation: int) -> None:
        """Renew the set of this generation."""
        self._renewed = (effect, generation)
        self._fill()

    def put(self, message: pb.SchedulerMessage) -> None:
        """Send another kind of message."""
        self._others.append(message)
        self._fill()

    def _fill(self) -> None:
        self.put_s = self._now_s()
        self._filled.set()

    async def get(self) -> pb.SchedulerMessage | None:
        """Wait for the next message and return it; None after the goodbye."""
        while True:
            if self._goodbye is not None:
                last, self._goodbye = self._goodbye, pb.SchedulerMessage()
                return last if last.HasField("goodbye") else None
            message = self._next()
            if message is not None:
                return message
            self._filled.clear()
            await self._filled.wait()

    def _next(self) -> pb.SchedulerMessage | None:
        if self._welcome is not None:
            message, self._welcome = self._welcome, None
            return message
        if self._welcomed and self._desired is not None:
            effect, self._desired = self._desired, None
            return self._set_of(effect)
        if self._welcomed and self._renewed is not None:
            (renewed, generation), self._renewed = self._renewed, None
            return pb.SchedulerMessage(
                renewed=pb.Renewed(
                    epoch=renewed.epoch,
                    generation=generation,
                    round_number=renewed.round_number,
                    ends_in_s=renewed.ends_s - self._now_s(),
                )
            )
        return self._others.popleft() if self._others else None
