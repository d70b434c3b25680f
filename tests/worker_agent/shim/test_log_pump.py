"""A job's output is written to pieces of one size within a cap; a full disk costs only output."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_agent.shim_runs import ShimRun, in_time, python, shim_run, wait_for
from worker_agent.shim.log_pump import PiecewiseLog, pump
from worker_agent.shim.run_directory import EXIT

FLOOD = "import sys\nfor i in range(40_000): print(f'line {i:>10} of a chatty job', flush=False)"
LINE_BYTES = len("line          0 of a chatty job\n")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """An open directory."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder with their sizes."""
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_stream_is_cut_into_pieces(directory: int, tmp_path: Path) -> None:
    """Full pieces have a number and exactly the size; the oldest are removed."""
    log = PiecewiseLog(directory, "rank-0.log", 10, 3)
    log.write(b"0123456789" * 4 + b"end")
    log.close()
    assert sizes(tmp_path) == {"rank-0.log.3": 10, "rank-0.log.4": 10, "rank-0.log": 3}
    assert (tmp_path / "rank-0.log").read_bytes() == b"end"


def test_a_full_piece_is_put_away_when_more_comes(directory: int, tmp_path: Path) -> None:
    """The newest output is in the file without a number."""
    log = PiecewiseLog(directory, "rank-0.log", 10, 3)
    log.write(b"0123456789")
    assert sizes(tmp_path) == {"rank-0.log": 10}
    log.write(b"x")
    assert sizes(tmp_path) == {"rank-0.log.1": 10, "rank-0.log": 1}


def test_a_log_is_not_written_through_a_link(directory: int, tmp_path: Path) -> None:
    """A job that replaces its log by a link cannot make the shim write to another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "rank-0.log").symlink_to(victim)
    PiecewiseLog(directory, "rank-0.log", 10, 3).write(b"evil")
    assert victim.read_text() == "precious"


def test_several_pipes_are_written_into_one_log(directory: int, tmp_path: Path) -> None:
    """The shim's notes and a rank's output go to one log, until the last pipe ends."""
    log = PiecewiseLog(directory, "rank-0.log", 100, 3)
    (read_a, write_a), (read_b, write_b) = os.pipe(), os.pipe()
    os.write(write_a, b"output\n")
    os.close(write_a)
    os.write(write_b, b"note\n")
    os.close(write_b)
    pump({read_a: log, read_b: log})
    assert sorted((tmp_path / "rank-0.log").read_text().splitlines()) == ["note", "output"]


def test_notes_of_the_agent_come_before_all_output(tmp_path: Path) -> None:
    """The pump may read the job's output late: in this test, after the job has printed everything."""
    printed = tmp_path / "printed"
    late = (
        "import os, sys, time\nimport worker_agent.shim.__main__ as shim\nimport worker_agent.shim.log_pump as output\n"
        "at_once = output.pump\n"
        "def late(*what):\n"
        f"    while not os.path.exists('{printed}'): time.sleep(0.01)\n"
        "    at_once(*what)\n"
        "output.pump = late\nshim.main(sys.argv[1])\nos._exit(0)"
    )
    code = f"print('output', flush=True); open('{printed}', 'w')"
    run = ShimRun(tmp_path / "runs", python(code), notes=["one", "two"])
    try:
        run.start_by(late).ended()
        assert run.log().splitlines() == ["[gavel: one]", "[gavel: two]", "output"]
    finally:
        run.close()


