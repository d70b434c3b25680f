"""Reading logs: the end, from an offset, as they grow; across rotation and attempts, and through no link."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from worker_agent.runs.logs import Chunk, RunLogs, follow, last_lines
from worker_agent.runs.retention import Retention, remove_old_runs
from worker_agent.shim.log_pump import PiecewiseLog
from worker_agent.shim.run_directory import ACKNOWLEDGED, EXIT, START, RunDirectory

PIECE = 100


class Run:
    """A run whose logs are written by the test, in pieces of 100 bytes, of which 3 are kept."""

    def __init__(
        self, runs: Path, lease: str = "17", *, attempt: int = 1, ranks: int = 1, job: str = "12"
    ) -> None:
        runs.mkdir(exist_ok=True)
        self.directory = RunDirectory.create(runs, lease)
        self.path = self.directory.path
        start = {"job": job, "attempt": attempt, "ranks": [{"rank": rank} for rank in range(ranks)]}
        self.directory.write(START, start | {"log_bytes_max": PIECE})
        logs = self.directory.open_logs()
        self.logs = [PiecewiseLog(logs, f"rank-{rank}.log", PIECE, 3) for rank in range(ranks)]

    def write(self, text: str, rank: int = 0) -> None:
        """Write some output of a rank."""
        self.logs[rank].write(text.encode())

    def end(self, first: int | None = None, codes: Mapping[str, int] | None = None) -> None:
        """End the run."""
        self.directory.write(EXIT, {"codes": codes or {}, "first": first})


def lines(first: int, last: int) -> str:
    """Lines of ten bytes, by number."""
    return "".join(f"line {number:>4}\n" for number in range(first, last))


def gather(chunks: AsyncIterator[Chunk]) -> str:
    """Return everything that comes, as text."""

    async def all_of_it() -> str:
        return b"".join([chunk.data async for chunk in chunks]).decode()

    return asyncio.run(all_of_it())


# ---------------------------------------------------------------------------------------------------- one look


def test_a_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    """The pieces are read as if they were one file."""
    run = Run(tmp_path)
    run.write(lines(0, 25))
    assert gather(follow(run.path, wait=False)) == lines(0, 25)


def test_rotated_output_is_skipped(tmp_path: Path) -> None:
    """A reader that was too slow continues with the oldest byte left, and can see that some are missing."""
    run = Run(tmp_path)
    # Of 950 bytes, 700 to 900 are in full pieces, the rest in the current one.
    run.write(lines(0, 95))
    with RunLogs(run.path) as logs:
        assert logs.bounds(0) == (700, 950)
        chunk = logs.read(0, 40)
        assert (chunk.offset, chunk.data.decode()) == (700, lines(70, 80))
        assert logs.read(0, 950) == Chunk(1, 0, 950, b"")
        assert logs.read(0, 10**9) == Chunk(1, 0, 950, b"")


@pytest.mark.parametrize("count", [0, 1, 3, 12, 25, 1000])
def test_the_last_lines_can_be_asked_for(tmp_path: Path, count: int) -> None:
    """A reader gets the last lines even across pieces, and all lines if it asks for more."""
    run = Run(tmp_path)
    run.write(lines(0, 25))
    assert gather(follow(run.path, tail_lines=count, wait=False)) == lines(max(0, 25 - count), 25)
    run.write("and half a line")
    expected = lines(max(0, 26 - count), 25) + "and half a line" if count else ""
    assert gather(follow(run.path, tail_lines=count, wait=False)) == expected


def test_a_log_without_a_line_end_is_one_line(tmp_path: Path) -> None:
    """The last line comes whole, however long it is."""
    run = Run(tmp_path)
    run.write("x" * 250)
    assert gather(follow(run.path, tail_lines=1, wait=False)) == "x" * 250


def test_a_reader_may_choose_ranks(tmp_path: Path) -> None:
    """One of them, or all, and each chunk names its rank."""
    run = Run(tmp_path, ranks=2)
    run.write("zero\n", 0)
    run.write("one\n", 1)
    assert gather(follow(run.path, ranks=[1], wait=False)) == "one\n"

    async def all_ranks() -> list[Chunk]:
        return [chunk async for chunk in follow(run.path, wait=False)]

    assert asyncio.run(all_ranks()) == [Chunk(1, 0, 0, b"zero\n"), Chunk(1, 1, 0, b"one\n")]


def test_the_last_lines_are_those_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    """The lines are those of rank 1, which died first; they are bounded, and a missing log is no error."""
    run = Run(tmp_path, ranks=2)
    run.write("stopped\n", 0)
    run.write("the reason\n", 1)
    assert last_lines(run.path) == "stopped\n"
    run.end(first=1)
    assert last_lines(run.path) == "the reason\n"
    run.write("é" * 40, 1)
    assert len(last_lines(run.path, size_bytes_max=30)) <= 30
    assert last_lines(tmp_path / "absent") == ""


def test_the_last_lines_are_those_of_a_failed_rank_without_memory(tmp_path: Path) -> None:
    """A rank that lost its peer may end before it; what a rank printed that succeeded counts for nothing."""
    run = Run(tmp_path, ranks=3)
    for rank, line in enumerate(("CUDA out of memory: smaller batch\n", "no peer\n", "CUDA out of memory\n")):
        run.write(line, rank)
    run.end(first=1, codes={"0": 0, "1": 1, "2": 0})
    assert last_lines(run.path) == "no peer\n"
    run.end(first=1, codes={"0": 0, "1": 1, "2": 1})
    assert last_lines(run.path) == "CUDA out of memory\n"


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "directory"])
def test_only_own_files_are_read(tmp_path: Path, kind: str) -> None:
    """A job may put anything in the place of its log; no other file is shown, and no pipe is waited for."""
    secret = tmp_path / "secret"
    secret.write_text("for others' eyes")
    run = Run(tmp_path / "runs")
    log = run.path / "logs" / "rank-0.log"
    if kind == "link":
        log.symlink_to(secret)
    elif kind == "hard link":
        os.link(secret, log)
    elif kind == "fifo":
        os.mkfifo(log)
    else:
        log.mkdir()
    assert gather(follow(run.path, wait=False)) == ""


def test_a_link_in_place_of_all_logs_is_not_followed(tmp_path: Path) -> None:
    """A job could replace the directory of its logs by a link."""
    run = Run(tmp_path / "runs")
    (run.path / "logs").rename(tmp_path / "elsewhere")
    (run.path / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        gather(follow(run.path, wait=False))


# -------------------------------------------------------------------------------------------------- as they grow


def test_a_follower_reads_across_rotation_to_the_end(tmp_path: Path) -> None:
    """A follower gets every line once, in order, while pieces are rotated, and ends after the run's last line."""
    run = Run(tmp_path)

    async def story() -> str:
        received = b""

        async def write() -> None:
            for number in range(0, 100, 5):
                run.write(lines(number, number + 5))
                # Written no faster than read, so that nothing is skipped.
                while len(received) < 10 * number:
                    await asyncio.sleep(0)
            run.end()

        writer = asyncio.create_task(write())
        async for chunk in follow(run.path):
            assert chunk.offset == len(received)
            received += chunk.data
        await writer
        return received.decode()

    assert asyncio.run(story()) == lines(0, 100)


