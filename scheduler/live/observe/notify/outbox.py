"""`notify.db`: the events that wait for their channels, and the messages that are being sent.

- Events are written together with the number of the last record that was read, so that a scheduler that was killed
  reads on from there, and neither loses an event nor adds one twice.
- A message is written before it is sent for the first time. If the scheduler is killed before it has noted the success,
  the next one sends the same message with the same key.
- A channel has one such message at a time. At most WAITING_MAX of its events wait; beyond that, the oldest are only
  counted.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from scheduler.live.observe.notify.messages import Message, compose, fitting
from scheduler.live.observe.position import Position
from scheduler.live.private_database import CannotOpen, open_private

# How many events of a channel wait, and how many of these one message may list.
WAITING_MAX, LISTED_MAX = 10_000, 1000
NOTHING: Mapping[tuple[str, str], int] = MappingProxyType({})
LOST = "notifications that were waiting are lost"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS event (
    id INTEGER PRIMARY KEY, channel TEXT NOT NULL, event TEXT NOT NULL, details TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS event_by_channel ON event (channel, event, id);
CREATE TABLE IF NOT EXISTS counted (
    channel TEXT NOT NULL, event TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (channel, event)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS message (
    channel TEXT PRIMARY KEY, key TEXT NOT NULL, event TEXT NOT NULL, body BLOB NOT NULL, count INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (
    one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, now_s REAL NOT NULL
);
"""
_TABLES = ("event", "counted", "message")
_COUNT = "INSERT INTO counted VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"


class Waiting(NamedTuple):
    """How many events of a channel wait, and how many of these are only counted."""

    events: int = 0
    counted: int = 0


class Event(NamedTuple):
    """An event for a channel, with its details in JSON."""

    channel: str
    event: str
    details: str


class Outbox:
    """The database. Any thread may use it."""

    def __init__(self, path: Path | None, channels: Collection[str]) -> None:
        """Open the file, and drop what waits for other channels than these. Without a usable file, use memory."""
        self._lock = threading.Lock()
        # By channel; readers need no lock.
        self.waiting: dict[str, Waiting] = {}
        try:
            self._open(path, channels)
        except CannotOpen as error:
            self._open(None, channels)
            self.warning = f"{error}; notifications that wait are lost when the scheduler stops"

    def _open(self, path: Path | None, channels: Collection[str]) -> None:
        # synchronous = FULL, so that a power failure does not give a message that was sent another key.
        self._db, self.warning = open_private(path, _SCHEMA, synchronous="FULL", loss=LOST)
        marks = ", ".join("?" * len(channels))
        try:
            with self._transaction() as db:
                for table in _TABLES:
                    db.execute(f"DELETE FROM {table} WHERE channel NOT IN ({marks})", tuple(channels))  # noqa: S608
        except sqlite3.Error as error:
            self._db.close()
            raise CannotOpen(f"{path} cannot be written: {error}") from None

    def position(self) -> Position | None:
        """Return the last record that was read; None if none was."""
        with self._lock:
            row = self._db.execute("SELECT seq, now_s FROM position").fetchone()
        return None if row is None else Position(*row)

    def add(
        self, events: Sequence[Event], position: Position, counted: Mapping[tuple[str, str], int] = NOTHING
    ) -> None:
        """Add events, and note that all records up to this one were read.

        `counted`: by channel and event, how many earlier events there were of which nothing else is known.
        """
        with self._transaction() as db:
            db.executemany(_COUNT, [(*key, count) for key, count in counted.items()])
            db.executemany("INSERT INTO event (channel, event, details) VALUES (?, ?, ?)", events)
            for channel in {event.channel for event in events}:
                _count_oldest(db, channel)
            db.execute("INSERT OR REPLACE INTO position VALUES (1, ?, ?)", position)

    def events(self, channel: str) -> list[str]:
        """Return the kinds of events that wait for a channel, that which waits longest first."""
        query = (
            "SELECT event, min(id) FROM event WHERE channel = :channel GROUP BY event UNION ALL "
            "SELECT event, 0 FROM counted WHERE channel = :channel ORDER BY 2"
        )
        with self._lock:
            return list(dict.fromkeys(row[0] for row in self._db.execute(query, {"channel": channel})))

    def message(self, channel: str) -> Message | None:
        """Return the message of a channel that is being sent."""
        with self._lock:
            query = "SELECT key, event, body FROM message WHERE channel = ?"
            row = self._db.execute(query, (channel,)).fetchone()
        return None if row is None else Message(*row)

    def seal(self, channel: str, event: str) -> Message:
        """Make a message of the oldest events of a kind, which from now on does not change. Return it."""
        with self._transaction() as db:
            query = "SELECT id, details FROM event WHERE channel = ? AND event = ? ORDER BY id LIMIT ?"
            rows = db.execute(query, (channel, event, LISTED_MAX)).fetchall()
            rows = rows[: fitting([details for _, details in rows])]
            query = "SELECT count FROM counted WHERE channel = ? AND event = ?"
            counted = db.execute(query, (channel, event)).fetchone()
            unlisted = 0 if counted is None else counted[0]
            message = compose(
                channel, secrets.token_hex(16), event, [details for _, details in rows], unlisted
            )
            db.execute(
                "INSERT INTO message VALUES (?, ?, ?, ?, ?)", (channel, *message, len(rows) + unlisted)
            )
            db.executemany("DELETE FROM event WHERE id = ?", [(number,) for number, _ in rows])
            db.execute("DELETE FROM counted WHERE channel = ? AND event = ?", (channel, event))
        return message

    def sent(self, channel: str, message: Message) -> None:
        """Forget a message that its channel has received."""
        with self._transaction() as db:
            db.execute("DELETE FROM message WHERE channel = ? AND key = ?", (channel, message.key))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a block in one transaction, which is durable when the block ends."""
        with self._lock:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
            self.waiting = _waiting(self._db)


def _count_oldest(db: sqlite3.Connection, channel: str) -> None:
    """Count the oldest events of a channel that has too many, and delete them."""
    (waiting,) = db.execute("SELECT count(*) FROM event WHERE channel = ?", (channel,)).fetchone()
    if waiting <= WAITING_MAX:
        return
    oldest = "SELECT id FROM event WHERE channel = ? ORDER BY id LIMIT ?"
    values = channel, waiting - WAITING_MAX
    query = f"SELECT channel, event, count(*) FROM event WHERE id IN ({oldest}) GROUP BY event"  # noqa: S608
    db.executemany(_COUNT, db.execute(query, values).fetchall())
    db.execute(f"DELETE FROM event WHERE id IN ({oldest})", values)  # noqa: S608


def _waiting(db: sqlite3.Connection) -> dict[str, Waiting]:
    query = (
        "SELECT channel, sum(events), sum(counted) FROM ("
        "SELECT channel, count(*) AS events, 0 AS counted FROM event GROUP BY channel UNION ALL "
        "SELECT channel, sum(count), sum(count) FROM counted GROUP BY channel UNION ALL "
        "SELECT channel, count, 0 FROM message) GROUP BY channel"
    )
    return {channel: Waiting(events, counted) for channel, events, counted in db.execute(query)}
