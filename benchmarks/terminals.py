"""How long a key takes to its echo, while other terminals are open: python -m benchmarks.terminals [OTHERS].

A scheduler and an agent run on this machine, with OTHERS (100) shells beside jobs, half of which print a line a second.
In one more shell, keys are typed one after another; the time runs from the key to its echo, through client, scheduler,
agent, terminal and back. The same keys through a pty alone show what this machine needs for it anyway.
"""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import tempfile
import threading
import time
from pathlib import Path

from gavel.client import Client, GavelError, JobSpec
from gavel.client.terminal import TerminalSession
from tests.e2e.cluster import Cluster

KEYS, PER_JOB = 1000, 16
# The pause between two keys, about that of somebody who types fast.
PAUSE_S = 0.02


class Shell:
    """A shell beside a job, whose output a thread collects."""

    def __init__(self, client: Client, job: str) -> None:
        details = {"new_shell": True, "tty": True, "term": "dumb"}
        self.session = TerminalSession(client, job, size=(24, 80), patience_s=60.0, **details)
        self.output = bytearray()
        self.arrived = threading.Condition()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        with contextlib.suppress(GavelError):
            for data in self.session.output():
                with self.arrived:
                    self.output += data
                    self.arrived.notify_all()

    def until(self, text: bytes, start: int = 0) -> None:
        """Wait for this text at or after a position of the output."""
        with self.arrived:
            has_arrived = self.arrived.wait_for(lambda: self.output.find(text, start) >= 0, 60.0)
        if not has_arrived:
            raise SystemExit(f"{text!r} did not arrive: {bytes(self.output[-200:])!r}")


def through_gavel(others: int) -> list[float]:
    """Return the time from key to echo, in seconds, for each key."""
    jobs_needed = -(-(others + 1) // PER_JOB)
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), {"n1": f"v100={jobs_needed}"}) as cluster,
    ):
        spec = JobSpec(command=("sleep", "3600"), env={"PS1": "$ "})
        jobs = [cluster.client.submit(spec)[0] for _ in range(jobs_needed)]
        for job in jobs:
            cluster.wait_until_running(job)
        shells = [Shell(cluster.client, jobs[number // PER_JOB]) for number in range(others + 1)]
        for number, shell in enumerate(shells):
            noise = "while sleep 1; do echo tick; done" if number % 2 else "cat"
            command = "stty -icanon; cat > /dev/null" if number == others else noise
            shell.session.send(f"echo rea''dy; {command}\n".encode())
        for shell in shells:
            shell.until(b"ready\r\n")
        typed = shells[others]
        delays_s = []
        for number in range(KEYS):
            key, start = bytes([97 + number % 26]), len(typed.output)
            began_s = time.perf_counter()
            typed.session.send(key)
            typed.until(key, start)
            delays_s.append(time.perf_counter() - began_s)
            time.sleep(PAUSE_S)
        return delays_s


def through_a_pty() -> list[float]:
    """Return the time from key to echo of a pty alone."""
    master, slave = pty.openpty()
    delays_s = []
    for number in range(KEYS):
        began_s = time.perf_counter()
        os.write(master, bytes([97 + number % 26]))
        os.read(master, 10)
        delays_s.append(time.perf_counter() - began_s)
    os.close(slave)
    os.close(master)
    return delays_s


def main(others: int) -> None:
    """Measure and print a table."""
    rows = [
        ("a pty alone", through_a_pty()),
        ("alone", through_gavel(0)),
        (f"beside {others} others", through_gavel(others)),
    ]
    print(f"| key to echo, {KEYS} keys | p50 ms | p99 ms | max ms |\n|---|---|---|---|")
    for name, delays_s in rows:
        ordered = sorted(delay_s * 1000 for delay_s in delays_s)
        p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
        print(f"| {name} | {p50:.2f} | {p99:.2f} | {ordered[-1]:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
