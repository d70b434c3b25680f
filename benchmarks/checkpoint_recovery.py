"""Recovery after `kill -9`: how long a job takes to be where it was. Run as a program, this is the job."""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.checkpoint_loops import verdict
from benchmarks.checkpoint_ways import Training
from gavel.training import LeasedIterator, TorchCheckpoint

# How many checkpoints a job saves before it is killed.
CHECKPOINTS = 4


def job(folder: Path, megabytes: float, overhead: float) -> None:
    """Train for ever. Each line of the log is a time, a word and a step."""
    with open(folder / "log.txt", "a", encoding="ascii") as log:

        def write(word: str, step: int) -> None:
            print(time.monotonic(), word, step, file=log, flush=True)

        training = Training(megabytes)
        write("loads", 0)
        checkpoint = TorchCheckpoint(
            folder / "sets", background=True, model=training.model, optimizer=training.optimizer
        )
        loop = LeasedIterator(range(1 << 40), checkpoint=checkpoint, every="auto", overhead=overhead)
        write("begins", loop.step)
        saved = loop.step
        for _ in loop:
            training.step()
            write("step", loop.step + 1)
            if loop._saver.saved != saved:
                saved = loop._saver.saved
                write("saved", saved)


Line = tuple[float, str, int]


def lines_of(folder: Path) -> list[Line]:
    """Return the complete lines of the log."""
    path = folder / "log.txt"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    words = [line.split() for line in lines if line.endswith("\n")]
    return [(float(at_s), word, int(step)) for at_s, word, step in words]


def run_until(folder: Path, arguments: list[str], saves: int, step: int) -> list[Line]:
    """Run the job until it has saved so often and reached this step, then kill it; return its lines."""
    first = len(lines_of(folder))
    with subprocess.Popen([sys.executable, "-m", "benchmarks.checkpoint_recovery", *arguments]) as process:
        while True:
            lines = lines_of(folder)[first:]
            count = sum(word == "saved" for _, word, _ in lines)
            if count >= saves and any(word == "step" and reached >= step for _, word, reached in lines):
                break
            if process.poll() is not None:
                raise RuntimeError(f"the job ended with code {process.returncode}")
            time.sleep(0.05)
        time.sleep(random.Random(len(lines)).uniform(0.0, 1.0))
        os.kill(process.pid, signal.SIGKILL)
    return lines_of(folder)[first:]


def recovery(megabytes: float, overhead: float, kills: int) -> None:
    """Print how long a killed job takes until it has done its steps again."""
    with tempfile.TemporaryDirectory() as name:
        folder, arguments = Path(name), [name, str(megabytes), str(overhead)]
        before = run_until(folder, arguments, CHECKPOINTS, 0)
        for number in range(kills):
            reached = max(step for _, word, step in before if word == "step")
            saves = [step for _, word, step in before if word == "saved"]
            intervals = [later - earlier for earlier, later in itertools.pairwise(saves)]
            times = [at_s for at_s, word, _ in before if word == "step"]
            step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
            before = run_until(folder, arguments, 3, reached)
            loads_s, begins_s = before[0][0], before[1][0]
            again_s = next(at_s for at_s, word, step in before if word == "step" and step >= reached)
            took_s, load_s = again_s - loads_s, begins_s - loads_s
            limit_s = 2 * max(intervals) * step_s + load_s
            print(
                f"  kill {number + 1}: step {reached}, resumed at {before[1][2]}, loaded in {load_s:.2f} s, "
                f"there again after {took_s:.2f} s, 2·k·T + load = {limit_s:.2f} s: {verdict(took_s <= limit_s)}"
            )


if __name__ == "__main__":
    job(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
