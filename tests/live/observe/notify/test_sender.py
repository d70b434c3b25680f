"""The thread of a channel: one message per event and minute, then a digest; and patience with receivers."""

from __future__ import annotations

import json
import sqlite3

import pytest

from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.outbox import Event, Outbox, Waiting
from scheduler.live.observe.notify.sender import APART_S, FILE_PAUSE_S, PAUSE_S, PAUSE_S_MAX, Sender
from scheduler.live.observe.position import Position
from tests.support.ports import free_port
from tests.support.receiver import Receiver
from tests.support.wording import Wording


class Desk:
    """A sender whose time is what the test says, and its outbox."""

    def __init__(self, url: str) -> None:
        self.outbox, self.at_s, self.seq = Outbox(None, ["ops"]), 1000.0, 0
        channel = Channel(name="ops", url=url, events=("job_failed", "node_lost"))
        self.sender = Sender(
            channel, self.outbox, lambda: 1_800_000_000.0 + self.at_s, clock=lambda: self.at_s
        )

    def happen(self, *texts: str, event: str = "job_failed") -> None:
        """Add events with these texts."""
        self.seq += 1
        events = [Event("ops", event, json.dumps({"at": "", "text": text})) for text in texts]
        self.outbox.add(events, Position(self.seq, self.at_s))

    def steps(self) -> float | None:
        """Do all that is due. Return when the next is."""
        while (wait_s := self.sender.step()) == 0.0:
            pass
        return wait_s


def texts(receiver: Receiver) -> list[list[str]]:
    """Return the texts of the events in each message that arrived."""
    return [[entry["text"] for entry in request.message["events"]] for request in receiver.requests]


def test_a_minute_of_events_is_one_digest() -> None:
    """The first event is sent at once; those of the minute after it follow as one message, other kinds at once."""
    with Receiver() as receiver:
        desk = Desk(receiver.url)
        desk.happen("a")
        assert desk.steps() is None
        desk.happen("b")
        desk.happen("c")
        assert desk.steps() == APART_S
        desk.happen("n1", event="node_lost")
        desk.at_s += 20.0
        assert desk.steps() == APART_S - 20.0
        assert texts(receiver) == [["a"], ["n1"]]
        desk.at_s += 40.0
        assert desk.steps() is None
        assert texts(receiver)[2:] == [["b", "c"]]
        assert len({request.key for request in receiver.requests}) == 3


def test_a_failed_message_is_repeated_as_it_is() -> None:
    """Every try has the same key and body, pauses double, and what comes meanwhile waits for the next message."""
    with Receiver() as receiver:
        receiver.answers += [500, "reset", 503, "redirect"]
        desk = Desk(receiver.url)
        desk.happen("a")
        pauses = []
        for number in range(4):
            wait_s = desk.sender.step()
            assert wait_s is not None
            desk.happen(f"later {number}")
            assert desk.sender.step() == wait_s
            pauses.append(wait_s)
            desk.at_s += wait_s
        assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
        assert desk.outbox.waiting == {"ops": Waiting(5)}
        record = desk.sender.record
        assert (record.failures, record.failing_since_s, record.succeeded_s) == (4, 1_800_001_000.0, None)
        assert desk.steps() == APART_S
        assert len({(request.key, request.body) for request in receiver.requests}) == 1
        record = desk.sender.record
        assert (record.error, record.failing_since_s, record.succeeded_s) == ("", None, 1_800_001_075.0)
        assert desk.sender.tries == {"sent": 1, "failed": 4}
        desk.at_s += APART_S
        desk.steps()
        assert texts(receiver)[-1] == [f"later {number}" for number in range(4)]


def test_a_full_disk_repeats_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was confirmed is not sent again while the outbox cannot note that."""
    with Receiver() as receiver:
        desk = Desk(receiver.url)
        desk.happen("a")
        with monkeypatch.context() as full:
            full.setattr(Outbox, "sent", lambda *values: (_ for _ in ()).throw(sqlite3.OperationalError))
            for _ in range(3):
                with pytest.raises(sqlite3.Error):
                    desk.sender.step()
        desk.happen("b")
        assert desk.steps() == APART_S
        desk.at_s += APART_S
        desk.steps()
        assert texts(receiver) == [["a"], ["b"]]


def test_pauses_grow_to_a_day() -> None:
    """A receiver that is gone for months is tried once a day."""
    desk = Desk(f"http://127.0.0.1:{free_port()}/")
    desk.happen("a")
    pauses = []
    for _ in range(40):
        wait_s = desk.sender.step()
        assert wait_s is not None
        pauses.append(wait_s)
        desk.at_s += wait_s
    assert pauses == [min(PAUSE_S * 2**number, PAUSE_S_MAX) for number in range(40)]


def test_a_test_that_succeeds_ends_the_pause() -> None:
    """A test is sent at once, even during a pause; after its success, everything that waits follows."""
    with Receiver() as receiver:
        receiver.answers += [500]
        desk = Desk(receiver.url)
        desk.happen("a")
        assert desk.sender.step() == PAUSE_S
        answer = desk.sender.test("hello")
        assert desk.steps() is None
        assert answer.result(0) == ""
        assert texts(receiver) == [["a"], ["hello"], ["a"]]
        assert receiver.requests[1].message["event"] == "test"


def test_a_test_that_fails_says_why() -> None:
    """The reason is returned, and counts as a failure of the channel."""
    with Receiver() as receiver:
        receiver.answers += [404]
        desk = Desk(receiver.url)
        answer = desk.sender.test("hello")
        desk.sender.step()
        assert answer.result(0) == desk.sender.record.error != ""


def test_a_test_needs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """While notify.db cannot be used, a test is sent all the same, and its result returned."""
    with Receiver() as receiver:
        desk = Desk(receiver.url)
        monkeypatch.setattr(desk.sender, "_write", _cannot)
        answer = desk.sender.test("hello")
        desk.sender.try_step()
        assert answer.result(0) == ""


def test_a_file_that_cannot_be_read_is_a_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wording: Wording
) -> None:
    """It is told once in the log, and to operators until the file can be read."""
    with Receiver() as receiver:
        desk = Desk(receiver.url)
        desk.happen("a")
        with monkeypatch.context() as damaged:
            damaged.setattr(desk.outbox, "message", _cannot)
            assert [desk.sender.try_step() for _ in range(3)] == [FILE_PAUSE_S] * 3
            wording(desk.sender.trouble)
        assert len(caplog.records) == 1
        assert (desk.sender.try_step(), desk.sender.trouble) == (0.0, "")


def _cannot(*values: object) -> None:
    raise sqlite3.DatabaseError("database disk image is malformed")
