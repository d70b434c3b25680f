"""What waits to be written to one agent, however slowly it reads.

Sets of leases are full sets, so only the newest one waits, and of its renewals only the newest. They become messages
at the moment they are written, because they say how much time is left. All else waits in a short line, whose oldest
words are dropped when it is full: whatever they said is said again, or asked for again, by somebody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from scheduler.core.effects import RenewLeases, SendLeases

WAITING_MAX = 256


class Outbox:
    """One agent's. Written from the event loop, read by the one task that writes to the stream."""

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
        self.put_s = now_s()  # when something was last said

    def welcome(self, message: pb.SchedulerMessage) -> None:
        """From now on leases may go out; whatever was waiting comes after this."""
        self._welcome = message
        self._welcomed = True
        self._fill()

    def goodbye(self, message: pb.SchedulerMessage) -> None:
        """The last word; nothing else is said any more."""
        self._goodbye = message
        self._fill()

    def send(self, effect: SendLeases) -> None:
        """This set, instead of any that waits."""
        self._desired = effect
        self._renewed = None
        self._fill()

    def renew(self, effect: RenewLeases, generation: int) -> None:
        """The set of this generation goes on."""
        self._renewed = (effect, generation)
        self._fill()

    def put(self, message: pb.SchedulerMessage) -> None:
        """Anything else."""
        self._others.append(message)
        self._fill()

    @property
    def is_waiting(self) -> bool:
        """Whether anything is to be written."""
        return self._filled.is_set()

    def _fill(self) -> None:
        self.put_s = self._now_s()
        self._filled.set()

    async def get(self) -> pb.SchedulerMessage | None:
        """The next message, made now; None after the last word."""
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
