"""Calls that read and command jobs: one job, lists in pages, watching, explanations, logs."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import grpc

from protos.gavel.v1 import cluster_pb2
from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.messages import Exit, Progress
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.status import UNAVAILABLE, CallFailed
from scheduler.live.wire.job_view import stamp
from tests.support.live import DEADLINE_S, Live, problem_of, spec, with_daemon

Code, Command = grpc.StatusCode, pb.CommandJobRequest


async def submitted(live: Live, *specs: pb.JobSpec, user: str = "ann") -> list[str]:
    """Submit these jobs, and return their ids."""
    return list((await live.jobs(user).SubmitJobs(pb.SubmitJobsRequest(specs=specs))).jobs)


async def listed_ids(live: Live, **filter_: Any) -> list[str]:
    """Return the ids of the jobs that match, as listed."""
    listed = await live.jobs().ListJobs(pb.ListJobsRequest(filter=pb.JobFilter(**filter_)))
    assert listed.total == len(listed.jobs)
    return [job.id for job in listed.jobs]


@with_daemon()
async def test_a_job_shows_where_it_runs_and_how_its_last_attempt_failed(live: Live) -> None:
    """A running job shows its placement, an ended one exit code, last lines, time by worker type and cost."""
    await live.node("n1", gpus=2)
    await submitted(live, spec(gpus=2, retries=1, steps=100.0, job_type="cnn"))
    lease = await live.run_job("1")
    job = await live.jobs().GetJob(pb.GetJobRequest(job="1"))
    assert (pb.JOB_STATE_RUNNING, "v100", ["n1:0", "n1:1"], "running", lease) == (
        *(job.state, job.placement.worker_type, list(job.placement.gpus)),
        *(job.placement.phase, job.placement.lease),
    )
    assert job.placement.until.seconds > job.placement.since.seconds
    assert not job.HasField("exit_code")
    for steps, stepping_s in ((10.0, 2.0), (16.0, 4.0)):
        await live.report("n1", progress=(Progress(lease, steps, 0.0, stepping_s),))
        job = await live.jobs().GetJob(pb.GetJobRequest(job="1"))
        assert (steps, {10.0: 5.0, 16.0: 3.0}[steps]) == (job.steps_done, job.placement.rate)
    await live.report("n1", exits=(Exit(lease, "failed", 30.0, 20.0, 5.0, 10.0, 3, "CUDA out of memory"),))
    job = await live.jobs().GetJob(pb.GetJobRequest(job="1"))
    assert (
        *(job.exit_code, job.last_lines, job.failures),
        job.steps_done,
    ) == (3, "CUDA out of memory", 1, 20.0)
    assert dict(job.time_s) == {"v100": 10.0}


@with_daemon()
async def test_an_unknown_job_is_not_found(live: Live) -> None:
    """Every call that takes a job answers NOT_FOUND with the name."""
    jobs = live.jobs()
    for call in (
        jobs.GetJob(pb.GetJobRequest(job="7")),
        jobs.ExplainJob(pb.ExplainJobRequest(job="7")),
        jobs.CommandJob(Command(job="7", action=Command.ACTION_HOLD)),
        jobs.ReadLogs(pb.ReadLogsRequest(job="7")).read(),
        jobs.GetJob(pb.GetJobRequest(job="../../etc/passwd" * 1000)),
        jobs.GetJob(pb.GetJobRequest()),
    ):
        problem = await problem_of(call)
        assert (problem.code, problem.reason) == (Code.NOT_FOUND, "not_found")
        assert len(problem.text) <= 2000


@with_daemon()
async def test_lists_are_filtered_by_everything_at_once(live: Live) -> None:
    """Each part of the filter narrows the list; newest first."""
    await live.node("n1", gpus=1)
    await submitted(live, spec(name="train-1", tenant="org/a", job_type="cnn"))
    await submitted(live, spec(name="train-2", tenant="org/ab", array=[0, 1]), user="bob")
    await submitted(live, spec(name="[x]", tenant="org/a/b"))
    await live.run_job("1")
    assert await listed_ids(live) == ["3", "2_1", "2_0", "1"]
    assert await listed_ids(live, states=[pb.JOB_STATE_RUNNING]) == ["1"]
    assert await listed_ids(live, jobs=["2_1", "1", "99"]) == ["2_1", "1"]
    assert await listed_ids(live, jobs=["2"]) == ["2_1", "2_0"]
    assert await listed_ids(live, user="bob") == ["2_1", "2_0"]
    assert await listed_ids(live, tenant="org/a") == ["3", "1"]
    assert await listed_ids(live, name="train-?") == ["2_1", "2_0", "1"]
    assert await listed_ids(live, name="[x]") == ["3"]
    assert await listed_ids(live, name="TRAIN*") == []
    assert await listed_ids(live, job_type="cnn") == ["1"]
    assert await listed_ids(live, worker_type="v100") == ["1"]
    assert await listed_ids(live, node="n1") == ["1"]
    assert await listed_ids(live, node="n2") == []
    assert await listed_ids(live, submitted_since=stamp(live.world.now_s() + 1.0)) == []
    assert await listed_ids(live, submitted_since=stamp(live.world.state.jobs["3"].submitted_s - 1e-4)) == [
        "3"
    ]
    assert await listed_ids(live, user="bob", job_type="cnn") == []


@with_daemon()
async def test_pages_are_stable_while_jobs_come(live: Live) -> None:
    """Every job comes once, newest first, even if others are submitted between two pages."""
    await submitted(live, *[spec() for _ in range(7)])
    listed, token = [], ""
    for _ in range(4):
        page = await live.jobs().ListJobs(pb.ListJobsRequest(page_size=2, page_token=token))
        listed += [job.id for job in page.jobs]
        token = page.next_page_token
        await submitted(live, spec())
    assert listed == ["7", "6", "5", "4", "3", "2", "1"]
    assert token == ""


@with_daemon()
async def test_page_tokens_are_checked(live: Live) -> None:
    """A foreign token, or one of another filter, is refused by its field; so is a page that is too large."""
    await submitted(live, spec(), spec())
    next_token = (await live.jobs().ListJobs(pb.ListJobsRequest(page_size=1))).next_page_token
    odd = [base64.urlsafe_b64encode(text).decode() for text in (b"[1]", b'["a", 1]', b"[" * 50_000, b"\xff")]
    for token in ("x", "é", "====", *odd):
        problem = await problem_of(live.jobs().ListJobs(pb.ListJobsRequest(page_token=token)))
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "page_token"), token[:20]
    other = pb.ListJobsRequest(page_token=next_token, filter=pb.JobFilter(user="bob"))
    assert "another filter" in (await problem_of(live.jobs().ListJobs(other))).text
    assert (await problem_of(live.jobs().ListJobs(pb.ListJobsRequest(page_size=10_001)))).field == "page_size"
    bad_state = pb.JobFilter(states=[99])  # type: ignore[list-item]
    assert (
        await problem_of(live.jobs().ListJobs(pb.ListJobsRequest(filter=bad_state)))
    ).field == "filter.states"


@with_daemon()
async def test_a_list_of_large_jobs_ends_early_rather_than_failing(live: Live) -> None:
    """Pages of jobs with half a megabyte of arguments stay below the size of a message, and all jobs are reached."""
    large = spec(launch=pb.Launch(command=["x" * 100_000] * 5))
    for _ in range(2):
        await submitted(live, *[large] * 12)
    listed, token = 0, ""
    while True:
        page = await live.jobs().ListJobs(pb.ListJobsRequest(page_token=token))
        assert page.ByteSize() < 9_000_000
        listed, token = listed + len(page.jobs), page.next_page_token
        if not token:
            break
    assert listed == 24
    brief = await live.jobs().ListJobs(pb.ListJobsRequest(brief=True))
    assert (len(brief.jobs), brief.jobs[0].spec.HasField("launch")) == (24, False)


@with_daemon()
async def test_a_watcher_gets_the_present_jobs_and_then_every_change(live: Live) -> None:
    """A watcher gets the current jobs, a mark, then changes; a job that stops matching is sent once more."""
    await submitted(live, spec(name="a"), spec(name="b"))
    job_filter = pb.JobFilter(states=[pb.JOB_STATE_QUEUED], name="a")
    watch = live.jobs().WatchJobs(pb.WatchJobsRequest(filter=job_filter))
    event = await watch.read()
    assert (event.job.id, event.present) == ("1", True)
    assert (await watch.read()).all_present
    await live.jobs().CommandJob(Command(job="2", action=Command.ACTION_HOLD))
    await live.jobs().CommandJob(Command(job="1", action=Command.ACTION_HOLD))
    event = await watch.read()
    assert (event.job.id, event.job.state, event.present) == ("1", pb.JOB_STATE_HELD, False)
    # This change no longer matches the filter.
    await live.jobs().CommandJob(Command(job="1", action=Command.ACTION_CANCEL))
    await submitted(live, spec(name="a"))
    event = await watch.read()
    assert (event.job.id, event.job.state) == ("3", pb.JOB_STATE_QUEUED)
    watch.cancel()


@with_daemon()
async def test_a_watcher_sees_a_job_through_its_whole_life(live: Live) -> None:
    """The watcher gets queued, running and completed, although the lease is gone by the end."""
    watch = live.jobs().WatchJobs(pb.WatchJobsRequest(skip_present=True))
    assert (await watch.read()).all_present
    await submitted(live, spec(steps=10.0))
    assert (await watch.read()).job.state == pb.JOB_STATE_QUEUED
    await live.node("n1")
    lease = await live.run_job("1")
    while (await watch.read()).job.placement.phase != "running":
        pass
    await live.report("n1", exits=(Exit(lease, "finished", 10.0, 10.0, 5.0, 6.0),))
    last = await watch.read()
    assert (last.job.state, last.job.steps_done) == (pb.JOB_STATE_COMPLETED, 10.0)
    watch.cancel()


@with_daemon(config=PeopleConfig(watchers_max=2))
async def test_there_are_only_so_many_watchers(live: Live) -> None:
    """The third watcher is refused until another one has left."""
    watches = [live.jobs().WatchJobs(pb.WatchJobsRequest()) for _ in range(2)]
    for watch in watches:
        await watch.read()
    problem = await problem_of(live.jobs().WatchJobs(pb.WatchJobsRequest()).read())
    assert (problem.code, problem.reason) == (Code.RESOURCE_EXHAUSTED, "too_many")
    watches[0].cancel()
    slots = live.people.watchers
    await live.until(lambda: slots.used == 1)
    again = live.jobs().WatchJobs(pb.WatchJobsRequest())
    assert (await again.read()).all_present
    again.cancel()
    watches[1].cancel()
    await live.until(lambda: slots.used == 0)


@with_daemon()
async def test_jobs_are_commanded_singly_or_as_an_array(live: Live) -> None:
    """Jobs and arrays are held, released, requeued and cancelled; an impossible command is FAILED_PRECONDITION."""
    await live.node("n1", gpus=4)
    await submitted(live, spec(array=[0, 1]), spec())
    jobs = live.jobs()
    done = await jobs.CommandJob(Command(job="1", action=Command.ACTION_HOLD))
    assert list(done.jobs) == ["1_0", "1_1"]
    await jobs.CommandJob(Command(job="1_0", action=Command.ACTION_RELEASE))
    await live.run_job("2")
    drain = cluster_pb2.CommandNodeRequest(node="n1", action=cluster_pb2.CommandNodeRequest.ACTION_DRAIN)
    # On a drained node the requeued job stays queued.
    await live.cluster().CommandNode(drain)
    assert live.world.state.jobs["2"].state.value == "running"
    await jobs.CommandJob(Command(job="2", action=Command.ACTION_REQUEUE))
    states = {job.id: job.state.value for job in live.world.state.jobs.values()}
    assert (states["1_1"], states["2"]) == ("held", "queued")
    await jobs.CommandJob(Command(job="1", action=Command.ACTION_CANCEL))
    problem = await problem_of(jobs.CommandJob(Command(job="1_0", action=Command.ACTION_HOLD)))
    assert (problem.code, problem.reason) == (Code.FAILED_PRECONDITION, "refused")
    for action in (0, 9):
        problem = await problem_of(jobs.CommandJob(Command(job="2", action=action)))  # type: ignore[arg-type]
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "action")


@with_daemon()
async def test_an_explanation_is_for_users_and_programs(live: Live) -> None:
    """The answer has a stable reason, a sentence, and all of it as data."""
    await submitted(live, spec())
    explanation = await live.jobs().ExplainJob(pb.ExplainJobRequest(job="1"))
    assert (explanation.reason, explanation.state, explanation.details["reason"]) == (
        "no_nodes",
        pb.JOB_STATE_QUEUED,
        "no_nodes",
    )
    assert explanation.text in explanation.rendered


@with_daemon()
async def test_logs_come_from_the_agents_and_reading_ends_with_the_reader(live: Live) -> None:
    """The reader's options reach the agent; a reader that hangs up is noticed; trouble is UNAVAILABLE."""
    await submitted(live, spec())
    problem = await problem_of(live.jobs().ReadLogs(pb.ReadLogsRequest(job="1")).read())
    assert (problem.code, problem.reason) == (Code.UNAVAILABLE, "unavailable")
    await live.node("n1")
    await live.run_job("1")
    live.nodes.chunks = [pb.LogChunk(job="1", attempt=1, data=b"\xff\x00step 1\n"), pb.LogChunk(notice="end")]
    read = live.jobs().ReadLogs(pb.ReadLogsRequest(job="1", attempt=1, rank=0, tail_lines=0))
    assert live.nodes.chunks == [chunk async for chunk in read]
    assert live.nodes.asked == [("1", 1, 0, 0, False)]
    follow = live.jobs().ReadLogs(pb.ReadLogsRequest(job="1", follow=True))
    await follow.read()
    assert (live.nodes.open, live.nodes.asked[-1]) == (1, ("1", 0, None, None, True))
    follow.cancel()
    await live.until(lambda: live.nodes.open == 0)
    live.nodes.trouble = CallFailed(UNAVAILABLE, "node n1, which has them, cannot be reached")
    problem = await problem_of(live.jobs().ReadLogs(pb.ReadLogsRequest(job="1")).read())
    assert (Code.UNAVAILABLE, "n1" in problem.text) == (problem.code, True)
    problem = await problem_of(live.jobs().ReadLogs(pb.ReadLogsRequest(job="1", attempt=2)).read())
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "attempt")


