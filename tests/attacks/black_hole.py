"""A node whose state directory is full, beside a healthy one: how many jobs does it draw, and is that noticed?

    python -m tests.attacks.black_hole [--seconds 30]

A real scheduler with two agents. The state directory of the first is a small tmpfs of its own, which is filled to the
last byte after both agents have linked. (Permissions would not keep root from writing, so the disk has to be really
full; the attack needs the right to mount.) Then jobs are submitted, two of which may be retried a hundred times
after failures of their node. After the given time the disk is freed, and the table shows when the node was used again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gavel.client import JobSpec, JobState
from tests.e2e.cluster import Cluster

# The scheduler places jobs on nodes in the order of their names, so the bad node comes first.
BAD, GOOD = "a-full", "b-healthy"
SIZE = "8m"
BACK_WITHIN_S = 180.0


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of a few megabytes at this folder."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Fill the disk to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size_bytes))
            except OSError:
                continue


def attack(folder: Path, seconds: float) -> list[tuple[str, object]]:
    """Run the attack, and return the figures by name."""
    with small_disk(folder / BAD), Cluster(folder, {BAD: "v100=2", GOOD: "v100=2"}) as cluster:
        client = cluster.client
        filler = folder / BAD / "filler"
        fill(filler)
        began_s = time.monotonic()
        sleeping = ("sleep", "5")
        jobs = client.submit([JobSpec(command=sleeping, retries_node=100)] * 2)
        jobs += client.submit([JobSpec(command=sleeping)] * 4)
        warned_s, warning = None, ""
        while time.monotonic() < began_s + seconds:
            time.sleep(0.5)
            about = [line for line in client.status().warnings if BAD in line]
            if about and warned_s is None:
                warned_s, warning = time.monotonic() - began_s, about[0]
        took_s = time.monotonic() - began_s
        ended = [client.get(job) for job in jobs]
        figures: list[tuple[str, object]] = [
            ("attempts", sum(job.attempt for job in ended)),
            ("attempts per second", round(sum(job.attempt for job in ended) / took_s, 2)),
            ("lines in the agent's log", len(cluster.log(BAD).read_text().splitlines())),
            ("lines in the scheduler's log", len(cluster.log("scheduler").read_text().splitlines())),
            ("jobs completed", sum(job.state is JobState.COMPLETED for job in ended)),
            ("jobs failed", sum(job.state is JobState.FAILED for job in ended)),
            ("state of the node", client.nodes([BAD])[0].state.value),
            ("warned after", "never" if warned_s is None else f"{warned_s:.1f} s"),
            ("warning", warning or "none"),
        ]
        filler.unlink()
        freed_s = time.monotonic()
        (probe,) = client.submit(JobSpec(command=("true",), nodes=(BAD,)))
        back = "not within 3 min"
        while time.monotonic() < freed_s + BACK_WITHIN_S:
            if client.get(probe).state is JobState.COMPLETED:
                back = f"{time.monotonic() - freed_s:.1f} s"
                break
            time.sleep(0.2)
        return [*figures, ("a job ran there, after the disk was freed, within", back)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = attack(Path(folder), options.seconds)
    for name, figure in figures:
        print(f"{name:<50} {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
