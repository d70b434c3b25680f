"""How fast files come back from a node, and how long submissions take meanwhile.

python -m benchmarks.fetch [--megabytes 2000] [--readers 0 1 0 4] [--to /dev/shm]

Scheduler, agent and readers are processes of this machine, connected over loopback. The file lies in the work directory
of a job that has ended. 16 clients together make about 100 submissions a second, without fetches and beside them. The
fetched files go to memory, because a user's disk is not the one to which the scheduler syncs its journal.
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

from benchmarks.service import cpu_s, quantile, submissions
from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, JobSpec

SETTINGS = (
    "people.submissions_per_s=100000",
    "people.submissions_burst=1000000",
    "people.jobs_unfinished_max=1000000",
    "scheduler.round_s=600",
)
# A file system in memory.
MEMORY = Path("/dev/shm")  # noqa: S108
# How long submissions are measured without a fetch.
QUIET_S = 10.0
COLUMNS = (
    *("readers", "MB/s together", "submission, median ms", "p99 ms"),
    *("% of a core: scheduler", "agent", "readers"),
)


def fetch(address: str, job: str, folder: str, results: Any) -> None:
    """Fetch the file; put the time and the processor time that this took."""
    with Client(address) as client:
        began_s, used_s = time.monotonic(), time.process_time()
        fetched = client.fetch(job, ["large"], to=folder)
        assert not fetched.problems, fetched.problems
        results.put((time.monotonic() - began_s, time.process_time() - used_s))


def submit_until(address: str, stop: Event, results: Any) -> None:
    """Submit jobs until the event is set, and put how long each submission took."""
    results.put(asyncio.run(submissions(address, stop.is_set)))


def row(cells: Sequence[object]) -> str:
    """Return a row of the table."""
    return f"| {' | '.join(map(str, cells))} |"


def measure(cluster: LocalCluster, job: str, folder: Path, readers: int, megabytes: int) -> str:
    """Fetch with this number of readers at once, beside submissions; return a row of the table."""
    assert cluster.scheduler is not None
    served_by = [cluster.scheduler.pid, *(node.pid for node in cluster.nodes.values())]
    context = get_context("spawn")
    stop, times, waits = context.Event(), context.Queue(), context.Queue()
    folders = [folder / f"reader-{number}" for number in range(readers)]
    fetching = [
        context.Process(target=fetch, args=(cluster.address, job, str(each), times)) for each in folders
    ]
    submitting = context.Process(target=submit_until, args=(cluster.address, stop, waits))
    used_s, began_s = [cpu_s(pid, children=True) for pid in served_by], time.monotonic()
    for process in (submitting, *fetching):
        process.start()
    took = [times.get() for _ in fetching]
    if not fetching:
        time.sleep(QUIET_S)
    passed_s = time.monotonic() - began_s
    shares = [cpu_s(pid, children=True) - before_s for pid, before_s in zip(served_by, used_s, strict=True)]
    shares.append(sum(reader_s for _, reader_s in took))
    stop.set()
    submitted_s = waits.get()
    for process in (*fetching, submitting):
        process.join()
    for each in folders:
        shutil.rmtree(each, ignore_errors=True)
    rate = f"{readers * megabytes / max(took_s for took_s, _ in took):.0f}" if took else ""
    delays = [f"{quantile(submitted_s, fraction):.1f}" for fraction in (0.5, 0.99)]
    return row([readers, rate, *delays, *(f"{share_s / passed_s:.0%}" for share_s in shares)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--readers", type=int, nargs="+", default=[0, 1, 0, 4])
    parser.add_argument("--to", type=Path, default=MEMORY, help="where fetched files go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory(dir=options.to) as to:
        folder = Path(temporary)
        (folder / "work").mkdir()
        with LocalCluster(folder / "cluster", ["v100=1"], settings=SETTINGS, stop_s=5.0) as cluster:
            with Client(cluster.address) as client:
                script = f"head -c {options.megabytes}000000 /dev/zero > large"
                (job,) = client.submit(JobSpec(script=script, workdir=str(folder / "work"), upload=True))
                client.wait(job)
                # It holds the GPU, so that none of the submitted jobs starts.
                client.submit(JobSpec(command=("sleep", "3600")))
            print(row(COLUMNS), row(["---"] * len(COLUMNS)), sep="\n")
            for readers in options.readers:
                print(measure(cluster, job, Path(to), readers, options.megabytes), flush=True)


if __name__ == "__main__":
    main()
