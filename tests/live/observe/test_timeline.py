"""Leases of the past: written beside the scheduler, made again from the journal, and read in pages."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.gavel.v1 import history_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.apply import apply
from scheduler.core.facts import Fact
from scheduler.core.messages import Exit, Progress, Woke
from scheduler.core.state import SchedulerState
from scheduler.live.config import Keeping
from scheduler.live.observe import page as page_module
from scheduler.live.observe import timeline as module
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.page import Page
from scheduler.live.observe.timeline import Timeline
from tests.live.observe.test_ledger import played
from tests.support.journals import MemoryJournal
from tests.support.live import Live, SetClock, problem_of, spec
from tests.support.wording import Wording

START_S = 1_800_000_000.0
Code = grpc.StatusCode


def rows_of(file: HistoryFile) -> list[Any]:
    """Return everything that was made from the journal, but for the position."""
    return [row for table in ("lease", "round", "allocation") for row in file.rows(f"SELECT * FROM {table}")]


def played_into(journal: Any, records: Iterable[tuple[float, Sequence[Fact]]]) -> SchedulerState:
    """Append these records to the journal; return the state after them."""
    state = SchedulerState()
    for now_s, facts in records:
        journal.append(now_s, facts)
        for fact in facts:
            apply(state, now_s, fact)
    return state


def without_snapshots(journal: MemoryJournal) -> MemoryJournal:
    """Return a journal with the same records, and no snapshots."""
    copy = MemoryJournal()
    for record in journal.records():
        copy.append(record.now_s, record.facts)
    return copy


def made_again(journal: Any, state: SchedulerState) -> list[Any]:
    """Return the rows that a start with an empty file makes from the journal."""
    file = HistoryFile(None)
    assert list(Timeline(file, journal, state).warnings()) == []
    return rows_of(file)


@pytest.mark.parametrize("seed", range(7000, 7004))
def test_the_file_has_what_the_journal_has(tmp_path: Path, seed: int) -> None:
    """P8: rows written while records arrive equal those made again from the journal, wherever the process is killed."""

    records = played(seed)

    async def story() -> None:
        journal, state, path = MemoryJournal(), SchedulerState(), tmp_path / "history.db"
        file = HistoryFile(path)
        timeline = Timeline(file, journal, state)
        for number, (now_s, facts) in enumerate(records, 1):
            played_into_one(journal, state, timeline, now_s, facts)
            if number % 7 == 0:
                await timeline.write()
            if number % 31 == 0:
                journal.write_snapshot(journal.last_seq, state.snapshot())
            if number % 50 == 0:
                # The process is killed, and the next one continues from the file and the journal.
                file.close()
                file = HistoryFile(path)
                timeline = Timeline(file, journal, state)
                assert list(timeline.warnings()) == []
        await timeline.write()
        assert rows_of(file) == made_again(without_snapshots(journal), state)
        assert len(rows_of(file)) > 20

    asyncio.run(story())


def played_into_one(
    journal: MemoryJournal, state: SchedulerState, timeline: Timeline, now_s: float, facts: Sequence[Fact]
) -> None:
    """Apply one record, make it durable, and hand it to the timeline."""
    for fact in facts:
        apply(state, now_s, fact)
    journal.append(now_s, facts)
    timeline.listen(now_s, facts)


async def turns(live: Live, count: int) -> list[str]:
    """Let job 1 run `count` turns of 100 s on n1, with ten steps in each, of which the last is not saved."""
    leases = []
    for turn in range(1, count + 1):
        lease = await live.run_job("1")
        live.world.clock.at_s += 100.0  # type: ignore[attr-defined]
        steps = 9.0 * (turn - 1) + 10.0
        await live.report("n1", exits=(Exit(lease, "failed", steps, steps - 1.0, 80.0, 100.0, code=3),))
        leases.append(lease)
        live.world.clock.at_s += 1000.0  # type: ignore[attr-defined]
        live.world.send(Woke(what="plan"))
    return leases


def with_turns(count: int, test: Any, folder: Path, **options: Any) -> None:
    """Run a test on a daemon on which job 1 has had `count` turns."""

    async def run() -> None:
        async with Live(folder, clock=SetClock(START_S), **options) as live:
            await live.node("n1", gpus=2)
            job = spec(job_type="cnn", steps=1e6, retries=1000, gpus=2, tenant="org/a")
            await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[job]))
            await test(live, await turns(live, count))

    asyncio.run(run())


async def timeline(live: Live, job: str = "1", **options: Any) -> pb.Timeline:
    """Return a page of the leases of a job."""
    return await live.history().GetTimeline(pb.GetTimelineRequest(job=job, **options))


def test_a_timeline_shows_every_turn(tmp_path: Path) -> None:
    """Each lease has its GPUs, times, steps and end; lost steps are made again; the open lease comes first."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        open_lease = await live.run_job("1")
        await live.report("n1", progress=(Progress(open_lease, 25.0, 20.0, 5.0),))
        live.world.clock.at_s += 50.0  # type: ignore[attr-defined]
        reply = await timeline(live)
        now, *past = reply.leases
        assert [lease.lease for lease in reply.leases] == [open_lease, *reversed(leases)]
        so_far = now.outcome, now.HasField("ended"), now.run_s, now.steps, now.steps_made
        assert so_far == ("", False, 50, 25, 7)
        assert [list(lease.gpus) for lease in past] == [["n1:0", "n1:1"]] * 2
        assert [(lease.outcome, lease.exit_code, lease.run_s, lease.stepping_s) for lease in past] == [
            ("failed", 3, 100.0, 80.0)
        ] * 2
        assert [(lease.attempt, lease.steps, lease.steps_saved, lease.steps_made) for lease in past] == [
            (2, 19.0, 18.0, 10.0),
            (1, 10.0, 9.0, 10.0),
        ]
        assert past[1].started.seconds == START_S
        assert past[1].ended.seconds == START_S + 100

    with_turns(2, test, tmp_path)


