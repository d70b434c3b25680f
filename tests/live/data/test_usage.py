"""The books of GPU time: exact over restarts, crashes and a lost file; by day; with running jobs."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.gavel.v1 import cluster_pb2 as pb
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Exit
from scheduler.live.data.usage import DAY_S, Usage
from scheduler.live.wire.job_view import stamp
from tests.support.journals import MemoryJournal
from tests.support.live import Live, SetClock, problem_of, spec, with_daemon

MIDNIGHT_S = 20_000 * DAY_S


async def used(live: Live, **query: Any) -> dict[str, tuple[dict[str, float], float, int, int, int]]:
    """Return the usage by group."""
    usage = await live.cluster().GetUsage(pb.GetUsageRequest(**query))
    return {row.who: (dict(row.gpu_s), row.cost, row.jobs, row.completed, row.failed) for row in usage.rows}


async def lived(live: Live) -> None:
    """Let two jobs run: one completes after 100 s on two GPUs, one fails after 50 s on one."""
    await live.node("n1", gpus=3)
    # One GPU second costs a hundredth.
    live.world.state.prices["v100"] = 36.0
    specs = [
        spec(gpus=2, tenant="org/a", job_type="cnn", steps=10.0),
        spec(user="bob", tenant="org/b", job_type="cnn", steps=10.0),
    ]
    await live.jobs("ann").SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs))
    first, second = await live.run_job("1"), await live.run_job("2")
    live.world.clock.at_s += 100.0  # type: ignore[attr-defined]
    await live.report("n1", exits=(Exit(first, "finished", 10.0, 10.0, 90.0, 100.0),))
    await live.report("n1", exits=(Exit(second, "failed", 5.0, 5.0, 40.0, 50.0, 1),))


WHOLE = {"ann": ({"v100": 200.0}, 2.0, 1, 1, 0), "bob": ({"v100": 50.0}, 0.5, 1, 0, 1)}


def story(tmp_path: Path, at_s: float = MIDNIGHT_S + 1000.0, **options: Any) -> Live:
    """A daemon at this time."""
    return Live(tmp_path, clock=SetClock(at_s), **options)


def test_usage_is_counted_by_user_tenant_and_job_type(tmp_path: Path) -> None:
    """GPU seconds by worker type, cost, jobs and how they ended."""

    async def run() -> None:
        async with story(tmp_path) as live:
            await lived(live)
            assert await used(live) == WHOLE
            assert {"org/a", "org/b"} == set(await used(live, by=pb.GetUsageRequest.BY_TENANT))
            assert await used(live, by=pb.GetUsageRequest.BY_JOB_TYPE) == {
                "cnn": ({"v100": 250.0}, 2.5, 2, 1, 1)
            }
            assert {"bob": WHOLE["bob"]} == await used(live, user="bob")

    asyncio.run(run())


def test_usage_is_exact_after_restarts_and_when_its_file_is_lost(tmp_path: Path) -> None:
    """Each GPU second counts once, whenever it was booked. A lost file is rebuilt from the jobs."""
    journal = MemoryJournal()

    async def run() -> None:
        async with story(tmp_path, journal=journal) as live:
            await lived(live)
        for _ in range(2):
            async with story(tmp_path, journal=journal) as live:
                assert WHOLE["ann"][0] == (await used(live))["ann"][0]
        for path in tmp_path.glob("usage.db*"):
            path.unlink()
        async with story(tmp_path, journal=journal) as live:
            again = await used(live)
            assert [row[0] for row in WHOLE.values()] == [row[0] for row in again.values()]
            assert [row[2:] for row in WHOLE.values()] == [row[2:] for row in again.values()]

    asyncio.run(run())


def test_a_start_compares_only_jobs_that_may_not_be_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that had ended when the books were last written are final, and are not compared again."""
    journal, compared = MemoryJournal(), list[str]()

    async def run() -> None:
        async with story(tmp_path, journal=journal) as live:
            await lived(live)
            live.world.clock.at_s += 1.0  # type: ignore[attr-defined]
            await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec(), spec()]))
        write = Usage._write_entry
        monkeypatch.setattr(Usage, "_write_entry", lambda self, e: (compared.append(e.job), write(self, e)))
        async with story(tmp_path, journal=journal):
            pass
        assert sorted(set(compared)) == ["3", "4"]

    asyncio.run(run())


