"""How many durable submissions a second a scheduler acknowledges, and how long listing takes.

    python -m benchmarks.daemon [--seconds 5] [--clients 16] [--processes 2] [--agents 20] [--profile]

The scheduler is the real program with its journal on disk (synchronous=FULL) and its solver. Agents that report every
ten seconds are simulated in another process. Clients, each with a connection of its own, run in further processes. All
share this machine's cores. `--profile` prints where the scheduler's time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpc import aio

from benchmarks.service import USER, Daemon, agents_process, cpu_s, wait_for_links
from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1 import jobs_pb2_grpc

BATCH = 100
LISTED = 10_000
DEADLINE_S = 60.0


def job(number: int) -> pb.JobSpec:
    """Return a typical job."""
    launch = pb.Launch(
        command=["python", "train.py", "--lr", "0.1"], env={"SEED": str(number)}, workdir="/data"
    )
    return pb.JobSpec(name=f"train-{number}", job_type="resnet50", gpus=1, steps=10_000.0, launch=launch)


async def client(address: str, seconds: float, batch: int, took_s: list[float]) -> int:
    """Submit batch after batch for this many seconds; return how many jobs were acknowledged."""
    jobs, number = 0, 0
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(address, options=options) as channel:
        stub: Any = jobs_pb2_grpc.JobsStub(channel)
        ends_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_s:
            request = pb.SubmitJobsRequest(
                specs=[job(i) for i in range(batch)], idempotency_key=f"{os.getpid()}-{id(stub)}-{number}"
            )
            began_s = time.perf_counter()
            answer = await stub.SubmitJobs(request, timeout=DEADLINE_S, metadata=USER)
            took_s.append(time.perf_counter() - began_s)
            jobs += len(answer.jobs)
            number += 1
    return jobs


def client_process(address: str, clients: int, seconds: float, batch: int, wire: Connection) -> None:
    """Run some clients in a process of their own."""
    took_s: list[float] = []

    async def run() -> int:
        return sum(await asyncio.gather(*(client(address, seconds, batch, took_s) for _ in range(clients))))

    wire.send((asyncio.run(run()), took_s))


def measure_submissions(server: Daemon, options: argparse.Namespace, batch: int) -> str:
    """Submit from several processes; return jobs per second, the time of a call, and the server's CPU time per job."""
    before_s = cpu_s(server.process.pid)
    context, ends = multiprocessing.get_context("spawn"), []
    for number in range(options.processes):
        clients = (options.clients + number) // options.processes
        near_end, far_end = context.Pipe()
        process = context.Process(
            target=client_process, args=(server.address, clients, options.seconds, batch, far_end)
        )
        process.start()
        ends.append((process, near_end))
    answers = [near_end.recv() for _, near_end in ends]
    for process, _ in ends:
        process.join()
    took_s = sorted(s for _, times in answers for s in times)
    jobs = sum(count for count, _ in answers)
    return (
        f"{jobs / options.seconds:>8,.0f} jobs/s   {jobs:>7,} jobs   a call: "
        f"{1000 * statistics.median(took_s):6.1f} ms, p99 {1000 * quantile(took_s, 0.99):6.1f} ms   "
        f"CPU of the server: {1e6 * (cpu_s(server.process.pid) - before_s) / max(jobs, 1):,.0f} µs a job"
    )


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(int(fraction * len(values)), len(values) - 1)]


async def measure_listing(address: str, brief: bool) -> str:
    """Return how long it takes to list the jobs, and to get a single job meanwhile."""
    size = [("grpc.max_receive_message_length", 64 * 2**20)]
    async with aio.insecure_channel(address, options=size) as channel:
        stub: Any = jobs_pb2_grpc.JobsStub(channel)
        waits_s: list[float] = []

        async def get_job_repeatedly() -> None:
            while True:
                waits_s.append(
                    await timed(
                        lambda: stub.GetJob(pb.GetJobRequest(job="1"), timeout=DEADLINE_S, metadata=USER)
                    )
                )

        async def list_() -> int:
            jobs, token = 0, ""
            while jobs < LISTED:
                request = pb.ListJobsRequest(page_size=LISTED, page_token=token, brief=brief)
                page = await stub.ListJobs(request, timeout=DEADLINE_S, metadata=USER)
                jobs, token = jobs + len(page.jobs), page.next_page_token
            return jobs

        alone_s = min([await timed(list_) for _ in range(3)])
        background = asyncio.create_task(get_job_repeatedly())
        await list_()
        background.cancel()
        return f"{alone_s:6.2f} s   another call meanwhile: at most {1000 * max(waits_s):.0f} ms"


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return how long this work takes, in seconds."""
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder, "profile") if options.profile else None
        server = Daemon(Path(folder, "data"), profile)
        agents = multiprocessing.get_context("spawn").Process(
            target=agents_process, args=(server.address, options.agents), daemon=True
        )
        agents.start()
        asyncio.run(wait_for_links(server.address, options.agents))
        for batch in (1, BATCH):
            print(
                f"{batch} at a time, {options.clients} clients  {measure_submissions(server, options, batch)}",
                flush=True,
            )
        for brief in (True, False):
            word = "brief" if brief else "whole"
            print(
                f"listing {LISTED:,} jobs, {word}:  {asyncio.run(measure_listing(server.address, brief))}",
                flush=True,
            )
        agents.kill()
        server.stop()
        if profile is not None:
            pstats.Stats(str(profile)).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
