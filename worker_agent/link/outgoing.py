"""Messages that wait to be sent on one link. Their number is bounded, even while the scheduler does not read.

Waiting reports are merged; only the newest message about readiness and health is kept. Until the scheduler has welcomed
the agent, only the hello and answers are sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.core.messages import Report
from worker_agent.link.messages import pack

# The most reports that may wait. Beyond that the oldest is dropped: its exits are reported again, its progress is
# outdated.
REPORTS_WAITING_MAX = 10_000


class Outgoing:
    """The agent's side of one stream."""

    def __init__(self, last_lines: Callable[[str], str], clock: Callable[[], float]) -> None:
        self._last_lines, self._clock = last_lines, clock
        self._answers: deque[pb.AgentMessage] = deque(maxlen=64)
        self._gangs: dict[str, pb.AgentMessage] = {}
        self._reports: deque[Report] = deque(maxlen=REPORTS_WAITING_MAX)
        self._health: pb.Health | None = None
        self._leaving = False
        self._packed: deque[pb.Report] = deque()
        self._numbers = 0
        # Reports that were sent and are not durable yet: their numbers, and those of the core's reports in them.
        self._open: deque[tuple[int, tuple[int, ...]]] = deque()
        self._welcome = False
        self._filled = asyncio.Event()
        self.sent_s = clock()

    def welcome(self) -> None:
        """Send everything from now on: the scheduler has welcomed the agent."""
        self._welcome = True
        self._filled.set()

    def answer(self, message: pb.AgentMessage) -> None:
        """Queue what does not wait for the welcome: the hello, and answers to the scheduler's questions."""
        self._answers.append(message)
        self._filled.set()

    def report(self, report: Report) -> None:
        """Queue a report of the core."""
        self._reports.append(report)
        self._filled.set()

    def health(self, health: pb.Health) -> None:
        """Queue the state of the GPUs, in place of an older one."""
        self._health = health
        self._filled.set()

    def leaving(self) -> None:
        """Queue the message that the agent is stopping."""
        self._leaving = True
        self._filled.set()

    def gang(self, lease: str, message: pb.AgentMessage) -> None:
        """Queue the state of a part of a gang, in place of an older message about it."""
        self._gangs[lease] = message
        self._filled.set()

    def on_taken(self, number: int) -> list[int]:
        """Return the numbers of the core's reports that are durable once the report of this number is."""
        done: list[int] = []
        while self._open and self._open[0][0] <= number:
            done += self._open.popleft()[1]
        return done

    async def get(self) -> pb.AgentMessage:
        """Return the next message, stamped with the time of sending."""
        while (message := self._next()) is None:
            self._filled.clear()
            await self._filled.wait()
        message.sent_s = self.sent_s = self._clock()
        return message

    def _next(self) -> pb.AgentMessage | None:
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
        if self._reports and not self._packed:
            for report, numbers in pack(tuple(self._reports), self._numbers + 1, self._last_lines):
                self._numbers = report.number
                self._packed.append(report)
                self._open.append((report.number, numbers))
            self._reports.clear()
        if self._packed:
            return pb.AgentMessage(report=self._packed.popleft())
        return None
