"""Commands that are given an array, by its id or by its name: each does what it does to every member."""

import json
from typing import Any

from protos.gavel.v1 import jobs_pb2
from tests.cli.conftest import Gavel
from tests.cli.live import finish, live  # noqa: F401
from tests.support.live_thread import LiveThread


def array(gavel: Gavel, indices: str = "0-2", *options: str) -> None:
    """The array 1, called `sweep`."""
    gavel("submit", "-n", "sweep", "--array", indices, *options, "--", "true")


def chunk(job: str, data: bytes = b"", **more: Any) -> jobs_pb2.LogChunk:
    """A piece of what a member printed in its first attempt."""
    return jobs_pb2.LogChunk(job=job, attempt=1, data=data, **more)


def test_unfinished_members_are_explained(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """By name or by id; those that have ended are told of by number; programs get a list."""
    array(gavel, "0-2", "--gpus", "2")  # there is room for the first of them alone
    gavel("hold", "1_1")
    finish(live, "1_0")
    for asked in ("sweep", "1"):
        said = gavel("explain", asked)
        assert said.exit_code == 0
        titles = [line for line in said.stdout.splitlines() if line.startswith("job ")]
        assert [title.partition(":")[0] for title in titles] == ["job 1_1", "job 1_2"]
        assert titles[0] == "job 1_1: held"
        assert said.stderr == f"\n1 other member: `gavel show {asked}` lists all\n"
    assert [one["job"] for one in json.loads(gavel("explain", "1", "--json").stdout)] == ["1_1", "1_2"]
    assert json.loads(gavel("explain", "1_1", "--json").stdout)["job"] == "1_1"


def test_few_of_many_members_are_explained(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Ten, and how many there are besides; of an array that has ended, how."""
    array(gavel, "0-11", "--start", "1h")
    assert gavel("explain", "sweep").stderr == "\n2 other members: `gavel show sweep` lists all\n"
    gavel("cancel", "sweep")
    assert gavel("explain", "sweep").stdout.startswith("job 1_0: cancelled\n")


def test_lines_of_members_are_told_apart(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """One after the other; those that have not run are left out, and where none has, that is said."""
    array(gavel)
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [
        chunk("1_1", b"b\nb"),
        chunk("1_0", b"a\n"),
        chunk("1_0", notice="attempt 2 starts on n2"),
    ]
    for asked in ("sweep", "1"):
        said = gavel("logs", asked, "-n", "5")
        assert (said.exit_code, said.stdout) == (0, "1_0: a\n1_1: b\n1_1: b\n")
        assert said.stderr == "-- 1_0: attempt 2 starts on n2 --\n"
    assert [json.loads(line)["job"] for line in gavel("logs", "1", "--json").stdout.splitlines()] == [
        "1_0",
        "1_0",
        "1_1",
    ]
    gavel("submit", "--start", "1h", "--array", "0-1", "--", "true")
    assert "job 2_0 has not run yet" in gavel("logs", "2").stderr


def test_ranks_of_members_are_told_apart(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Where there are both, both are said."""
    gavel("submit", "-g", "2", "--array", "0-1", "--", "true")
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [chunk("1_0", b"x\n", rank=1), chunk("1_1", b"y\n")]
    assert gavel("logs", "1").stdout == "1_0.1: x\n1_1.0: y\n"


def test_members_are_followed_together(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """All of them, also those that have not run yet, until every one has ended for good."""
    array(gavel)
    finish(live, "1_0")
    live.daemon.nodes.over = True
    live.daemon.nodes.chunks = [chunk(f"1_{at}", b"x\n") for at in range(3)]
    said = gavel("logs", "-f", "sweep")
    assert said.exit_code == 0
    assert sorted(said.stdout.splitlines()) == ["1_0: x", "1_1: x", "1_2: x"]
    assert {(job, follow) for job, *_, follow in live.daemon.nodes.asked} == {
        ("1_0", True),
        ("1_1", True),
        ("1_2", True),
    }


def test_one_member_that_cannot_be_read_does_not_hide_the_others(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """They are shown, then the trouble is told."""
    array(gavel)
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [chunk("1_1", b"x\n")]
    live.daemon.nodes.away = {"1_0"}
    said = gavel("logs", "1")
    assert (said.exit_code, said.stdout) == (6, "1_1: x\n")
    assert said.stderr == "gavel logs: the node of job 1_0 is away\n"


def test_too_many_to_follow(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Refused with what to do, not tried with hundreds of streams."""
    array(gavel, "0-32")
    said = gavel("logs", "-f", "sweep")
    assert (said.exit_code, said.stderr) == (
        6,
        "gavel logs: 33 members have not ended, and at most 32 are followed at once: name one, such as 1_0\n",
    )


def test_changing_an_array_by_its_name(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """As by its id; a name that two have changes neither."""
    array(gavel)
    assert gavel("hold", "sweep").stdout == "held jobs 1_0, 1_1 and 1_2\n"
    assert gavel("release", "1").stdout == "released jobs 1_0, 1_1 and 1_2\n"
    gavel("submit", "-n", "sweep", "--", "true")
    said = gavel("cancel", "sweep")
    assert (said.exit_code, said.stderr) == (
        3,
        "gavel cancel: 2 jobs are called 'sweep'; name one by its id: 1, 2\n",
    )
    assert gavel("cancel", "2", "1").stdout == "cancelled job 2\ncancelled jobs 1_0, 1_1 and 1_2\n"
    again = gavel("cancel", "1", "nothing")
    assert (again.exit_code, again.stderr) == (
        6,
        "gavel cancel: all jobs of array '1' have ended\ngavel cancel: there is no job 'nothing'\n",
    )
