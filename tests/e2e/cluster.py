"""A scheduler and agents as `gavel up` starts them, jobs as a user submits them, and what a test wants to know.

with Cluster(folder, {"n1": "v100=1"}) as cluster:
    job = cluster.submit("counting.py", go, steps=1000)
    cluster.runs(job)

A test waits for conditions (`eventually`), never for time: it says what has to become true, not how fast.
"""

from __future__ import annotations

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
from tests.worker_agent.shim_runs import end_groups
from worker_agent.shim import process_tree

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "jobs"
PATIENCE_S = 180.0  # of a test on a machine that is busy with others; on an idle one nothing takes so long
MARK = "GAVEL_TEST_CLUSTER"  # by which our processes are known, whatever became of their parents
T = TypeVar("T")


def eventually(condition: Callable[[], T | None], why: str, within_s: float = PATIENCE_S) -> T:
    """The first true answer; fails with these words when there is none in time."""
    end_s = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {why}"
        time.sleep(0.05)
    return answer


class Cluster(LocalCluster):
    """A scheduler and its agents, each a process; whatever happens, nothing of them is left afterwards."""

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
            self.linked(*self._wanted)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """At once, whatever still runs."""
        self.client.close()
        for one in (*self.nodes.values(), self.scheduler):
            if one is not None and one.poll() is None:
                one.kill()
                one.wait()
        process_tree.kill_all(lambda: processes_of(self.folder))
        eventually(lambda: not processes_of(self.folder), "every process of the cluster is gone")
        end_groups(self.folder)

    # ------------------------------------------------------------------------------------------------ processes

    def agent(self, name: str, gpus: str = "v100=1", *options: str) -> None:
        """An agent, or the same one again."""
        self.start_agent(name, gpus, *self._agent_options, *options)

    def _started(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with mock.patch.dict(os.environ, {MARK: str(self.folder)}):
            return super()._started(name, arguments)

    def kill(self, name: str) -> None:
        """kill -9, of an agent or of the scheduler."""
        process = self.scheduler if name == "scheduler" else self.nodes[name]
        assert process is not None
        process.kill()
        process.wait()

    def solver(self) -> process_tree.Process | None:
        """The process in which policies work."""
        assert self.scheduler is not None
        below = process_tree.descendants(self.scheduler.pid)
        return next(
            (one for one in below if b"scheduler.live.solver.child" in _read(one.pid, "cmdline")), None
        )

    def runs_nothing(self) -> None:
        """Wait until no GPU is held, and nothing of any job is left."""
        eventually(lambda: self.client.status().gpus_busy == 0, "every GPU is free")

        def left() -> list[process_tree.Process]:
            agents = {agent.pid for agent in self.nodes.values()}
            return [
                one
                for name in self.nodes
                for one in processes_of(self.folder / name)
                if one.pid not in agents
            ]

        eventually(lambda: not left(), "every process of every job is gone")

    def linked(self, *names: str) -> None:
        """Wait until these nodes are up, and this very scheduler has heard of their agents."""

        def up() -> bool:
            dead = next((name for name in names if self.nodes[name].poll() is not None), "")
            assert not dead, f"the agent of {dead} has ended: {self.last_line(dead)}"
            found = self.client.nodes()
            return set(names) <= {node.name for node in found if node.state == "up" and node.agent_version}

        eventually(up, f"{', '.join(names)} up")

    # ----------------------------------------------------------------------------------------------------- jobs

    def submit(self, script: str, *arguments: object, **fields: Any) -> str:
        """A job that runs one of our scripts; its id."""
        command = (sys.executable, str(SCRIPTS / script), *map(str, arguments))
        return self.client.submit(JobSpec(command=command, **fields))[0]

    def job(self, job: str) -> Job:
        """How it is."""
        return self.client.get(job)

    def until(self, job: str, holds: Callable[[Job], bool], why: str) -> Job:
        """Wait until this is true of it."""
        seen: list[Job] = []

        def true() -> bool:
            seen[:] = [self.job(job)]
            return holds(seen[0])

        try:
            eventually(true, f"job {job} {why}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {seen}, and printed {self.said(job)!r}") from None
        return seen[0]

    def runs(self, job: str) -> Job:
        """Wait until its processes run everywhere."""
        return self.until(
            job, lambda it: it.placement is not None and it.placement.phase == "running", "runs"
        )

    def runs_of(self, job: str) -> list[Path]:
        """The run directories of all its parts, on all nodes."""
        starts = self.folder.glob("*/runs/*/start.json")
        return sorted(path.parent for path in starts if json.loads(path.read_text()).get("job") == job)

    def ended(self, job: str) -> Job:
        """Wait until it has ended for good."""
        return self.until(job, lambda it: it.state.is_final, "has ended")

    def completed(self, job: str) -> Job:
        """Wait until it has ended, which has to be well."""
        ended = self.ended(job)
        assert ended.state is JobState.COMPLETED, f"{ended.why}: {ended.last_lines or self.said(job)}"
        return ended

    def said(self, job: str) -> str:
        """All that it printed, over all attempts; nothing before it has run."""
        try:
            return b"".join(chunk.data for chunk in self.client.logs(job)).decode()
        except Refused:
            return ""

    def told(self, job: str, at: str = "") -> list[dict[str, Any]]:
        """The lines of JSON among it."""
        lines = [json.loads(line) for line in self.said(job).splitlines() if line.startswith("{")]
        return [line for line in lines if not at or line.get("at") == at]

    def started(self, job: str, attempt: int = 1) -> dict[str, Any]:
        """Wait for the first line of an attempt."""
        return self.ranks(job, 1, attempt)[0]

    def ranks(self, job: str, count: int, attempt: int = 1) -> list[dict[str, Any]]:
        """Wait for the first lines of so many ranks of an attempt."""

        def lines() -> list[dict[str, Any]] | None:
            found = [line for line in self.told(job, "start") if line["attempt"] == attempt]
            return sorted(found, key=lambda line: line.get("rank", 0)) if len(found) == count else None

        return eventually(
            lines, f"{count} ranks of attempt {attempt} of job {job} have printed their first line"
        )

    def gavel(self, *arguments: str, output: IO[str]) -> subprocess.Popen[str]:
        """The command, as a user starts it."""
        return subprocess.Popen(
            [sys.executable, "-m", "gavel", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "GAVEL_ADDRESS": self.address, MARK: str(self.folder)},
        )

    def answer(self, *arguments: str) -> str:
        """What the command prints; it has to succeed."""
        with tempfile.TemporaryFile("w+") as output:
            status = self.gavel(*arguments, output=output).wait(PATIENCE_S)
            output.seek(0)
            text = output.read()
        assert status == 0, text
        return text

    def follower(self, job: str) -> Follower:
        """`gavel logs -f`, which has begun to show something."""
        path = self.folder / f"follower-of-{job}"
        with path.open("w") as output:
            following = Follower(self.gavel("logs", "-f", job, output=output), path)
        eventually(lambda: "{" in path.read_text(), "gavel logs -f shows something")
        return following


class Follower(NamedTuple):
    """A reader of a log that goes on."""

    process: subprocess.Popen[str]
    path: Path

    def lines(self) -> list[str]:
        """All lines of JSON that it has shown; it has to end by itself, and well."""
        assert self.process.wait(PATIENCE_S) == 0, self.path.read_text()
        return [line for line in self.path.read_text().splitlines() if line.startswith("{")]


def whole(steps: int) -> int:
    """The sum that counting.py comes to when every step was done, each once."""
    return steps * (steps - 1) // 2


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    return process_tree.look_up(pid) is not None


def gone(pids: Iterable[int]) -> None:
    """Wait until none of them is left."""
    waiting = list(pids)
    eventually(lambda: not any(map(alive, waiting)), f"the processes {waiting} are gone")


def processes_of(folder: Path) -> list[process_tree.Process]:
    """All that was started for what lies in a folder: by its command line, or by its environment."""
    mark, found = str(folder).encode(), []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        process = process_tree.look_up(pid)
        if (
            process is not None
            and pid != os.getpid()
            and (mark in _read(pid, "cmdline") or mark in _read(pid, "environ"))
        ):
            found.append(process)
    return found


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def freeze(folder: Path) -> list[process_tree.Process]:
    """Stop a node as a whole, as when its machine is suspended: agent, shims and jobs. `thaw` lets them go on."""
    frozen = processes_of(folder)
    for process in frozen:
        process_tree.send(process, signal.SIGSTOP)
    return frozen


def thaw(frozen: Iterable[process_tree.Process]) -> None:
    """They do not know that time has passed."""
    for process in frozen:
        process_tree.send(process, signal.SIGCONT)