def test_pages_have_each_lease_once_while_leases_end(tmp_path: Path) -> None:
    """Leases that end between two pages appear on neither again, and none is missing."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        listed, token = [], ""
        while True:
            page = await timeline(live, page_size=2, page_token=token)
            listed += [lease.lease for lease in page.leases]
            if not (token := page.next_page_token):
                break
            await turns(live, 1)
        waiting = live.world.state.jobs["1"].lease
        assert listed[-5:] == list(reversed(leases))
        assert len(listed) == len(set(listed)) <= 6, waiting

    with_turns(5, test, tmp_path)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_token": "x"}, "page_token"),
        ({"page_token": "W10="}, "page_token"),
        ({"page_size": 10_001}, "page_size"),
        ({"page_size": 2**32 - 1}, "page_size"),
        ({"job": "7"}, ""),
        ({"job": "1\0"}, ""),
        ({"job": "x" * 100_000}, ""),
        ({"job": ""}, ""),
    ],
)
def test_bad_requests_are_refused(tmp_path: Path, fields: dict[str, Any], field: str) -> None:
    """A token of another list, a huge page and an unknown job are refused with the field; none is an internal error."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        problem = await problem_of(timeline(live, **fields))
        assert problem.field == field
        assert problem.code == (Code.INVALID_ARGUMENT if field else Code.NOT_FOUND)

    with_turns(1, test, tmp_path)