def test_the_shim_waits_for_the_end_of_the_output_even_when_the_clock_jumps(tmp_path: Path) -> None:
    """exit.json means that the log is complete, so it is not written earlier because the clock jumped."""
    jumps = (
        "import itertools, sys, time, types\nimport worker_agent.shim.__main__ as shim\n"
        "import worker_agent.shim.log_pump as output\nat_once = output.pump\n"
        "output.pump = lambda *what: (time.sleep(0.3), at_once(*what))\n"
        "def finish(self, error, rest=shim.Shim._finish):\n"
        "    clock = itertools.count(time.monotonic(), 100.0)\n"
        "    shim.time = types.SimpleNamespace(monotonic=lambda: next(clock))\n"
        "    rest(self, error)\n"
        "    shim.os._exit(0)\n"
        "shim.Shim._finish = finish\nshim.main(sys.argv[1])"
    )
    run = ShimRun(tmp_path / "runs", python("print('the last words')"))
    try:
        run.start_by(jumps).ended()
        assert run.log() == "the last words\n"
    finally:
        run.close()


def test_a_chatty_job_does_not_fill_the_disk(tmp_path: Path) -> None:
    """The log is the end of the output, in a few files of limited size, without a missing line."""
    with shim_run(tmp_path, python(FLOOD), log_bytes_max=50_000, log_files_max=3) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert len(sizes(run.path / "logs")) == 3
        assert sum(sizes(run.path / "logs").values()) <= 3 * 50_000
        lines = run.log().splitlines()[1:]
        last = [int(line.split()[1]) for line in lines]
        assert last == list(range(40_000 - len(last), 40_000))


def test_a_limit_on_file_sizes_costs_output_only(tmp_path: Path) -> None:
    """Output that the disk refuses is lost; the job does not notice, and its exit is recorded."""
    run = ShimRun(tmp_path, python(FLOOD))
    try:
        run.start("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))")
        assert run.ended()["codes"] == {"0": 0}
        assert sizes(run.path / "logs") == {"rank-0.log": 65536}
    finally:
        run.close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root may mount a disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_output_only(tiny_disk: Path) -> None:
    """The room for exit.json was reserved before; later times cannot be written, so the last written ones hold."""
    flood = FLOOD + "\nsys.stdout.flush(); import time; time.sleep(600)"

    def story(within_s: float) -> bool:
        run = ShimRun(tiny_disk, python(flood))
        try:
            times = run.lease(within_s, within_s, within_s)
            run.start()
            wait_for(lambda: os.statvfs(tiny_disk).f_bavail == 0 or run.run.has(EXIT))
            if time.monotonic() >= times["kill_s"]:
                return False
            with pytest.raises(OSError, match="No space left"):
                run.lease(60, 60, 60)
            exit = run.ended()
            assert (exit["codes"], exit["killed"]) == ({"0": -9}, True)
            return True
        finally:
            run.close()
            shutil.rmtree(run.path)

    in_time(story, first_s=0.8)


def test_a_note_counts_lost_output_when_the_disk_has_room_again(tiny_disk: Path) -> None:
    """In the place of the missing output, a note has its size and the reason."""
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 100 * 1024)
    fd = os.open(tiny_disk, os.O_RDONLY)
    log = PiecewiseLog(fd, "rank-0.log", 1 << 20, 2)
    log.write(b"z" * 100_000)
    ballast.unlink()
    log.write(b"here again\n")
    os.close(fd)
    written = (tiny_disk / "rank-0.log").read_text()
    kept = written.count("z")
    assert 0 < kept < 100_000
    note = f"\n[gavel: {100_000 - kept} bytes of output are missing here: No space left on device]\n"
    assert written.endswith(note + "here again\n")


def test_a_stuck_disk_delays_neither_the_end_nor_the_exit_code(tmp_path: Path) -> None:
    """A job whose output is not read blocks, but it is ended in time, and its exit is recorded."""
    run = ShimRun(tmp_path, python(FLOOD))
    log = run.path / "logs" / "rank-0.log"
    # Opening the pipe waits for a reader, which never comes.
    os.mkfifo(log)
    try:
        run.start().running()
        run.lease(0, 0, 600)
        exit = run.ended()
        assert (exit["codes"], exit["signalled"], exit["killed"]) == ({"0": -15}, True, False)
    finally:
        # Let the pump end.
        with log.open("rb") as reader:
            reader.read()
        run.close()
