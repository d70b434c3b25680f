"""The cost of a thousand agents for the scheduler: CPU time while they connect, start jobs, and report.

python -m benchmarks.links [--agents 1000] [--interval-s 10] [--seconds 30]

The scheduler runs in this process, with a journal on disk. The agents run in another process; each has its own
connection, and a job whose progress changes between any two reports.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grpc import aio

from protos.gavel.v1 import agents_pb2 as pb
from protos.gavel.v1 import agents_pb2_grpc
from scheduler.core.core import Core
from scheduler.core.effects import RenewLeases, Solve
from scheduler.core.messages import SubmitJobs
from scheduler.drive import drive
from scheduler.journal.store import SqliteJournal
from scheduler.live.agents.connections import Connections
from scheduler.live.agents.links import Links
from scheduler.live.agents.logs import LogRelay
from scheduler.live.agents.node_calls import NodeCalls
from scheduler.live.agents.service import AgentsService
from scheduler.live.clock import Clock
from scheduler.live.data.attempts import Attempts
from scheduler.live.feed import Feed
from scheduler.live.pace import Pace
from scheduler.live.world import LiveWorld
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import Launch
from scheduler.solving import answer

# ------------------------------------------------------------------------------------------------ the agents


async def one_agent(number: int, address: str, interval_s: float) -> None:
    """Simulate an agent: connect, report each lease as started at once, and report progress until the link ends."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = aio.insecure_channel(address, options=options)
    call = agents_pb2_grpc.AgentsStub(channel).Link()
    name = f"node-{number:04d}"
    gpu = pb.InventoryGpu(index=0, name="V100", memory_gb=16.0)
    await call.write(
        pb.AgentMessage(
            hello=pb.Hello(protocol=1, node=name, incarnation=name, worker_type="v100", gpus=[gpu]),
            sent_s=time.monotonic(),
        )
    )
    leases: dict[str, float] = {}
    generation, numbers = 0, 0
    write_lock = asyncio.Lock()

    async def send(**body: object) -> None:
        async with write_lock:
            await call.write(pb.AgentMessage(**body, sent_s=time.monotonic()))  # type: ignore[arg-type]

    async def report(started: list[str]) -> None:
        nonlocal numbers
        numbers += 1
        progress = [
            pb.Progress(lease=lease, steps=now_s, saved=now_s, stepping_s=now_s - since_s)
            for lease, since_s in leases.items()
            if (now_s := time.monotonic())
        ]
        message = pb.Report(number=numbers, generation=generation, started=started, progress=progress)
        await send(report=message)

    async def every_interval() -> None:
        await asyncio.sleep(interval_s * (number % 997) / 997)
        while True:
            await asyncio.sleep(interval_s)
            await report([])

    reporting: asyncio.Task[None] | None = None
    while isinstance(message := await call.read(), pb.SchedulerMessage):
        kind = message.WhichOneof("body")
        if kind == "welcome":
            reporting = asyncio.create_task(every_interval())
        elif kind == "alive":
            await send(alive=pb.Alive())
        elif kind == "desired":
            generation = message.desired.generation
            ordered = {order.lease for order in message.desired.orders}
            new = [lease for lease in ordered if lease not in leases]
            for lease in leases.keys() - ordered:
                del leases[lease]
            leases.update(dict.fromkeys(new, time.monotonic()))
            if new:
                await report(new)
    if reporting is not None:
        reporting.cancel()


async def all_agents(address: str, count: int, interval_s: float) -> None:
    """Run all agents in this process."""
    await asyncio.gather(*(one_agent(number, address, interval_s) for number in range(count)))


# ---------------------------------------------------------------------------------------------- the scheduler


class InProcessSolver:
    """A solver that answers immediately, in this process."""

    def __init__(self, world: LiveWorld) -> None:
        self._world = world

    def ask(self, question: Solve) -> None:
        """Solve the problem and queue the answer."""
        self._world.send(answer(question))


async def wait_until(condition: Callable[[], object]) -> float:
    """Wait until the condition holds; return how long that took."""
    begun_s = time.perf_counter()
    while not condition():
        await asyncio.sleep(0.01)
    return time.perf_counter() - begun_s