def test_a_token_is_valid_for_its_job_only(tmp_path: Path) -> None:
    """A token of another job is refused, and so is one with a number that no database has."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec()]))
        token = (await timeline(live, page_size=1)).next_page_token
        problem = await problem_of(timeline(live, job="2", page_token=token))
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "page_token")
        page = Page(pb.GetTimelineRequest(job="1"), "")
        for number in (1e300, 10**400, -(2**63)):
            problem = await problem_of(timeline(live, page_token=page.token(number)))
            assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "page_token")

    with_turns(3, test, tmp_path)


def test_a_full_disk_stops_nothing(tmp_path: Path, wording: Wording) -> None:
    """While the file cannot be written, jobs run, older leases are shown, and the status has a warning."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        await live.people.historian.timeline.write()
        kept, module.add = module.add, _fails
        try:
            later = await turns(live, 1)
            assert [lease.lease for lease in (await timeline(live)).leases][-2:] == list(reversed(leases))
            (warning,) = live.people.historian.timeline.warnings()
            wording(warning)
        finally:
            module.add = kept
        assert [lease.lease for lease in (await timeline(live)).leases][-3:] == [*later, *reversed(leases)]
        assert list(live.people.historian.timeline.warnings()) == []

    with_turns(2, test, tmp_path)


def _fails(*arguments: Any, **options: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_rows_that_memory_cannot_keep_are_made_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A disk that stays full costs no row: the next start reads the journal from the last record that was written."""

    records = played(7100)

    async def story() -> None:
        monkeypatch.setattr(module, "ROWS_MAX", 3)
        journal, state = MemoryJournal(), SchedulerState()
        file = HistoryFile(tmp_path / "history.db")
        timeline = Timeline(file, journal, state)
        for number, (now_s, facts) in enumerate(records):
            with monkeypatch.context() as patch:
                if number > len(records) // 2:
                    patch.setattr(module, "add", _fails)
                played_into_one(journal, state, timeline, now_s, facts)
                with suppress(sqlite3.Error):
                    await timeline.write()
        assert len(rows_of(file)) < len(made_again(journal, state))
        wording("\n".join(timeline.warnings()))
        file.close()
        file = HistoryFile(tmp_path / "history.db")
        assert list(Timeline(file, journal, state).warnings()) == []
        assert rows_of(file) == made_again(journal, state)

    asyncio.run(story())


def test_a_disk_that_is_full_at_the_start_costs_no_row(wording: Wording) -> None:
    """Rows that a start cannot write are made by the next one, though later rows could be written meanwhile."""
    records = played(7150)
    half = len(records) // 2

    async def story() -> None:
        file, journal = HistoryFile(None), MemoryJournal()
        state = played_into(journal, records[:half])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "add", _fails)
            timeline = Timeline(file, journal, state)
        for now_s, facts in records[half:]:
            played_into_one(journal, state, timeline, now_s, facts)
        await timeline.write()
        wording("\n".join(timeline.warnings()))
        assert list(Timeline(file, journal, state).warnings()) == []
        assert rows_of(file) == made_again(journal, state)

    asyncio.run(story())


def test_old_leases_are_deleted(tmp_path: Path) -> None:
    """Leases leave the file `keep_leases_s` after their end, and not before."""

    async def test(live: Live, leases: Sequence[str]) -> None:
        now_s = live.world.now_s()
        for passed_s, left in ((0.0, 3), (1000.0, 3), (1100.0, 2), (10_000.0, 0)):
            live.world.clock.at_s = now_s + passed_s  # type: ignore[attr-defined]
            await live.people.historian.timeline.write()
            await live.people.historian.prune_leases()
            page = await timeline(live)
            assert sum(lease.HasField("ended") for lease in page.leases) == left

    with_turns(3, test, tmp_path, keeping=Keeping(keep_leases_s=4300.0))


def test_a_page_fits_into_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of large leases ends early, and the next one continues."""
    monkeypatch.setattr(page_module, "PAGE_BYTES_MAX", 300)

    async def test(live: Live, leases: Sequence[str]) -> None:
        listed, token, pages = [], "", 0
        while pages == 0 or token:
            page = await timeline(live, page_token=token)
            assert 1 <= len(page.leases) <= 3
            listed += [lease.lease for lease in page.leases]
            token, pages = page.next_page_token, pages + 1
        assert listed[-5:] == list(reversed(leases))
        assert (len(set(listed)), pages > 2) == (len(listed), True)

    with_turns(5, test, tmp_path)
