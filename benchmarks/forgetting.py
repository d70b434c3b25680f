"""How memory, snapshots, restarts and listings develop over a million jobs, with 2,000 unfinished at a time.

    python -m benchmarks.forgetting [--jobs 1000000] [--keep-s 7200] [--folder DIR]

Core, journal (durable), snapshots, history, usage and the services for people are those of the real scheduler; nodes
are simulated, and time is virtual. 1,000 GPUs run 1,000 jobs a round, while another 1,000 wait. Jobs are kept for two
virtual hours after their end, about 20 rounds; `--keep-s 0` never forgets a job.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from protos.gavel.v1 import jobs_pb2 as pb
from scheduler.core.core import Core
from scheduler.core.effects import Effect, SendLeases, Solve, WakeAt
from scheduler.core.messages import (
    Configure,
    Exit,
    GiveRates,
    Message,
    NodeHello,
    NodeReport,
    SubmitJobs,
    Woke,
)
from scheduler.core.state import SchedulerState
from scheduler.drive import drive
from scheduler.journal.compaction import Keeper
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.store import SqliteJournal
from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.roles import Caller, Role, set_caller
from scheduler.live.api.services import People
from scheduler.live.config import Keeping
from scheduler.live.data.attempts import Attempts
from scheduler.live.feed import Feed
from scheduler.live.node_views import Sources
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.launch import Launch
from scheduler.model.settings import Settings
from scheduler.solving import answer

ALIVE, NODES, GPUS = 2000, 125, 8
RUN_S, ROUND_S, START_S = 300.0, 360.0, 1_800_000_000.0
PER_SUBMISSION = 10
FORGET_ROUNDS = 10
SHOWN_AT = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
LIVE = (pb.JOB_STATE_QUEUED, pb.JOB_STATE_RUNNING, pb.JOB_STATE_PREEMPTED, pb.JOB_STATE_HELD)
TYPES = ("resnet50", "bert-large", "gpt2", "whisper")


def spec(number: int) -> JobSpec:
    """Return a typical job for a GPU of any type."""
    launch = Launch(
        command=(
            "python",
            "train.py",
            "--config",
            f"configs/experiment-{number % 97}.yaml",
            "--seed",
            str(number),
        ),
        workdir=f"shared/user{number % 50}/project",
        env={"WANDB_PROJECT": "sweeps", "OMP_NUM_THREADS": "8"},
        venv=f"shared/user{number % 50}/venv",
    )
    return JobSpec(
        name=f"run-{number}",
        user=f"user{number % 50}",
        tenant=f"org/team{number % 10}",
        job_type=TYPES[number % 4],
        reports_steps=False,
        launch=launch,
    )


class VirtualCluster:
    """A cluster in virtual time: jobs are submitted as others end, run for RUN_S and complete."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.submitted = 0
        self.is_over = False
        self.at_s = START_S
        # Called once a round; virtual time stands still meanwhile.
        self.between_rounds: Callable[[], Any] = lambda: None
        self._inbox: list[tuple[Message, Callable[[], None] | None]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._timers: dict[str, float] = {}
        self._known: dict[str, set[str]] = {}
        # In order of time.
        self._exits: list[tuple[float, str, int, tuple[Exit, ...]]] = []
        self._pause: asyncio.Task[Any] | None = None
        self._submitted_s = 0.0

    @property
    def state(self) -> SchedulerState:
        """The state of the core, for reading."""
        return self.core.state

    def now_s(self) -> float:
        """Return the virtual time."""
        return self.at_s

    def send(
        self,
        message: Message,
        done: Callable[[], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Queue a message for the core. `failed` is never called, because no message of this benchmark fails."""
        self._inbox.append((message, done))

    async def ask(self, message: Any) -> Any:
        """Raise NotImplementedError: this benchmark sends no requests."""
        raise NotImplementedError

    async def next(self) -> tuple[float, Sequence[Message]] | None:
        """Return the waiting messages. If there are none, first let `between_rounds` end, then advance the time."""
        callbacks, self._callbacks = self._callbacks, []
        for done in callbacks:
            done()
        if self.at_s - self._submitted_s >= ROUND_S and self._pause is None:
            self._submitted_s = self.at_s
            self._submit()
            self._pause = asyncio.ensure_future(self.between_rounds())
        while self._pause is not None and not self._inbox:
            await asyncio.wait({self._pause}, timeout=0.001)
            if self._pause.done():
                self._pause.result()
                self._pause = None
        if self.is_over:
            return None
        if not self._inbox:
            self._advance()
        batch, self._inbox = self._inbox, []
        self._callbacks = [done for _, done in batch if done is not None]
        return self.at_s, [message for message, _ in batch]

    def _submit(self) -> None:
        for _ in range(0, ALIVE - len(self.state.active), PER_SUBMISSION):
            specs = tuple(spec(self.submitted + i) for i in range(PER_SUBMISSION))
            self.submitted += PER_SUBMISSION
            self.send(SubmitJobs(specs=specs, key=f"user:sweep-{self.submitted}", user="user"))

    def _advance(self) -> None:
        """Advance the time to the next exit or timer."""
        times = [*self._timers.values(), *(at_s for at_s, *_ in self._exits[:1])]
        self.at_s = max(self.at_s, min(times))
        while self._exits and self._exits[0][0] <= self.at_s:
            _, node, generation, exits = self._exits.pop(0)
            self.send(NodeReport(node=node, generation=generation, exits=exits))
        for timer in [timer for timer, at_s in self._timers.items() if at_s <= self.at_s]:
            del self._timers[timer]
            self.send(Woke(what=timer))

    def perform(self, effect: Effect) -> None:
        """Answer in place of solver, timers and nodes."""
        match effect:
            case WakeAt():
                self._timers[effect.what] = max(effect.at_s, self.at_s)
            case Solve():
                self.send(answer(effect))
            case SendLeases():
                self._send(effect)

    def _send(self, effect: SendLeases) -> None:
        known = self._known.get(effect.node, set())
        ordered = {lease.id for lease in effect.leases}
        new = tuple(sorted(ordered - known, key=int))
        self._known[effect.node] = ordered
        if new:
            exits = tuple(Exit(name, "finished", 1.0, 1.0, RUN_S - 5.0, RUN_S) for name in new)
            self.send(NodeReport(node=effect.node, generation=effect.generation, started=new))
            self._exits.append((self.at_s + RUN_S, effect.node, effect.generation, exits))


class NoNodes:
    """A stand-in for the links to nodes that the services need; its methods do nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def rss_mb() -> float:
    """Return the resident memory of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def restart(path: Path, answers: Any) -> None:
    """Recover this journal in a new process and take over; send how long that took to `answers`."""
    began_s = time.perf_counter()
    with SqliteJournal(path) as journal:
        core = Core(recover_scheduler(journal).state)
        core.take_over(core.state.now_s)
    answers.put(time.perf_counter() - began_s)


class Bench:
    """One run, and its table."""

    def __init__(self, folder: Path, jobs: int, keep_s: float) -> None:
        self.folder = folder
        self.keeping = Keeping(keep_jobs_s=keep_s, keep_keys_s=min(keep_s, 3600.0))
        self.journal = SqliteJournal(folder / "journal.db")
        self.core = Core()
        self.world = VirtualCluster(self.core)
        self.feed = Feed(self.journal)
        self.attempts = Attempts(folder / "attempts.db")
        self.feed.listen(self.attempts.listen)
        world: Any = self.world
        links: Any = NoNodes()
        self.people = People(
            world,
            self.feed,
            Sources(links, links, links, links),
            folder,
            PeopleConfig(),
            attempts=self.attempts,
            keeping=self.keeping,
        )
        self.service: Any = self.people.services()[0][1]
        self.marks = [int(fraction * jobs) for fraction in SHOWN_AT]
        self.rounds = 0
        self.encode_ms = 0.0
        self.began_s = time.perf_counter()

    def snapshot(self) -> bytes:
        """Take a snapshot as the keeper does, on the event loop, and record how long it took."""
        began_s = time.perf_counter()
        payload = self.core.state.snapshot()
        self.encode_ms = max(self.encode_ms, 1000 * (time.perf_counter() - began_s))
        return payload

    async def between_rounds(self) -> None:
        """Forget jobs every FORGET_ROUNDS rounds, and print a line of the table at each mark."""
        self.rounds += 1
        if self.rounds % FORGET_ROUNDS == 0:
            await self.people.historian.forget()
            await self.people.historian.catch_up()
            await self.people.usage.catch_up()
        ended = self.core.state.next_order - len(self.core.state.active)
        if ended >= self.marks[0]:
            self.marks.pop(0)
            await self.show(ended)
            self.world.is_over = not self.marks

    async def show(self, ended: int) -> None:
        """Print a line of the table."""
        gc.collect()
        memory_mb, payload = rss_mb(), self.snapshot()
        copy = self.folder / "copy.db"
        await asyncio.to_thread(self.journal.copy_to, copy)
        answers: Any = multiprocessing.get_context("spawn").Queue()
        process = multiprocessing.get_context("spawn").Process(target=restart, args=(copy, answers))
        process.start()
        restart_s = await asyncio.to_thread(answers.get)
        await asyncio.to_thread(process.join)
        for path in self.folder.glob("copy.db*"):
            path.unlink()
        queue_ms = await self.page_ms(pb.JobFilter(user="user7", states=LIVE))
        ended_ms = await self.page_ms(pb.JobFilter(user="user7", ended=True))
        size_mb = {name: (self.folder / name).stat().st_size / 2**20 for name in ("journal.db", "history.db")}
        print(
            f"{ended:>10,} {len(self.core.state.jobs):>9,} {memory_mb:>9,.0f} {len(payload) / 2**20:>12.1f} "
            f"{self.encode_ms:>9.0f} {size_mb['journal.db']:>10,.0f} {restart_s:>10.2f} {queue_ms:>9.1f} "
            f"{ended_ms:>9.1f} {size_mb['history.db']:>10,.0f} {time.perf_counter() - self.began_s:>8.0f}",
            flush=True,
        )
        self.encode_ms = 0.0

    async def page_ms(self, job_filter: pb.JobFilter) -> float:
        """Return the median time of 5 pages of 50 jobs, in milliseconds."""
        set_caller(Caller("user7", Role.USER))
        took = []
        for _ in range(5):
            began_s = time.perf_counter()
            await self.service.ListJobs(pb.ListJobsRequest(filter=job_filter, page_size=50, brief=True), None)
            took.append(1000 * (time.perf_counter() - began_s))
        return sorted(took)[2]

    async def run(self) -> None:
        """Run the whole benchmark."""
        async with AsyncExitStack() as closing:
            closing.callback(self.journal.close)
            closing.callback(self.attempts.close)
            closing.callback(self.people.historian.close)
            closing.callback(self.people.usage.close)
            world = self.world
            settings = Settings(policy="fifo", fill_mid_round=False, round_s=ROUND_S, learn_rates=False)
            world.send(Configure(settings=settings))
            world.send(GiveRates(solo=[(kind, 1, "a100", 1.0) for kind in TYPES]))
            for number in range(NODES):
                world.send(
                    NodeHello(spec=NodeSpec(name=f"n{number}", worker_type="a100", gpus=GPUS, storage="nfs"))
                )
            world.between_rounds = self.between_rounds
            await drive(self.core, world, self.feed, Keeper(self.journal, self.snapshot))


def main() -> None:
    """Run, and print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--keep-s", type=float, default=7200.0, help="0: never forget")
    parser.add_argument("--folder", type=Path, help="keep the files there")
    options = parser.parse_args()
    print(
        f"{'ended':>10} {'in state':>9} {'RSS MB':>9} {'snapshot MB':>12} {'encode ms':>9} {'journal MB':>10} "
        f"{'restart s':>10} {'queue ms':>9} {'ended ms':>9} {'history MB':>10} {'after s':>8}"
    )
    with tempfile.TemporaryDirectory() as temporary, suppress(KeyboardInterrupt):
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(Bench(folder, options.jobs, options.keep_s).run())


if __name__ == "__main__":
    main()
