"""A cluster for tests: a scheduler and agents as `gavel up` starts them, and methods that submit jobs and wait.

with Cluster(folder, {"n1": "v100=1"}) as cluster:
    # The steps take time until the file exists.
    job = cluster.submit("counting.py", folder / "go", steps=1000)
    cluster.wait_until_running(job)

A test waits for conditions (`eventually`), never for a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar
from unittest import mock

from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Client, Job, JobSpec, JobState, Refused
from tests.support.notes import without_notes
from tests.worker_agent.shim_runs import end_groups
from worker_agent.shim import process_tree

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "jobs"
# Long enough for a busy machine.
PATIENCE_S = 180.0
# The environment variable that marks our processes, even if their parents are gone.
MARK = "GAVEL_TEST_CLUSTER"
# Short rounds in which a lease that is renewed 5 s late is still kept.
SHORT_ROUNDS = ("scheduler.round_s=8", "scheduler.solve_lead_s=5", "scheduler.plan_lead_s=4")
# Of counting.py: more than it does before its file exists.
STEPS = 30_000
T = TypeVar("T")


def eventually(condition: Callable[[], T | None], why: str, within_s: float = PATIENCE_S) -> T:
    """Wait for the first true answer and return it; fail with `why` if there is none in time."""
    end_s = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {why}"
        time.sleep(0.05)
    return answer


class Cluster(LocalCluster):
    """A scheduler and its agents, each a process; after the block, all have ended, whatever happened."""

    def __init__(self, folder: Path, nodes: Mapping[str, str], settings: Iterable[str] = (), *agents: str):
        super().__init__(folder, [], settings=("agents.report_interval_s=1", *settings))
        self._wanted, self._agent_options = dict(nodes), agents
        self.client = Client("127.0.0.1:1")

    def __enter__(self) -> Cluster:
        try:
            super().__enter__()
            self.client = Client(self.address, retry_s=PATIENCE_S)
            for name, gpus in self._wanted.items():
                self.agent(name, gpus)
            self.wait_until_linked(*self._wanted)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Kill all processes that still run."""
        self.client.close()
        for process in (*self.nodes.values(), self.scheduler):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        process_tree.kill_all(lambda: processes_of(self.folder))
        eventually(lambda: not processes_of(self.folder), "every process of the cluster is gone")
        end_groups(self.folder)

    # ------------------------------------------------------------------------------------------------ processes

    def agent(self, name: str, gpus: str = "v100=1", *options: str) -> None:
        """Start an agent; a known name restarts that agent."""
        self.start_agent(name, gpus, *self._agent_options, *options)

    def _start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with mock.patch.dict(os.environ, {MARK: str(self.folder)}):
            return super()._start(name, arguments)

    def kill(self, name: str) -> None:
        """Send kill -9 to an agent or to the scheduler."""
        process = self.scheduler if name == "scheduler" else self.nodes[name]
        assert process is not None
        process.kill()
        process.wait()

    def solver(self) -> process_tree.Process | None:
        """The process in which policies run."""
        assert self.scheduler is not None
        below = process_tree.descendants(self.scheduler.pid)
        return next(
            (child for child in below if b"scheduler.live.solver.child" in _read(child.pid, "cmdline")), None
        )

    def wait_until_idle(self) -> None:
        """Wait until no GPU is held, and no process of any job is left."""
        eventually(lambda: self.client.status().gpus_busy == 0, "every GPU is free")

        def remaining() -> list[process_tree.Process]:
            agents = {agent.pid for agent in self.nodes.values()}
            return [
                process
                for name in self.nodes
                for process in processes_of(self.folder / name)
                if process.pid not in agents
            ]

        eventually(lambda: not remaining(), "every process of every job is gone")

    def cleared(self) -> Cluster:
        """Cancel all jobs that earlier tests have left, wait until nothing of them remains, and return the cluster."""
        for job in self.client.list():
            if not job.state.is_final:
                # It may end by itself before the request arrives.
                with contextlib.suppress(Refused):
                    self.client.cancel(job.id)
        self.wait_until_idle()
        return self

    def wait_until_linked(self, *names: str) -> None:
        """Wait until these nodes are up and linked to the current scheduler process."""

        def up() -> bool:
            dead = next((name for name in names if self.nodes[name].poll() is not None), "")
            assert not dead, f"the agent of {dead} has ended: {self.last_line(dead)}"
            nodes = self.client.nodes()
            return set(names) <= {node.name for node in nodes if node.state == "up" and node.agent_version}

        eventually(up, f"{', '.join(names)} up")

    # ----------------------------------------------------------------------------------------------------- jobs

    def submit(self, script: str, *arguments: object, **fields: Any) -> str:
        """Submit a job that runs one of our scripts, and return its id."""
        command = (sys.executable, str(SCRIPTS / script), *map(str, arguments))
        return self.client.submit(JobSpec(command=command, **fields))[0]

    def job(self, job: str) -> Job:
        """Return the current state of the job."""
        return self.client.get(job)

    def until(self, job: str, holds: Callable[[Job], bool], why: str) -> Job:
        """Wait until this holds for the job."""
        latest: list[Job] = []

        def true() -> bool:
            latest[:] = [self.job(job)]
            return holds(latest[0])

        try:
            eventually(true, f"job {job} {why}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {latest}, and printed {self.output(job)!r}") from None
        return latest[0]

    def wait_until_running(self, job: str) -> Job:
        """Wait until the job's processes run everywhere."""
        return self.until(
            job, lambda it: it.placement is not None and it.placement.phase == "running", "runs"
        )

    def run_folders(self, job: str) -> list[Path]:
        """Return the run directories of all the job's parts, on all nodes."""
        starts = self.folder.glob("*/runs/*/start.json")
        return sorted(path.parent for path in starts if json.loads(path.read_text()).get("job") == job)

    def wait_until_ended(self, job: str) -> Job:
        """Wait until the job has ended for good."""
        return self.until(job, lambda it: it.state.is_final, "has ended")

    def wait_until_completed(self, job: str) -> Job:
        """Wait until the job has ended, and fail unless it completed."""
        ended = self.wait_until_ended(job)
        assert ended.state is JobState.COMPLETED, f"{ended.why}: {ended.last_lines or self.output(job)}"
        return ended

    def output(self, job: str) -> str:
        """Return the output of a job over all attempts; empty before it has run."""
        try:
            return b"".join(chunk.data for chunk in self.client.log_chunks(job)).decode()
        except Refused:
            return ""

    def json_lines(self, job: str, stage: str = "") -> list[dict[str, Any]]:
        """Return the lines of JSON in a job's output; with `stage`, only those with this word in their field `at`."""
        lines = [json.loads(line) for line in self.output(job).splitlines() if line.startswith("{")]
        return [line for line in lines if not stage or line.get("at") == stage]

    def started(self, job: str, attempt: int = 1) -> dict[str, Any]:
        """Wait for the first line of an attempt, and return it."""
        return self.ranks(job, 1, attempt)[0]

    def ranks(self, job: str, count: int, attempt: int = 1) -> list[dict[str, Any]]:
        """Wait for the first lines of this many ranks of an attempt, and return them."""

        def lines() -> list[dict[str, Any]] | None:
            starts = [line for line in self.json_lines(job, "start") if line["attempt"] == attempt]
            return sorted(starts, key=lambda line: line.get("rank", 0)) if len(starts) == count else None

        return eventually(
            lines, f"{count} ranks of attempt {attempt} of job {job} have printed their first line"
        )

    def gavel(self, *arguments: str, output: IO[str]) -> subprocess.Popen[str]:
        """Start the command as a user does."""
        return subprocess.Popen(
            [sys.executable, "-m", "gavel", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GAVEL_ADDRESS": self.address, MARK: str(self.folder)},
        )

    def answer(self, *arguments: str) -> str:
        """Run the command, which must succeed, and return its output without notes about a slow scheduler."""
        with tempfile.TemporaryFile("w+") as output:
            status = self.gavel(*arguments, output=output).wait(PATIENCE_S)
            output.seek(0)
            text = output.read()
        assert status == 0, text
        return without_notes(text)

    def follower(self, job: str) -> Follower:
        """Start `gavel logs -f`, and wait until it shows something."""
        path = self.folder / f"follower-of-{job}"
        with path.open("w") as output:
            following = Follower(self.gavel("logs", "-f", job, output=output), path)
        eventually(lambda: "{" in path.read_text(), "gavel logs -f shows something")
        return following


class Follower(NamedTuple):
    """A reader that follows a log."""

    process: subprocess.Popen[str]
    path: Path

    def lines(self) -> list[str]:
        """Wait until the reader ends, and return all lines of JSON that it has shown."""
        assert self.process.wait(PATIENCE_S) == 0, self.path.read_text()
        return [line for line in self.path.read_text().splitlines() if line.startswith("{")]


def whole(steps: int) -> int:
    """Return the sum that counting.py prints if every step was done exactly once."""
    return steps * (steps - 1) // 2


def alive(pid: int) -> bool:
    """Return whether this process exists."""
    return process_tree.look_up(pid) is not None


def gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes is left."""
    waiting = list(pids)
    eventually(lambda: not any(map(alive, waiting)), f"the processes {waiting} are gone")


def processes_of(folder: Path) -> list[process_tree.Process]:
    """Return all processes with this folder in their command line or environment."""
    mark, processes = str(folder).encode(), []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        process = process_tree.look_up(pid)
        if (
            process is not None
            and pid != os.getpid()
            and (mark in _read(pid, "cmdline") or mark in _read(pid, "environ"))
        ):
            processes.append(process)
    return processes


def _read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def freeze(folder: Path) -> list[process_tree.Process]:
    """Suspend the agent, shims and jobs of a node, like a suspended machine, until `thaw`."""
    frozen = processes_of(folder)
    for process in frozen:
        process_tree.send(process, signal.SIGSTOP)
    return frozen


def thaw(frozen: Iterable[process_tree.Process]) -> None:
    """Continue suspended processes."""
    for process in frozen:
        process_tree.send(process, signal.SIGCONT)
