"""How many submissions a daemon acknowledges, each of them durable, and how long listing takes.

    python -m benchmarks.daemon [--seconds 5] [--clients 16] [--processes 2] [--profile]

The server runs in a process of its own with its journal on disk (synchronous=FULL); clients, each with a connection of
its own, run in others. All share this machine's cores. `--profile` says where the server's time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
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

from protos.gavel.v1 import jobs_pb2 as pb
from protos.gavel.v1 import jobs_pb2_grpc
from scheduler.core.core import Core
from scheduler.core.messages import NodeHello
from scheduler.drive import drive
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.live.clock import Clock
from scheduler.live.feed import Feed
from scheduler.live.limits import PeopleConfig
from scheduler.live.people import SERVER_OPTIONS, People
from scheduler.live.world import LiveWorld
from scheduler.model.cluster import NodeSpec

BATCH = 100
LISTED = 10_000
NODES = 100
DEADLINE_S = 60.0


class NoAgents:
    """Nodes without agents: nothing is heard of them, and nothing reaches them."""

    def read_logs(self, *asked: object) -> Any:
        """Nobody asks."""
        raise AssertionError("no logs here")

    def seen(self, node: str) -> None:
        """Nothing."""

    def cut_off(self, node: str, why: str) -> bool:
        """Nobody is there."""
        return False


async def serve(folder: Path, wire: Connection) -> None:
    """A daemon without a solver and agents, until the other end of the wire says something."""
    with SqliteJournal(folder / "journal.db") as journal:
        core = Core(recover_scheduler(journal).state)
        feed, world = Feed(journal), LiveWorld(core, Clock())
        outcome = core.take_over(world.now_s())
        feed.append(outcome.now_s, outcome.facts)
        config = PeopleConfig(submissions_per_s=1e9, submissions_burst=10**9, jobs_unfinished_max=10**9)
        people = People(world, feed, NoAgents(), folder, config)
        server = aio.server(interceptors=[people.guard], options=SERVER_OPTIONS)
        for add, servicer in people.services():
            add(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        loop = asyncio.create_task(drive(core, world, feed))
        for number in range(NODES):
            world.tell(NodeHello(spec=NodeSpec(name=f"n{number}", worker_type="v100", gpus=8)))
        async with people:
            await server.start()
            wire.send(port)
            await asyncio.to_thread(wire.recv)
            await server.stop(1.0)
        world.stop()
        await loop


def server_process(folder: str, wire: Connection, profiled: bool) -> None:
    """The server's process."""
    profile = cProfile.Profile()
    if profiled:
        profile.enable()
    asyncio.run(serve(Path(folder), wire))
    if profiled:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def job(number: int) -> pb.JobSpec:
    """A usual job."""
    launch = pb.Launch(
        command=["python", "train.py", "--lr", "0.1"], env={"SEED": str(number)}, workdir="/data"
    )
    return pb.JobSpec(name=f"train-{number}", job_type="resnet50", gpus=1, steps=10_000.0, launch=launch)


async def client(port: int, seconds: float, batch: int, took_s: list[float]) -> int:
    """Submit one after the other for so long; how many jobs were acknowledged."""
    jobs, number = 0, 0
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub: Any = jobs_pb2_grpc.JobsStub(channel)
        ends_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_s:
            request = pb.SubmitJobsRequest(
                specs=[job(i) for i in range(batch)], idempotency_key=f"{os.getpid()}-{id(stub)}-{number}"
            )
            began_s = time.perf_counter()
            answer = await stub.SubmitJobs(request, timeout=DEADLINE_S)
            took_s.append(time.perf_counter() - began_s)
            jobs += len(answer.jobs)
            number += 1
    return jobs


def client_process(port: int, clients: int, seconds: float, batch: int, wire: Connection) -> None:
    """Some clients, in a process of their own."""
    took_s: list[float] = []

    async def run() -> int:
        return sum(await asyncio.gather(*(client(port, seconds, batch, took_s) for _ in range(clients))))

    wire.send((asyncio.run(run()), took_s))


def cpu_s(pid: int | None) -> float:
    """Seconds of CPU time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def submitted(server: Any, port: int, options: argparse.Namespace, batch: int) -> str:
    """Jobs per second, how long a call took, and what of the server's CPU time a job took."""
    before_s = cpu_s(server.pid)
    context, ends = multiprocessing.get_context("spawn"), []
    for part in range(options.processes):
        clients = (options.clients + part) // options.processes
        here, there = context.Pipe()
        process = context.Process(target=client_process, args=(port, clients, options.seconds, batch, there))
        process.start()
        ends.append((process, here))
    answers = [here.recv() for _, here in ends]
    for process, _ in ends:
        process.join()
    took_s = sorted(s for _, some in answers for s in some)
    jobs = sum(count for count, _ in answers)
    return (
        f"{jobs / options.seconds:>8,.0f} jobs/s   {jobs:>7,} jobs   a call: "
        f"{1000 * statistics.median(took_s):6.1f} ms, p99 {1000 * quantile(took_s, 0.99):6.1f} ms   "
        f"CPU of the server: {1e6 * (cpu_s(server.pid) - before_s) / max(jobs, 1):,.0f} µs a job"
    )


def quantile(values: Sequence[float], part: float) -> float:
    """Of sorted values."""
    return values[min(int(part * len(values)), len(values) - 1)]


async def looked(port: int, brief: bool) -> str:
    """How long it takes to list so many jobs; and meanwhile, to get one."""
    size = [("grpc.max_receive_message_length", 64 * 2**20)]
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=size) as channel:
        stub: Any = jobs_pb2_grpc.JobsStub(channel)
        waits_s: list[float] = []

        async def beside() -> None:
            while True:
                waits_s.append(
                    await timed(lambda: stub.GetJob(pb.GetJobRequest(job="1"), timeout=DEADLINE_S))
                )

        async def list_() -> int:
            jobs, token = 0, ""
            while jobs < LISTED:
                request = pb.ListJobsRequest(page_size=LISTED, page_token=token, brief=brief)
                page = await stub.ListJobs(request, timeout=DEADLINE_S)
                jobs, token = jobs + len(page.jobs), page.next_page_token
            return jobs

        alone_s = min([await timed(list_) for _ in range(3)])
        other = asyncio.create_task(beside())
        await list_()
        other.cancel()
        return f"{alone_s:6.2f} s   another call meanwhile: at most {1000 * max(waits_s):.0f} ms"


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds."""
    began_s = time.perf_counter()
    await work()
    return time.perf_counter() - began_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe()
        server = context.Process(target=server_process, args=(folder, there, options.profile))
        server.start()
        port = here.recv()
        print(f"one at a time, {options.clients} clients  {submitted(server, port, options, 1)}", flush=True)
        print(
            f"{BATCH} at a time, {options.clients} clients {submitted(server, port, options, BATCH)}",
            flush=True,
        )
        for brief in (True, False):
            word = "brief" if brief else "whole"
            print(f"listing {LISTED:,} jobs, {word}:  {asyncio.run(looked(port, brief))}", flush=True)
        here.send("stop")
        server.join()


if __name__ == "__main__":
    main()
