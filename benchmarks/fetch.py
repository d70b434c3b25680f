"""How fast files come back from a node, and how long submissions take meanwhile.

python -m benchmarks.fetch [--megabytes 2000] [--readers 1 4] [--folder DIR]

Scheduler, agent and readers are processes of this machine, connected over loopback. The file lies in the work directory
of a job that has ended. 16 clients together make about 100 submissions a second, before the fetches and beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.service import quantile, submissions
from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, JobSpec

SETTINGS = (
    "people.submissions_per_s=100000",
    "people.submissions_burst=1000000",
    "people.jobs_unfinished_max=1000000",
    "scheduler.round_s=600",
)
# How long submissions are measured without a fetch.
QUIET_S = 10.0


def fetch(address: str, job: str, folder: str, results: Any) -> None:
    """Fetch the file, and put the time that this took."""
    with Client(address) as client:
        began_s = time.monotonic()
        fetched = client.fetch(job, ["large"], to=folder)
        assert not fetched.problems, fetched.problems
        results.put(time.monotonic() - began_s)


def submit_until(address: str, stop: Event, results: Any) -> None:
    """Submit jobs until the event is set, and put how long each submission took."""
    took_s: list[float] = []
    while not stop.is_set():
        took_s += asyncio.run(submissions(address, 1.0))
    results.put(took_s)


def row(label: str, rate: str, took_s: Sequence[float]) -> str:
    """Return a row of the table."""
    times = " | ".join(f"{quantile(took_s, fraction):.1f}" for fraction in (0.5, 0.99))
    return f"| {label} | {rate} | {times} |"


def measure(cluster: LocalCluster, job: str, folder: Path, readers: int, megabytes: int) -> str:
    """Fetch with this number of readers at once, beside submissions; return a row of the table."""
    context = get_context("spawn")
    stop, times, waits = context.Event(), context.Queue(), context.Queue()
    submitting = context.Process(target=submit_until, args=(cluster.address, stop, waits))
    submitting.start()
    folders = [folder / f"reader-{number}" for number in range(readers)]
    fetching = [
        context.Process(target=fetch, args=(cluster.address, job, str(each), times)) for each in folders
    ]
    for process in fetching:
        process.start()
    took_s = [times.get() for _ in fetching] if fetching else []
    if not fetching:
        time.sleep(QUIET_S)
    stop.set()
    submitted_s = waits.get()
    for process in (*fetching, submitting):
        process.join()
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)
    rate = f"{readers * megabytes / max(took_s):,.0f}" if took_s else ""
    return row(f"{readers} readers", rate, submitted_s)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--readers", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        (folder / "work").mkdir()
        with LocalCluster(folder / "cluster", ["v100=1"], settings=SETTINGS, stop_s=5.0) as cluster:
            with Client(cluster.address) as client:
                script = f"head -c {options.megabytes}000000 /dev/zero > large"
                (job,) = client.submit(JobSpec(script=script, workdir=str(folder / "work"), upload=True))
                client.wait(job)
            print("| | MB/s together | submission, median ms | p99 ms |")
            print("|---|---|---|---|")
            for readers in options.readers:
                print(measure(cluster, job, folder, readers, options.megabytes), flush=True)


if __name__ == "__main__":
    main()
