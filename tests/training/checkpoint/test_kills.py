"""Training processes that are killed with SIGKILL at random moments, while a thread writes their checkpoints."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.training.leases import ROOT, RunDirectory

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
SCRIPT = Path(__file__).parents[1] / "jobs" / "killed.py"
KILLS, EVERY_STEPS, STEPS = 30, 5, 1500
# A kill comes at most so long after the event that it waits for: about the time of a checkpoint.
KILL_AFTER_S = 0.02

# Starts an attempt with its number and its kill, and returns its exit code and log.
Attempt = Callable[[str, int, "list[object] | None"], "tuple[int, list[tuple[str, str]]]"]


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    """A function that runs attempts of a job, of which there are several by name."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), str(STEPS), str(EVERY_STEPS)],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(job: str, number: int, kill: list[object] | None) -> tuple[int, list[tuple[str, str]]]:
            run_directory = RunDirectory(tmp_path / f"{job}-{number}", attempt=number)
            environ = run_directory.environ(GAVEL_CHECKPOINT_DIR=tmp_path / job)
            log = run_directory.path / "log.txt"
            assert process.stdin is not None
            assert process.stdout is not None
            print(
                json.dumps({"environ": environ, "log": str(log), "kill": kill}),
                file=process.stdin,
                flush=True,
            )
            code = int(process.stdout.readline())
            lines = [line.split() for line in log.read_text().splitlines()]
            return code, [(word, value) for word, value in lines]

        yield run
        process.stdin.close()


def steps_of(log: list[tuple[str, str]], word: str) -> list[int]:
    """Return the steps that were logged with this word."""
    return [int(value) for logged, value in log if logged == word]


def steps_in_flight(log: list[tuple[str, str]], step: int) -> int:
    """Return how many steps were done while the checkpoint of this step was written, as far as the loop knew."""
    begun = log.index(("begun", str(step)))
    end = log.index(("told", str(step))) if ("told", str(step)) in log else len(log)
    return sum(word == "step" for word, _ in log[begun:end])


def check_loss(log: list[tuple[str, str]], resumed_at: int) -> None:
    """Check what a kill has cost: at most the steps of an interval, and those while a checkpoint was written."""
    begun_at, on_disk = steps_of(log, "from")[0], steps_of(log, "on_disk")
    assert resumed_at >= max(on_disk, default=begun_at), "a checkpoint that counted as on disk is lost"
    sets = [begun_at, *steps_of(log, "begun")]
    assert resumed_at in sets[-2:], "more than the checkpoint in progress is lost"
    for before, after in pairwise(sets):
        # One that falls due while another is written is taken at the step after that.
        assert after - before <= max(EVERY_STEPS, (before != begun_at and steps_in_flight(log, before)) + 1)
    later = [step for step in sets if step > resumed_at]
    gap = later[0] - resumed_at if later else EVERY_STEPS
    written = steps_in_flight(log, later[0]) if later else 0
    if not later and resumed_at != begun_at:
        gap = max(gap, steps_in_flight(log, resumed_at) + 1)
    assert max(steps_of(log, "step"), default=begun_at) - resumed_at <= gap + written


def test_thirty_kills_change_no_bit_and_lose_no_more_than_an_interval(attempt: Attempt) -> None:
    """A run that was killed 30 times has the digest of one that was never killed; each kill loses what it may."""
    chance = random.Random(16)
    code, whole = attempt("whole", 1, None)
    assert code == 0
    before: list[tuple[str, str]] = []
    for number in range(1, KILLS + 1):
        # Half of the kills are aimed at a checkpoint that has just begun.
        word, most = chance.choice([("step", 2 * EVERY_STEPS), ("begun", 3)])
        kill: list[object] = [word, chance.randint(1, most), chance.uniform(0.0, KILL_AFTER_S)]
        code, log = attempt("killed", number, kill)
        assert code == -9, (kill, log[-3:])
        if before:
            check_loss(before, steps_of(log, "from")[0])
        before = log
    code, last = attempt("killed", KILLS + 1, None)
    assert code == 0
    check_loss(before, steps_of(last, "from")[0])
    assert steps_of(last, "from")[0] > 0
    assert last[-1] == whole[-1]
