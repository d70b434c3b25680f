"""Absurd jobs, absurd nodes and a poisoned journal against a real daemon: its answers, and whether it survives.

    python -m tests.attacks.poison [job | node | journal]

Each poison gets a daemon and a data directory of its own. The poison is sent, an ordinary node links (played with a
gRPC stub), and rounds pass. The daemon is killed and started again, an ordinary job is submitted, the poisoned job is
cancelled, and `gavel fsck` reads the directory. With `journal`, the poison is written into the journal as facts,
without any check, as an older release could have left it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from protos.gavel.v1 import (
    agents_pb2,
    agents_pb2_grpc,
    cluster_pb2,
    cluster_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
)
from scheduler.core import facts as f
from scheduler.journal.store import SqliteJournal
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec, Move
from scheduler.model.launch import Launch

USER = (("x-gavel-user", "ann"),)
CALL_S, START_S, ROUNDS_S = 10.0, 30.0, 3.0
QUICK = ("round_s=1", "solve_lead_s=0.3", "plan_lead_s=0.1", "lease_margin_s=1", "restart_cost_s=0")
TINY, HUGE = 1e-308, 1.7e308
JOBS: tuple[dict[str, float], ...] = (
    {"cpus": TINY},
    {"cpus": HUGE},
    {"memory_gb": TINY},
    {"memory_gb": HUGE},
    {"gpu_memory_gb": TINY},
    {"steps": HUGE},
    {"weight": TINY},
    {"weight": HUGE},
    {"time_limit_s": HUGE},
    {"max_cost": TINY},
)
NODES: tuple[dict[str, float], ...] = (
    {"cpus": HUGE},
    {"cpus": TINY},
    {"memory_gb": HUGE},
    {"memory_gb": TINY},
    {"speed": HUGE},
)


class Row(NamedTuple):
    """The outcome of one poison."""

    poison: str
    # The daemon's answer to the poison.
    answer: str
    # Whether the daemon survived the first rounds.
    alive: str
    # Whether it started again, and survived more rounds.
    restart: str
    fsck: str
    # The answer to the cancellation of the poisoned job.
    cancel: str
    # Whether another job was accepted, and how many jobs are in each state.
    serves: str


class Daemon:
    """A daemon in a process of its own, with short rounds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> bool:
        """Start the daemon; return whether it got as far as writing its address."""
        where = self.folder / "daemon.json"
        where.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "scheduler",
            "--data-dir",
            str(self.folder),
            "--listen",
            "127.0.0.1:0",
        ]
        with (self.folder.parent / "daemon.log").open("ab") as log:
            command += [f"--set=scheduler.{setting}" for setting in QUICK]
            self.process = subprocess.Popen(command, stderr=log, stdout=log)
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s and self.process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                self.address = json.loads(where.read_text())["listen"]
                return True
            time.sleep(0.05)
        return False

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Send kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        """A connection."""
        with grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield channel

    def submit(self, **spec: Any) -> str:
        """Submit a job; return its id, or how it was refused."""
        request = jobs_pb2.SubmitJobsRequest(
            specs=[jobs_pb2.JobSpec(launch=jobs_pb2.Launch(command=["true"]), **spec)]
        )
        with self.channel() as channel:
            return _answer(
                lambda: (
                    jobs_pb2_grpc.JobsStub(channel).SubmitJobs(request, metadata=USER, timeout=CALL_S).jobs[0]
                )
            )

    def cancel(self, job: str) -> str:
        """Cancel a job; return ok, or how it was refused."""
        request = jobs_pb2.CommandJobRequest(job=job, action=jobs_pb2.CommandJobRequest.ACTION_CANCEL)
        with self.channel() as channel:
            call = jobs_pb2_grpc.JobsStub(channel).CommandJob
            return _answer(lambda: "ok" if call(request, metadata=USER, timeout=CALL_S) else "")

    def states(self) -> str:
        """Return the number of jobs in each state, as text."""
        with self.channel() as channel, contextlib.suppress(grpc.RpcError):
            stub = cluster_pb2_grpc.ClusterStub(channel)
            status = stub.GetStatus(cluster_pb2.GetStatusRequest(), metadata=USER, timeout=CALL_S)
            return ", ".join(f"{count} {state}" for state, count in sorted(status.jobs.items()) if count)
        return "no answer"

    @contextlib.contextmanager
    def node(self, name: str, **figures: float) -> Iterator[str]:
        """Play an agent for as long as the block runs; yield the answer to its Hello."""
        over = threading.Event()
        hello = agents_pb2.Hello(
            **{"cpus": 8.0, "memory_gb": 64.0, **figures},
            node=name,
            incarnation=f"{name}-1",
            protocol=1,
            agent_version="0.1.0",
            worker_type="v100",
            gpus=[agents_pb2.InventoryGpu(index=0, name="V100", memory_gb=16.0)],
        )

        def spoken() -> Iterator[agents_pb2.AgentMessage]:
            yield agents_pb2.AgentMessage(hello=hello)
            over.wait(60.0)

        with self.channel() as channel:
            call = agents_pb2_grpc.AgentsStub(channel).Link(spoken(), timeout=60.0)
            try:
                yield _answer(lambda: _first(call))
            finally:
                over.set()
                call.cancel()