@with_daemon()
async def test_files_come_from_the_agents_and_paths_stay_within_their_directory(live: Live) -> None:
    """Paths that lead out and too many files are refused before any agent is asked."""
    await live.node("n1")
    await submitted(live, spec())
    await live.run_job("1")
    live.nodes.lists = [pb.FileList(node="n1", attempt=1, files=[pb.FileEntry(path="a")])]
    live.nodes.pieces = [[pb.FilePiece(data=b"\xff\x00"), pb.FilePiece(end=True)]]
    jobs, pieces = live.jobs(), list(live.nodes.pieces[0])
    assert [each async for each in jobs.ListFiles(pb.ListFilesRequest(job="1"))] == live.nodes.lists
    assert [each async for each in jobs.FetchFiles(pb.FetchFilesRequest(job="1"))] == pieces
    for path in ("../a", "/a", "", "a\0"):
        problem = await problem_of(jobs.ListFiles(pb.ListFilesRequest(job="1", paths=["a", path])).read())
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "paths[1]")
        file = pb.FileWanted(path=path)
        problem = await problem_of(jobs.FetchFiles(pb.FetchFilesRequest(job="1", files=[file])).read())
        assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "files[0]")
    many = [pb.FileWanted(path="a")] * 1001
    problem = await problem_of(jobs.FetchFiles(pb.FetchFilesRequest(job="1", files=many)).read())
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "files")
    problem = await problem_of(jobs.ListFiles(pb.ListFilesRequest(job="1", attempt=2)).read())
    assert (problem.code, problem.field) == (Code.INVALID_ARGUMENT, "attempt")


