"""`gavel logs` of a job that printed nothing says how it ended, in the words of `gavel show`."""

import pytest

from gavel.client.transport.channels import user_name
from tests.cli.conftest import Gavel
from tests.cli.live import finish, live  # noqa: F401
from tests.support.live_thread import LiveThread

USER = user_name()
NOT_STARTED = "[gavel: launch.venv: '/none' is not there]"


@pytest.mark.parametrize("option", [(), ("--json",), ("--attempt", "1")], ids=str)
def test_a_job_that_could_not_be_started(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    option: tuple[str, ...],
) -> None:
    """Why, as `gavel show` says it, and the agent's own words, where somebody looks for them."""
    gavel("submit", "--", "true")
    finish(live, "1", "failed", 127, NOT_STARTED)
    said = gavel("logs", "1", *option)
    assert (said.exit_code, said.stdout) == (0, "")
    shown = gavel("show", "1").stdout
    why = shown.splitlines()[0].partition("(")[2].rstrip(")")
    assert said.stderr == f"-- job 1 has printed nothing: failed ({why}) --\n  {NOT_STARTED}\n"
    assert NOT_STARTED in shown


def test_a_job_that_had_nothing_to_say(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """One that goes on may still say something; one that succeeded will not."""
    gavel("submit", "--", "true")
    live.do(live.daemon.run_job("1"))
    assert "-- job 1 has printed nothing so far: running" in gavel("logs", "1").stderr
    gavel("submit", "--", "true")
    finish(live, "2")
    assert gavel("logs", "2").stderr.startswith("-- job 2 has printed nothing: completed")


def test_members_of_an_array_that_failed(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Those alone: what succeeds in silence is nothing to tell of."""
    gavel("submit", "--array", "0-1", "--", "true")
    finish(live, "1_0")
    finish(live, "1_1", "failed", 3)
    assert gavel("logs", "1").stderr == "-- job 1_1 has printed nothing: failed (it exited with code 3) --\n"


def test_who_stopped_a_job(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Who cancelled or holds it, without the word twice."""
    for action in ("cancel", "hold"):
        gavel("submit", "--start", "1h", "--", "true")
        gavel(action, "1" if action == "cancel" else "2")
    titles = [gavel("show", job).stdout.splitlines()[0] for job in ("1", "2")]
    assert titles == [f"job 1 cancelled (by {USER})", f"job 2 held (by {USER})"]
    assert f"by {USER}" in gavel("queue", "--state", "held").stdout
