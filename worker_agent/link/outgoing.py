"""Messages that wait to be sent on one link. Their number is bounded, even while the scheduler does not read.

Waiting reports are merged. Of the messages that describe the node, and of those about each gang, only the newest is
kept. Until the scheduler has welcomed the agent, only the hello and answers are sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.core.messages import Report
from worker_agent.link.messages import pack

# How many reports may wait. When there are more, the oldest is dropped: the core reports its exits again, and its
# progress is outdated.
REPORTS_WAITING_MAX = 10_000


class Outgoing:
    """The messages to send on one stream, queued by `answer`, `report` and others, and taken by `get`."""

    def __init__(self, last_lines: Callable[[str], str], clock: Callable[[], float]) -> None:
        self._last_lines, self._clock = last_lines, clock
        self._answers: deque[pb.AgentMessage] = deque(maxlen=64)
        self._gangs: dict[str, pb.AgentMessage] = {}
        self._reports: deque[Report] = deque(maxlen=REPORTS_WAITING_MAX)
        self._standing: dict[str, pb.AgentMessage] = {}
        # The link's reports, packed but not sent yet.
        self._packed: deque[pb.Report] = deque()
        self._last_number = 0
        # For each of the link's reports that is not confirmed yet: its number, and `LinkReport.numbers`.
        self._unconfirmed: deque[tuple[int, tuple[int, ...]]] = deque()
        # Whether the scheduler has welcomed the agent.
        self._welcomed = False
        self._filled = asyncio.Event()
        # When the last message was taken for sending.
        self.sent_s = clock()

    def welcome(self) -> None:
        """Send everything from now on, because the scheduler has welcomed the agent."""
        self._welcomed = True
        self._filled.set()

    def answer(self, message: pb.AgentMessage) -> None:
        """Queue the hello, or an answer to the scheduler. These do not wait for the welcome."""
        self._answers.append(message)
        self._filled.set()

    def report(self, report: Report) -> None:
        """Queue a report of the core."""
        self._reports.append(report)
        self._filled.set()

    def standing(self, message: pb.AgentMessage) -> None:
        """Queue a message that describes the node, in place of an older one about the same."""
        self._standing[message.WhichOneof("body") or ""] = message
        self._filled.set()

    def gang(self, lease: str, message: pb.AgentMessage) -> None:
        """Queue the state of this node's part of a gang, in place of an older message about it."""
        self._gangs[lease] = message
        self._filled.set()

    def on_taken(self, number: int) -> list[int]:
        """Confirm the link's reports up to this number.

        Return the numbers of the core's reports that are now confirmed completely.
        """
        durable: list[int] = []
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            durable += self._unconfirmed.popleft()[1]
        return durable

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
        if not self._welcomed:
            return None
        # Health goes before reports: a node in trouble must not get new jobs in place of those that have ended.
        for messages in (self._standing, self._gangs):
            if messages:
                return messages.pop(next(iter(messages)))
        if self._reports and not self._packed:
            for report, numbers in pack(tuple(self._reports), self._last_number + 1, self._last_lines):
                self._last_number = report.number
                self._packed.append(report)
                self._unconfirmed.append((report.number, numbers))
            self._reports.clear()
        if self._packed:
            return pb.AgentMessage(report=self._packed.popleft())
        return None
