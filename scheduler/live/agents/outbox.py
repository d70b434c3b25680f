"""The messages that wait to be written to one agent, however slowly it reads.

A set of leases lists all leases of the node, so only the newest set waits, with the newest renewal of that set. Both
become messages only when they are written, because they state how much time is left. All other messages wait in a short
queue. When it is full, it drops the oldest message, which is later sent, or requested, again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import RenewLeases, SendLeases

# How many messages wait at most, apart from the newest set of leases and its renewal.
WAITING_MAX = 256


class Outbox:
    """The outbox of one agent: filled from the event loop, emptied by the task that writes to the stream.

    `set_of` makes the message from a set of leases.
    """

    def __init__(
        self, now_s: Callable[[], float], set_of: Callable[[SendLeases], pb.SchedulerMessage]
    ) -> None:
        self._now_s, self._set_of = now_s, set_of
        self._welcome: pb.SchedulerMessage | None = None
        self._goodbye: pb.SchedulerMessage | None = None
        self._desired: SendLeases | None = None
        # The renewal, with the generation of the set that it renews.
        self._renewed: tuple[RenewLeases, int] | None = None
        self._others: deque[pb.SchedulerMessage] = deque(maxlen=WAITING_MAX)
        self._filled = asyncio.Event()
        self._welcomed = False
        # The time at which a message was last queued.
        self.put_s = now_s()

    def welcome(self, message: pb.SchedulerMessage) -> None:
        """Send the Welcome before all other messages. Leases are sent only after it."""
        self._welcome = message
        self._welcomed = True
        self._fill()

    def goodbye(self, message: pb.SchedulerMessage) -> None:
        """Send this message next, as the last one, and drop all messages that wait."""
        self._goodbye = message
        self._fill()

    def send(self, effect: SendLeases) -> None:
        """Send this set of leases in place of any set that waits."""
        self._desired = effect
        self._renewed = None
        self._fill()

    def renew(self, effect: RenewLeases, generation: int) -> None:
        """Renew the set of this generation."""
        self._renewed = (effect, generation)
        self._fill()

    def put(self, message: pb.SchedulerMessage) -> None:
        """Send a message of any other kind."""
        self._others.append(message)
        self._fill()

    def _fill(self) -> None:
        self.put_s = self._now_s()
        self._filled.set()

    async def get(self) -> pb.SchedulerMessage | None:
        """Wait for the next message and return it; None after the goodbye."""
        while True:
            if self._goodbye is not None:
                # After the goodbye, an empty message takes its place and marks the end.
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
