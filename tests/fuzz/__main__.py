"""Attack a real scheduler with random calls and links; check that it stays alive, answers, and does not grow too much.

python -m tests.fuzz --minutes 5 --seed 1 [--face people|agents|both] [--tls] [--cases 100-200]

The scheduler is `gavel serve` in a process of its own, with tokens. A case depends only on the seed and on the number
of the case, so `--cases` can repeat some cases. The fuzz fails, with exit code 1, if the scheduler ends, does not
answer a status call in time, refuses a connection, answers UNKNOWN, answers INTERNAL without a number, logs a traceback
without a number, or needs more memory than the limit. An internal error that has a number affects only the message
that caused it; such errors are counted and shown.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpc import aio

from protos.gavel.v1 import cluster_pb2, jobs_pb2
from scheduler.live.access.roles import Role
from tests.fuzz.calls import one_call
from tests.fuzz.links import NODES, Received, one_link
from tests.support.served import Served

WORKERS = 8
# Within this time a status call must be answered.
ANSWER_S = 10.0
# The pause between two status calls.
LOOK_S = 0.25
QUICK = (
    *("scheduler.round_s=4", "scheduler.solve_lead_s=1", "scheduler.plan_lead_s=0.5"),
    *("agents.report_interval_s=1", "agents.silence_s=3", "agents.away_s=1", "agents.duplicate_s=0.5"),
)
NUMBERED = re.compile(r"has it as ([0-9a-f]{8})")
STORY = re.compile(
    r"^.*internal error (?P<number>[0-9a-f]{8}).*\n(?P<story>Traceback.*\n(?:(?:[ \t].*)?\n)*.*)", re.M
)
TRACEBACK = re.compile(r"^(?P<line>.*)\nTraceback \(most recent call last\):", re.M)


class Failed(Exception):
    """The scheduler failed."""


class Fuzz:
    """One run against one scheduler."""

    def __init__(self, served: Served, options: argparse.Namespace) -> None:
        self.served, self.options = served, options
        self.codes: Counter[tuple[str, str]] = Counter()
        self.numbered: dict[str, str] = {}
        self.cases: Counter[str] = Counter()
        self.longest_s, self.most_mb, self.most_files = 0.0, 0.0, 0
        # Cases that ran during the longest status call.
        self.slowest: list[str] = []
        self.known: list[str] = []
        self.received = Received()
        self._running: dict[int, str] = {}
        self._end_s = time.monotonic() + 60 * options.minutes

    async def run(self) -> None:
        """Run until the time is over; raise Failed as soon as the scheduler fails."""
        faces = ["people", "agents"] if self.options.face == "both" else [self.options.face]
        beside = {asyncio.create_task(self._watch())}
        if "agents" in faces:
            beside.add(asyncio.create_task(self._feed()))
        workers = {
            asyncio.create_task(self._worker(face, numbers))
            for face, numbers in ((face, self._numbers()) for face in faces)
            for _ in range(WORKERS)
        }
        running = set(workers)
        try:
            while running:
                done, _ = await asyncio.wait(running | beside, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                running -= done
        except Failed as failed:
            raise Failed(f"{failed}\ncases that were running: {sorted(self._running.values())}") from None
        finally:
            for task in workers | beside:
                task.cancel()
            await asyncio.gather(*workers, *beside, return_exceptions=True)
        self._check_log()

    def _numbers(self) -> Iterator[int]:
        first, _, last = (self.options.cases or "0-").partition("-")
        return iter(range(int(first), int(last) + 1)) if last else itertools.count(int(first))

    async def _worker(self, face: str, numbers: Iterator[int]) -> None:
        served = self.served
        people = [served.channel() for _ in range(2)]
        agents = (
            {name: served.channel(name if served.tls else "") for name in NODES} if face == "agents" else {}
        )
        task_id = id(people)
        for number in numbers:
            if time.monotonic() > self._end_s:
                break
            chance = random.Random(f"{self.options.seed} {face} {number}")
            self._running[task_id] = f"{face} {number}"
            if face == "people":
                name, code, text = await one_call(served, people, chance, self.known)
            else:
                name, code, text = await one_link(served, agents, chance, self.received)
            self.cases[face] += 1
            self._count(f"{face} {number}", name, code, text)
        self._running.pop(task_id, None)
        for channel in (*people, *agents.values()):
            await channel.close()

    def _count(self, case: str, name: str, code: str, text: str) -> None:
        # grpc.aio answers this if a message is written to a call that has ended.
        if text.startswith("Internal error from Core"):
            code = "ended before we did"
        self.codes[name, code] += 1
        if code == "UNKNOWN":
            raise Failed(f"case {case}: {name} is answered UNKNOWN: {text}")
        if code == "INTERNAL" and not text.startswith(
            ("Illegal header", "Internal error from Core", "RST_STREAM")
        ):
            number = NUMBERED.search(text)
            if number is None:
                raise Failed(f"case {case}: {name} is answered INTERNAL without a number: {text}")
            self.numbered[number[1]] = case

    async def _watch(self) -> None:
        """Ask for the status, over a new connection now and then, and check the process."""
        served, channel = self.served, self.served.channel()
        for turn in itertools.count():
            await self._look(channel)
            if turn % 8 == 0:
                for address in {served.address, served.agents_address}:
                    host, _, port = address.rpartition(":")
                    try:
                        socket.create_connection((host, int(port)), ANSWER_S).close()
                    except OSError as error:
                        raise Failed(f"{address} cannot be connected to: {error}") from None
                await channel.close()
                channel = served.channel()
                self._check_log()
            await asyncio.sleep(LOOK_S)

    async def _look(self, channel: aio.Channel) -> None:
        served = self.served
        if served.process.poll() is not None:
            raise Failed(f"the scheduler has ended: {served.log.read_text(errors='replace')[-3000:]}")
        ask: Any = channel.unary_unary(
            "/gavel.v1.Cluster/GetStatus", cluster_pb2.GetStatusRequest.SerializeToString
        )
        began_s = time.monotonic()
        try:
            await ask(cluster_pb2.GetStatusRequest(), metadata=served.metadata(Role.VIEWER), timeout=ANSWER_S)
        except aio.AioRpcError as error:
            raise Failed(f"a status call failed: {error.code().name} {error.details()}") from None
        if (took_s := time.monotonic() - began_s) > self.longest_s:
            self.longest_s, self.slowest = took_s, sorted(self._running.values())
        self.most_mb = max(self.most_mb, served.rss_mb())
        self.most_files = max(self.most_files, served.descriptors())
        if self.most_mb > self.options.megabytes:
            raise Failed(f"the scheduler has {self.most_mb:,.0f} MB of memory")

    async def _feed(self) -> None:
        """Submit jobs, so that the agents get leases."""
        channel = self.served.channel()
        ask: Any = channel.unary_unary(
            "/gavel.v1.Jobs/SubmitJobs", jobs_pb2.SubmitJobsRequest.SerializeToString
        )
        launch = jobs_pb2.Launch(command=["true"])
        while True:
            specs = [jobs_pb2.JobSpec(gpus=gpus, steps=100.0, launch=launch) for gpus in (1, 1, 2, 4)]
            try:
                request = jobs_pb2.SubmitJobsRequest(specs=specs)
                await ask(request, metadata=self.served.metadata(Role.USER), timeout=ANSWER_S)
            except aio.AioRpcError as error:
                self._count("a job for agents", "SubmitJobs", error.code().name, error.details() or "")
            await asyncio.sleep(1.0)

    def _check_log(self) -> None:
        """Check that every traceback in the log belongs to an internal error with a number."""
        text = self.served.log.read_text(errors="replace")
        for match in TRACEBACK.finditer(text):
            if "internal error" not in match["line"]:
                raise Failed(f"a traceback in the log:\n{text[match.start() : match.start() + 3000]}")

    def kinds(self) -> dict[str, list[str]]:
        """Return the numbers of the internal errors in the log, by traceback."""
        kinds: dict[str, list[str]] = {}
        for match in STORY.finditer(self.served.log.read_text(errors="replace")):
            kinds.setdefault(match["story"], []).append(match["number"])
        return kinds

    def report(self) -> str:
        """Return a table of the calls and of how they ended."""
        lines = [f"{'method':44} {'calls':>8}  answers"]
        for name in sorted({name for name, _ in self.codes}):
            own = Counter({code: count for (method, code), count in self.codes.items() if method == name})
            answers = ", ".join(f"{count} {code}" for code, count in own.most_common())
            lines.append(f"{name:44} {own.total():8,}  {answers}")
        cases = ", ".join(f"{count:,} cases of {face}" for face, count in self.cases.items())
        lines.append(
            f"{cases}; longest status call {self.longest_s:.2f} s beside {self.slowest}; "
            f"at most {self.most_mb:,.0f} MB and {self.most_files:,} descriptors; "
            f"log {self.served.log.stat().st_size:,} bytes; "
            f"{len(self.numbered)} numbered internal errors {dict(list(self.numbered.items())[:20])}"
        )
        return "\n".join(lines)


def play(options: argparse.Namespace, folder: Path) -> int:
    """Run the fuzz; return 0 if the scheduler did not fail."""
    with Served(folder, tls=options.tls, settings=QUICK) as served:
        fuzz = Fuzz(served, options)
        try:
            asyncio.run(fuzz.run())
            stopped_s = served.stop()
        except Failed as failed:
            print(fuzz.report(), f"seed {options.seed}: {failed}", sep="\n", flush=True)
            return 1
        print(
            fuzz.report(),
            f"seed {options.seed}: it held, and stopped within {stopped_s:.1f} s",
            sep="\n",
            flush=True,
        )
        for kind, numbers in fuzz.kinds().items():
            print(f"\n{len(numbers)} of case {fuzz.numbered.get(numbers[0], 'of the links')}:\n{kind}")
        return 0


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--face", choices=("people", "agents", "both"), default="both")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--cases", default="", metavar="A-B", help="run only the cases with these numbers")
    parser.add_argument(
        "--megabytes", type=float, default=2000.0, help="the limit for the scheduler's memory, in MB"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(play(parsed(), Path(folder, "s")))
