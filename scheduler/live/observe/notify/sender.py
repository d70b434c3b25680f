"""The thread of a channel: it sends the messages of the channel, one after another, and tries again after failures."""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.events import time_text
from scheduler.live.observe.notify.messages import Message, compose
from scheduler.live.observe.notify.outbox import Outbox
from scheduler.live.observe.notify.webhook import SendFailed, Webhook

log = logging.getLogger(__name__)

# The least time between two messages about the same kind of event.
APART_S = 60.0
# The pause after a first failure, which doubles after each further one, and the longest pause.
PAUSE_S, PAUSE_S_MAX = 5.0, 86_400.0
# The pause after the file could not be written.
FILE_PAUSE_S = 5.0
TEST = "test"
# How a try to send a message ends.
SENT, FAILED = "sent", "failed"


class Record(NamedTuple):
    """The last tries of a channel since the start of the scheduler. Times are the scheduler's; None: never."""

    succeeded_s: float | None = None
    failed_s: float | None = None
    # Why the last try failed; empty if it succeeded or there was none.
    error: str = ""
    # When the first of the failures in a row took place.
    failing_since_s: float | None = None
    # How many tries in a row failed.
    failures: int = 0


class Sender:
    """Sends what waits for a channel. `step` does one thing; `start` has a thread call it."""

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        now_s: Callable[[], float],
        write: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now_s`: the time for people. `write`: called before each look into the outbox, to write new events there."""
        self.channel = channel
        self.record = Record()
        # How many tries since the start ended in each way; tests count, too.
        self.tries = {SENT: 0, FAILED: 0}
        self._webhook = Webhook(channel)
        self._outbox, self._now_s, self._write, self._clock = outbox, now_s, write, clock
        # When the next try is due, and by event when its next message is.
        self._next_s = 0.0
        self._next_of: dict[str, float] = {}
        # The key of the last message that was confirmed.
        self._confirmed = ""
        self._tests: deque[tuple[str, Future[str]]] = deque()
        # For operators: why the last step failed; empty: it did not.
        self.trouble = ""
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"notify {channel.name}", daemon=True)

    def step(self) -> float | None:
        """Send one message if one is due. Return after how many seconds to call this again; None: when woken."""
        # A test needs no file.
        while self._tests:
            self._send_test(*self._tests.popleft())
        self._write()
        wait_s = self._next_s - self._clock()
        if wait_s > 0:
            return wait_s
        message = self._outbox.message(self.channel.name)
        if message is None:
            events = self._outbox.events(self.channel.name)
            if not events:
                return None
            event = min(events, key=lambda event: self._next_of.get(event, 0.0))
            wait_s = self._next_of.get(event, 0.0) - self._clock()
            if wait_s > 0:
                return wait_s
            message = self._outbox.seal(self.channel.name, event)
        # If the outbox could not note the success, because the disk is full, the channel has the message already.
        if message.key != self._confirmed and (error := self._send(message)):
            log.warning(
                "channel %(channel)s did not take a message: %(error)s",
                {"channel": self.channel.name, "error": error},
            )
            return self._next_s - self._clock()
        self._confirmed = message.key
        self._outbox.sent(self.channel.name, message)
        self._next_of[message.event] = self._clock() + APART_S
        return 0.0

    def _send(self, message: Message) -> str:
        """Send a message, and record the result. Return why it failed, or an empty text."""
        error, record = "", self.record
        try:
            self._webhook.send(message)
        except SendFailed as failed:
            error = str(failed)
        self.tries[FAILED if error else SENT] += 1
        now_s = self._now_s()
        if not error:
            self.record = Record(now_s, record.failed_s)
            self._next_s = 0.0
            return ""
        since_s = now_s if record.failing_since_s is None else record.failing_since_s
        self.record = Record(record.succeeded_s, now_s, error, since_s, record.failures + 1)
        # The exponent is limited, because 2 to the power of thousands is no float.
        self._next_s = self._clock() + min(PAUSE_S * 2 ** min(record.failures, 30), PAUSE_S_MAX)
        return error

    def _send_test(self, text: str, answer: Future[str]) -> None:
        if answer.set_running_or_notify_cancel():
            details = json.dumps({"at": time_text(self._now_s()), "text": text})
            answer.set_result(
                self._send(compose(self.channel.name, secrets.token_hex(16), TEST, [details], 0))
            )

    def test(self, text: str) -> Future[str]:
        """Have a test message with this text sent. The future has why it failed, or an empty text."""
        answer: Future[str] = Future()
        self._tests.append((text, answer))
        self.wake()
        return answer

    # The thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look into the outbox."""
        self._wake.set()

    def stop(self) -> None:
        """Have the thread end, and end the try that is under way."""
        self._stopped = True
        self._wake.set()
        self._webhook.close()

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the thread. Return whether it has ended within this time."""
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        while self._tests:
            self._tests.popleft()[1].cancel()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            wait_s = self.try_step()
            if wait_s != 0.0:
                self._wake.wait(wait_s)

    def try_step(self) -> float | None:
        """Do a step. If the outbox fails, keep the reason in `trouble`, and return a pause."""
        try:
            wait_s = self.step()
        except Exception as error:
            trouble = f"notify.db cannot be used ({error}); trying again"
            # The same line every few seconds would fill the log.
            if trouble != self.trouble:
                fields = {"channel": self.channel.name, "error": error}
                is_expected = isinstance(error, sqlite3.Error)
                text = "channel %(channel)s cannot read or write notify.db: %(error)s"
                log.error(text, fields, exc_info=None if is_expected else error)
            self.trouble = trouble
            return FILE_PAUSE_S
        self.trouble = ""
        return wait_s
