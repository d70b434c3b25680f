"""Run a service for an hour, and check that no process grows.

    python -m tests.soak [--minutes 60] [--seed 0]

A real scheduler and three real agents carry out a steady stream of short jobs: some fail, some are cancelled or
held, some print a lot, some are arrays, and some wait for other jobs. Meanwhile clients list jobs, explain them and
read logs, the policy changes, and with --disturb-every-s an agent or the scheduler is killed now and then. Every half
minute a line has the memory, descriptors and threads of each process, and the size of all files. At the end the first
and the last quarter of the run are compared; the exit status is 1 if a process has grown by more than 5 % and 4 MiB of
memory, or by more than 8 descriptors.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gavel.client import Client, GavelError, JobSpec, JobState
from tests.e2e.cluster import Cluster

NODES = {"n1": "v100=2", "n2": "v100=1", "n3": "k80=2"}
ALIVE_MAX = 12
SAMPLE_S = 30.0
# Seconds between calls of the clients.
TURN_S = 0.25
POLICIES = ("las", "fifo", "las+packing", "ftf")
COMMANDS = (
    ("sleep", "0.3"),
    ("sh", "-c", "echo one line; sleep 1"),
    ("sh", "-c", "seq 20000; sleep 0.2"),
    ("sh", "-c", "sleep 0.5; exit 3"),
    ("sleep", "6"),
)


class Sample(NamedTuple):
    """The resources of one process at one moment."""

    rss_mib: float
    descriptors: int
    threads: int


def sample(pid: int) -> Sample:
    """Read the resources of a process from the kernel."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    rss_kib = int(fields["VmRSS"].split()[0])
    return Sample(rss_kib / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"]))


def size_mib(folder: Path) -> float:
    """Return the size of all files below a folder; files that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total / 2**20


class Soak:
    """A cluster, and jobs of several users that keep it busy."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.chance = cluster, random.Random(seed)
        self.submitted = 0
        self.samples: dict[str, list[Sample]] = {}

    @property
    def client(self) -> Client:
        """The client of all users."""
        return self.cluster.client

    def run(self, for_s: float, disturb_every_s: float) -> None:
        """Keep the cluster busy for this long, and print a line every half minute."""
        started_s = next_s = time.monotonic()
        disturb_s, pause = started_s + disturb_every_s, threading.Event()
        while (now_s := time.monotonic()) < started_s + for_s:
            self.turn()
            pause.wait(TURN_S)
            if now_s >= disturb_s:
                self.disturb()
                disturb_s = now_s + disturb_every_s
            if now_s >= next_s:
                next_s = now_s + SAMPLE_S
                figures = "  ".join(
                    f"{name} {it.rss_mib:.0f}M {it.descriptors}fd {it.threads}t" for name, it in self.look()
                )
                files = f"files {size_mib(self.cluster.folder):.0f}M"
                minutes = (now_s - started_s) / 60
                print(f"{minutes:5.1f} min  {self.submitted:6} jobs  {figures}  {files}", flush=True)

    def turn(self) -> None:
        """Fill the cluster with jobs, then make one call like a user."""
        alive = [job for job in self.client.list() if not job.state.is_final]
        while len(alive) + self.chance.randrange(3) < ALIVE_MAX:
            self.submitted += len(ids := self.client.submit(self._spec(alive and alive[-1].id)))
            alive += [self.client.get(job) for job in ids]
        action = self.chance.choice(self._actions())
        # A job may have ended since it was listed; then the command is refused.
        with contextlib.suppress(GavelError):
            action(self.chance.choice(alive).id)

    def _spec(self, other: str) -> JobSpec:
        draw = self.chance.random()
        fields: dict[str, object] = {"gpus": self.chance.choice((1, 1, 1, 2))}
        if draw < 0.1:
            fields["array"] = (0, 1, 2)
        elif draw < 0.2 and other:
            fields["after"] = (other,)
        elif draw < 0.3:
            fields["retries"] = 1
        return JobSpec(command=self.chance.choice(COMMANDS), name=f"job-{self.submitted % 100}", **fields)  # type: ignore[arg-type]

    def _actions(self) -> list[Callable[[str], object]]:
        client = self.client
        return [
            client.cancel,
            client.hold,
            client.explain,
            client.get,
            lambda job: [client.release(held.id) for held in client.list() if held.state is JobState.HELD],
            lambda job: b"".join(chunk.data for chunk in client.log_chunks(job)),
            lambda job: (client.nodes(), client.status()),
            lambda job: client.set_policy(self.chance.choice(POLICIES)),
        ]

    def disturb(self) -> None:
        """Kill a process and start it again."""
        if self.chance.random() < 0.5:
            self.cluster.kill("scheduler")
            self.cluster.start_scheduler()
            return
        name = self.chance.choice(sorted(NODES))
        self.cluster.kill(name)
        self.cluster.agent(name, NODES[name])

    def look(self) -> Iterator[tuple[str, Sample]]:
        """Yield every long-lived process, with its resources now."""
        assert self.cluster.scheduler is not None
        processes = {"scheduler": self.cluster.scheduler.pid}
        if (solver := self.cluster.solver()) is not None:
            processes["solver"] = solver.pid
        processes.update({name: agent.pid for name, agent in self.cluster.nodes.items()})
        for name, pid in processes.items():
            with contextlib.suppress(OSError, KeyError):
                figures = sample(pid)
                self.samples.setdefault(name, []).append(figures)
                yield name, figures

    def verdict(self) -> bool:
        """Print the first and the last quarter of each process; return whether none has grown."""
        flat = True
        print(f"\n{'':12}{'MiB first':>10}{'MiB last':>10}{'fds first':>10}{'fds last':>10}")
        for name, samples in self.samples.items():
            # The first tenth is start-up: imports and caches.
            settled = samples[len(samples) // 10 :]
            quarter = max(len(settled) // 4, 1)
            first, last = (
                [statistics.median(figure) for figure in zip(*part, strict=True)]
                for part in (settled[:quarter], settled[-quarter:])
            )
            grew = (last[0] > first[0] * 1.05 and last[0] > first[0] + 4) or last[1] > first[1] + 8
            flat &= not grew
            mark = "  grows" if grew else ""
            print(f"{name:12}{first[0]:10.1f}{last[0]:10.1f}{first[1]:10.0f}{last[1]:10.0f}{mark}")
        return flat


def main() -> int:
    """Run the soak test; return 0 if no process grows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--disturb-every-s",
        type=float,
        default=0.0,
        help="seconds until the next process is killed; 0: never",
    )
    parser.add_argument("--set", action="append", default=[], help="a setting of the scheduler")
    options = parser.parse_args()
    settings = ("scheduler.round_s=6", "scheduler.solve_lead_s=1", "scheduler.plan_lead_s=0.5", *options.set)
    with (
        tempfile.TemporaryDirectory(prefix="gavel-soak-") as folder,
        Cluster(Path(folder), NODES, settings) as cluster,
    ):
        soak = Soak(cluster, options.seed)
        soak.run(options.minutes * 60, options.disturb_every_s or float("inf"))
        return 0 if soak.verdict() else 1


if __name__ == "__main__":
    sys.exit(main())
