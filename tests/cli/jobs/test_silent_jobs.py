"""`gavel logs` of a job that printed nothing reports how the job ended, as `gavel show` does."""

import pytest

from gavel.client.transport.channels import user_name
from tests.cli.conftest import Gavel
from tests.cli.live import finish
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

USER = user_name()
NOT_STARTED = "[gavel: launch.venv: '/none' is not there]"


@pytest.mark.parametrize("option", [(), ("--json",), ("--attempt", "1")], ids=str)
def test_a_job_that_could_not_be_started(
    live: LiveThread, gavel: Gavel, option: tuple[str, ...], wording: Wording
) -> None:
    """`logs` gives the reason that `show` gives, and the agent's own message."""
    gavel("submit", "--", "true")
    finish(live, "1", "failed", 127, NOT_STARTED)
    result = gavel("logs", "1", *option)
    assert (result.exit_code, result.stdout) == (0, "")
    description = gavel("show", "1").stdout
    why = description.splitlines()[0].partition("(")[2].rstrip(")")
    assert (f"failed ({why})" in result.stderr, result.stderr.splitlines()[1].strip()) == (True, NOT_STARTED)
    wording(result.stderr)
    assert NOT_STARTED in description


def test_a_job_without_output(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """If a job has printed nothing, `logs` reports whether the job is running or has completed."""
    gavel("submit", "--", "true")
    live.do(live.daemon.run_job("1"))
    running = gavel("logs", "1").stderr
    assert "running" in running
    wording(running)
    gavel("submit", "--", "true")
    finish(live, "2")
    completed = gavel("logs", "2").stderr
    assert "completed" in completed
    wording(completed)


def test_members_of_an_array_that_failed(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """Silent members that failed are reported; silent members that succeeded are not."""
    gavel("submit", "--array", "0-1", "--", "true")
    finish(live, "1_0")
    finish(live, "1_1", "failed", 3)
    report = gavel("logs", "1").stderr
    assert ("1_1" in report, "1_0" in report) == (True, False)
    wording(report)


def test_who_stopped_a_job(live: LiveThread, gavel: Gavel) -> None:
    """`show` and `queue` name the user who cancelled or holds a job, and name that user only once."""
    for action in ("cancel", "hold"):
        gavel("submit", "--start", "1h", "--", "true")
        gavel(action, "1" if action == "cancel" else "2")
    titles = [gavel("show", job).stdout.splitlines()[0] for job in ("1", "2")]
    assert titles == [f"job 1 cancelled (by {USER})", f"job 2 held (by {USER})"]
    assert f"by {USER}" in gavel("queue", "--state", "held").stdout
