"""A power failure takes the end of the write-ahead log of `history.db`; the journal makes up for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from scheduler.core.state import SchedulerState
from scheduler.journal.compaction import Keeper
from scheduler.journal.store import SqliteJournal
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.timeline import Timeline
from tests.live.observe.test_ledger import played
from tests.live.observe.test_timeline import made_again, played_into_one, rows_of
from tests.support.journals import MemoryJournal

# What `PRAGMA synchronous` returns when each commit waits for the disk.
FULL = 2
# How many facts are between two snapshots.
SNAPSHOT_FACTS = 100


@pytest.mark.parametrize("seed", range(7500, 7503))
def test_a_power_failure_takes_no_row(tmp_path: Path, seed: int) -> None:
    """P8: whatever part of the write-ahead log is lost, the journal still has its records, though it is compacted."""
    path, luck, records = tmp_path / "history.db", Random(seed), played(seed)
    log, state, whole = tmp_path / "history.db-wal", SchedulerState(), MemoryJournal()

    async def story() -> None:
        journal = SqliteJournal(tmp_path / "journal.db", durable=False)
        keeper = Keeper(journal, state.snapshot, snapshot_facts=SNAPSHOT_FACTS)
        file = HistoryFile(path)
        timeline = Timeline(file, journal, state, SNAPSHOT_FACTS)
        on_disk, lost = log.stat().st_size, 0
        for number, (now_s, facts) in enumerate(records, 1):
            played_into_one(journal, state, timeline, now_s, facts)
            whole.append(now_s, facts)
            await timeline.write()
            if file.rows("PRAGMA synchronous") == [(FULL,)]:
                on_disk = log.stat().st_size
            await keeper.batch_done(len(facts))
            if number % 30 == 0:
                database, frames = path.read_bytes(), log.read_bytes()
                file.close()
                path.write_bytes(database)
                log.write_bytes(frames[: luck.choice((on_disk, luck.randint(on_disk, len(frames))))])
                file = HistoryFile(path)
                on_disk = log.stat().st_size
                lost += len(rows_of(file)) < len(made_again(whole, state))
                timeline = Timeline(file, journal, state, SNAPSHOT_FACTS)
                assert list(timeline.warnings()) == []
        await timeline.write()
        assert rows_of(file) == made_again(whole, state)
        assert lost > 1
        assert len(list(journal.records())) < len(records) // 2
        journal.close()

    asyncio.run(story())