def test_time_that_a_crash_left_unbooked_is_booked_at_the_next_start(tmp_path: Path) -> None:
    """So is the time of a job that was cancelled but still stopping when the books were last written."""
    journal, usage = MemoryJournal(), tmp_path / "usage.db"

    async def run() -> None:
        async with story(tmp_path, journal=journal) as live:
            await live.node("n1", gpus=1)
            await live.jobs("ann").SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec(steps=10.0)]))
            lease = await live.run_job("1")
            live.world.clock.at_s += 100.0  # type: ignore[attr-defined]
            cancel = jobs_pb2.CommandJobRequest(job="1", action=jobs_pb2.CommandJobRequest.ACTION_CANCEL)
            await live.jobs("ann").CommandJob(cancel)
            live.world.clock.at_s += 5.0  # type: ignore[attr-defined]
            await live.node("n2", gpus=1)
            await live.people.usage.catch_up()
            with sqlite3.connect(usage) as books:
                before = list(books.iterdump())
            await live.report("n1", exits=(Exit(lease, "yielded", 5.0, 5.0, 90.0, 105.0),))
        for path in tmp_path.glob("usage.db*"):
            path.unlink()
        with sqlite3.connect(usage) as books:
            books.executescript("".join(before))
        async with story(tmp_path, MIDNIGHT_S + 2000.0, journal=journal) as live:
            assert (await used(live))["ann"][0] == {"v100": 105.0}

    asyncio.run(run())


def test_a_full_disk_at_the_end_costs_no_time_and_hides_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that stops while the disk is full stops as usual; the next one books the rest."""
    journal = MemoryJournal()

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def run() -> None:
        with monkeypatch.context() as while_full:
            while_full.setattr(Usage, "_write", full)
            async with story(tmp_path, journal=journal) as live:
                await lived(live)
        async with story(tmp_path, journal=journal) as live:
            assert WHOLE["ann"][0] == (await used(live))["ann"][0]

    asyncio.run(run())


def test_time_over_midnight_is_booked_on_both_days(tmp_path: Path) -> None:
    """100 s that end 40 s after midnight: 60 on one day, 40 on the next."""

    async def run() -> None:
        async with story(tmp_path, MIDNIGHT_S - 60.0) as live:
            await lived(live)
            before = await used(live, until=stamp(MIDNIGHT_S))
            after = await used(live, since=stamp(MIDNIGHT_S))
            assert pytest.approx(120.0, abs=1.0) == before["ann"][0]["v100"]
            assert pytest.approx(80.0, abs=1.0) == after["ann"][0]["v100"]
            assert (before["ann"][2], before["ann"][3], after["ann"][2], after["ann"][3]) == (1, 0, 0, 1)
            assert await used(live, since=stamp(MIDNIGHT_S + 2 * DAY_S)) == {}

    asyncio.run(run())


def test_a_running_job_is_counted_up_to_now(tmp_path: Path) -> None:
    """A lease that is not over counts with the time that it has had."""

    async def run() -> None:
        async with story(tmp_path) as live:
            await live.node("n1", gpus=2)
            await live.jobs("ann").SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec(gpus=2)]))
            await live.run_job("1")
            live.world.clock.at_s += 30.0  # type: ignore[attr-defined]
            assert (await used(live))["ann"] == ({"v100": 60.0}, 0.0, 1, 0, 0)

    asyncio.run(run())


@with_daemon()
async def test_times_that_make_no_sense_are_refused(live: Live) -> None:
    """A period that ends before it begins, and an unknown grouping, are refused by their field."""
    wrong = pb.GetUsageRequest(since=stamp(10.0), until=stamp(5.0))
    assert (await problem_of(live.cluster().GetUsage(wrong))).field == "until"
    problem = await problem_of(live.cluster().GetUsage(pb.GetUsageRequest(by=9)))  # type: ignore[arg-type]
    assert (problem.code, problem.field) == (grpc.StatusCode.INVALID_ARGUMENT, "by")
