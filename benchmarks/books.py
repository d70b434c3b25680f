"""Measure questions to a `history.db` of many leases: the books of GPU time, shares, leases, rounds and ended jobs.

    python -m benchmarks.books [--days 30] [--leases-a-day 20000] [--jobs 10000] [--ended 100000]

The file is made up: leases of 1 to 8 GPUs on 1,000 nodes hold them for two hours on average, and jobs take turns. One
line for each question: the least processor time of several passes, how long the slowest write took that was made
meanwhile, and how many rows the answer has.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from protos.gavel.v1 import jobs_pb2
from scheduler.live.observe.books import DAY_MS, OpenTime, Question
from scheduler.live.observe.history_book import HistoryBook, row_of
from scheduler.live.observe.history_file import HistoryFile
from scheduler.live.observe.past import LAST, Past, Period
from scheduler.live.observe.past_rows import (
    PastAllocation,
    PastLease,
    PastNode,
    PastRound,
    Row,
    packed_shares,
)
from scheduler.live.observe.timeline import add
from scheduler.model.jobs import Job, JobSpec, JobState

BEGIN_MS = 20_000 * DAY_MS + 7 * 3_600_000
ROUND_MS = 360_000
NODES, GPUS, USERS, TENANTS = 1000, 8, 200, 40
TYPES = ("v100", "a100", "h100")
PASSES = 3
Ask = Callable[[], Coroutine[Any, Any, Any]]


def leases(count: int, jobs: int, until_ms: int, rng: np.random.Generator) -> Iterator[PastLease]:
    """Yield ended leases, the first end first."""
    ends = np.sort(rng.integers(BEGIN_MS, until_ms, count)).tolist()
    held = np.minimum(rng.exponential(7_200_000.0, count).astype(int) + 60_000, 10 * DAY_MS).tolist()
    jobs_of, nodes = rng.integers(0, jobs, count).tolist(), rng.integers(0, NODES, count).tolist()
    widths = (2 ** rng.integers(0, 4, count)).tolist()
    for place, (end, held_ms, job, node, gpus) in enumerate(
        zip(ends, held, jobs_of, nodes, widths, strict=True)
    ):
        held_ms = min(held_ms, end - BEGIN_MS)
        user, worker_type = job % USERS, TYPES[node % len(TYPES)]
        on_gpus = f"node{node:04}:0" if gpus == 1 else f"node{node:04}:0-{gpus - 1}"
        yield PastLease(
            place=place,
            lease=place,
            job=str(job),
            attempt=1 + place // jobs,
            round=place,
            worker_type=worker_type,
            gpus=gpus,
            on_gpus=on_gpus,
            plan="",
            with_job="",
            user=f"user{user}",
            tenant=f"team{user % TENANTS}",
            job_type=f"model{job % 50}",
            granted_ms=end - held_ms,
            started_ms=end - held_ms,
            ended_ms=end,
            run_ms=held_ms,
            stepping_ms=held_ms,
            steps=float(place),
            saved=float(place),
            outcome=1,
            code=0,
            why="turn",
            held_ms=held_ms,
            useful_ms=held_ms * 4 // 5,
            lost_ms=held_ms // 20,
            idle_ms=held_ms // 10,
            shared_ms=held_ms // 100 if place % 10 == 0 else 0,
        )


def other_rows(until_ms: int, rng: np.random.Generator) -> Iterator[Row]:
    """Yield the GPUs of nodes, which change now and then; rounds, and an allocation for every tenth of them."""
    for place in range(20 * NODES):
        at_ms = BEGIN_MS if place < NODES else int(rng.integers(BEGIN_MS, until_ms))
        node = place % NODES
        broken = int(rng.integers(0, 2))
        yield PastNode(place, f"node{node:04}", at_ms, TYPES[node % len(TYPES)], GPUS, 0, broken, 0)
    shares = packed_shares({f"team{i}": dict.fromkeys(TYPES, 60.0) for i in range(TENANTS)})
    for number, starts_ms in enumerate(range(BEGIN_MS, until_ms, ROUND_MS), 1):
        yield PastRound(
            number, starts_ms, starts_ms, starts_ms + ROUND_MS, 80, 900, 80, 3, (number + 9) // 10
        )
        if number % 10 == 1:
            yield PastAllocation((number + 9) // 10, starts_ms, 900, "las", "", True, shares)


def ended_jobs(count: int, until_ms: int, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of jobs that have ended."""
    ends = np.sort(rng.integers(BEGIN_MS, until_ms, count)).tolist()
    for number, end_ms in enumerate(ends):
        user = number % USERS
        spec = JobSpec(
            job_type=f"model{number % 50}",
            user=f"user{user}",
            tenant=f"team{user % TENANTS}",
            name=f"run-{number}",
        )
        job = Job(id=str(number), spec=spec, order=number, submitted_s=end_ms / 1000 - 9000.0)
        job.state, job.ended_s, job.started_s = JobState.COMPLETED, end_ms / 1000, end_ms / 1000 - 7000.0
        yield row_of(job, (f"node{number % NODES:04}",))


