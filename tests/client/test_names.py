"""Names instead of ids, in both clients: which job a name means, and the lists that need several calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gavel import AsyncClient, Client, JobFilter, JobSpec
from gavel.client import errors as e
from gavel.client.queue import Queue
from gavel.client.results import JobState
from gavel.client.views import display
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Exit
from tests.client.test_client import finish
from tests.support.live import DEADLINE_S
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

Call = Callable[..., Any]
# Jobs that wait until the test ends.
LATER = {"command": ("true",), "earliest_start_s": 86_400.0}


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, live: LiveThread) -> Iterator[Call]:
    """Call a method of either client by its name; streams become lists."""
    if request.param == "sync":
        with Client(live.address) as client:

            def sync(name: str, *arguments: Any, **options: Any) -> Any:
                result = getattr(client, name)(*arguments, **options)
                return list(result) if inspect.isgenerator(result) else result

            yield sync
        return

    async def run(name: str, arguments: Any, options: Any) -> Any:
        async with AsyncClient(live.address) as client:
            result = getattr(client, name)(*arguments, **options)
            return [entry async for entry in result] if inspect.isasyncgen(result) else await result

    yield lambda name, *arguments, **options: asyncio.run(
        asyncio.wait_for(run(name, arguments, options), DEADLINE_S)
    )


def end(live: LiveThread, lease: str) -> None:
    """Report that a job's run under this lease has finished."""
    live.do(live.daemon.report("n1", exits=(Exit(lease, "finished", 1.0, 1.0, 1.0, 1.0, 0),)))


def test_every_call_takes_a_name(live: LiveThread, call: Call) -> None:
    """A name works in each call that takes the id of a job."""
    call("submit", JobSpec(name="train", **LATER))
    assert call("get", "train").id == "1"
    assert [job.id for job in call("members", "train")] == ["1"]
    assert call("explain", "train").job == "1"
    assert call("hold", "train") == call("release", "train") == call("update", "train", weight=2) == ("1",)
    assert [job.id for job in call("list", JobFilter(jobs=["train"]))] == ["1"]
    assert call("page", JobFilter(jobs=["train"])).total == 1
    assert [job.id for job in call("queue", JobFilter(jobs=["train"]))] == ["1"]
    call("submit", JobSpec(command=("true",), name="now"))
    lease = live.do(live.daemon.run_job("2"))
    live.daemon.nodes.chunks = [jobs_pb2.LogChunk(job="2", attempt=1, data=b"a\nb")]
    assert call("logs", "now") == ["a", "b"]
    assert [chunk.data for chunk in call("log_chunks", "now")] == [b"a\nb"]
    assert call("requeue", "now") == ("2",)
    assert lease
    assert call("cancel", "now") == ("2",)
    assert call("cancel", "train") == ("1",)
    assert [job.id for job in call("wait", ["train", "1"])] == ["1"]


def test_the_unfinished_job_of_a_name_is_meant(live: LiveThread, call: Call, wording: Wording) -> None:
    """Ended jobs of the same name are meant only if no other has it; several jobs are refused with their ids."""
    for _ in range(2):
        call("submit", JobSpec(command=("true",), name="train"))
    for job in ("1", "2"):
        finish(live, job)
    with pytest.raises(e.NotFound) as raised:
        call("get", "train")
    assert raised.value.reason == "ambiguous"
    wording(raised.value)
    call("submit", JobSpec(name="train", **LATER))
    assert call("get", "train").id == "3"


def test_names_that_mean_nothing(call: Call, wording: Wording) -> None:
    """An unknown name, an empty one and a number are errors that name what is wrong; patterns are no names."""
    call("submit", JobSpec(name="train", **LATER))
    for wrong, kind in (("trai", e.NotFound), ("tr*", e.NotFound), ("", e.Invalid), (1, e.Invalid)):
        with pytest.raises(kind) as raised:
            call("cancel", wrong)
        wording(raised.value)
    with pytest.raises(e.NotFound):
        call("wait", ["1", "nix"])
    assert call("get", "1").state is not JobState.CANCELLED


def test_the_name_of_an_array(call: Call, wording: Wording) -> None:
    """An array has members; what only a job has is refused."""
    call("submit", JobSpec(name="sweep", array=(3, 1), **LATER))
    assert [job.id for job in call("members", "sweep")] == ["1_1", "1_3"]
    assert sorted(call("hold", "sweep")) == ["1_1", "1_3"]
    with pytest.raises(e.NotFound) as raised:
        call("get", "sweep")
    wording(raised.value)


def test_the_queue(live: LiveThread, call: Call) -> None:
    """A queue has the caller's unfinished jobs, newest first; with a filter, other jobs; a limit cuts it."""
    for user in ("", "", "", "bob"):
        call("submit", JobSpec(user=user, **LATER))
    call("cancel", "1")
    queue = call("queue")
    assert ([job.id for job in queue], queue.total, queue[0].id, len(queue[:1])) == (["3", "2"], 2, "3", 1)
    assert [job.id for job in call("queue", all_users=True)] == ["4", "3", "2"]
    assert [job.id for job in call("queue", JobFilter(user="bob"))] == ["4"]
    assert [job.id for job in call("queue", JobFilter(states=["cancelled"]))] == ["1"]
    first = call("queue", all_users=True, limit=1)
    assert ([job.id for job in first], first.total) == (["4"], 3)
    assert call("queue", JobFilter(ended=True), limit=1).total in (None, 1)
    with pytest.raises(e.Invalid, match=r"^limit: "):
        call("queue", limit=0)


def test_a_live_view_ends_with_its_jobs(
    live: LiveThread,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
) -> None:
    """In a pipe, a view prints a line for each change, and ends when all jobs have ended."""
    call("submit", [JobSpec(name=name, command=("true",), gpus=2) for name in ("one", "two")])
    finish(live, "1")
    lease = live.do(live.daemon.run_job("2"))
    show = display._Lines.show

    def show_and_finish(lines: Any, queue: Queue, trouble: str) -> None:
        show(lines, queue, trouble)
        if any(job.state is JobState.RUNNING for job in queue):
            end(live, lease)

    monkeypatch.setattr(display._Lines, "show", show_and_finish)
    call("live", ["one", "2"], every_s=0.01)
    wording(capsys.readouterr().out)
    # By default, the unfinished jobs.
    call("submit", JobSpec(name="three", command=("true",)))
    lease = live.do(live.daemon.run_job("3"))
    monkeypatch.setattr(display._Lines, "show", lambda *_: end(live, lease))
    call("live", every_s=0.01)
    call("live", [])
    with pytest.raises(e.NotFound):
        call("live", "99")


def test_a_live_view_shows_an_outage(
    live: LiveThread, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wording: Wording
) -> None:
    """While the scheduler does not answer, the view says so once, and tries again; Ctrl-C ends it quietly."""
    with Client(live.address) as client:
        client.submit(JobSpec(name="train", **LATER))
        ask, polls = client._wire.ask, iter([True, False, False, True])

        def unsteady(question: Any) -> Any:
            try:
                if next(polls):
                    return ask(question)
            except StopIteration:
                raise KeyboardInterrupt from None
            raise e.NotReachable("the scheduler does not answer")

        monkeypatch.setattr(client._wire, "ask", unsteady)
        client.live(every_s=0.0)
    wording(capsys.readouterr().out)