def _first(call: Any) -> str:
    for message in call:
        kind = message.WhichOneof("body")
        if kind in ("welcome", "goodbye"):
            return "welcome" if kind == "welcome" else f"refused: {message.goodbye.text}"
    return "the stream ended"


def _answer(call: Callable[[], str]) -> str:
    try:
        return call()
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]


def attack(folder: Path, poison: str, send: Callable[[Daemon], str], job: str = "") -> Row:
    """Send one poison to a new daemon, and return the outcome.

    `job` is the id of the poisoned job if the journal has it from the beginning.
    """
    folder.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(folder / "data")
    try:
        if not daemon.start():
            return Row(poison, "-", "does not start", "-", _fsck(daemon.folder), "-", "-")
        answer = send(daemon)
        job = job or (answer if answer.isdigit() else "")
        with daemon.node("plain"):
            time.sleep(ROUNDS_S)
        alive = "yes" if daemon.alive else "DEAD"
        daemon.kill()
        restart = "yes" if daemon.start() else "NO"
        if restart == "yes":
            with daemon.node("plain"):
                time.sleep(ROUNDS_S)
            restart = "yes" if daemon.alive else "DEAD"
        serves = "NO"
        if daemon.alive:
            with daemon.node("plain"):
                serves = "yes" if daemon.submit().isdigit() else "NO"
        states = daemon.states() if daemon.alive else "-"
        cancel = "-" if not job else daemon.cancel(job) if daemon.alive else "NO"
        daemon.kill()
        return Row(poison, answer, alive, restart, _fsck(daemon.folder), cancel, f"{serves} ({states})")
    finally:
        daemon.kill()


def _fsck(folder: Path) -> str:
    command = [sys.executable, "-m", "gavel", "fsck", "--data-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    bad = [line for line in done.stdout.splitlines() if "because of" in line or "cannot be planned" in line]
    return bad[0].strip() if bad else f"code {done.returncode}"


def poisoned(folder: Path, *facts: f.Fact) -> None:
    """Write a journal with these facts."""
    folder.mkdir(mode=0o700, parents=True)
    with SqliteJournal(folder / "journal.db") as journal:
        journal.append(1.0, [f.EpochStarted(epoch=1)])
        for fact in facts:
            journal.append(2.0, [fact])


def absurd_jobs(base: Path) -> Iterator[Row]:
    """Yield the outcomes of absurd jobs that a user submits."""
    for at, spec in enumerate(JOBS):
        yield attack(base / f"job{at}", f"job {spec}", lambda daemon, spec=spec: daemon.submit(**spec))


def absurd_nodes(base: Path) -> Iterator[Row]:
    """Yield the outcomes of absurd descriptions that an agent gives of its machine while an ordinary job waits."""
    for at, figures in enumerate(NODES):

        def send(daemon: Daemon, figures: dict[str, float] = figures) -> str:
            daemon.submit(cpus=4.0)
            with daemon.node("mad", **figures) as answer:
                time.sleep(ROUNDS_S)
            return answer

        yield attack(base / f"node{at}", f"Hello {figures}", send)


def poisoned_journals(base: Path) -> Iterator[Row]:
    """Yield the outcomes of journals with facts that were written without a check."""
    launch = Launch(command=("true",))
    mad = f.NodeJoined(spec=NodeSpec(name="mad", worker_type="v100", gpus=1, cpus=HUGE))
    usual = f.JobSubmitted(job="1", spec=JobSpec(cpus=4.0, launch=launch, user="ann"))
    job = f.JobSubmitted(job="1", spec=JobSpec(cpus=TINY, launch=launch, user="ann"))
    node = f.NodeJoined(spec=NodeSpec(name="plain", worker_type="v100", gpus=1, cpus=8.0))
    stories: dict[str, tuple[f.Fact, ...]] = {
        "journal: job and node": (job, node),
        "journal: … and an allocation asked for": (job, node, f.AllocationAsked(number=1)),
        "journal: a mad node": (
            f.JobSubmitted(job="1", spec=JobSpec(cpus=4.0, launch=launch, user="ann")),
            f.NodeJoined(spec=mad),
        ),
        "journal: a move of job 7": (usual, node, f.JobMoved(job="7", move=Move.HOLD)),
    }
    for at, (name, facts) in enumerate(stories.items()):
        poisoned(base / f"journal{at}" / "data", *facts)
        yield attack(base / f"journal{at}", name, lambda daemon: "(in the journal)", job="1")


ATTACKS = {"job": absurd_jobs, "node": absurd_nodes, "journal": poisoned_journals}


def main(names: Sequence[str]) -> int:
    """Print the table."""
    survived = 0
    with tempfile.TemporaryDirectory(prefix="poison-") as folder:
        print("| poison | answer | alive | restart | fsck | cancel | serves others |")
        print("|---|---|---|---|---|---|---|")
        for row in chain.from_iterable(ATTACKS[name](Path(folder)) for name in names or ATTACKS):
            survived += row.alive == row.restart == "yes"
            print("| " + " | ".join(" ".join(cell.split())[:90] for cell in row) + " |", flush=True)
    print(f"\nsurvived, and started again: {survived}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
