"""A daemon and agents as real processes, on ports of their own; what they say is kept beside their data.

with Service(tmp_path) as service:
    service.agent("n1", "v100=2")
    job = service.submit("print('hello')")
    assert service.ended(job).state == jobs_pb2.JOB_STATE_COMPLETED
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc

from protos.gavel.v1 import jobs_pb2, jobs_pb2_grpc
from worker_agent import process_tree

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
ENDED = (jobs_pb2.JOB_STATE_COMPLETED, jobs_pb2.JOB_STATE_FAILED, jobs_pb2.JOB_STATE_CANCELLED)
T = TypeVar("T")


def until(what: Callable[[], T | None], patience_s: float = PATIENCE_S) -> T:
    """The first true answer; fails when none comes in time."""
    end_s = time.monotonic() + patience_s
    while not (answer := what()):
        assert time.monotonic() < end_s, f"not within {patience_s:g} s"
        time.sleep(0.03)
    return answer


class Service:
    """One scheduler and its agents."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self._settings = folder, settings
        self.daemon: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.address = "127.0.0.1:0"

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self.agents.values(), self.daemon):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for runs in self.folder.glob("*/runs/*"):
            for left in process_tree.started_with("GAVEL_RUN_DIR", str(runs)):
                process_tree.send(left, signal.SIGKILL)

    # -------------------------------------------------------------------------------------------------- processes

    def start(self) -> None:
        """The daemon; started again, it listens where it did."""
        where = self.folder / "data" / "daemon.json"
        with suppress(FileNotFoundError):
            where.unlink()
        settings = [part for one in self._settings for part in ("--set", one)]
        self.daemon = self._run(
            "daemon",
            *("-m", "gavel", "serve", "--data-dir", str(self.folder / "data"), "--listen", self.address),
            *settings,
        )
        until(where.exists)
        self.address = json.loads(where.read_text())["listen"]

    def agent(self, name: str, gpus: str = "v100=1", *options: str) -> subprocess.Popen[bytes]:
        """An agent, or the same one again."""
        self.agents[name] = self._run(
            name,
            *("-m", "worker_agent", "--scheduler", self.address, "--name", name, "--gpus", gpus),
            *("--state-dir", str(self.folder / name), "--single-user", *options),
        )
        return self.agents[name]

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            return subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, cwd=ROOT, env=env)

    def said(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text()

    # ------------------------------------------------------------------------------------------------------- jobs

    @property
    def jobs(self) -> Any:
        """The service Jobs."""
        return jobs_pb2_grpc.JobsStub(grpc.insecure_channel(self.address))  # type: ignore[no-untyped-call]

    def submit(self, code: str, **fields: Any) -> str:
        """A job of some Python code; its id."""
        launch = jobs_pb2.Launch(command=[sys.executable, "-uc", code])
        request = jobs_pb2.SubmitJobsRequest(specs=[jobs_pb2.JobSpec(launch=launch, **fields)])
        (job,) = self.jobs.SubmitJobs(request, timeout=PATIENCE_S, wait_for_ready=True).jobs
        return str(job)

    def job(self, job: str) -> jobs_pb2.Job:
        """How it is."""
        found: jobs_pb2.Job = self.jobs.GetJob(
            jobs_pb2.GetJobRequest(job=job), timeout=PATIENCE_S, wait_for_ready=True
        )
        return found

    def runs(self, job: str) -> None:
        """Wait until its processes run everywhere."""
        until(lambda: self.job(job).placement.phase == "running")

    def ended(self, job: str) -> jobs_pb2.Job:
        """How it ended."""

        def over() -> jobs_pb2.Job | None:
            found = self.job(job)
            return found if found.state in ENDED else None

        return until(over)

    def chunks(self, job: str, **wanted: Any) -> Iterator[jobs_pb2.LogChunk]:
        """What it printed."""
        request = jobs_pb2.ReadLogsRequest(job=job, **wanted)
        yield from self.jobs.ReadLogs(request, timeout=PATIENCE_S, wait_for_ready=True)

    def log(self, job: str, **wanted: Any) -> str:
        """What it printed, as text."""
        return b"".join(chunk.data for chunk in self.chunks(job, **wanted)).decode()
