"""Waiting for jobs and watching the queue, against a real daemon: reports meanwhile, and exit codes."""

import json
import threading
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import JobEvent
from tests.cli.conftest import Gavel, keys
from tests.cli.jobs.test_jobs import RUN, chunk
from tests.cli.live import finish
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording


def later(call: Any, *arguments: Any) -> threading.Thread:
    """Call this in another thread, while the command runs."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def test_waiting_reports_how_jobs_ended(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """The exit code is 0 if every job succeeded, else 1; the last lines of a failed job are printed."""
    gavel("submit", *RUN)
    thread = later(finish, live, "1")
    result = gavel("wait", "1")
    thread.join()
    assert (result.exit_code, result.stdout) == (0, "")
    wording(result.stderr.splitlines()[-1])
    gavel("submit", *RUN)
    finish(live, "2", "failed", 7, "boom")
    result = gavel("wait", "1", "2")
    assert (result.exit_code, result.stderr.endswith("\n  boom\n")) == (1, True)
    wording(result.stderr)
    lines = [json.loads(line) for line in gavel("wait", "1", "2", "--json").stdout.splitlines()]
    assert [(job["id"], job["state"]) for job in lines] == [("1", "completed"), ("2", "failed")]


def test_waiting_has_a_limit(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """The exit code is 6 after the limit, 3 for a job that does not exist, and 2 for a limit that is no duration."""
    gavel("submit", *RUN)
    result = gavel("wait", "1", "--timeout", "0.2s")
    assert result.exit_code == 6
    wording(result.stderr.splitlines()[-1])
    assert gavel("wait", "99").exit_code == 3
    assert gavel("wait", "1", "--timeout", "soon").exit_code == 2


def test_a_job_that_is_stopping_has_its_reason(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A job over its time limit has failed at once and its processes end later; the reason is reported throughout."""
    gavel("submit", "--time-limit", "1s", *RUN)
    live.do(live.daemon.run_job("1"))
    result = gavel("wait", "1")
    assert result.exit_code == 1
    report = result.stderr.splitlines()[-1]
    reason = live.daemon.world.state.jobs["1"].why
    assert (report.startswith("job 1: failed"), reason in report) == (True, True)
    wording(report)
    (line,) = gavel("queue", "-a", "--state", "failed").stdout.splitlines()[1:]
    assert line.endswith(f"{reason}; n1 (stopping)")


def test_submitting_and_waiting(live: LiveThread, gavel: Gavel) -> None:
    """`submit --wait --json` prints the id of the job, then the ended job; the exit code tells whether it succeeded."""

    def run() -> None:
        live.do(live.daemon.until(lambda: "1" in live.daemon.world.state.jobs))
        finish(live, "1", "failed", 3)

    thread = later(run)
    result = gavel("submit", "--wait", "--json", *RUN)
    thread.join()
    first, second = [json.loads(line) for line in result.stdout.splitlines()]
    assert (result.exit_code, first, second["state"]) == (1, {"jobs": ["1"]}, "failed")


def test_submitting_and_following(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`submit --follow` prints the output once, and then how a job failed."""

    def run() -> None:
        live.do(live.daemon.until(lambda: "1" in live.daemon.world.state.jobs))
        finish(live, "1", "failed", 3, "out\n")

    live.daemon.nodes.over = True
    live.daemon.nodes.chunks = [chunk(b"out\n")]
    thread = later(run)
    result = gavel("submit", "--follow", *RUN)
    thread.join()
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (1, ["out"])
    assert (result.stderr.count("\n"), result.stderr.startswith("job 1: failed")) == (1, True)
    wording(result.stderr)


def test_watching_the_queue(live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """`queue --watch --json` prints a line for each listed job, then one for each change."""
    gavel("submit", *RUN)
    import gavel.cli.jobs.queue as queue

    watch = Client.watch

    def watch_briefly(self: Client, job_filter: Any, **options: Any) -> Any:
        events = watch(self, job_filter, **options)
        yield next(events)
        yield next(events)

    monkeypatch.setattr(Client, "watch", watch_briefly)
    lines = [json.loads(line) for line in gavel("queue", "--watch", "--json").stdout.splitlines()]
    assert keys(JobEvent) == set(lines[0])
    assert [line["job"] and line["job"]["id"] for line in lines] == ["1", None]
    assert gavel("queue", "--watch").stdout.splitlines()[1].split()[0] == "1"
    assert queue.COLUMNS[0].head == "id"
