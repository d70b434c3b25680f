"""How long a submission takes while a thousand agents are linked, and how long a restart of the scheduler takes.

python -m benchmarks.service [--agents 1000] [--queued 5000] [--seconds 20] [--journal-jobs 100000] [--unobserved]

The scheduler is the real program with its journal on disk. Agents are simulated in another process; each has its own
connection and reports every ten seconds. 16 clients together make about 100 submissions a second. Metrics are scraped
once a second meanwhile. `--unobserved` repeats the submissions with a scheduler that has neither metrics nor history.
All processes ask for real-time priority.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path

from grpc import aio

from benchmarks.links import all_agents
from benchmarks.priority import ask_for_priority
from protos.gavel.v1 import cluster_pb2, cluster_pb2_grpc, jobs_pb2, jobs_pb2_grpc

USER = (("x-gavel-user", "bench"),)
CLIENTS, SUBMISSIONS_PER_S = 16, 100.0
BATCH = 1000
# How often the metrics are read.
SCRAPE_S = 1.0
# How long all agents may take to link, and then to start a job each.
PATIENCE_S = 300.0


class Daemon:
    """A scheduler in a process of its own, which took `start_s` to start. It writes a profile to `profile`."""

    def __init__(self, folder: Path, profile: Path | None = None, module: str = "scheduler") -> None:
        (folder / "daemon.json").unlink(missing_ok=True)
        began_s = time.monotonic()
        settings = (
            "people.submissions_per_s=100000",
            "people.submissions_burst=1000000",
            "people.jobs_unfinished_max=1000000",
            "metrics_listen=127.0.0.1:0",
        )
        options = [f"--set={setting}" for setting in settings]
        profiled = () if profile is None else ("-m", "cProfile", "-o", str(profile))
        command = [
            sys.executable,
            *profiled,
            "-m",
            module,
            "--data-dir",
            str(folder),
            "--listen",
            "127.0.0.1:0",
        ]
        self.process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
        while not (folder / "daemon.json").exists():
            time.sleep(0.01)
        addresses = json.loads((folder / "daemon.json").read_text())
        self.address, self.metrics_address = str(addresses["listen"]), str(addresses["metrics_listen"])
        self.start_s = time.monotonic() - began_s

    def stop(self) -> float:
        """End the process; return how long that took."""
        began_s = time.monotonic()
        self.process.terminate()
        self.process.wait()
        return time.monotonic() - began_s


def job(number: int) -> jobs_pb2.JobSpec:
    """Return a job of one of twenty types, for one GPU."""
    launch = jobs_pb2.Launch(command=["python", "train.py", "--seed", str(number)])
    return jobs_pb2.JobSpec(
        name=f"job-{number}", job_type=f"type-{number % 20}", gpus=1, steps=1e6, launch=launch
    )


async def submit_many(address: str, count: int) -> float:
    """Submit this number of jobs in batches; return jobs per second."""
    async with aio.insecure_channel(address) as channel:
        jobs = jobs_pb2_grpc.JobsStub(channel)
        began_s = time.monotonic()
        for first in range(0, count, BATCH):
            specs = [job(number) for number in range(first, min(first + BATCH, count))]
            await jobs.SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=specs), metadata=USER)
        return count / (time.monotonic() - began_s)


async def wait_for_links(address: str, agents: int) -> None:
    """Wait until all agents are linked."""
    async with aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE_S):
        cluster = cluster_pb2_grpc.ClusterStub(channel)
        while (await cluster.GetStatus(cluster_pb2.GetStatusRequest(), metadata=USER)).nodes < agents:
            await asyncio.sleep(0.2)


async def wait_for_starts(address: str, agents: int) -> None:
    """Wait until every agent has reported that its job runs."""
    running = jobs_pb2.JobFilter(states=[jobs_pb2.JOB_STATE_RUNNING])
    request = jobs_pb2.ListJobsRequest(filter=running, brief=True, page_size=10_000)
    async with aio.insecure_channel(address) as channel, asyncio.timeout(PATIENCE_S):
        jobs = jobs_pb2_grpc.JobsStub(channel)
        while True:
            listed = (await jobs.ListJobs(request, metadata=USER)).jobs
            if sum(job.placement.phase == "running" for job in listed) >= agents:
                return
            await asyncio.sleep(0.2)


async def scrape(address: str) -> None:
    """Read the metrics once a second until cancelled."""
    while True:
        await asyncio.sleep(SCRAPE_S)
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await reader.read()
        writer.close()


async def submissions(address: str, is_over: Callable[[], bool]) -> list[float]:
    """Submit single jobs at random moments until `is_over`; return how long each submission took."""
    took_s: list[float] = []

    async def client(number: int) -> None:
        rng = random.Random(number)
        async with aio.insecure_channel(address) as channel:
            await channel.channel_ready()
            jobs = jobs_pb2_grpc.JobsStub(channel)
            while not is_over():
                await asyncio.sleep(rng.expovariate(SUBMISSIONS_PER_S / CLIENTS))
                began_s = time.monotonic()
                await jobs.SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[job(number)]), metadata=USER)
                took_s.append(time.monotonic() - began_s)

    await asyncio.gather(*map(client, range(CLIENTS)))
    return took_s


async def scraped_submissions(daemon: Daemon, is_over: Callable[[], bool]) -> list[float]:
    """Return the durations of `submissions`, during which the metrics are read."""
    scraping = asyncio.create_task(scrape(daemon.metrics_address))
    try:
        return await submissions(daemon.address, is_over)
    finally:
        scraping.cancel()


def cpu_s(pid: int | None, *, children: bool = False) -> float:
    """Return the CPU time that a process has used, in seconds; with that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return a quantile in milliseconds."""
    return sorted(values)[int(fraction * (len(values) - 1))] * 1000


def agents_process(address: str, count: int) -> None:
    """Run agents until the process is killed."""
    asyncio.run(all_agents(address, count, 10.0))


def measure_beside_agents(folder: Path, options: argparse.Namespace, module: str = "scheduler") -> None:
    """Measure single submissions while many agents are linked and many jobs are queued."""
    daemon = Daemon(folder, module=module)
    agents = get_context("spawn").Process(
        target=agents_process, args=(daemon.address, options.agents), daemon=True
    )
    agents.start()
    asyncio.run(wait_for_links(daemon.address, options.agents))
    asyncio.run(submit_many(daemon.address, options.agents + options.queued))
    asyncio.run(wait_for_starts(daemon.address, options.agents))
    end_s, used_s = time.monotonic() + options.seconds, cpu_s(daemon.process.pid)
    took_s = asyncio.run(scraped_submissions(daemon, lambda: time.monotonic() > end_s))
    print(
        f"{module}: single submission beside {options.agents} agents and {options.queued} queued jobs "
        f"({len(took_s) / options.seconds:.0f}/s): median {quantile(took_s, 0.5):.1f} ms, "
        f"p99 {quantile(took_s, 0.99):.1f} ms, longest {max(took_s) * 1000:.0f} ms; "
        f"the scheduler uses {(cpu_s(daemon.process.pid) - used_s) / options.seconds:.1%} of a core",
        flush=True,
    )
    agents.kill()
    daemon.stop()


def measure_restart(folder: Path, count: int) -> None:
    """Measure how long a scheduler with this number of jobs in its journal takes to answer after a restart."""
    daemon = Daemon(folder)
    rate = asyncio.run(submit_many(daemon.address, count))
    daemon.process.kill()
    daemon.process.wait()
    killed = Daemon(folder)
    stop_s = killed.stop()
    stopped = Daemon(folder)
    print(
        f"{count} jobs submitted in batches of {BATCH} at {rate:.0f}/s; the scheduler answers {killed.start_s:.1f} s "
        f"after kill -9, {stopped.start_s:.1f} s after a stop (which took {stop_s:.1f} s); "
        f"an empty one starts in {daemon.start_s:.1f} s",
        flush=True,
    )
    stopped.process.kill()


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--queued", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--journal-jobs", type=int, default=100_000)
    parser.add_argument("--unobserved", action="store_true")
    options = parser.parse_args()
    ask_for_priority()
    with tempfile.TemporaryDirectory() as folder:
        measure_beside_agents(Path(folder, "a"), options)
        if options.unobserved:
            measure_beside_agents(Path(folder, "c"), options, "benchmarks.unobserved")
            return
        measure_restart(Path(folder, "b"), options.journal_jobs)


if __name__ == "__main__":
    main()
