"""Pictures and tables at 80 columns without colour: no line is wider, and nothing important is cut off."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gavel.cli.cluster.top import read_picture
from gavel.cli.cluster.top_screen import Picture, screen
from gavel.cli.io.lines import Line
from gavel.cli.io.tables import Column, table
from gavel.cli.jobs.queue import COLUMNS, rows
from gavel.cli.jobs.show import lines as show_lines
from gavel.client import JobFilter
from gavel.client.jobs.spec import JobSpec
from gavel.client.reading import read
from gavel.client.results import Gpu, Job, JobPage, JobState, Node, NodeState, Placement, Status
from gavel.client.views.job_text import few, ids, job_on, job_progress, job_where
from gavel.client.views.units import ago, hours, short_number, span
from protos.gavel.v1 import cluster_pb2, jobs_pb2
from tests.support.wording import Wording

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def job(name: str, state: JobState = JobState.QUEUED, **more: Any) -> Job:
    """Return a job that was submitted two hours ago."""
    empty = read(Job, jobs_pb2.Job(id=name))
    return replace(empty, state=state, submitted=NOW - timedelta(hours=2), **more)


def placed(*gpus: str, phase: str = "running", with_job: str = "") -> Placement:
    """Return a placement on these GPUs."""
    return Placement("a100", gpus, with_job, NOW, NOW, phase, "1", 0.0)


def node(name: str, *holders: tuple[str, ...], state: NodeState = NodeState.UP, broken: str = "") -> Node:
    """Return a node with one GPU for each group of jobs that hold it."""
    empty = read(Node, cluster_pb2.Node(name=name, worker_type="a100"))
    gpus = [read(Gpu, cluster_pb2.Gpu(index=at, jobs=jobs)) for at, jobs in enumerate(holders)]
    if broken:
        gpus[0] = replace(gpus[0], broken=broken)
    return replace(empty, state=state, gpus=tuple(gpus))


def picture(nodes: list[Node], jobs: list[Job], waiting: int = 0, **more: Any) -> Picture:
    """Return the picture that `top` draws of a scheduler in its third round."""
    status = read(Status, cluster_pb2.Status(policy="las", round=3, gpus=8, gpus_busy=5))
    return Picture(replace(status, round_ends=NOW + timedelta(seconds=90)), nodes, jobs, waiting, NOW, **more)


def drawn(whole: Picture, width: int = 80, height: int = 24) -> list[str]:
    """Return the lines of the screen without colour."""
    return [line.plain.rstrip() for line in screen(whole, width, height)]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"steps_done": 31.0}, "31 steps, 0 saved"),
        (
            {"steps_done": 31.0, "steps_saved": 30.0, "spec": JobSpec(steps=62.0)},
            "50% (31 of 62 steps, 30 saved)",
        ),
        ({"state": JobState.COMPLETED, "steps_done": 31.0, "steps_saved": 31.0}, "100% (31 steps, 31 saved)"),
        ({"state": JobState.COMPLETED}, "100%"),
        ({"state": JobState.FAILED, "spec": JobSpec(steps=62.0)}, "0%"),
        ({}, None),
    ],
)
def test_show_says_once_how_far_a_job_is(more: dict[str, Any], line: str | None) -> None:
    """`show` reports the steps done out of the total, or only the steps done if the total is unknown."""
    facts = dict(_facts(job("1", **{"state": JobState.RUNNING, **more})))
    assert facts.get("done") == line


@pytest.mark.parametrize(
    ("phase", "ran"),
    [
        ("sent", "9s (v100 9s)"),
        ("running", "31s (a100 22s, v100 9s)"),
        ("stopping", "31s (a100 22s, v100 9s)"),
    ],
)
def test_show_counts_the_present_attempt(phase: str, ran: str) -> None:
    """The time that a job ran includes its current attempt if that has started."""
    place = replace(placed("n1:0", phase=phase), since=NOW - timedelta(seconds=22))
    again = job("1", JobState.RUNNING, placement=place, run_s=9.0, time_s={"v100": 9.0}, attempt=2)
    assert dict(_facts(again))["ran"] == ran


def _facts(job: Job) -> list[tuple[str, str]]:
    """Return the first lines of `gavel show`, as keys and values."""
    lines = [line.plain for line in show_lines(job, NOW)]
    return [(line[2:18].strip(), line[18:]) for line in lines[1 : lines.index("")]]


def test_a_whole_picture(wording: Wording) -> None:
    """The picture has a mark for each GPU, the running jobs, the queue and the countdown of the round."""
    chat = job("17", JobState.RUNNING, spec=JobSpec(name="chat", user="ada", steps=200.0), steps_done=50.0)
    lines = drawn(
        picture(
            [node("n1", ("17",), ("17", "18"), ()), node("n2", (), broken="ECC", state=NodeState.DRAINING)],
            [
                replace(chat, placement=placed("n1:0", "n1:1")),
                job(
                    "18",
                    JobState.HELD,
                    spec=JobSpec(name="sweep", user="bob", gpus_min=2, gpus_max=8),
                    why="hold",
                ),
            ],
            waiting=1,
        )
    )
    assert lines[0].startswith("5/8 ")
    assert lines[1].split() == ["n1", "a100", "█▓░", "n2", "a100", "x", "draining"]
    assert lines[4].split() == ["17", "chat", "ada", "a100×2", "25%", "2h00m", "n1"]
    assert lines[7].split() == ["18", "sweep", "bob", "held", "×2-8", "2h00m", "hold"]
    wording("\n".join(lines))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_a_picture_of_a_large_cluster_fits_any_window(width: int, height: int) -> None:
    """No line is wider than the window, the lines fit its height, and nodes and jobs that are left out are counted."""
    nodes = [node(f"gpu-node-{at:03}", *[("1",)] * 8) for at in range(300)]
    running = [
        job(str(at), JobState.RUNNING, spec=JobSpec(name="训练" * 20, user="u" * 40), placement=placed("n:0"))
        for at in range(100)
    ]
    waiting = [job(f"{1000 + at}_{at}", why="because " * 30) for at in range(100)]
    lines = screen(picture(nodes, [*running, *waiting], 5000), width, height)
    assert len(lines) <= height
    assert max(line.width for line in lines) <= width
    text = "\n".join(line.plain for line in lines)
    assert "more nodes" in text
    if height >= 24:
        assert "more running" in text
        assert "more waiting" in text


def test_nodes_in_trouble_are_shown_before_idle_ones() -> None:
    """A node in trouble is shown however little room there is."""
    nodes = [node(f"a{at:03}", ()) for at in range(200)] + [node("zz", (), state=NodeState.LOST)]
    assert "zz " in "\n".join(drawn(picture(nodes, []))[:3])


def test_an_empty_cluster_and_a_scheduler_that_is_away(wording: Wording) -> None:
    """The picture reports an empty cluster, and a scheduler that does not answer."""
    lines = drawn(picture([], [], trouble="still trying: no scheduler answers"))
    assert "still trying: no scheduler answers" in lines
    wording("\n".join(lines))


def test_the_queue_fits_a_terminal_and_is_whole_in_a_file() -> None:
    """A terminal cuts the last column first, then names; a file gets every column whole."""
    long = job("123_45", spec=JobSpec(name="n" * 60, user="a-user-with-a-long-name"), why="w" * 100)
    lines = table(COLUMNS, rows([long], NOW, ended=False, plans=False), 80)
    assert max(line.width for line in lines) <= 80
    assert "123_45" in lines[1].plain
    assert "…" in lines[1].plain
    whole = table(COLUMNS, rows([long], NOW, ended=False, plans=False), None)[1].plain
    assert "n" * 60 in whole
    assert "w" * 100 in whole


def test_names_cannot_move_the_cursor() -> None:
    """Control characters in the names of jobs are shown escaped, so that they cannot touch the terminal."""
    (_, line) = table((Column("name"),), [("\x1b[2Jx\ny",)], None)
    assert line.plain == "\\x1b[2Jx\\ny"


def test_a_narrow_table_keeps_its_columns_apart() -> None:
    """Columns stay apart in a narrow table, even if a name has characters that are two columns wide."""
    lines = table((Column("a"), Column("b", right=True), Column("c")), [("训练", "1", "x" * 50)], 20)
    assert [line.plain for line in lines] == ["a     b  c", f"训练  1  {'x' * 10}…"]
    assert [line.width for line in table((Column("a"),), [(Line("x" * 30),)], 10)] == [1, 10]


@pytest.mark.parametrize(
    ("length_s", "words"),
    [(0, "0s"), (-5, "0s"), (59.4, "59s"), (60, "1m"), (3599, "59m"), (7500, "2h05m"), (90_000, "1d1h")],
)
def test_lengths_of_time(length_s: float, words: str) -> None:
    """A duration is short and has the usual unit for its length."""
    assert span(length_s) == words


def test_relative_times() -> None:
    """A moment is given as time before or after now, or as "never"."""
    minute = timedelta(minutes=1)
    assert [ago(NOW - minute, NOW), ago(NOW + minute, NOW), ago(None, NOW)] == ["1m ago", "in 1m", "never"]


@pytest.mark.parametrize(
    ("left_s", "until"),
    [
        (60.0, "until in 1m"),
        (0.9, "until now"),
        (0.0, "until now"),
        (-0.9, "until now"),
        (-3.0, "until 3s ago"),
    ],
)
def test_the_end_of_a_lease_at_the_end_of_a_round(left_s: float, until: str) -> None:
    """A lease that ends within a second ends "now", not 0 seconds ago."""
    placement = replace(placed("a:0"), until=NOW + timedelta(seconds=left_s))
    (line,) = [line.plain for line in show_lines(job("1", placement=placement), NOW) if "lease" in line.plain]
    assert line.endswith(until)


def test_words_about_a_job() -> None:
    """A line about a job has its node, why it waits or failed, and its progress."""
    assert job_where(job("1", blocked_by=("7", "8", "9", "10"))) == "after 7, 8, 9 +1"
    # The exit code is printed before the reason, unless the reason has it already.
    retried = job("1", JobState.FAILED, exit_code=3, why="out of retries")
    assert job_where(retried) == "exit code 3; out of retries"
    exited = job("1", JobState.FAILED, exit_code=3, why="it exited with code 3")
    assert job_where(exited) == exited.why
    decoder = job("1", JobState.FAILED, exit_code=1, why="lost the decoder")
    assert job_where(decoder) == f"exit code 1; {decoder.why}"
    killed = job("1", JobState.FAILED, exit_code=-11, why="it was killed by SIGSEGV")
    assert job_where(killed) == killed.why
    assert job_where(job("1", placement=placed("a:0", "a:1", "b:0", phase="sent"))) == "a, b (sent)"
    assert job_where(job("1", placement=placed("a:0", with_job="9"))) == "a with 9"
    assert [job_on(job("1", spec=JobSpec(gpus=4))), job_on(job("1"))] == ["×4", "×1"]
    spec = JobSpec(steps=1000.0)
    assert [job_progress(job("1", spec=spec, steps_done=done)) for done in (0.0, 1.0, 998.0, 1000.0)] == [
        "0%",
        "1%",
        "99%",
        "100%",
    ]
    assert job_progress(job("1", steps_done=12_345.0)) == "12.3k steps"


def test_gpu_time() -> None:
    """GPU time of an hour or more is given in hours."""
    assert [hours(length_s) for length_s in (40.0, 3599.0, 3600.0, 5e6)] == [
        "40s",
        "59m",
        "1.0 h",
        "1,388.9 h",
    ]


def test_words_about_several() -> None:
    """Lists of jobs are joined in words, arrays are ranges, and long lists are cut with a count."""
    assert ids(["17"]) == "job 17"
    assert ids(["17", "18"]) == "jobs 17 and 18"
    assert ids([f"3_{at}" for at in range(10)]) == "jobs 3_0 to 3_9 (10)"
    assert ids(["1_0", "2", "3", "4"]) == "jobs 1_0, 2, 3 and 4"
    assert few(["a"] * 5) == "a, a, a +2"
    numbers = (950.0, 12_300.0, 1.2e6, 3e9)
    assert [short_number(number) for number in numbers] == ["950", "12.3k", "1.2M", "3G"]


class Starting:
    """A client whose job starts between the two lists that `top` fetches."""

    def __init__(self) -> None:
        self.state = JobState.QUEUED

    def _listed(self, job_filter: JobFilter) -> list[Job]:
        jobs = [job("1", self.state)] if self.state in job_filter.states else []
        self.state = JobState.RUNNING
        return jobs

    def list(self, job_filter: JobFilter, **_: Any) -> Any:
        """Iterate over the jobs in these states."""
        return iter(self._listed(job_filter))

    def page(self, job_filter: JobFilter, **_: Any) -> JobPage:
        """Return the jobs in these states, and how many there are."""
        jobs = self._listed(job_filter)
        return JobPage(tuple(jobs), "", len(jobs))

    def status(self) -> Status:
        """Return an empty status."""
        return read(Status, cluster_pb2.Status())

    def nodes(self) -> tuple[Node, ...]:
        """Return no nodes."""
        return ()


def test_a_job_that_starts_meanwhile_is_in_the_picture_once() -> None:
    """`top` fetches waiting jobs before running ones, so that a job that starts in between is not missed."""
    jobs = read_picture(Starting()).jobs  # type: ignore[arg-type]
    assert [(job.id, job.state) for job in jobs] == [("1", JobState.RUNNING)]


def test_show_prints_times_that_start_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are local and without a zone, so that a printed one can be given to `--start`."""
    for zone, submitted in (("UTC", "2030-01-01 10:00:00"), ("Asia/Kolkata", "2030-01-01 15:30:00")):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert dict(_facts(job("1")))["submitted"].startswith(f"{submitted} by")
        assert datetime.fromisoformat(submitted).astimezone() == NOW - timedelta(hours=2)
    monkeypatch.undo()
    time.tzset()
