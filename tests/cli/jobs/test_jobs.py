"""Commands about jobs against a real daemon: what people read, what programs read, and exit codes."""

import json
import re
from dataclasses import fields
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import Job, LogChunk
from gavel.client.transport.channels import user_name
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Forget
from tests.cli.conftest import Gavel
from tests.cli.live import finish, live  # noqa: F401
from tests.support.live_thread import LiveThread

HELD = ("--", "true")


def keys(kind: Any) -> set[str]:
    """The documented keys of a result."""
    return {one.name for one in fields(kind)}


# ------------------------------------------------------------------------------------------------------ looking


def test_the_queue(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Yours that have not ended, newest first: where they run, or why they do not; below, the last that have."""
    gavel("submit", "-n", "first", "-g", "2", "--steps", "100", *HELD)
    live.do(live.daemon.run_job("1"))
    gavel("submit", "-n", "second", "--after", "1", *HELD)
    gavel("submit", "-n", "gone", *HELD)
    gavel("cancel", "3")
    lines = gavel("queue").stdout.splitlines()
    assert lines[0].split() == [
        "id",
        "name",
        "user",
        "state",
        "GPUs",
        "done",
        "waited",
        "ran",
        "where,",
        "why",
    ]
    second, first = (re.sub(r" \d+[sm](?= )", " AGE", line).split() for line in lines[1:3])
    assert second == ["2", "second", user_name(), "queued", "×1", "AGE", "after", "1"]
    assert first[:7] == ["1", "first", user_name(), "running", "v100×2", "0%", "AGE"]
    assert first[-1] == "n1"
    assert lines[3].split()[5:] == ["waited", "ran", "ended", "cost", "where,", "why"]
    assert (lines[4].split()[:4], len(lines)) == (["3", "gone", user_name(), "cancelled"], 5)
    assert all(len(line) <= 80 and "\x1b" not in line for line in lines)


def test_a_forgotten_job_is_found_by_its_name(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """P14: the scheduler has it no more, and `show`, `wait`, `explain` and `queue --ended` go on to know it."""
    gavel("submit", "-n", "gone", "--start", "1d", *HELD)
    gavel("cancel", "gone")

    async def forget() -> None:
        await live.daemon.people.historian.catch_up()
        live.daemon.world.tell(Forget(jobs=("1",)))
        await live.daemon.until(lambda: not live.daemon.world.state.jobs)

    live.do(forget())
    assert gavel("show", "gone").stdout.startswith("job 1 'gone' cancelled")
    assert gavel("explain", "gone").stdout.startswith("job 1: cancelled")
    assert gavel("wait", "gone").exit_code == 1
    assert [job["id"] for job in json.loads(gavel("queue", "--ended", "--json").stdout)] == ["1"]
    said = gavel("cancel", "1")
    assert (said.exit_code, "ended long ago (cancelled)" in said.stderr) == (6, True)


def test_the_queue_for_programs(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """A list of jobs with the documented keys; filters narrow it, and more than mine can be asked for."""
    gavel("submit", "-n", "a", "--tenant", "org/x", *HELD)
    gavel("submit", "-n", "b", "--user", "bob", *HELD)
    gavel("submit", "-n", "c", *HELD)
    gavel("cancel", "3")

    def listed(*options: str) -> list[str]:
        return [job["spec"]["name"] for job in json.loads(gavel("queue", "--json", *options).stdout)]

    (job,) = json.loads(gavel("queue", "--json").stdout)
    assert keys(Job) - {"last_lines"} == set(job)
    assert job["submitted"].endswith("Z")
    assert (listed(), listed("-a"), listed("-u", "bob")) == (["a"], ["b", "a"], ["b"])
    assert (listed("--state", "cancelled"), listed("--since", "1h")) == (["c"], ["c", "a"])
    assert (
        listed("--tenant", "org"),
        listed("--name", "z*"),
        listed("-a", "-l", "1"),
    ) == (["a"], [], ["b"])
    assert (listed("--ended"), listed("--ended", "-a", "--since", "1h"), listed("--ended", "-u", "bob")) == (
        *(["c"], ["c"], []),
    )
    assert listed("--all") == listed("--all-users") == ["b", "a"]
    said = gavel("queue", "-a", "-l", "1")
    assert said.stderr.splitlines()[0] == "and 1 more job: --limit"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("-u", "bob"), "no jobs of bob fit; `-a` shows those of all users"),
        (("-a", "--name", "x"), "no jobs fit"),
        (("-a", "--state", "failed"), "no jobs fit"),
        (("-a", "--node", "nl"), "no jobs fit: there is no node 'nl'; there is n1"),
        (("-a", "--worker-type", "x"), "no jobs fit: there is no worker type 'x'; there is v100"),
        (("-a", "--state", "failed", "--node", "n1"), "no jobs fit"),
    ],
)
def test_where_nothing_fits_it_is_said_what_shows_more(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    options: tuple[str, ...],
    line: str,
) -> None:
    """A first job has often ended before its owner looks for it."""
    gavel("submit", *HELD)
    gavel("cancel", "1")
    said = gavel("queue", *options)
    assert (said.exit_code, said.stdout, said.stderr) == (0, "", f"{line}\n")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--since", "soon"), "--since: 'soon' is neither a duration such as 7d nor a time"),
        (("--since", "99999999999h"), "--since: '99999999999h' is longer than the limit, 100 years"),
        (("--state", "sleeping"), "invalid value for '--state'"),
        (("--limit", "0"), "invalid value for '-l' / '--limit'"),
    ],
)
def test_a_queue_that_cannot_be_asked_for(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    options: tuple[str, ...],
    line: str,
) -> None:
    """One line each, exit code 2."""
    said = gavel("queue", *options)
    assert (said.exit_code, said.stderr.startswith(f"gavel queue: {line}")) == (2, True)


def test_all_about_a_job(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """What was asked for in the words of the job file, and what became of it; by id or by name."""
    gavel("submit", "-n", "chat", "-g", "2", "--steps", "100", "--time-limit", "2h", "--memory", "4GB", *HELD)
    finish(live, "1", "failed", 3, "Traceback\n\x1b[31mOutOfMemoryError")
    text = gavel("show", "chat").stdout
    assert text.startswith("job 1 'chat' failed (")
    for line in (
        "exit code       3",
        "done            100% (100 of 100 steps, 100 saved)",
        "command         true",
    ):
        assert f"  {line}\n" in text
    for line in ("time_limit      2h00m", "memory          4 GB", "gpus            2"):
        assert f"  {line}\n" in text
    assert "    Traceback\n    \\x1b[31mOutOfMemoryError\n" in text
    assert "weight" not in text  # what holds without a word is not repeated
    job = json.loads(gavel("show", "1", "--json").stdout)
    assert (keys(Job), 3, "failed") == (set(job), job["exit_code"], job["state"])


def test_an_array_is_shown_by_its_members(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """One object per line; what is not there is exit code 3."""
    gavel("submit", "--array", "0-2", "-n", "sweep", *HELD)
    members = [json.loads(line)["id"] for line in gavel("show", "sweep", "--json").stdout.splitlines()]
    assert members == ["1_0", "1_1", "1_2"]
    assert gavel("submit", "--array", "0-3", *HELD).stdout == "submitted jobs 2_0 to 2_3 (4)\n"
    said = gavel("show", "99")
    assert (said.exit_code, said.stderr) == (3, "gavel show: there is no job '99'\n")
    said = gavel("show", "nobody")
    assert (said.exit_code, said.stderr) == (3, "gavel show: there is no job 'nobody'\n")


def test_a_name_that_several_have(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Is not guessed; one of them that has not ended goes before those that have. A * is no pattern here."""
    for _ in range(2):
        gavel("submit", "-n", "twin*", *HELD)
    gavel("submit", "-n", "twins", *HELD)
    said = gavel("explain", "twin*")
    assert (
        said.exit_code,
        said.stderr.strip().partition(": ")[2],
    ) == (3, "2 jobs are called 'twin*'; name one by its id: 1, 2")
    gavel("cancel", "2")
    assert gavel("explain", "twin*").stdout.startswith("job 1: ")


def test_why(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """The live scheduler is asked where no journal is named."""
    gavel("submit", "-n", "chat", "--start", "1h", *HELD)
    gavel("hold", "1")
    assert gavel("explain", "1").stdout.startswith("job 1: held\n")
    told = json.loads(gavel("explain", "1", "--json").stdout)
    assert (told["job"], told["state"], told["reason"]) == ("1", "held", "held")
    said = gavel("explain", "1", "--at", "5")
    assert (said.exit_code, "--at goes with --journal" in said.stderr) == (2, True)


# --------------------------------------------------------------------------------------------------------- logs


def chunk(data: bytes, **more: Any) -> jobs_pb2.LogChunk:
    """A piece of what job 1 printed."""
    return jobs_pb2.LogChunk(job="1", attempt=more.pop("attempt", 1), data=data, **more)


def test_logs_go_out_as_they_are(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Byte by byte to standard output, notices to standard error; a notice begins a new line."""
    gavel("submit", *HELD)
    live.do(live.daemon.run_job("1"))
    live.daemon.nodes.chunks = [
        chunk(b"a\xffb"),
        chunk(b"", notice="attempt 2 starts on n2"),
        chunk(b"c\n", attempt=2),
    ]
    said = gavel("logs", "1", "-n", "5", "--attempt", "1", "--rank", "0")
    assert (
        said.exit_code,
        said.stdout_bytes,
        said.stderr,
    ) == (0, b"a\xffb\nc\n", "-- attempt 2 starts on n2 --\n")
    assert live.daemon.nodes.asked[-1] == ("1", 1, 0, 5, False)
    first, *_ = [json.loads(line) for line in gavel("logs", "1", "--json").stdout.splitlines()]
    assert (keys(LogChunk), "a\ufffdb") == (set(first), first["data"])


def test_lines_of_several_ranks_are_told_apart(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Whole lines, each with its rank; one that never ended is shown at the end. One rank alone is left as it is."""
    gavel("submit", "-g", "2", *HELD)
    live.do(live.daemon.run_job("1"))
    live.daemon.nodes.chunks = [
        chunk(b"be", rank=0),
        chunk(b"x\ny", rank=1),
        chunk(b"gun\n", rank=0, offset=2),
    ]
    assert gavel("logs", "1").stdout == "1: x\n0: begun\n1: y\n"
    live.daemon.nodes.chunks = [chunk(b"plain", rank=1)]
    assert gavel("logs", "1", "--rank", "1").stdout == "plain\n"


def test_a_rank_that_is_not_there(live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """An error that says which there are; one that may be there and is silent is said to be, and who is not."""
    gavel("submit", "-g", "2", *HELD)
    live.do(live.daemon.run_job("1"))
    gavel("submit", *HELD)
    said = gavel("logs", "-f", "1", "--rank", "2")
    assert (said.exit_code, said.stderr) == (2, "gavel logs: --rank 2: job 1 has ranks 0 to 1\n")
    said = gavel("logs", "2", "--rank", "5")
    assert (said.exit_code, said.stderr) == (2, "gavel logs: --rank 5: job 2 has rank 0 only\n")
    read_logs = live.daemon.nodes.read_logs

    def of_rank_0(job: str, attempt: int, rank: int | None, *rest: Any) -> Any:
        live.daemon.nodes.chunks = [] if rank else [chunk(b"x")]
        return read_logs(job, attempt, rank, *rest)

    monkeypatch.setattr(live.daemon.nodes, "read_logs", of_rank_0)
    said = gavel("logs", "1", "--rank", "1")
    words = "-- rank 1 of job 1 has printed nothing; there is output of rank 0 --\n"
    assert (said.exit_code, said.stdout, said.stderr) == (0, "", words)


def test_logs_of_a_job_that_has_not_run(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Refused with what to do, not called unreachable."""
    gavel("submit", "--start", "1h", *HELD)
    said = gavel("logs", "1")
    assert (said.exit_code, "has not run yet; follow to wait for it" in said.stderr) == (6, True)


# --------------------------------------------------------------------------------------------------- commanding


def test_changing_jobs(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Several at once; what fails is told, the rest is done, and the first failure is the exit code."""
    gavel("submit", *HELD)
    gavel("submit", "--array", "0-1", *HELD)
    assert (
        (said := gavel("hold", "1", "2")).exit_code,
        said.stdout,
    ) == (0, "held job 1\nheld jobs 2_0 and 2_1\n")
    assert gavel("release", "2_0").stdout == "released job 2_0\n"
    said = gavel("cancel", "99", "1", "1")
    assert (
        *(said.exit_code, said.stdout),
        said.stderr,
    ) == (3, "cancelled job 1\n", "gavel cancel: there is no job '99'\n")
    said = gavel("cancel", "1", "2_0", "--json")
    told = json.loads(said.stdout)
    assert (said.exit_code, told["jobs"], [one["job"] for one in told["failed"]]) == (6, ["2_0"], ["1"])
    assert {"job", "reason", "message"} == set(told["failed"][0])


def test_changing_all_jobs(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Mine, as the filters say, once somebody has agreed."""
    gavel("submit", "--array", "0-2", "-n", "mine", *HELD)
    gavel("submit", "--user", "bob", *HELD)
    said = gavel("hold", "--all")
    assert (said.exit_code, "this would hold 3 jobs; give --yes to confirm" in said.stderr) == (2, True)
    assert gavel("hold", "--all", "-y").stdout == "held job 1_0\nheld job 1_1\nheld job 1_2\n"
    assert gavel("hold", "--all", "--yes").stderr == "no jobs fit\n"
    assert "cannot requeue jobs that are held" in gavel("requeue", "--all", "--state", "held", "-y").stderr
    assert gavel("cancel", "--all", "--yes", "--name", "m*", "--state", "held", "--json").exit_code == 0
    assert [live.daemon.world.state.jobs[f"1_{at}"].state.value for at in range(3)] == ["cancelled"] * 3
    assert live.daemon.world.state.jobs["2"].state.value in ("queued", "running")


def test_jobs_that_end_meanwhile_are_no_failure(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all jobs, some may be over before their turn comes; one that was named by its id is told."""
    gavel("submit", *HELD)
    gavel("submit", *HELD)
    cancel = Client.cancel

    def both(self: Client, job: str) -> tuple[str, ...]:
        cancel(self, "1")
        return cancel(self, job)

    monkeypatch.setattr(Client, "cancel", both)
    said = gavel("cancel", "--all", "--yes")
    assert (said.exit_code, said.stdout, said.stderr) == (0, "cancelled job 2\n", "")
    assert gavel("cancel", "2").exit_code == 6


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "say which: ids of jobs, or --all with filters"),
        (("1", "--all"), "say which: ids of jobs, or --all with filters"),
        (("1", "--state", "held"), "filters such as --state go with --all"),
    ],
)
def test_what_to_change_is_said_clearly(gavel: Gavel, arguments: tuple[str, ...], line: str) -> None:
    """Neither nothing nor everything by mistake."""
    said = gavel("cancel", *arguments)
    assert (said.exit_code, said.stderr.startswith(f"gavel cancel: {line}")) == (2, True)
