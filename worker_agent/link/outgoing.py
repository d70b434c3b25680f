"""What waits to be said on one link. Nothing in here grows while the scheduler does not read.

Reports wait side by side and go as one; of readiness, health and signs of life only the newest counts. Until the
agent is welcome it only answers questions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.core.messages import Report
from worker_agent.link.messages import pack

SENDS_WAITING_MAX = 10_000  # beyond that the oldest is dropped: its exits are said again, its progress is old


class Outgoing:
    """The agent's side of one stream."""

    def __init__(self, last_lines: Callable[[str], str], clock: Callable[[], float]) -> None:
        self._last_lines, self._clock = last_lines, clock
        self._first: pb.AgentMessage | None = None
        self._answers: deque[pb.AgentMessage] = deque(maxlen=64)
        self._gangs: dict[str, pb.AgentMessage] = {}
        self._sends: deque[Report] = deque(maxlen=SENDS_WAITING_MAX)
        self._health: pb.Health | None = None
        self._leaving = False
        self._packed: deque[pb.Report] = deque()
        self._numbers = 0
        self._open: deque[tuple[int, tuple[int, ...]]] = deque()  # said, not taken yet
        self._welcome = False
        self._filled = asyncio.Event()
        self.said_s = clock()

    def hello(self, hello: pb.Hello) -> None:
        """The first word."""
        self._first = pb.AgentMessage(hello=hello)
        self._filled.set()

    def welcome(self) -> None:
        """From now on everything may be said."""
        self._welcome = True
        self._filled.set()

    def answer(self, message: pb.AgentMessage) -> None:
        """What the scheduler has asked."""
        self._answers.append(message)
        self._filled.set()

    def report(self, send: Report) -> None:
        """One of the core's reports."""
        self._sends.append(send)
        self._filled.set()

    def health(self, health: pb.Health) -> None:
        """How the GPUs are."""
        self._health = health
        self._filled.set()

    def leaving(self) -> None:
        """The agent is to stop."""
        self._leaving = True
        self._filled.set()

    def gang(self, lease: str, message: pb.AgentMessage) -> None:
        """How far a part of a gang is: the last word counts."""
        self._gangs[lease] = message
        self._filled.set()

    def taken(self, number: int) -> list[int]:
        """The core's reports that are durable now."""
        done: list[int] = []
        while self._open and self._open[0][0] <= number:
            done += self._open.popleft()[1]
        return done

    async def get(self) -> pb.AgentMessage:
        """The next message, with the time on it."""
        while (message := self._next()) is None:
            self._filled.clear()
            await self._filled.wait()
        message.sent_s = self.said_s = self._clock()
        return message

    def _next(self) -> pb.AgentMessage | None:
        if self._first is not None:
            message, self._first = self._first, None
            return message
        if self._answers:
            return self._answers.popleft()
        if not self._welcome:
            return None
        if self._leaving:
            self._leaving = False
            return pb.AgentMessage(leaving=pb.Leaving())
        if self._gangs:
            return self._gangs.pop(next(iter(self._gangs)))
        # Before reports: a node in trouble must not get new jobs for those that ended.
        if self._health is not None:
            health, self._health = self._health, None
            return pb.AgentMessage(health=health)
        if self._sends and not self._packed:
            for report, numbers in pack(tuple(self._sends), self._numbers + 1, self._last_lines):
                self._numbers = report.number
                self._packed.append(report)
                self._open.append((report.number, numbers))
            self._sends.clear()
        if self._packed:
            return pb.AgentMessage(report=self._packed.popleft())
        return None
