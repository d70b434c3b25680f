"""The keeper of a growing journal writes snapshots and compacts, so that the next start reads only a few facts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler.core.core import Core
from scheduler.core.effects import Effect
from scheduler.core.messages import Configure, Message, NodeHello, SubmitJobs
from scheduler.core.state import SchedulerState
from scheduler.drive import drive
from scheduler.journal.compaction import FACT_BYTES, Keeper
from scheduler.journal.errors import AppendFailed
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from tests.support.desk import SETTINGS, job, node
from tests.support.journals import MemoryJournal


class RecordingJournal:
    """A journal that records the calls of its keeper."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.done: list[tuple[str, int]] = []

    def write_snapshot(self, seq: int, payload: bytes) -> None:
        """Record a snapshot."""
        self.done.append(("snapshot", seq))

    def compact(self) -> int:
        """Record a compaction."""
        self.done.append(("compact", self.last_seq))
        return 0

    def grow(self, keeper: Keeper, batches: int, facts: int) -> None:
        """Append this many records of this many facts."""
        for _ in range(batches):
            self.last_seq += 1
            asyncio.run(keeper.batch_done(facts))


def test_a_snapshot_is_due_after_a_number_of_facts() -> None:
    """Facts count, not records, because a record may hold one fact or a thousand."""
    journal = RecordingJournal()
    keeper = Keeper(journal, lambda: b"state", snapshot_facts=100, compact=False)
    journal.grow(keeper, 9, 11)
    assert journal.done == []
    journal.grow(keeper, 1, 1)
    assert journal.done == [("snapshot", 10)]
    journal.grow(keeper, 1, 500)
    assert journal.done == [("snapshot", 10), ("snapshot", 11)]


def test_the_state_becomes_bytes_beside_the_event_loop() -> None:
    """P14: a large state is encoded in another thread, so that reading calls are answered meanwhile."""
    threads: list[threading.Thread] = []

    def snapshot() -> bytes:
        threads.append(threading.current_thread())
        return b"state"

    journal = RecordingJournal()
    journal.grow(Keeper(journal, snapshot, snapshot_facts=1, compact=False), 1, 1)
    assert threads
    assert threading.current_thread() not in threads


def test_facts_that_recovery_had_to_read_count() -> None:
    """Facts read at the start count, so that frequent restarts do not put off the next snapshot for ever."""
    journal = RecordingJournal()
    keeper = Keeper(journal, lambda: b"state", facts=99, snapshot_facts=100, compact=False)
    journal.grow(keeper, 1, 1)
    assert journal.done == [("snapshot", 1)]


def test_a_large_state_is_written_less_often() -> None:
    """After a large snapshot the next one waits until new facts take as much space, so it comes less often."""
    journal = RecordingJournal()
    keeper = Keeper(journal, lambda: bytes(1000 * FACT_BYTES), snapshot_facts=100, compact=False)
    journal.grow(keeper, 1, 100)
    journal.grow(keeper, 9, 100)
    assert journal.done == [("snapshot", 1)]
    journal.grow(keeper, 1, 100)
    assert journal.done == [("snapshot", 1), ("snapshot", 11)]


def test_journals_are_compacted_at_the_start_and_after_each_snapshot() -> None:
    """By default records that two snapshots cover are removed at once."""
    journal = RecordingJournal()
    keeper = Keeper(journal, lambda: b"state", snapshot_facts=10)
    journal.grow(keeper, 1, 10)
    assert journal.done == [("compact", 0), ("snapshot", 1), ("compact", 1)]


def test_a_planned_stop_writes_a_snapshot_only_of_new_records() -> None:
    """At a planned stop no snapshot is written of an empty journal, or if the last one covers every record."""
    journal = RecordingJournal()
    keeper = Keeper(journal, lambda: b"state", compact=False)
    asyncio.run(keeper.write_snapshot())
    journal.grow(keeper, 1, 1)
    asyncio.run(keeper.write_snapshot())
    asyncio.run(keeper.write_snapshot())
    assert journal.done == [("snapshot", 1)]


class Batches:
    """A world that sends a number of batches, and ignores all effects."""

    def __init__(self, batches: int) -> None:
        self.left = batches
        self.performed = 0

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return the next batch."""
        self.left -= 1
        if self.left < 0:
            return None
        return float(self.left == 0), (SubmitJobs(call="c", specs=(job(), job())),)

    def perform(self, effect: Effect) -> None:
        """Count the effect."""
        self.performed += 1


def opened(core: Core, journal: SqliteJournal | MemoryJournal) -> None:
    """Write the first record: settings and a node."""
    outcome = core.handle_all(0.0, (Configure(settings=SETTINGS), NodeHello(spec=node())))
    journal.append(outcome.now_s, outcome.facts)


def test_a_start_reads_few_facts_however_many_were_written(tmp_path: Path) -> None:
    """The loop keeps its journal short; the next process gets the same state from a few facts."""
    path = tmp_path / "journal.db"
    core = Core()
    with SqliteJournal(path, durable=False) as journal:
        opened(core, journal)
        keeper = Keeper(journal, core.state.snapshot, snapshot_facts=50)
        asyncio.run(drive(core, Batches(400), journal, keeper))
        kept = list(journal.records())
    assert sum(len(record.facts) for record in kept) < 250, "two snapshots cover the rest"
    with SqliteJournal(path) as journal:
        recovered = recover_scheduler(journal)
        assert recovered.facts_applied < 100
        assert recovered.report() == []
        assert recovered.state.snapshot() == SchedulerState.restore(core.state.snapshot()).snapshot()
        assert len(recovered.state.jobs) == 800


def test_effects_do_not_wait_for_a_snapshot() -> None:
    """Effects, and so answers to users, do not wait for a snapshot."""
    core, world, journal = Core(), Batches(1), MemoryJournal()
    opened(core, journal)
    performed: list[int] = []

    class LateKeeper:
        async def batch_done(self, facts: int) -> None:
            assert facts == 2
            performed.append(world.performed)

    asyncio.run(drive(core, world, journal, LateKeeper()))
    assert performed == [world.performed]
    assert world.performed > 0


def test_the_event_loop_goes_on_while_a_snapshot_is_written() -> None:
    """The event loop serves agents and readers while a snapshot is written to disk."""
    served = threading.Event()

    class SlowJournal(RecordingJournal):
        def write_snapshot(self, seq: int, payload: bytes) -> None:
            assert served.wait(20.0), "the event loop was blocked"
            super().write_snapshot(seq, payload)

    async def story() -> None:
        keeping = asyncio.ensure_future(Keeper(journal, lambda: b"state", snapshot_facts=1).batch_done(1))
        await asyncio.sleep(0)
        served.set()
        await keeping

    journal = SlowJournal()
    journal.last_seq = 1
    asyncio.run(story())
    assert journal.done == [("compact", 1), ("snapshot", 1), ("compact", 1)]


def test_a_snapshot_that_cannot_be_written_ends_the_loop() -> None:
    """A failed snapshot ends the loop like any failed write, because memory may be ahead of the disk."""
    core, journal = Core(), MemoryJournal()
    opened(core, journal)

    class FullJournal(RecordingJournal):
        def write_snapshot(self, seq: int, payload: bytes) -> None:
            raise AppendFailed("the disk is full")

    full = FullJournal()
    full.last_seq = 1
    keeper = Keeper(full, core.state.snapshot, snapshot_facts=1)
    with pytest.raises(AppendFailed, match="full"):
        asyncio.run(drive(core, Batches(2), journal, keeper))