def open_leases(jobs: int, until_ms: int) -> list[OpenTime]:
    """Return a lease for each GPU of the cluster or each job, if these are fewer, that began in the last three days."""
    times = []
    for job in range(min(jobs, NODES * GPUS)):
        begin_ms, user = until_ms - (job % 72 + 1) * 3_600_000, job % USERS
        names = f"user{user}", f"team{user % TENANTS}", f"model{job % 50}", TYPES[job % NODES % len(TYPES)]
        gpus = (f"node{job % NODES:04}:{job // NODES}",)
        times.append(OpenTime(*names, gpus, begin_ms, until_ms, (until_ms - begin_ms) * 0.8, 0.0, 0.0, 0))
    return times


def questions(file: HistoryFile, days: int, jobs: int) -> dict[str, Ask]:
    """Return the questions by name."""
    until_ms = BEGIN_MS + days * DAY_MS
    past, book, held = Past(file), HistoryBook(file), open_leases(jobs, until_ms)
    ask: dict[str, Ask] = {}
    for by in ("user", "tenant", "job_type", "type", "node", "day"):
        ask[f"usage by {by}"] = partial(past.gpu_time, Question(by, BEGIN_MS, until_ms), held, LAST)
    one_user = Question("day", BEGIN_MS, until_ms, "user7")
    ask["usage of a user by day"] = partial(past.gpu_time, one_user, held, LAST)
    ask["usage by type, last day"] = partial(
        past.gpu_time, Question("type", until_ms - DAY_MS, until_ms), held, LAST
    )
    period = Period(BEGIN_MS, until_ms, DAY_MS // 4)
    ask["shares in steps of 6 h"] = partial(past.accounts, period, "", ())
    ask["leases, first page"] = partial(past.leases_of_all, BEGIN_MS, until_ms, "", (LAST, LAST), 1000)
    ask["leases of a node"] = partial(past.leases_of_all, BEGIN_MS, until_ms, "node0007", (LAST, LAST), 1000)
    ask["leases of a job"] = partial(past.leases, "7", LAST, 1000)
    ask["rounds, first page"] = partial(past.rounds, 0, until_ms, LAST, 1000)
    ask["rounds of the first day"] = partial(past.rounds, 0, BEGIN_MS + DAY_MS, LAST, 1000)
    filters = {
        "all": jobs_pb2.JobFilter(),
        "of a user": jobs_pb2.JobFilter(user="user7"),
        "of a tenant": jobs_pb2.JobFilter(tenant="team7"),
        "of a type, none": jobs_pb2.JobFilter(job_type="nothing"),
        "by name, none": jobs_pb2.JobFilter(name="nothing*"),
        "on a node": jobs_pb2.JobFilter(node="node0007"),
    }
    for name, wanted in filters.items():
        page = partial(book.page, wanted, None, 100)
        ask[f"ended jobs {name}"] = partial(asyncio.to_thread, page)
    return ask


class Writes(threading.Thread):
    """Writes a row every few milliseconds, as the scheduler does every two seconds, and keeps the slowest."""

    def __init__(self, file: HistoryFile) -> None:
        super().__init__()
        self._file, self._over, self.slowest_s = file, threading.Event(), 0.0

    def run(self) -> None:
        """Write until `end`."""
        while not self._over.wait(0.005):
            began_s = time.perf_counter()
            add(self._file, [PastRound(1, 0, 0, 0, 0, 0, 0, 0, 0)], None)
            self.slowest_s = max(self.slowest_s, time.perf_counter() - began_s)

    def end(self) -> float:
        """Return the time of the slowest write."""
        self._over.set()
        self.join()
        return self.slowest_s


def measured(file: HistoryFile, ask: Ask) -> tuple[float, float, int]:
    """Return the least time of an answer, the slowest write beside all passes, and the rows of the answer."""
    writes, least_s, answer = Writes(file), float("inf"), list[Any]()
    writes.start()
    for _ in range(PASSES):
        began_s = time.process_time()
        answer = asyncio.run(ask())
        least_s = min(least_s, time.process_time() - began_s)
    return least_s, writes.end(), len(getattr(answer, "rows", answer))


def main() -> None:
    """Make the file, ask, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--leases-a-day", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--ended", type=int, default=100_000)
    options = parser.parse_args()
    rng, until_ms = np.random.default_rng(1), BEGIN_MS + options.days * DAY_MS
    with tempfile.TemporaryDirectory() as folder:
        file = HistoryFile(Path(folder) / "history.db")
        add(file, list(leases(options.days * options.leases_a_day, options.jobs, until_ms, rng)), None)
        add(file, list(other_rows(until_ms, rng)), None)
        HistoryBook(file).add(list(ended_jobs(options.ended, until_ms, rng)))
        print(f"{'':<28}{'answer':>10}{'slowest write':>16}{'rows':>9}")
        for name, ask in questions(file, options.days, options.jobs).items():
            answer_s, write_s, rows = measured(file, ask)
            print(f"{name:<28}{answer_s:>8.2f} s{1000 * write_s:>13.0f} ms{rows:>9,}")
        file.close()


if __name__ == "__main__":
    main()
