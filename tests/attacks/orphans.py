"""Orphans: does a job get a GPU on which a process of an earlier job still lives?

    python -m tests.attacks.orphans [--tries 3] [--containment subreaper]

A real scheduler and a real agent with one declared GPU. The first job forks twice, leads a session of its own and
cleans its environment, so that nothing of it points to the job; then its shim is killed: by the job itself, from
outside as the OOM killer would, or together with the agent, which is started again. The next job on the GPU checks
whether the orphan lives. `--containment` is given to the agent.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from gavel.client import JobSpec
from tests.e2e.cluster import Cluster, eventually
from worker_agent.shim import process_tree

# How long to wait until the next job has started.
WAIT_S = 25.0
SHIM_KILLERS = ("the job itself", "from outside", "with the agent")
# The first job to run leaves an orphan; later jobs report whether it lives.
JOB = """
import os, signal, sys, time
folder, kills_shim = sys.argv[1], sys.argv[2] == "kill"
if os.path.exists(folder + "/orphan"):
    pid, ticks = open(folder + "/orphan").read().split()
    try:
        stat = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        lives = stat[19] == ticks and stat[0] not in "ZX"
    except OSError:
        lives = False
    with open(folder + "/.next", "w") as file:
        file.write("lives" if lives else "gone")
    os.rename(folder + "/.next", folder + "/next")
    sys.exit()
shim = os.getppid()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        ticks = open("/proc/self/stat").read().rpartition(")")[2].split()[19]
        with open(folder + "/.orphan", "w") as file:
            file.write(f"{os.getpid()} {ticks}")
        os.rename(folder + "/.orphan", folder + "/orphan")
        os.closerange(0, 256)
        os.execve("/bin/sleep", ["sleep", "600"], {})
    os._exit(0)
while not os.path.exists(folder + "/orphan"):
    time.sleep(0.01)
time.sleep(0.2)
if kills_shim:
    os.kill(shim, signal.SIGKILL)
time.sleep(600)
"""


class Try(NamedTuple):
    """The outcome of one attempt."""

    next_started: bool
    # Whether the orphan lived when the next job started or, if none started, at the end of the wait.
    orphan_lived: bool
    # How long it took until the next job started, or WAIT_S.
    wait_s: float
    # The scheduler's warning about the GPU.
    warning: str


def attack(cluster: Cluster, folder: Path, killer: str) -> Try:
    """Run a job that leaves an orphan, and a second job on the same GPU."""
    folder.mkdir()
    job_kills_shim = killer == SHIM_KILLERS[0]
    command = (sys.executable, "-S", "-c", JOB, str(folder), "kill" if job_kills_shim else "wait")
    first, second = (cluster.client.submit(JobSpec(command=command))[0] for _ in range(2))
    eventually((folder / "orphan").exists, "there is an orphan", 60.0)
    pid, ticks = map(int, (folder / "orphan").read_text().split())
    orphan = process_tree.Process(pid, ticks)
    begun_s = time.monotonic()
    if not job_kills_shim:
        (shim,) = shims_of(cluster)
        if killer == SHIM_KILLERS[2]:
            cluster.kill("n1")
        process_tree.send(shim, signal.SIGKILL)
        if killer == SHIM_KILLERS[2]:
            cluster.agent("n1")
            cluster.wait_until_linked("n1")
    try:
        while not (folder / "next").exists() and time.monotonic() < begun_s + WAIT_S:
            time.sleep(0.05)
        started = (folder / "next").exists()
        lived = (folder / "next").read_text() == "lives" if started else process_tree.alive(orphan)
        warning = "" if started else cluster.client.nodes(["n1"])[0].gpus[0].broken
        return Try(started, lived, time.monotonic() - begun_s, warning)
    finally:
        process_tree.send(orphan, signal.SIGKILL)
        for job in (first, second):
            eventually(lambda job=job: cluster.job(job).state.is_final, f"job {job} has ended", 120.0)


def shims_of(cluster: Cluster) -> list[process_tree.Process]:
    """Return the shims of this cluster, and of no other on the machine."""
    shims = process_tree.session_leaders("-m", "worker_agent.shim")
    return [shim for path, shim in shims.items() if Path(path).is_relative_to(cluster.folder)]


def main(arguments: list[str] | None = None) -> int:
    """Attack, and print a table; return 1 if a job got a GPU on which an orphan lived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--containment", default="")
    chosen = parser.parse_args(arguments)
    options = ("--containment", chosen.containment) if chosen.containment else ()
    given_away = 0
    print(f"{'shim killed':<16} {'next began':>10} {'orphan lived':>12} {'seconds':>18}")
    with tempfile.TemporaryDirectory() as folder:
        settings = ("scheduler.round_s=600",)
        with Cluster(Path(folder) / "cluster", {"n1": "v100=1"}, settings, *options) as cluster:
            for killer in SHIM_KILLERS:
                where = Path(folder) / killer.replace(" ", "-")
                where.mkdir()
                tries = [attack(cluster, where / str(number), killer) for number in range(chosen.tries)]
                began = [attempt for attempt in tries if attempt.next_started]
                lived = [attempt for attempt in began if attempt.orphan_lived]
                given_away += len(lived)
                waits = " ".join(
                    f"{attempt.wait_s:.1f}" if attempt.next_started else "-" for attempt in tries
                )
                of = f"of {len(tries)}"
                print(f"{killer:<16} {f'{len(began)} {of}':>10} {f'{len(lived)} {of}':>12} {waits:>18}")
                for warning in {attempt.warning for attempt in tries if attempt.warning}:
                    print(f"    the GPU was taken out of service: {warning}")
                sys.stdout.flush()
    return 1 if given_away else 0


if __name__ == "__main__":
    sys.exit(main())
