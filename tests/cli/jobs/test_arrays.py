"""Commands given an array, by id or by name, act on every member."""

import json
from typing import Any

from protos.gavel.v1 import jobs_pb2
from tests.cli.conftest import Gavel
from tests.cli.live import finish
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording


def array(gavel: Gavel, indices: str = "0-2", *options: str) -> None:
    """Submit an array with these members, which becomes job 1 and is called `sweep`."""
    gavel("submit", "-n", "sweep", "--array", indices, *options, "--", "true")


def chunk(job: str, data: bytes = b"", **more: Any) -> jobs_pb2.LogChunk:
    """Return a piece of a member's output in its first attempt."""
    return jobs_pb2.LogChunk(job=job, attempt=1, data=data, **more)


def test_unfinished_members_are_explained(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`explain` explains the unfinished members and counts the ended ones; `--json` prints a list."""
    # The node has room for the first member only.
    array(gavel, "0-2", "--gpus", "2")
    gavel("hold", "1_1")
    finish(live, "1_0")
    for name in ("sweep", "1"):
        result = gavel("explain", name)
        assert result.exit_code == 0
        titles = [line for line in result.stdout.splitlines() if line.startswith("job ")]
        assert [title.partition(":")[0] for title in titles] == ["job 1_1", "job 1_2"]
        assert titles[0] == "job 1_1: held"
        assert f"`gavel show {name}`" in result.stderr
        wording(result.stderr)
    assert [answer["job"] for answer in json.loads(gavel("explain", "1", "--json").stdout)] == ["1_1", "1_2"]
    assert json.loads(gavel("explain", "1_1", "--json").stdout)["job"] == "1_1"


def test_few_of_many_members_are_explained(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`explain` explains ten members and counts the others; for an ended array it prints how the members ended."""
    array(gavel, "0-11", "--start", "1h")
    result = gavel("explain", "sweep")
    assert sum(line.startswith("job ") for line in result.stdout.splitlines()) == 10
    wording(result.stderr)
    gavel("cancel", "sweep")
    assert gavel("explain", "sweep").stdout.startswith("job 1_0: cancelled\n")


def test_lines_of_members_carry_their_id(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`logs` prints member after member and leaves out those that have not run; if none has run, it reports that."""
    array(gavel)
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [
        chunk("1_1", b"b\nb"),
        chunk("1_0", b"a\n"),
        chunk("1_0", notice="attempt 2 starts on n2"),
    ]
    for name in ("sweep", "1"):
        result = gavel("logs", name, "-n", "5")
        assert (result.exit_code, result.stdout) == (0, "1_0: a\n1_1: b\n1_1: b\n")
        assert "attempt 2 starts on n2" in result.stderr
        wording(result.stderr)
    assert [json.loads(line)["job"] for line in gavel("logs", "1", "--json").stdout.splitlines()] == [
        "1_0",
        "1_0",
        "1_1",
    ]
    gavel("submit", "--start", "1h", "--array", "0-1", "--", "true")
    wording(gavel("logs", "2").stderr)


def test_lines_of_ranks_carry_member_and_rank(live: LiveThread, gavel: Gavel) -> None:
    """Each line of a member with several ranks begins with the member and the rank."""
    gavel("submit", "-g", "2", "--array", "0-1", "--", "true")
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [chunk("1_0", b"x\n", rank=1), chunk("1_1", b"y\n")]
    assert gavel("logs", "1").stdout == "1_0.1: x\n1_1.0: y\n"


def test_members_are_followed_together(live: LiveThread, gavel: Gavel) -> None:
    """`logs -f` follows every member, including those that have not run yet, until all have ended."""
    array(gavel)
    finish(live, "1_0")
    live.daemon.nodes.over = True
    live.daemon.nodes.chunks = [chunk(f"1_{at}", b"x\n") for at in range(3)]
    result = gavel("logs", "-f", "sweep")
    assert result.exit_code == 0
    assert sorted(result.stdout.splitlines()) == ["1_0: x", "1_1: x", "1_2: x"]
    assert {(job, follow) for job, *_, follow in live.daemon.nodes.asked} == {
        ("1_0", True),
        ("1_1", True),
        ("1_2", True),
    }


def test_one_member_that_cannot_be_read_does_not_hide_the_others(
    live: LiveThread, gavel: Gavel, wording: Wording
) -> None:
    """The logs of the other members are printed first, then the error."""
    array(gavel)
    finish(live, "1_0")
    finish(live, "1_1")
    live.daemon.nodes.chunks = [chunk("1_1", b"x\n")]
    live.daemon.nodes.away = {"1_0"}
    result = gavel("logs", "1")
    assert (result.exit_code, result.stdout) == (6, "1_1: x\n")
    wording(result.stderr)


def test_too_many_to_follow(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """More than 32 members are refused with a remedy, instead of opening hundreds of streams."""
    array(gavel, "0-32")
    result = gavel("logs", "-f", "sweep")
    assert result.exit_code == 6
    wording(result.stderr)


def test_changing_an_array_by_its_name(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A name is accepted like the id; a name that two jobs have is refused, and neither is changed."""
    array(gavel)
    jobs = live.daemon.world.state.jobs

    def states() -> set[str]:
        return {str(jobs[f"1_{at}"].state) for at in range(3)}

    wording(gavel("hold", "sweep").stdout)
    assert states() == {"held"}
    wording(gavel("release", "1").stdout)
    assert "held" not in states()
    gavel("submit", "-n", "sweep", "--", "true")
    result = gavel("cancel", "sweep")
    assert (result.exit_code, "cancelled" in {*states(), jobs["2"].state}) == (3, False)
    wording(result.stderr)
    wording(gavel("cancel", "2", "1").stdout)
    assert {*states(), str(jobs["2"].state)} == {"cancelled"}
    again = gavel("cancel", "1", "nothing")
    assert (again.exit_code, again.stderr.count("\n")) == (6, 2)
    wording(again.stderr)
