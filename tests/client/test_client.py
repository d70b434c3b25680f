"""Both clients against a real daemon: every call, lost connections, and refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gavel import AsyncClient, Client, JobFilter, JobSpec
from gavel.client import errors as e
from gavel.client.calls import Call
from gavel.client.results import JobState, NodeState, Role
from gavel.client.transport.channels import user_name
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Exit, Progress
from tests.support.live import DEADLINE_S
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

RUN = JobSpec(command=("true",), steps=100.0)


@pytest.fixture
def client(live: LiveThread) -> Any:
    """A client of the daemon."""
    with Client(live.address, retry_s=5.0) as client:
        yield client


def finish(live: LiveThread, job: str, outcome: str = "finished", code: int = 0) -> None:
    """Run the job on n1 and let it end with this outcome and exit code."""
    lease = live.do(live.daemon.run_job(job))
    live.do(
        live.daemon.report("n1", exits=(Exit(lease, outcome, 100.0, 100.0, 5.0, 6.0, code, "the last line"),))
    )


def test_a_job_from_submission_to_its_end(live: LiveThread, client: Client) -> None:
    """A job is submitted, runs with a place and rate, is waited for, and its end has every figure."""
    (job,) = client.submit(RUN)
    lease = live.do(live.daemon.run_job(job))
    live.do(live.daemon.report("n1", progress=(Progress(lease, 40.0, 20.0, 4.0),)))
    running = client.get(job)
    assert (JobState.RUNNING, "v100", ("n1",), 0.4, user_name()) == (
        *(
            running.state,
            running.placement and running.placement.worker_type,
            running.placement and running.placement.nodes,
        ),
        *(running.progress, running.spec.user),
    )
    assert client.explain(job).reason in ("running", "exploring", "running_backfill")
    changes: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, job, on_change=changes.append)
        live.do(live.daemon.report("n1", exits=(Exit(lease, "finished", 100.0, 100.0, 9.0, 10.0, 0),)))
        (done,) = waiting.result(DEADLINE_S)
    assert (done.state, done.progress, done.time_s) == (JobState.COMPLETED, 1.0, {"v100": 10.0})
    assert done.submitted
    assert done.ended
    assert done.submitted <= done.ended
    assert changes[-1].state is JobState.COMPLETED


def test_the_same_key_gives_the_same_jobs(client: Client) -> None:
    """Another job under a used key is a conflict; without a key each submission is a new job."""
    first = client.submit([RUN, RUN], key="k")
    assert first == client.submit([RUN, RUN], key="k")
    with pytest.raises(e.Conflict) as raised:
        client.submit(RUN, key="k")
    assert raised.value.reason == "key_reused"
    assert client.submit(RUN) != client.submit(RUN)


def test_a_refusal_of_a_job_file_names_the_line(client: Client, tmp_path: Path, wording: Wording) -> None:
    """A refusal names the line of the field, and no job of the file is submitted."""
    path = tmp_path / "jobs.yaml"
    path.write_text("command: [true]\ngpus: 1\n---\ncommand: [true]\n\ngpus: 200\n")
    with pytest.raises(e.InvalidJob, match=r"jobs\.yaml: line 6: gpus: .* 200 ") as raised:
        client.submit(path)
    assert (raised.value.field, raised.value.line) == ("gpus", 6)
    wording(raised.value, folder=tmp_path)
    assert list(client.list()) == []
    path.write_text("command: [true]\narray: 0-2\n")
    assert client.submit(str(path)) == ("1_0", "1_1", "1_2")


def test_a_work_directory_is_sent_once(live: LiveThread, client: Client, tmp_path: Path) -> None:
    """The directory is packed, sent and named by its hash; a second submission finds it on the scheduler."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("x" * 3_000_000)
    (folder / "noise").write_bytes(bytes(range(256)) * 10_000)
    spec = JobSpec(command=("python", "train.py"), upload=True, workdir=str(folder))
    stages: list[str] = []
    (first,) = client.submit(spec, progress=lambda stage, done, total: stages.append(stage))
    assert "sending" in stages
    stages.clear()
    (second,) = client.submit(spec, progress=lambda stage, done, total: stages.append(stage))
    assert set(stages) == {"packing"}
    packages = {client.get(job).spec.package for job in (first, second)}
    assert len(packages) == 1
    assert live.daemon.people.packages.has(packages.pop())
    (preview,) = client.preview(spec)
    assert preview.accepted


def test_lists_go_through_all_pages(client: Client) -> None:
    """`list` returns every job whatever the size of a page; filters narrow it."""
    client.submit([RUN] * 5 + [JobSpec(command=("a",), name="other", tenant="org/a")])
    assert [job.id for job in client.list(page_size=2)] == ["6", "5", "4", "3", "2", "1"]
    assert [job.id for job in client.list(JobFilter(tenant="org"))] == ["6"]
    page = client.page(size=4)
    assert (len(page.jobs), page.total) == (4, 6)
    assert [job.id for job in client.page(size=4, token=page.next_page_token).jobs] == ["2", "1"]
    (brief,) = client.list(JobFilter(name="oth*"), brief=True)
    assert brief.spec.command == ()