def test_following_ends_when_the_shim_has_died(tmp_path: Path) -> None:
    """A run whose shim died has no exit, but its log still has an end."""
    run = Run(tmp_path)
    run.write("last\n")
    assert gather(follow(run.path, alive=lambda: False)) == "last\n"


# ---------------------------------------------------------------------------------------------- what is kept


def old_run(runs: Path, lease: str, ended_s: float, *, reported: bool = True, size_bytes: int = 0) -> Path:
    """Return the directory of a run that ended at this time."""
    run = Run(runs, lease)
    run.write("x" * size_bytes)
    run.end()
    if reported:
        run.directory.mark(ACKNOWLEDGED)
    os.utime(run.path / EXIT, (ended_s, ended_s))
    return run.path


def test_logs_are_kept_for_some_time(tmp_path: Path) -> None:
    """A log stays while the run or a reader uses it, and longer than usual until the scheduler has the exit."""
    old = old_run(tmp_path, "old", 0)
    old_run(tmp_path, "new", 900)
    old_run(tmp_path, "unreported", 0, reported=False)
    old_run(tmp_path, "busy", 0)
    Run(tmp_path, "running")
    kept = Retention(keep_s=500)
    assert remove_old_runs(tmp_path, {"busy"}, kept, now_s=1000) == [old]
    assert {path.name for path in tmp_path.iterdir()} == {"new", "unreported", "busy", "running"}
    assert [path.name for path in remove_old_runs(tmp_path, {"busy"}, kept, now_s=3000)] == [
        "new",
        "unreported",
    ][::-1]


def test_logs_are_kept_within_a_limit(tmp_path: Path) -> None:
    """The oldest go first, until the rest fits."""
    for number in range(4):
        old_run(tmp_path, f"run-{number}", number, size_bytes=250)
    run_bytes = sum(
        path.lstat().st_blocks * 512 for path in (tmp_path / "run-0").rglob("*") if path.is_file()
    )
    removed = remove_old_runs(tmp_path, (), Retention(total_bytes_max=2 * run_bytes), now_s=10)
    assert [path.name for path in removed] == ["run-0", "run-1"]


def test_cleaning_up_follows_no_links(tmp_path: Path) -> None:
    """A link in the directory of runs is not a run, and its target is not removed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / EXIT).write_text("{}")
    os.utime(outside / EXIT, (0, 0))
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "link").symlink_to(outside)
    assert remove_old_runs(runs, (), Retention(keep_s=1), now_s=1e9) == []
    assert (outside / EXIT).exists()


def test_directories_that_a_job_has_nested_without_end_are_removed(tmp_path: Path) -> None:
    """A job that nests its directories deeper than Python's stack, and than a path may be, stops no agent."""
    run = old_run(tmp_path, "deep", 0, size_bytes=250)
    folder = os.open(run, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert remove_old_runs(tmp_path, (), Retention(keep_s=1), now_s=1e9) == [run]
    assert not run.exists()


def test_logs_that_cannot_be_opened_leave_nothing_open(tmp_path: Path) -> None:
    """A job may remove its logs, or write nonsense; an agent that looks again and again keeps no descriptors."""
    gone, odd = Run(tmp_path, "1"), Run(tmp_path, "2")
    (gone.path / "logs").rename(tmp_path / "elsewhere")
    odd.directory.write(START, {"attempt": "many"})
    before = len(os.listdir("/proc/self/fd"))
    for run in (gone, odd):
        assert last_lines(run.path) == ""
    # Other tests in this process may have closed theirs.
    assert len(os.listdir("/proc/self/fd")) <= before