async def measure(folder: Path, agents: int, interval_s: float, seconds: float) -> None:
    """Run scheduler and agents, and print a table."""
    journal = SqliteJournal(folder / "journal.db")
    core, feed = Core(), Feed(journal)
    world = LiveWorld(core, Clock())
    world.handlers[Solve] = InProcessSolver(world).ask
    links = Links(world, Pace(report_interval_s=interval_s, silence_s=max(30.0, 3 * interval_s)))
    attempts = Attempts(folder / "attempts.db")
    calls = NodeCalls(links)
    relay = LogRelay(calls, attempts, world.state)
    feed.listen(attempts.listen)
    feed.listen(relay.listen)
    outcome = core.take_over(world.now_s())
    feed.append(outcome.now_s, outcome.facts)
    for effect in outcome.effects:
        world.perform(effect)
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    service = AgentsService(links, calls, Connections(links), None)  # type: ignore[arg-type]
    agents_pb2_grpc.add_AgentsServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tasks = [asyncio.create_task(drive(core, world, feed)), asyncio.create_task(links.watch())]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.links", "--agents", str(agents)),
        *("--interval-s", str(interval_s), "--only-agents", f"127.0.0.1:{port}"),
    )
    try:
        cpu_s = time.process_time()
        await wait_until(lambda: len(links.by_name) > 0)
        wall_s = await wait_until(lambda: sum(link.welcome for link in links.by_name.values()) == agents)
        print_row("all linked after", f"{wall_s:.1f} s", f"{time.process_time() - cpu_s:.1f} s of CPU")
        cpu_s = time.process_time()
        spec = JobSpec(launch=Launch(command=("true",)), job_type="cnn")
        await world.ask(SubmitJobs(specs=(spec,) * agents))
        state = world.state
        wall_s = await wait_until(
            lambda: sum(h.started_s is not None for h in state.leases.values()) == agents
        )
        print_row(
            "a job started on each after", f"{wall_s:.1f} s", f"{time.process_time() - cpu_s:.1f} s of CPU"
        )
        await steady(world, seconds, agents / interval_s)
        await renewal(links, agents)
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(None)
        attempts.close()
        journal.close()


async def steady(world: LiveWorld, seconds: float, reports_per_s: float) -> None:
    """Print the CPU time while all agents report, the longest delay of the event loop, and the peak memory."""
    late_s = 0.0
    cpu_s, end_s = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        slept_s = time.perf_counter()
        await asyncio.sleep(0.01)
        late_s = max(late_s, time.perf_counter() - slept_s - 0.01)
    share = (time.process_time() - cpu_s) / seconds
    print_row("CPU while they report", f"{share:.1%} of one core", f"{reports_per_s:.0f} reports/s")
    print_row("per report, Taken included", f"{share / reports_per_s * 1e3:.2f} ms")
    print_row("longest delay of the loop", f"{late_s * 1e3:.0f} ms")
    print_row("peak memory", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


async def renewal(links: Links, agents: int) -> None:
    """Print how long renewing the leases of all nodes takes."""
    state = links.world.state
    generations = {name: node.generation for name, node in state.nodes.items()}
    effect = RenewLeases(state.epoch, state.round.number + 1, links.world.now_s() + 60.0, generations)
    cpu_s, begun_s, thread_s = time.process_time(), time.perf_counter(), time.thread_time()
    links.renew_leases(effect)
    called_s, thread_s = time.perf_counter() - begun_s, time.thread_time() - thread_s
    wall_s = await wait_until(
        lambda: not any(link.outbox._filled.is_set() for link in links.by_name.values())
    )
    print_row("renewing all: the call", f"{called_s * 1e3:.1f} ms", f"{thread_s * 1e3:.1f} ms of CPU")
    print_row(
        "all written after",
        f"{(called_s + wall_s) * 1e3:.0f} ms",
        f"{(time.process_time() - cpu_s) / agents * 1e6:.0f} µs of CPU each",
    )


def print_row(title: str, *figures: str) -> None:
    """Print a line of the table."""
    print(f"{title:32}" + "".join(f"{figure:>24}" for figure in figures), flush=True)


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--interval-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only-agents", metavar="HOST:PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    del soft
    if options.only_agents:
        asyncio.run(all_agents(options.only_agents, options.agents, options.interval_s))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.agents, options.interval_s, options.seconds))


if __name__ == "__main__":
    main()