def test_many_jobs_are_previewed_in_parts(client: Client) -> None:
    """More jobs than the scheduler previews in one call are previewed in order."""
    specs = [JobSpec(command=("a",), gpus=200 if at == 100 else 1) for at in range(101)]
    assert [preview.accepted for preview in client.preview(specs)] == [True] * 100 + [False]


def test_commands(live: LiveThread, client: Client, wording: Wording) -> None:
    """Jobs are held, released, requeued and cancelled; an impossible change is refused."""
    (busy,) = client.submit(JobSpec(command=("a",), gpus=2))
    live.do(live.daemon.run_job(busy))
    # All GPUs are busy, so this job waits.
    (job,) = client.submit(JobSpec(command=("a",), after=()))
    assert ((job,), JobState.HELD) == (client.hold(job), client.get(job).state)
    assert ((job,), JobState.QUEUED) == (client.release(job), client.get(job).state)
    assert (busy,) == client.requeue(busy)
    assert ((job,), JobState.CANCELLED) == (client.cancel(job), client.get(job).state)
    with pytest.raises(e.Refused):
        client.hold(job)
    with pytest.raises(e.NotFound, match="'99'") as raised:
        client.cancel("99")
    wording(raised.value)


def test_the_cluster(client: Client) -> None:
    """Status, nodes, policy, allocation, rounds, usage, prices and rates are read, and some are changed."""
    client.submit(RUN)
    status = client.status()
    assert (1, 2, {"queued", "running"} & set(status.jobs) != set()) == (status.nodes, status.gpus, True)
    (node,) = client.nodes(["n1"])
    assert (node.state, len(node.gpus)) == (NodeState.UP, 2)
    assert (client.drain("n1").state, client.resume("n1").state) == (NodeState.DRAINING, NodeState.UP)
    with pytest.raises(e.NotFound):
        client.nodes(["zz"])
    assert "fifo" in client.policy().available
    assert client.set_policy("las+packing").policy == "las+packing"
    with pytest.raises(e.Invalid, match="'nix'"):
        client.set_policy("nix")
    assert client.allocation().policy
    (round_,) = client.rounds(follow=False)
    assert round_.number >= 0
    assert client.usage("tenant") is not None
    assert client.set_prices({"v100": 2.5})["v100"] == 2.5
    assert client.rates() == () or client.rates()[0].steps_per_s > 0
    assert (user_name(), Role.ADMIN) == (client.who_am_i().user, client.who_am_i().role)


def test_watching(live: LiveThread, client: Client) -> None:
    """A watch yields the present jobs, then each change, until the caller closes it."""
    client.submit(RUN)
    events = client.watch()
    first = next(events)
    assert first.present
    assert first.job
    assert first.job.id == "1"
    assert next(event for event in events if event.all_present).job is None
    client.submit(RUN)
    assert next(event for event in events if event.job and event.job.id == "2").present is False
    events.close()  # type: ignore[attr-defined]


def test_logs(live: LiveThread, client: Client, wording: Wording) -> None:
    """Logs are returned unchanged; those of a job that has not run are refused, not called unreachable."""
    # The job cannot be held after its submission, because idle GPUs are granted at once.
    (later,) = client.submit(JobSpec(command=("a",), earliest_start_s=86_400.0))
    with pytest.raises(e.Refused) as raised:
        list(client.logs(later))
    wording(raised.value)
    (job,) = client.submit(JobSpec(command=("a",), nodes=("n1",)))
    live.do(live.daemon.run_job(job))
    live.daemon.nodes.chunks = [jobs_pb2.LogChunk(job=job, attempt=1, data=b"hello\n", node="n1")]
    (chunk,) = client.log_chunks(job, tail=5)
    assert (chunk.data, chunk.node, chunk.attempt) == (b"hello\n", "n1", 1)
    assert live.daemon.nodes.asked[-1] == (job, 0, None, 5, False)


def test_following_logs_across_a_lost_connection(live: LiveThread, client: Client) -> None:
    """Each byte is returned once, although the node sends the log from its beginning again."""
    (job,) = client.submit(RUN)
    live.do(live.daemon.run_job(job))
    nodes = live.daemon.nodes

    async def read(*arguments: Any) -> Any:
        nodes.asked.append(arguments)
        yield jobs_pb2.LogChunk(job=job, attempt=1, data=b"one\n")
        if len(nodes.asked) == 1:
            from scheduler.live.feed import FellBehind

            raise FellBehind
        yield jobs_pb2.LogChunk(job=job, attempt=1, offset=4, data=b"two\n")

    nodes.read_logs = read  # type: ignore[method-assign]
    assert [chunk.data for chunk in client.log_chunks(job, follow=True)] == [b"one\n", b"two\n"]
    assert len(nodes.asked) == 2


