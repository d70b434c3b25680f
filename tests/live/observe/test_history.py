"""The scheduler forgets ended jobs and history.db keeps them: users see them, wait for them and depend on them."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.facts import JobsForgotten
from scheduler.core.messages import Exit, Woke
from scheduler.live.config import Keeping
from scheduler.live.wire.job_view import stamp
from scheduler.model.errors import InvalidSpec
from tests.support.journals import MemoryJournal
from tests.support.live import Live, SetClock, problem_of, spec

DAY_S = 86_400.0
START_S = 20_000 * DAY_S
KEEPING = Keeping(keep_jobs_s=DAY_S, keep_keys_s=2 * DAY_S)
LATER = {"earliest_start_s": 1e9}
Code, Command = grpc.StatusCode, pb.CommandJobRequest


def story(folder: Path, **options: Any) -> Live:
    """A daemon that keeps jobs for a day and keys for two."""
    return Live(folder, clock=SetClock(START_S), keeping=KEEPING, **options)


async def passes(live: Live, time_s: float) -> None:
    """Let time pass, and wait until old jobs have been forgotten."""
    live.world.clock.at_s += time_s  # type: ignore[attr-defined]
    await live.people.historian.forget()


async def submitted(live: Live, *specs: pb.JobSpec, key: str = "", user: str = "ann") -> list[str]:
    """Submit these jobs, and return their ids."""
    request = pb.SubmitJobsRequest(specs=specs, idempotency_key=key)
    return list((await live.jobs(user).SubmitJobs(request)).jobs)


async def cancelled(live: Live, *jobs: str) -> None:
    """Cancel these jobs as a user, one after the other, a second apart."""
    for job in jobs:
        live.world.clock.at_s += 1.0  # type: ignore[attr-defined]
        await live.jobs().CommandJob(Command(job=job, action=Command.ACTION_CANCEL))


async def lived(live: Live) -> None:
    """Let job 1 complete on n1, job 2 and the array 3 of two be cancelled; jobs 4 and 5 wait."""
    await live.node("n1", gpus=1)
    await submitted(live, spec(name="done", job_type="cnn", steps=10.0), key="k")
    lease = await live.run_job("1")
    live.world.clock.at_s += 100.0  # type: ignore[attr-defined]
    await live.report("n1", exits=(Exit(lease, "finished", 10.0, 10.0, 90.0, 100.0),))
    await submitted(
        live,
        spec(name="second", user="bob", **LATER),
        spec(array=[0, 1], **LATER),
        spec(name="waits", **LATER),
    )
    await cancelled(live, "2", "3")
    await submitted(live, spec(name="next", job_type="cnn", steps=10.0))
    live.world.clock.at_s += 400.0  # type: ignore[attr-defined]
    # The next allocation drops job 1.
    live.world.send(Woke(what="tick"))
    await live.until(lambda: "1" not in live.world.state.shares.job_row)


async def ended(live: Live, **filters: Any) -> list[str]:
    """Return the ids of ended jobs, as listed."""
    filter_ = pb.JobFilter(**{"ended": True, **filters})
    return [job.id for job in (await live.jobs().ListJobs(pb.ListJobsRequest(filter=filter_))).jobs]


def after_all_that(test: Any, folder: Path, **options: Any) -> None:
    """Run a test on a daemon after the events of `lived`."""

    async def run() -> None:
        async with story(folder, **options) as live:
            await lived(live)
            await test(live)

    asyncio.run(run())


def test_a_forgotten_job_is_shown_as_before(tmp_path: Path) -> None:
    """P14: the state drops jobs a day after their end; show, list, explain and commands answer as before."""

    async def test(live: Live) -> None:
        jobs, state = live.jobs(), live.world.state
        before = {name: await jobs.GetJob(pb.GetJobRequest(job=name)) for name in ("1", "2", "3_0", "3_1")}
        explained = await jobs.ExplainJob(pb.ExplainJobRequest(job="1"))
        assert (list(before["1"].nodes), dict(before["1"].gpu_s)) == (["n1"], {"v100": 100.0})
        await passes(live, DAY_S / 2)
        assert len(state.jobs) == 6
        await passes(live, DAY_S)
        assert sorted(state.jobs) == ["4", "5"]
        assert state.arrays == {}
        for name, job in before.items():
            assert await jobs.GetJob(pb.GetJobRequest(job=name)) == job
        explanation = await jobs.ExplainJob(pb.ExplainJobRequest(job="1"))
        assert (explanation.reason, explanation.text.partition(",")[2]) == (
            explained.reason,
            explained.text.partition(",")[2],
        )
        problem = await problem_of(jobs.CommandJob(Command(job="3", action=Command.ACTION_HOLD)))
        assert (problem.code, problem.reason) == (Code.FAILED_PRECONDITION, "refused")
        listed = await jobs.ListJobs(pb.ListJobsRequest(filter=pb.JobFilter(jobs=["3", "1", "4"])))
        assert ([job.id for job in listed.jobs], listed.total) == (["4", "3_1", "3_0", "1"], 4)
        assert sum(live.people.changes.states.values()) == 2
        problem = await problem_of(jobs.GetJob(pb.GetJobRequest(job="77")))
        assert problem.code == Code.NOT_FOUND

    after_all_that(test, tmp_path)


def test_ended_jobs_are_listed_by_their_end(tmp_path: Path) -> None:
    """Ended jobs, forgotten or not, are listed in pages, latest end first, under every filter."""

    async def test(live: Live) -> None:
        for _ in range(2):
            assert await ended(live) == ["3_1", "3_0", "2", "1"]
            assert await ended(live, node="n1", worker_type="v100") == ["1"]
            assert await ended(live, name="[d]*") == []
            assert await ended(live, name="d*", states=[pb.JOB_STATE_COMPLETED]) == ["1"]
            assert await ended(live, user="bob", jobs=["2", "3"]) == ["2"]
            since = stamp(live.world.state.jobs["4"].submitted_s + 1.5)
            assert await ended(live, ended=False, ended_since=since) == ["3_1", "3_0"]
            await passes(live, 2 * DAY_S)
        filter_, pages, token = pb.JobFilter(ended=True), [], ""
        for _ in range(4):
            request = pb.ListJobsRequest(filter=filter_, page_size=1, page_token=token, brief=True)
            page = await live.jobs().ListJobs(request)
            pages += [job.id for job in page.jobs]
            token = page.next_page_token
        assert (pages, token) == (["3_1", "3_0", "2", "1"], "")
        problem = await problem_of(
            live.jobs().ListJobs(pb.ListJobsRequest(page_token=page.next_page_token or "x"))
        )
        assert problem.code == Code.INVALID_ARGUMENT

    after_all_that(test, tmp_path)


def test_jobs_can_depend_on_forgotten_ones(tmp_path: Path) -> None:
    """A completed job is no obstacle, a cancelled one is refused with its state, and a watcher gets the end."""

    async def test(live: Live) -> None:
        await passes(live, 2 * DAY_S)
        jobs = live.jobs()
        (name,) = await submitted(live, spec(after=[pb.Dependency(job="1")]))
        assert list((await jobs.GetJob(pb.GetJobRequest(job=name))).blocked_by) == []
        ends = pb.Dependency(job="3", when=pb.Dependency.WHEN_ENDED)
        assert await submitted(live, spec(after=[ends])) == [str(int(name) + 1)]
        problem = await problem_of(
            jobs.SubmitJobs(pb.SubmitJobsRequest(specs=[spec(after=[pb.Dependency(job="3")])]))
        )
        assert (problem.field, "cancelled" in problem.text) == ("specs[0].after", True)
        async for event in jobs.WatchJobs(pb.WatchJobsRequest(filter=pb.JobFilter(jobs=["1"]))):
            assert event.job.state == pb.JOB_STATE_COMPLETED
            break

    after_all_that(test, tmp_path)


def test_a_key_outlives_its_jobs_for_a_while(tmp_path: Path) -> None:
    """P2: the same submission again gets the same ids, until its key is older than `keep_keys_s`."""

    async def test(live: Live) -> None:
        again = spec(name="done", job_type="cnn", steps=10.0)
        await passes(live, 1.5 * DAY_S)
        assert "1" not in live.world.state.jobs
        assert await submitted(live, again, key="k") == ["1"]
        await passes(live, DAY_S)
        assert live.world.state.requests == {}
        assert await submitted(live, again, key="k") == ["6"]

    after_all_that(test, tmp_path)


def test_a_job_is_forgotten_only_when_it_is_written(tmp_path: Path) -> None:
    """When the disk is full, the state keeps all jobs and the scheduler continues; later the book catches up."""

    async def test(live: Live) -> None:
        book = live.people.historian.book
        kept, book.add = book.add, _fails  # type: ignore[method-assign]
        try:
            await passes(live, 2 * DAY_S)
        except sqlite3.OperationalError:
            assert len(live.world.state.jobs) == 6
        book.add = kept  # type: ignore[method-assign]
        await passes(live, 0.0)
        assert sorted(live.world.state.jobs) == ["4", "5"]

    after_all_that(test, tmp_path)


def _fails(rows: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_history_is_kept_for_the_configured_time(tmp_path: Path) -> None:
    """A job is in no list any more `keep_history_s` after its end; by default, history is kept without limit."""

    async def run(keeping: Keeping) -> list[str]:
        async with Live(
            tmp_path / str(keeping.keep_history_s), clock=SetClock(START_S), keeping=keeping
        ) as live:
            await lived(live)
            for _ in range(3):
                await passes(live, DAY_S)
            assert sorted(live.world.state.jobs) == ["4", "5"]
            return await ended(live)

    for keep_days, jobs_left in ((0, 4), (2, 0), (4, 4)):
        (tmp_path / str(keep_days * DAY_S)).mkdir()
        keeping = msgspec.structs.replace(KEEPING, keep_history_s=keep_days * DAY_S)
        assert len(asyncio.run(run(keeping))) == jobs_left


@pytest.mark.parametrize(("keep_jobs_s", "keep_history_s"), [(0.0, 5.0), (5.0, 4.0)])
def test_history_is_not_shorter_than_memory(keep_jobs_s: float, keep_history_s: float) -> None:
    """A job that the scheduler still has is in its history, too."""
    with pytest.raises(InvalidSpec) as refused:
        Keeping(keep_jobs_s=keep_jobs_s, keep_history_s=keep_history_s).checked()
    assert refused.value.field == "keep_history_s"


def test_a_lost_book_is_built_again_from_the_state(tmp_path: Path) -> None:
    """A deleted or damaged file is rebuilt with all jobs that are not forgotten; a warning names the file."""
    journal = MemoryJournal()

    async def test(live: Live) -> None:
        assert await ended(live) == ["3_1", "3_0", "2", "1"]

    after_all_that(test, tmp_path, journal=journal)
    for path in tmp_path.glob("history.db*"):
        path.unlink()
    (tmp_path / "history.db").write_bytes(b"no database" * 1000)

    async def later() -> None:
        async with story(tmp_path, journal=journal) as live:
            assert await ended(live) == ["3_1", "3_0", "2", "1"]
            assert "history.db" in next(live.people.historian.warnings())
            await passes(live, 2 * DAY_S)
            assert "2" not in live.world.state.jobs

    asyncio.run(later())
    gone = [fact for _, fact in journal.read() if isinstance(fact, JobsForgotten)]
    assert sorted(name for fact in gone for name in fact.jobs) == ["1", "2", "3_0", "3_1"]


def test_without_a_file_nothing_is_forgotten(tmp_path: Path) -> None:
    """If history.db cannot be opened, jobs run and end, the status warns, and the core keeps all of them."""
    (tmp_path / "history.db").mkdir()

    async def test() -> None:
        async with story(tmp_path) as live:
            await lived(live)
            await passes(live, 2 * DAY_S)
            assert await ended(live) == ["3_1", "3_0", "2", "1"]
            assert {"1", "2"} <= live.world.state.jobs.keys()
            (warning,) = live.people.historian.warnings()
            assert "history.db is not a regular file" in warning

    asyncio.run(test())


def test_jobs_that_cannot_be_written_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another program has locked history.db, the status warns, and the jobs are written later."""

    def locked(*values: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    async def test() -> None:
        async with story(tmp_path) as live:
            historian = live.people.historian
            with monkeypatch.context() as patch:
                patch.setattr(historian.book, "add", locked)
                await lived(live)
                with pytest.raises(sqlite3.Error):
                    await historian.catch_up()
                assert list(historian.warnings()) == [
                    "history.db cannot be written (database is locked); trying again"
                ]
            await historian.catch_up()
            assert list(historian.warnings()) == []
            assert await ended(live) == ["3_1", "3_0", "2", "1"]

    asyncio.run(test())
