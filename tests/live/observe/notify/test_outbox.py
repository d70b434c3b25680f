"""The outbox: what waits survives, a message that was begun does not change, and the rest is bounded."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from scheduler.live.observe.notify import outbox as module
from scheduler.live.observe.notify.outbox import Event, Outbox, Waiting
from scheduler.live.observe.position import Position
from tests.support.wording import Wording


def event(number: int, channel: str = "ops", kind: str = "job_failed") -> Event:
    """Return an event."""
    return Event(channel, kind, json.dumps({"at": "", "text": f"job {number}"}))


def listed(body: bytes) -> list[str]:
    """Return the texts of the events in a message."""
    return [entry["text"] for entry in json.loads(body)["events"]]


def test_a_message_keeps_its_key_and_body(tmp_path: Path) -> None:
    """A message that was begun is the same after a crash, whatever happened in between, until it is sent."""
    outbox = Outbox(tmp_path / "notify.db", ["ops"])
    outbox.add([event(1), event(2)], Position(7, 1.0))
    message = outbox.seal("ops", "job_failed")
    outbox.add([event(3)], Position(8, 2.0))
    outbox.close()
    outbox = Outbox(tmp_path / "notify.db", ["ops"])
    assert (outbox.message("ops"), outbox.position()) == (message, Position(8, 2.0))
    assert listed(message.body) == ["job 1", "job 2"]
    outbox.sent("ops", message)
    assert outbox.message("ops") is None
    second = outbox.seal("ops", "job_failed")
    assert listed(second.body) == ["job 3"]
    assert second.key != message.key
    outbox.sent("ops", second)
    assert (outbox.waiting, outbox.events("ops")) == ({}, [])


def test_kinds_wait_in_the_order_of_their_oldest_event() -> None:
    """The kind of event that waits longest is first; other channels have their own."""
    outbox = Outbox(None, ["ops", "ml"])
    events = [event(1, kind="node_lost"), event(2), event(3, kind="node_lost"), event(4, "ml", "gpu_broken")]
    outbox.add(events, Position(1, 1.0))
    assert (outbox.events("ops"), outbox.events("ml")) == (["node_lost", "job_failed"], ["gpu_broken"])
    assert outbox.waiting == {"ops": Waiting(3), "ml": Waiting(1)}


def test_too_many_events_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of a channel, its oldest events are counted; the next message has the number."""
    monkeypatch.setattr(module, "WAITING_MAX", 10)
    outbox = Outbox(None, ["ops", "ml"])
    outbox.add([event(0, "ml")], Position(1, 1.0))
    for number in range(25):
        outbox.add(
            [event(number)], Position(2 + number, 1.0), {("ops", "job_failed"): 1} if number == 7 else {}
        )
    assert outbox.waiting == {"ops": Waiting(26, 16), "ml": Waiting(1)}
    body = json.loads(outbox.seal("ops", "job_failed").body)
    assert (body["count"], body["unlisted"]) == (26, 16)
    assert listed(outbox.message("ops").body) == [f"job {number}" for number in range(15, 25)]  # type: ignore[union-attr]


def test_a_message_lists_as_many_events_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events that do not fit into a message are in the next one, and none is lost."""
    monkeypatch.setattr(module, "LISTED_MAX", 4)
    outbox = Outbox(None, ["ops"])
    outbox.add([event(number) for number in range(9)], Position(1, 1.0))
    texts = []
    while outbox.events("ops"):
        message = outbox.seal("ops", "job_failed")
        texts.append(listed(message.body))
        outbox.sent("ops", message)
    assert texts == [[f"job {n}" for n in part] for part in (range(4), range(4, 8), range(8, 9))]


def test_removed_channels_keep_nothing(tmp_path: Path) -> None:
    """What waits for a channel that the settings no longer have is dropped."""
    outbox = Outbox(tmp_path / "notify.db", ["ops", "ml"])
    outbox.add([event(1), event(2, "ml")], Position(1, 1.0))
    outbox.seal("ops", "job_failed")
    outbox.close()
    assert Outbox(tmp_path / "notify.db", ["ml"]).waiting == {"ml": Waiting(1)}


def test_a_file_that_cannot_be_used_stops_nothing(tmp_path: Path, wording: Wording) -> None:
    """A damaged file is set aside, and where no file can be, the outbox is in memory; each is a warning."""
    (tmp_path / "a.db").write_bytes(b"no database" * 1000)
    wording(Outbox(tmp_path / "a.db", ["ops"]).warning)
    (tmp_path / "b.db").mkdir()
    outbox = Outbox(tmp_path / "b.db", ["ops"])
    wording(outbox.warning, folder=tmp_path)
    outbox.add([event(1)], Position(1, 1.0))
    assert outbox.waiting == {"ops": Waiting(1)}


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path, wording: Wording) -> None:
    """A sound file that only root may write, or on a full disk, is left alone, and the outbox is in memory."""
    path = tmp_path / "notify.db"
    outbox = Outbox(path, ["ops"])
    outbox.add([event(1)], Position(1, 1.0))
    with sqlite3.connect(path) as db:
        # Root may write any file, so something else has to refuse.
        db.execute("CREATE TRIGGER full BEFORE DELETE ON event BEGIN SELECT RAISE(FAIL, 'disk is full'); END")
    outbox.close()
    outbox = Outbox(path, ["ml"])
    wording(outbox.warning, folder=tmp_path)
    outbox.add([event(2, "ml")], Position(2, 1.0))
    assert outbox.waiting == {"ml": Waiting(1)}
