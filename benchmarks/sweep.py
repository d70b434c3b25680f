"""Jobs of a sweep with loaders of their own and with `shared_prep`: `python -m benchmarks.sweep`.

Each job is a process whose steps sleep, as a loop does whose GPU computes. Preparing a batch takes a CPU ten times as
long as a step. All jobs begin together. The throughput is that of all jobs together, and the runs with and without
`shared_prep` alternate, because the machine may be shared: the table has the median of their ratios.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gavel.training.data.shared import shared_prep

SAMPLES, BATCH, EPOCHS = 160, 4, 2
STEP_S = 0.005
MEMORY = Path("/dev/shm")  # noqa: S108


class Data:
    """Samples whose preparation takes a fixed processor time, and is logged with a random number."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        end_s = time.thread_time() + 10 * STEP_S / BATCH
        while time.thread_time() < end_s:
            pass
        with self.log.open("a") as file:
            file.write(f"{index} {random.random()}\n")
        return index


def job(folder: Path, is_shared: bool) -> None:
    """Be one job: begin when the file `go` exists, and print the seconds until all steps are done."""
    from torch.utils.data import DataLoader

    data: Any = Data(folder / "log")
    loader: Any = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=1)
    loader = shared_prep(loader, group="sweep") if is_shared else loader
    batches = iter(loader)
    print("ready", flush=True)
    sys.stdin.readline()
    began_s = time.monotonic()
    for epoch in range(EPOCHS):
        for _ in batches if epoch == 0 else loader:
            time.sleep(STEP_S)
    print(time.monotonic() - began_s, flush=True)


def run(jobs: int, is_shared: bool) -> tuple[float, float]:
    """Run jobs; return the batches per second of all of them, and how often a batch was prepared on average."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        words = [
            sys.executable,
            "-m",
            "benchmarks.sweep",
            "--job",
            folder,
            *(["--shared"] if is_shared else []),
        ]
        environ = {**os.environ, "GAVEL_CACHE": folder, "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(jobs)
        ]
        for process in processes:
            _output(process)
        for process in processes:
            _begin(process)
        batches = len(range(0, SAMPLES, BATCH)) * EPOCHS
        rate = sum(batches / float(_output(process)) for process in processes)
        for process in processes:
            process.communicate()
        lines = (Path(folder) / "log").read_text().splitlines()
        return rate, len(lines) / len(set(lines)) if is_shared else len(lines) / SAMPLES / EPOCHS


def _begin(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.write("\n")
        process.stdin.flush()


def _output(process: subprocess.Popen[str]) -> str:
    return "" if process.stdout is None else process.stdout.readline()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shared", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job is not None:
        job(arguments.job, arguments.shared)
        return
    ratios = []
    for _ in range(arguments.repeats):
        alone, alone_preparations = run(arguments.jobs, is_shared=False)
        shared, shared_preparations = run(arguments.jobs, is_shared=True)
        ratios.append(shared / alone)
        print(
            f"{arguments.jobs} jobs: {alone:.1f} batches/s with loaders of their own ({alone_preparations:.2f} "
            f"preparations of a sample), {shared:.1f} with shared_prep ({shared_preparations:.2f})"
        )
    print(f"median ratio: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
