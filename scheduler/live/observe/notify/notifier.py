"""Notifications: takes events from durable records, writes them to the outbox, and has a thread for each channel.

The feed calls `listen` with each record, which only keeps its events. The threads write and send them, so that neither
a slow disk nor a slow receiver delays the scheduler. A scheduler that was killed reads on in its journal from the last
record that the outbox covers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from protos.files.errors import suggest
from scheduler.core.facts import Fact
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import Damage, time_text
from scheduler.journal.record import Journal
from scheduler.live.observe.notify.channels import Channel, check_secrets
from scheduler.live.observe.notify.events import EVENTS, Happening, Rules
from scheduler.live.observe.notify.outbox import WAITING_MAX, Event, Outbox, Waiting
from scheduler.live.observe.notify.sender import Sender
from scheduler.live.observe.position import Position
from scheduler.live.threads import in_thread
from scheduler.model.errors import InvalidSpec, NotFound
from scheduler.model.notify import Notify

log = logging.getLogger(__name__)

# After how many records without events the position is written.
RECORDS_MAX = 500
# How many events are written in one transaction while the journal is read.
BATCH = 1000
# How long the threads may take when the scheduler stops.
STOP_S = 2.0


class Notifier:
    """The notifications of a scheduler. `start` and `stop` surround the time in which messages are sent."""

    def __init__(
        self,
        channels: Sequence[Channel],
        path: Path,
        journal: Journal,
        state: SchedulerState,
        now_s: Callable[[], float],
    ) -> None:
        """`state`: the state after the last record of the journal. Raise ConfigError if a secret cannot be used."""
        check_secrets(channels)
        self._journal, self._rules = journal, Rules(state)
        # Of the records since the last write: their events, and the position of the last one. `listen` takes the lock,
        # too, so nobody waits for the disk while holding it.
        self._lock, self._pending = threading.Lock(), list[Event]()
        self._position: Position | None = None
        self._written_seq = journal.last_seq
        # Held while the file is written. Also, how many events were dropped because it could not be written, by channel
        # and event.
        self._writing, self._counted = threading.Lock(), Counter[tuple[str, str]]()
        # For operators: why events are missing, and why the file cannot be written now; empty if neither is so.
        self._gap = self._trouble = ""
        self._outbox: Outbox | None = None
        self.senders: dict[str, Sender] = {}
        if not channels:
            # Channels that are added later begin with the present, not with what happened meanwhile.
            for ending in ("", "-wal", "-shm"):
                with suppress(OSError):
                    path.with_name(path.name + ending).unlink()
            return
        self._outbox = outbox = Outbox(path, [channel.name for channel in channels])
        for channel in channels:
            self.senders[channel.name] = Sender(channel, outbox, now_s, self._write)
        try:
            self._gap = self._catch_up(outbox)
        # The scheduler must start without notifications, too.
        except Exception as error:
            log.exception("notify.db cannot be completed from the journal")
            self._gap = f"events before this start were perhaps not sent: {error}"
        if self._gap:
            log.warning("%(gap)s", {"gap": self._gap})

    # Taking events in.

    def listen(self, now_s: float, facts: Sequence[Fact]) -> None:
        """Keep the events of a record that has just become durable."""
        if self._outbox is None:
            return
        events, position = self._events(now_s, facts), Position(self._journal.last_seq, now_s)
        with self._lock:
            self._pending += events
            self._position = position
        if events or position.seq >= self._written_seq + RECORDS_MAX:
            for sender in self.senders.values():
                sender.wake()

    def _events(self, now_s: float, facts: Sequence[Fact]) -> list[Event]:
        return [
            Event(channel, happening.event, json.dumps(happening.details))
            for happening in self._rules.take(now_s, facts)
            for channel in self._channels_of(happening)
        ]

    def _channels_of(self, happening: Happening) -> Iterator[str]:
        job = self._rules.state.jobs.get(happening.job)
        word = EVENTS[happening.event].word
        chosen = set() if job is None else {entry.to for entry in job.spec.notify if entry.wants(word)}
        for name, sender in self.senders.items():
            if happening.event in sender.channel.events or (name in chosen and sender.channel.for_jobs):
                yield name

    def check(self, entries: Sequence[Notify]) -> None:
        """Raise InvalidSpec if a job names a channel that does not exist, or that is not for jobs."""
        open_to_jobs = [name for name, sender in self.senders.items() if sender.channel.for_jobs]
        for index, entry in enumerate(entries):
            if entry.to not in open_to_jobs:
                raise InvalidSpec(
                    f"notify[{index}].to",
                    f"is '{entry.to[:80]}', which is no channel for jobs; {suggest(entry.to, open_to_jobs)}",
                )

    def _write(self, *, at_end: bool = False) -> None:
        """Write the events of all records so far; `at_end`, also that later records had none."""
        assert self._outbox is not None
        with self._writing:
            with self._lock:
                events, self._pending, position = self._pending, [], self._position
            if position is None or not (events or at_end or position.seq >= self._written_seq + RECORDS_MAX):
                return
            try:
                self._outbox.add(events, position, self._counted)
            except sqlite3.Error as error:
                self._trouble = f"notify.db cannot be written ({error}); trying again"
                excess = max(len(events) - WAITING_MAX, 0)
                self._counted.update((event.channel, event.event) for event in events[:excess])
                with self._lock:
                    self._pending = events[excess:] + self._pending
                raise
            self._trouble, self._written_seq = "", position.seq
            self._counted.clear()

    def _catch_up(self, outbox: Outbox) -> str:
        """Add the events of the records that the outbox does not cover. Return why some may be missing, or nothing."""
        journal, gap = self._journal, ""
        position = outbox.position()
        if position is not None and not position.is_in(journal):
            gap = "notify.db belonged to another journal; events before this start were perhaps not sent"
            position = None
        # A new outbox begins with the present.
        after = journal.last_seq - 1 if position is None else position.seq
        events, next_seq = list[Event](), after + 1
        with self._rules.past():
            for item in journal.scan(after):
                if isinstance(item, Damage):
                    continue
                if item.seq > next_seq and not gap:
                    gap = f"events before {time_text(item.now_s)} were perhaps not sent: the journal lacks records"
                if position is not None:
                    events += self._events(item.now_s, item.facts)
                next_seq = item.seq + 1
                if len(events) >= BATCH or item.seq == journal.last_seq:
                    outbox.add(events, Position(item.seq, item.now_s))
                    events.clear()
        return gap

    # Sending.

    def start(self) -> None:
        """Start the threads."""
        for sender in self.senders.values():
            sender.start()

    async def stop(self) -> None:
        """Stop the threads and close the file. What waits is sent after the next start."""
        if self._outbox is not None:
            await in_thread(partial(self._stop, self._outbox))

    def _stop(self, outbox: Outbox) -> None:
        for sender in self.senders.values():
            sender.stop()
        give_up_s = time.monotonic() + STOP_S
        have_ended = [sender.join(max(give_up_s - time.monotonic(), 0.0)) for sender in self.senders.values()]
        try:
            self._write(at_end=True)
        except sqlite3.Error as error:
            log.error(
                "notify.db cannot be written, and is completed at the next start: %(error)s", {"error": error}
            )
        # A thread that waits for the name of a host to be resolved cannot be stopped, and still uses the file.
        if all(have_ended):
            outbox.close()

    async def test(self, channel: str, user: str) -> str:
        """Send a test message to a channel. Return why it failed; empty: the receiver confirmed it."""
        text = f"test of the channel {channel}{f' by {user}' if user else ''}"
        return await asyncio.wrap_future(self.sender(channel).test(text))

    # Reading.

    def sender(self, channel: str) -> Sender:
        """Return the sender of a channel, or raise NotFound."""
        sender = self.senders.get(channel)
        if sender is None:
            raise NotFound(f"there is no channel '{channel}'; {suggest(channel, self.senders)}")
        return sender

    def waiting(self, channel: str) -> Waiting:
        """Return how many events wait for a channel."""
        return Waiting() if self._outbox is None else self._outbox.waiting.get(channel, Waiting())

    def file_warnings(self) -> Iterator[str]:
        """Yield warnings for operators about notify.db, and about events that it lacks."""
        if self._outbox is not None and self._outbox.warning:
            yield self._outbox.warning
        # All senders fail for the same reason.
        trouble = self._trouble or next(
            filter(None, [sender.trouble for sender in self.senders.values()]), ""
        )
        yield from filter(None, (self._gap, trouble))

    def warnings(self) -> Iterator[str]:
        """Yield warnings for operators about channels."""
        for name, sender in self.senders.items():
            record, waiting = sender.record, self.waiting(name)
            if record.failing_since_s is not None:
                since, wait = time_text(record.failing_since_s), "waits" if waiting.events == 1 else "wait"
                yield (
                    f"channel {name} has taken no notification since {since}: {record.error}; "
                    f"{waiting.events:,} event{'' if waiting.events == 1 else 's'} {wait}"
                )
            if waiting.counted:
                yield (
                    f"more than {WAITING_MAX:,} events waited for channel {name}: the oldest {waiting.counted:,} will "
                    "be sent as a number only"
                )
