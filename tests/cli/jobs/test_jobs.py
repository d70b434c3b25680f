"""Commands about jobs against a real daemon: text for people, JSON for programs, and exit codes."""

import json
import re
from typing import Any

import pytest

from gavel.client import Client
from gavel.client.results import Job, LeaseRecord, LogChunk
from gavel.client.transport.channels import user_name
from protos.gavel.v1 import jobs_pb2
from scheduler.core.messages import Exit, Forget, Woke
from tests.cli.conftest import Gavel, as_words, keys
from tests.cli.live import finish
from tests.support.live import SetClock
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

RUN = ("--", "true")


# ------------------------------------------------------------------------------------------------------ looking


def test_the_queue(live: LiveThread, gavel: Gavel) -> None:
    """`queue` lists the caller's unfinished jobs, newest first, with a place or reason; below, the last ended ones."""
    gavel("submit", "-n", "first", "-g", "2", "--steps", "100", *RUN)
    live.do(live.daemon.run_job("1"))
    gavel("submit", "-n", "second", "--after", "1", *RUN)
    gavel("submit", "-n", "gone", *RUN)
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


def test_a_forgotten_job_keeps_its_name(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """P14: `show`, `wait`, `explain` and `queue --ended` also find a job that the scheduler has forgotten."""
    gavel("submit", "-n", "gone", "--start", "1d", *RUN)
    gavel("cancel", "gone")

    async def forget() -> None:
        await live.daemon.people.historian.catch_up()
        live.daemon.world.send(Forget(jobs=("1",)))
        await live.daemon.until(lambda: not live.daemon.world.state.jobs)

    live.do(forget())
    assert gavel("show", "gone").stdout.startswith("job 1 'gone' cancelled")
    assert gavel("explain", "gone").stdout.startswith("job 1: cancelled")
    assert gavel("wait", "gone").exit_code == 1
    assert [job["id"] for job in json.loads(gavel("queue", "--ended", "--json").stdout)] == ["1"]
    result = gavel("cancel", "1")
    assert (result.exit_code, "cancelled" in result.stderr) == (6, True)
    wording(result.stderr)


def test_a_timeline_has_a_line_for_each_lease(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`show --timeline` lists where and when a job ran, and why each lease ended; --json has all fields."""
    live.do(live.daemon.node("n1", gpus=2))
    gavel("submit", "-n", "long", "-g", "2", "--steps", "1000", "--retries", "3", *RUN)

    async def run() -> None:
        lease = await live.daemon.run_job("1")
        await live.daemon.report("n1", exits=(Exit(lease, "failed", 100.0, 80.0, 5.0, 9.0, code=-9),))
        live.daemon.world.send(Woke(what="plan"))
        await live.daemon.run_job("1")
        live.daemon.world.clock = SetClock(live.daemon.world.now_s())

    live.do(run())
    result = gavel("show", "long", "--timeline")
    assert result.stdout.startswith("job 1 'long' running")
    wording(re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "AT", result.stdout))
    printed = json.loads(gavel("show", "1", "--timeline", "--json").stdout)
    first, second = printed["leases"]
    assert (printed["job"], first["attempt"], second["attempt"]) == ("1", 1, 2)
    assert keys(LeaseRecord) == set(first)
    assert (first["outcome"], first["steps_made"]) == ("failed", 100.0)
    gavel("submit", "-n", "waits", "--start", "1d", *RUN)
    assert gavel("show", "waits", "--timeline").stdout.splitlines()[1:] == []


def test_the_queue_for_programs(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`queue --json` is a list of jobs with the documented keys; options filter it or add jobs of other users."""
    gavel("submit", "-n", "a", "--tenant", "org/x", *RUN)
    gavel("submit", "-n", "b", "--user", "bob", *RUN)
    gavel("submit", "-n", "c", *RUN)
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
    result = gavel("queue", "-a", "-l", "1")
    assert "--limit" in result.stderr
    wording(result.stderr)


@pytest.mark.parametrize(
    "options",
    [
        ("-u", "bob"),
        ("-a", "--name", "x"),
        ("-a", "--state", "failed"),
        ("-a", "--node", "nl"),
        ("-a", "--worker-type", "x"),
        ("-a", "--state", "failed", "--node", "n1"),
    ],
    ids=" ".join,
)
def test_an_empty_queue_names_options_that_show_more(
    live: LiveThread, gavel: Gavel, options: tuple[str, ...], wording: Wording
) -> None:
    """A job has often ended before its owner looks for it, so an empty list is followed by the filter that applied."""
    gavel("submit", *RUN)
    gavel("cancel", "1")
    result = gavel("queue", *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (0, "", 1)
    wording(result.stderr)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--since", "soon"), "--since: "),
        (("--since", "99999999999h"), "--since: "),
        (("--state", "sleeping"), "invalid value for '--state'"),
        (("--limit", "0"), "invalid value for '-l' / '--limit'"),
    ],
    ids=as_words,
)
def test_wrong_filters_of_the_queue(
    live: LiveThread, gavel: Gavel, options: tuple[str, ...], place: str, wording: Wording
) -> None:
    """A wrong filter is one line that begins with the option. Exit code 2."""
    result = gavel("queue", *options)
    assert (result.exit_code, result.stderr.startswith(f"gavel queue: {place}")) == (2, True)
    wording(result.stderr)


def test_all_about_a_job(live: LiveThread, gavel: Gavel) -> None:
    """`show`, with an id or a name, prints the request as fields of the job file, the state and the history."""
    gavel("submit", "-n", "chat", "-g", "2", "--steps", "100", "--time-limit", "2h", "--memory", "4GB", *RUN)
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
    # Fields that have their default are left out.
    assert "weight" not in text
    job = json.loads(gavel("show", "1", "--json").stdout)
    assert (keys(Job), 3, "failed") == (set(job), job["exit_code"], job["state"])


def test_an_array_is_shown_by_its_members(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`show --json` prints a line for each member; a job that does not exist is exit code 3."""
    gavel("submit", "--array", "0-2", "-n", "sweep", *RUN)
    members = [json.loads(line)["id"] for line in gavel("show", "sweep", "--json").stdout.splitlines()]
    assert members == ["1_0", "1_1", "1_2"]
    wording(gavel("submit", "--array", "0-3", *RUN).stdout)
    for missing in ("99", "unknown"):
        result = gavel("show", missing)
        assert (result.exit_code, f"'{missing}'" in result.stderr) == (3, True)
        wording(result.stderr)


def test_a_name_that_several_have(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """An ambiguous name is refused, but an unfinished job goes before ended ones. A * is no pattern here."""
    for _ in range(2):
        gavel("submit", "-n", "twin*", *RUN)
    gavel("submit", "-n", "twins", *RUN)
    result = gavel("explain", "twin*")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    wording(result.stderr)
    gavel("cancel", "2")
    assert gavel("explain", "twin*").stdout.startswith("job 1: ")


def test_explain_asks_the_live_scheduler(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """Without `--journal`, `explain` asks the running scheduler."""
    gavel("submit", "-n", "chat", "--start", "1h", *RUN)
    gavel("hold", "1")
    assert gavel("explain", "1").stdout.startswith("job 1: held\n")
    answer = json.loads(gavel("explain", "1", "--json").stdout)
    assert (answer["job"], answer["state"], answer["reason"]) == ("1", "held", "held")
    result = gavel("explain", "1", "--at", "5")
    assert (result.exit_code, "--at" in result.stderr) == (2, True)
    wording(result.stderr)


# --------------------------------------------------------------------------------------------------------- logs


def chunk(data: bytes, **more: Any) -> jobs_pb2.LogChunk:
    """Return a piece of job 1's output."""
    return jobs_pb2.LogChunk(job="1", attempt=more.pop("attempt", 1), data=data, **more)


def test_logs_go_out_as_they_are(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """Output goes to standard output byte by byte, notices to standard error on lines of their own."""
    gavel("submit", *RUN)
    live.do(live.daemon.run_job("1"))
    live.daemon.nodes.chunks = [
        chunk(b"a\xffb"),
        chunk(b"", notice="attempt 2 starts on n2"),
        chunk(b"c\n", attempt=2),
    ]
    result = gavel("logs", "1", "-n", "5", "--attempt", "1", "--rank", "0")
    assert (result.exit_code, result.stdout_bytes) == (0, b"a\xffb\nc\n")
    wording(result.stderr)
    assert live.daemon.nodes.asked[-1] == ("1", 1, 0, 5, False)
    first, *_ = [json.loads(line) for line in gavel("logs", "1", "--json").stdout.splitlines()]
    assert (keys(LogChunk), "a\ufffdb") == (set(first), first["data"])


def test_lines_of_several_ranks_carry_their_rank(live: LiveThread, gavel: Gavel) -> None:
    """Each whole line begins with its rank, an unfinished line comes last; the output of one rank is unchanged."""
    gavel("submit", "-g", "2", *RUN)
    live.do(live.daemon.run_job("1"))
    live.daemon.nodes.chunks = [
        chunk(b"be", rank=0),
        chunk(b"x\ny", rank=1),
        chunk(b"gun\n", rank=0, offset=2),
    ]
    assert gavel("logs", "1").stdout == "1: x\n0: begun\n1: y\n"
    live.daemon.nodes.chunks = [chunk(b"plain", rank=1)]
    assert gavel("logs", "1", "--rank", "1").stdout == "plain\n"


def test_a_rank_that_is_not_there(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The error about an unknown rank has the known ranks; the note about a silent rank has the ranks that printed."""
    gavel("submit", "-g", "2", *RUN)
    live.do(live.daemon.run_job("1"))
    gavel("submit", *RUN)
    result = gavel("logs", "-f", "1", "--rank", "2")
    assert (result.exit_code, result.stderr.startswith("gavel logs: --rank 2: ")) == (2, True)
    wording(result.stderr)
    result = gavel("logs", "2", "--rank", "5")
    assert (result.exit_code, result.stderr.startswith("gavel logs: --rank 5: ")) == (2, True)
    wording(result.stderr)
    read_logs = live.daemon.nodes.read_logs

    def of_rank_0(job: str, attempt: int, rank: int | None, *rest: Any) -> Any:
        live.daemon.nodes.chunks = [] if rank else [chunk(b"x")]
        return read_logs(job, attempt, rank, *rest)

    monkeypatch.setattr(live.daemon.nodes, "read_logs", of_rank_0)
    result = gavel("logs", "1", "--rank", "1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (0, "", 1)
    wording(result.stderr)


def test_logs_of_a_job_that_has_not_run(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """The logs of a job that has not started are refused with a remedy."""
    gavel("submit", "--start", "1h", *RUN)
    result = gavel("logs", "1")
    assert result.exit_code == 6
    wording(result.stderr)


# --------------------------------------------------------------------------------------------------- commanding


def test_changing_jobs(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A failure does not keep the other jobs from being changed; the exit code is that of the first failure."""
    gavel("submit", *RUN)
    gavel("submit", "--array", "0-1", *RUN)
    jobs = live.daemon.world.state.jobs
    result = gavel("hold", "1", "2")
    assert (result.exit_code, {jobs[job].state for job in ("1", "2_0", "2_1")}) == (0, {"held"})
    wording(result.stdout)
    wording(gavel("release", "2_0").stdout)
    result = gavel("cancel", "99", "1", "1")
    assert (result.exit_code, jobs["1"].state, "'99'" in result.stderr) == (3, "cancelled", True)
    wording(result.stdout)
    wording(result.stderr)
    result = gavel("cancel", "1", "2_0", "--json")
    answer = json.loads(result.stdout)
    failed = [failure["job"] for failure in answer["failed"]]
    assert (result.exit_code, answer["jobs"], failed) == (6, ["2_0"], ["1"])
    assert {"job", "reason", "message"} == set(answer["failed"][0])


def test_changing_all_jobs(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`--all` changes the caller's jobs that fit the filters, after a confirmation."""
    gavel("submit", "--array", "0-2", "-n", "mine", *RUN)
    gavel("submit", "--user", "bob", *RUN)
    result = gavel("hold", "--all")
    assert (result.exit_code, "3 jobs" in result.stderr, "--yes" in result.stderr) == (2, True, True)
    wording(result.stderr)
    wording(gavel("hold", "--all", "-y").stdout)
    wording(gavel("hold", "--all", "--yes").stderr)
    wording(gavel("requeue", "--all", "--state", "held", "-y").stderr)
    jobs = live.daemon.world.state.jobs
    assert {jobs[f"1_{at}"].state for at in range(3)} == {"held"}
    assert gavel("cancel", "--all", "--yes", "--name", "m*", "--state", "held", "--json").exit_code == 0
    assert {jobs[f"1_{at}"].state for at in range(3)} == {"cancelled"}
    assert jobs["2"].state in ("queued", "running")


def test_jobs_that_end_meanwhile_are_no_failure(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A job that ends before it is changed is a failure if the command named the job, but not with `--all`."""
    gavel("submit", *RUN)
    gavel("submit", *RUN)
    cancel = Client.cancel

    def both(self: Client, job: str) -> tuple[str, ...]:
        cancel(self, "1")
        return cancel(self, job)

    monkeypatch.setattr(Client, "cancel", both)
    result = gavel("cancel", "--all", "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    wording(result.stdout)
    assert gavel("cancel", "2").exit_code == 6


@pytest.mark.parametrize(
    "arguments",
    [(), ("1", "--all"), ("1", "--state", "held")],
    ids=["nothing", "id and --all", "id and filter"],
)
def test_changes_need_ids_or_all(gavel: Gavel, arguments: tuple[str, ...], wording: Wording) -> None:
    """A command needs either ids or `--all`, so that no slip changes every job."""
    result = gavel("cancel", *arguments)
    assert (result.exit_code, "--all" in result.stderr) == (2, True)
    wording(result.stderr)
