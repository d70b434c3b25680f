"""Notifications of a scheduler that is killed: nothing is lost, and what arrives twice has the same key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from scheduler.core import facts as f
from scheduler.core.apply import apply
from scheduler.core.state import SchedulerState
from scheduler.live.observe.notify import notifier as module
from scheduler.live.observe.notify.channels import Channel
from scheduler.live.observe.notify.events import EVENTS, Rules
from scheduler.live.observe.notify.notifier import Notifier
from scheduler.live.observe.notify.outbox import Outbox, Waiting
from scheduler.model.errors import NotFound
from scheduler.model.jobs import JobSpec, Move
from tests.live.observe.test_ledger import played
from tests.support.journals import MemoryJournal
from tests.support.ports import free_port
from tests.support.receiver import Receiver
from tests.support.wording import Wording

# A scheduler that starts does not know whether the policy failed before.
LASTING = tuple(event for event in EVENTS if event != "policy_failed")


class Stage:
    """A journal, a state and a notifier, which can be killed and started again. No thread runs."""

    def __init__(self, folder: Path, url: str = "http://127.0.0.1:1/") -> None:
        self.path, self.journal, self.state = folder / "notify.db", MemoryJournal(), SchedulerState()
        self.channels = [Channel(name="ops", url=url, events=LASTING)]
        self.start()

    def start(self) -> None:
        """Start a notifier on what the last one left."""
        self.notifier = Notifier(self.channels, self.path, self.journal, self.state, lambda: self.state.now_s)

    def record(self, now_s: float, *facts: f.Fact) -> None:
        """Make a record durable."""
        for fact in facts:
            apply(self.state, now_s, fact)
        self.journal.append(now_s, facts)
        self.notifier.listen(now_s, facts)

    def fail_job(self, job: int) -> None:
        """Submit a job and have it fail, in two records."""
        self.record(float(job), f.JobSubmitted(job=str(job), spec=JobSpec()))
        self.record(float(job), f.JobMoved(job=str(job), move=Move.FAIL, why="it exited with code 1"))

    def write(self) -> None:
        """Have the events written, as the threads do."""
        self.notifier._write()

    def texts(self) -> list[str]:
        """Return the texts of all events that wait."""
        with sqlite3.connect(self.path) as db:
            return [json.loads(row[0])["text"] for row in db.execute("SELECT details FROM event ORDER BY id")]


@pytest.mark.parametrize("seed", range(9000, 9004))
def test_a_killed_scheduler_loses_no_event(tmp_path: Path, seed: int) -> None:
    """Wherever the scheduler is killed, the outbox has each event of the journal exactly once."""
    stage = Stage(tmp_path)
    for number, (now_s, facts) in enumerate(played(seed), 1):
        stage.record(now_s, *facts)
        if number % 5 == 0:
            stage.write()
        if number % 13 == 0:
            stage.start()
    stage.start()
    state, expected = SchedulerState(), Counter[str]()
    rules = Rules(state)
    for record in stage.journal.records():
        for fact in record.facts:
            apply(state, record.now_s, fact)
        happenings = rules.take(record.now_s, record.facts)
        expected.update(entry.details["text"] for entry in happenings if entry.event in LASTING)
    assert sum(expected.values()) > 5
    assert Counter(stage.texts()) == expected


def test_the_present_is_the_beginning(tmp_path: Path) -> None:
    """A new outbox does not send the past, nor does one after a time without channels."""
    stage = Stage(tmp_path)
    stage.notifier._outbox.close()  # type: ignore[union-attr]
    stage.path.unlink()
    stage.fail_job(1)
    stage.start()
    stage.fail_job(2)
    stage.start()
    assert [text[:5] for text in stage.texts()] == ["job 2"]
    channels, stage.channels = stage.channels, []
    stage.start()
    stage.fail_job(3)
    assert not stage.path.exists()
    stage.channels = channels
    stage.start()
    assert stage.texts() == []


def test_another_journal_is_noticed(tmp_path: Path, wording: Wording) -> None:
    """An outbox beside the journal of another scheduler begins with the present, and says so."""
    stage = Stage(tmp_path)
    stage.fail_job(1)
    stage.start()
    stage.journal = MemoryJournal()
    stage.journal.append(7.0, [f.JobMoved(job="1", move=Move.FAIL)])
    stage.start()
    wording(*stage.notifier.file_warnings())
    stage.start()
    assert list(stage.notifier.file_warnings()) == []


def test_missing_records_are_noticed(tmp_path: Path, wording: Wording) -> None:
    """If the journal has dropped records that the outbox did not cover, a warning says so, and the rest is sent."""
    stage = Stage(tmp_path)
    stage.fail_job(1)
    stage.write()
    for job in (2, 3):
        stage.fail_job(job)
    del stage.journal._records[2:4]
    stage.journal.__class__ = _WithoutFirst
    stage.start()
    assert [text[:5] for text in stage.texts()] == ["job 1", "job 3"]
    wording(*stage.notifier.file_warnings())


class _WithoutFirst(MemoryJournal):
    """A journal whose first records were dropped."""

    @property
    def last_seq(self) -> int:
        """Return the number of the newest record."""
        return self._records[-1].seq

    def scan(self, after: int = 0) -> Any:
        """Yield every record after record `after`."""
        return (record for record in self._records if record.seq > after)


def test_a_full_disk_loses_only_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """While the file cannot be written, events are kept up to the limit, and beyond it counted."""
    stage = Stage(tmp_path)
    monkeypatch.setattr(module, "WAITING_MAX", 3)

    def full(*values: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Outbox, "add", full)
        for job in range(1, 6):
            stage.fail_job(job)
            with pytest.raises(sqlite3.Error):
                stage.write()
        wording(*stage.notifier.file_warnings(), *stage.notifier.warnings())
    stage.write()
    assert [text[:5] for text in stage.texts()] == ["job 3", "job 4", "job 5"]
    assert stage.notifier.waiting("ops") == Waiting(5, 2)


def test_a_file_that_cannot_be_read_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """One line for all channels, though no event has to be written."""
    stage = Stage(tmp_path)
    stage.channels.append(Channel(name="team", url="http://127.0.0.1:1/", for_jobs=True))
    stage.start()

    def malformed(*values: object) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(Outbox, "message", malformed)
    for sender in stage.notifier.senders.values():
        sender.try_step()
    (warning,) = stage.notifier.file_warnings()
    wording(warning)


def test_without_channels_a_file_that_cannot_be_removed_stops_nothing(tmp_path: Path) -> None:
    """Someone may have put a folder in its place."""
    stage = Stage(tmp_path)
    stage.path = tmp_path
    stage.channels.clear()
    stage.start()
    stage.fail_job(1)
    assert list(stage.notifier.file_warnings()) == []


def test_a_message_that_arrived_unnoticed_is_sent_again_with_its_key(tmp_path: Path) -> None:
    """A scheduler that is killed after it sent a message, and before it noted that, repeats it under the same key."""
    with Receiver() as receiver:
        stage = Stage(tmp_path, receiver.url)
        stage.fail_job(1)
        sender = stage.notifier.senders["ops"]
        with pytest.MonkeyPatch.context() as killed:
            killed.setattr(Outbox, "sent", lambda *values: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                sender.step()
        stage.fail_job(2)
        stage.start()
        sender = stage.notifier.senders["ops"]
        while sender.step() == 0.0:
            pass
        first, second = receiver.requests
        assert (first.key, first.body) == (second.key, second.body)
        assert len(stage.texts()) == 1


def test_threads_send_and_stop(tmp_path: Path) -> None:
    """With its threads, the notifier sends by itself; a receiver that hangs does not delay another, nor the stop."""

    async def story() -> None:
        with Receiver() as receiver, Receiver() as dead:
            dead.answers += ["hang"] * 3
            stage = Stage(tmp_path, receiver.url)
            stage.channels.append(Channel(name="dead", url=dead.url, events=("job_failed",)))
            stage.start()
            stage.notifier.start()
            stage.fail_job(1)
            await asyncio.to_thread(dead.wait, 1)
            await asyncio.to_thread(receiver.wait, 1)
            assert await stage.notifier.test("ops", "ann") == ""
            assert receiver.requests[-1].message["text"] == "test of the channel ops by ann"
            await stage.notifier.stop()
            assert not any(sender._thread.is_alive() for sender in stage.notifier.senders.values())
            stage.start()
            assert stage.notifier.waiting("dead") == Waiting(1)

    asyncio.run(story())


def test_a_dead_receiver_is_a_warning(tmp_path: Path, wording: Wording) -> None:
    """`gavel status` says since when a channel fails, why, and how much waits; it names no path of a URL."""
    port = free_port()
    stage = Stage(tmp_path, f"http://127.0.0.1:{port}/secret")
    for job in (1, 2):
        stage.fail_job(job)
    stage.notifier.senders["ops"].step()
    (warning,) = stage.notifier.warnings()
    assert "secret" not in warning
    wording(warning)


def test_an_unknown_channel_is_not_found(tmp_path: Path, wording: Wording) -> None:
    """A test of a channel that does not exist names the nearest one."""
    with pytest.raises(NotFound) as missing:
        asyncio.run(Stage(tmp_path).notifier.test("opps", "ann"))
    wording(missing.value)