@with_daemon()
async def test_an_unforeseen_error_shows_a_number_and_nothing_else(live: Live) -> None:
    """The caller gets INTERNAL with a number, under which the log has the error."""
    live.nodes.trouble = RuntimeError("the secret path /etc/x")
    await live.node("n1")
    await submitted(live, spec())
    await live.run_job("1")
    problem = await problem_of(live.jobs().ReadLogs(pb.ReadLogsRequest(job="1")).read())
    assert (problem.code, problem.reason) == (Code.INTERNAL, "internal")
    assert "secret" not in problem.text


@with_daemon()
async def test_ten_thousand_jobs_do_not_stop_the_loop(live: Live) -> None:
    """While a list of 10,000 is built, other calls have a turn every few milliseconds of work."""
    await submitted(live, *[spec(name=f"job-{i}", array=range(100)) for i in range(100)])
    pauses: list[float] = []

    async def beat() -> None:
        while True:
            # The thread's own time: other processes on this machine do not count.
            before_s = time.thread_time()
            await asyncio.sleep(0)
            pauses.append(time.thread_time() - before_s)

    beating = asyncio.create_task(beat())
    page = await live.jobs().ListJobs(pb.ListJobsRequest(page_size=10_000, brief=True), timeout=DEADLINE_S)
    beating.cancel()
    assert (len(page.jobs), page.total) == (10_000, 10_000)
    # The limit for a slow machine; a benchmark has the time on a quiet one.
    assert sorted(pauses)[-3] < 0.5
