"""Waiting for jobs and watching the queue, against a real daemon: what is said meanwhile, and exit codes."""

import json
import threading
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import JobEvent
from tests.cli.conftest import Gavel
from tests.cli.jobs.test_jobs import HELD, chunk, keys
from tests.cli.live import finish, live  # noqa: F401
from tests.support.live_thread import LiveThread


def later(call: Any, *arguments: Any) -> threading.Thread:
    """Done beside the command."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def test_waiting_says_how_it_ended(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """0 where all succeeded, 1 where one did not, with its last lines."""
    gavel("submit", *HELD)
    thread = later(finish, live, "1")
    said = gavel("wait", "1")
    thread.join()
    assert (said.exit_code, said.stdout) == (0, "")
    assert said.stderr.splitlines()[-1] == "job 1: completed"
    gavel("submit", *HELD)
    finish(live, "2", "failed", 7, "boom")
    said = gavel("wait", "1", "2")
    assert (said.exit_code, said.stderr.endswith("job 2, its last lines:\n  boom\n")) == (1, True)
    lines = [json.loads(line) for line in gavel("wait", "1", "2", "--json").stdout.splitlines()]
    assert [(one["id"], one["state"]) for one in lines] == [("1", "completed"), ("2", "failed")]


def test_waiting_no_longer_than_told(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Exit code 6: it is not over; 3: there is nothing to wait for; 2: that is no duration."""
    gavel("submit", *HELD)
    said = gavel("wait", "1", "--timeout", "0.2s")
    assert (said.exit_code, "not all jobs have ended in that time; they go on" in said.stderr) == (6, True)
    assert gavel("wait", "99").exit_code == 3
    assert gavel("wait", "1", "--timeout", "soon").exit_code == 2


def test_why_it_ended_is_said_while_it_is_being_stopped(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
) -> None:
    """A job over its time limit has failed at once; its processes are gone later. The reason is there all along."""
    gavel("submit", "--time-limit", "1s", *HELD)
    live.do(live.daemon.run_job("1"))
    said = gavel("wait", "1")
    assert said.exit_code == 1
    assert said.stderr.endswith("job 1: failed (it reached its time limit of 1 s)\n")
    (line,) = gavel("queue", "-a", "--state", "failed").stdout.splitlines()[1:]
    assert line.endswith("it reached its time limit of 1 s; n1 (stopping)")


def test_submitting_and_waiting(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """The exit code is the job's fate; with --follow its output is shown meanwhile."""

    def run() -> None:
        live.do(live.daemon.until(lambda: "1" in live.daemon.world.state.jobs))
        finish(live, "1", "failed", 3)

    thread = later(run)
    said = gavel("submit", "--wait", "--json", *HELD)
    thread.join()
    first, second = [json.loads(line) for line in said.stdout.splitlines()]
    assert (said.exit_code, first, second["state"]) == (1, {"jobs": ["1"]}, "failed")


def test_submitting_and_following(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """The output, once; behind it, of one that failed, how."""

    def run() -> None:
        live.do(live.daemon.until(lambda: "1" in live.daemon.world.state.jobs))
        finish(live, "1", "failed", 3, "out\n")

    live.daemon.nodes.over = True
    live.daemon.nodes.chunks = [chunk(b"out\n")]
    thread = later(run)
    said = gavel("submit", "--follow", *HELD)
    thread.join()
    assert (said.exit_code, said.stdout) == (1, "submitted job 1\nout\n")
    assert said.stderr == "job 1: failed (it exited with code 3)\n"


def test_watching_the_queue(live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """One object per line for programs: what is there, then changes."""
    gavel("submit", *HELD)
    import gavel.cli.jobs.queue as queue

    watch = Client.watch

    def some(self: Client, wanted: Any, **options: Any) -> Any:
        events = watch(self, wanted, **options)
        yield next(events)
        yield next(events)

    monkeypatch.setattr(Client, "watch", some)
    lines = [json.loads(line) for line in gavel("queue", "--watch", "--json").stdout.splitlines()]
    assert keys(JobEvent) == set(lines[0])
    assert [line["job"] and line["job"]["id"] for line in lines] == ["1", None]
    assert gavel("queue", "--watch").stdout.splitlines()[1].split()[0] == "1"
    assert queue.COLUMNS[0].head == "id"