def test_waiting_has_a_limit(client: Client) -> None:
    """After the limit, TimeoutError is raised and the job continues; a job that does not exist is an error at once."""
    (job,) = client.submit(RUN)
    with pytest.raises(TimeoutError):
        client.wait(job, timeout_s=0.2)
    assert not client.get(job).state.is_final
    with pytest.raises(e.NotFound):
        client.wait([job, "99"])
    assert client.wait([]) == ()


def test_a_failed_job_has_its_last_lines(live: LiveThread, client: Client) -> None:
    """The result of a failed job has its exit code and last lines."""
    (job,) = client.submit(RUN)
    finish(live, job, "failed", 3)
    (done,) = client.wait(job)
    assert (done.state, done.exit_code, done.last_lines) == (JobState.FAILED, 3, "the last line")


def test_a_value_that_does_not_fit_is_refused_before_the_call(client: Client, wording: Wording) -> None:
    """A negative number of GPUs, or text for a number, is an error about the field."""
    for wrong in ({"gpus": -1}, {"steps": "many"}, {"gpus": 2**40}, {"ranks": "all"}):
        with pytest.raises(e.InvalidJob, match=f"^{next(iter(wrong))}: ") as raised:
            client.submit(JobSpec(command=("a",), **wrong))  # type: ignore[arg-type]
        wording(raised.value)
    with pytest.raises(e.InvalidJob) as raised:
        client.submit([])
    wording(raised.value)
    for jobs in ([{"command": ["a"]}], {"command": ["a"]}, 17):
        with pytest.raises(e.InvalidJob, match=r"^jobs: ") as raised:
            client.submit(jobs)  # type: ignore[arg-type]
        wording(raised.value)


def test_a_wrong_filter(client: Client, wording: Wording) -> None:
    """A list of jobs, as `wait` takes it, is not a filter, and text is not a list."""
    with pytest.raises(e.Invalid, match=r"^wanted: ") as raised:
        next(client.watch(["1"]))  # type: ignore[arg-type]
    wording(raised.value)
    with pytest.raises(e.Invalid, match=r"^jobs: .*'17'") as raised:
        client.page(JobFilter(jobs="17"))
    wording(raised.value)
    with pytest.raises(e.Invalid, match=r"^wanted: "):
        client.page(JobFilter(user=3))  # type: ignore[arg-type]


def test_a_preview_names_fields_as_errors_do(client: Client) -> None:
    """A preview has the name of the field in the job file, not in the protocol."""
    (preview,) = client.preview(JobSpec(command=("a",), venv="v"))
    assert (preview.refused_field, preview.text[:15]) == ("venv", "refused: venv: ")


# ----------------------------------------------------------------------------------------- the asynchronous client


def with_async(story: Callable[[AsyncClient, LiveThread], Awaitable[None]]) -> Callable[[LiveThread], None]:
    """Make a test of a story with an asynchronous client."""

    def test(live: LiveThread) -> None:
        async def run() -> None:
            async with AsyncClient(live.address, retry_s=5.0) as client:
                await asyncio.wait_for(story(client, live), DEADLINE_S)

        asyncio.run(run())

    test.__doc__, test.__name__ = story.__doc__, story.__name__
    return test


@with_async
async def test_calls_without_blocking(client: AsyncClient, live: LiveThread) -> None:
    """Submit, list, watch, wait and logs work as in the synchronous client, and do not block other tasks."""
    (job,) = await client.submit(RUN)
    assert [job] == [listed.id async for listed in client.list(page_size=1)]
    waiting = asyncio.create_task(client.wait(job))
    async for event in client.watch():
        assert event.job is not None
        assert event.job.id == job
        break
    await asyncio.to_thread(finish, live, job)
    (done,) = await waiting
    assert done.state is JobState.COMPLETED
    live.daemon.nodes.chunks = [jobs_pb2.LogChunk(job=job, attempt=1, data=b"x")]
    assert [chunk.data async for chunk in client.log_chunks(job)] == [b"x"]
    with pytest.raises(e.NotFound):
        await client.get("99")
    (other,) = await client.submit(RUN)
    with pytest.raises(TimeoutError):
        await client.wait(other, timeout_s=0.1)


@with_async
async def test_uploads_without_blocking(client: AsyncClient, live: LiveThread) -> None:
    """A directory is packed in a thread and sent as a stream."""
    folder = live.daemon.folder / "code"
    folder.mkdir()
    (folder / "a.py").write_text("x")
    (job,) = await client.submit(JobSpec(command=("a",), upload=True, workdir=str(folder)))
    assert (await client.get(job)).spec.package.startswith("sha256:")


def test_the_path_of_a_call() -> None:
    """The path of a call is the one that gRPC uses."""
    assert Call("Jobs/GetJob", None, jobs_pb2.Job, lambda reply: reply).path == "/gavel.v1.Jobs/GetJob"
