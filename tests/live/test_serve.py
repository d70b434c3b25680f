"""The daemon as a process: it starts from its data directory or prints a clear error, and keeps every promise."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.gavel.v1 import jobs_pb2, jobs_pb2_grpc
from scheduler.__main__ import main
from scheduler.journal.layout import put_meta
from scheduler.journal.store import SqliteJournal
from tests.support.live import spec
from tests.support.wording import Wording

START_S = 60.0
USER = (("x-gavel-user", "ann"),)


LIMITED = (
    "import os, resource, sys\n"
    "most = int(sys.argv[1])\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))\n"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


class Process:
    """A daemon in a process of its own."""

    def __init__(self, folder: Path, *options: str, file_bytes_max: int | None = None) -> None:
        self.folder = folder
        (folder / "daemon.json").unlink(missing_ok=True)
        # A small process sets the limit and then becomes the daemon. Setting the limit in a fork of the test process
        # might hang, because other tests may have started gRPC here.
        limited = [sys.executable, "-c", LIMITED, str(file_bytes_max)] if file_bytes_max is not None else []
        command = [sys.executable, "-m", "scheduler", "--data-dir", str(folder), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen([*limited, *command, *options], stderr=subprocess.PIPE)

    def address(self) -> str:
        """Wait until it listens, and return its address."""
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, ValueError):
                where = json.loads((self.folder / "daemon.json").read_text())
                if where["pid"] == self.process.pid:
                    return str(where["listen"])
            assert self.process.poll() is None, self.ended()
            time.sleep(0.02)
        raise AssertionError("the daemon did not come up")

    def ended(self) -> tuple[int, str]:
        """Wait for its end, and return its exit status and its log."""
        try:
            _, log = self.process.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the daemon did not end") from None
        return self.process.returncode, log.decode()

    def kill(self) -> None:
        """Kill the process, as in a power cut; the disk stays intact."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def calling(address: str) -> Iterator[jobs_pb2_grpc.JobsStub]:
    """Yield a stub of Jobs at this address."""
    with grpc.insecure_channel(address) as channel:
        yield jobs_pb2_grpc.JobsStub(channel)


def submit(jobs: jobs_pb2_grpc.JobsStub, name: str) -> list[str]:
    """Submit one job, and return its id."""
    request = jobs_pb2.SubmitJobsRequest(specs=[spec(name=name)], idempotency_key=name)
    return list(jobs.SubmitJobs(request, metadata=USER, timeout=20).jobs)


def names(jobs: jobs_pb2_grpc.JobsStub) -> set[str]:
    """Return the names of all jobs."""
    return {
        job.spec.name for job in jobs.ListJobs(jobs_pb2.ListJobsRequest(), metadata=USER, timeout=20).jobs
    }


def test_the_daemon_starts_answers_and_stops(tmp_path: Path, wording: Wording):
    """Health answers SERVING, SIGTERM ends it with status 0, and the next start has its jobs."""
    daemon = Process(tmp_path)
    with grpc.insecure_channel(daemon.address()) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        request = health_pb2.HealthCheckRequest(service="gavel.v1.Jobs")
        assert check(request, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
        submit(jobs_pb2_grpc.JobsStub(channel), "first")
    daemon.process.send_signal(signal.SIGTERM)
    code, log = daemon.ended()
    assert code == 0, log
    stopping = next(line for line in log.splitlines() if "stopping" in line)
    wording(stopping.rpartition(": ")[2])
    assert not (tmp_path / "daemon.json").exists()
    again = Process(tmp_path)
    with calling(again.address()) as jobs:
        assert names(jobs) == {"first"}
    again.kill()


def test_kill_9_loses_no_acknowledged_job(tmp_path: Path):
    """After repeated kills in the middle of submissions, every acknowledged job is kept (P1)."""
    acknowledged: set[str] = set()
    for turn in range(3):
        daemon = Process(tmp_path)
        with calling(daemon.address()) as jobs:
            assert acknowledged <= names(jobs)
            waiting = [
                jobs.SubmitJobs.future(
                    jobs_pb2.SubmitJobsRequest(specs=[spec(name=f"{turn}-{n}")]), metadata=USER, timeout=20
                )
                for n in range(100)
            ]
            waiting[turn * 20].result()
            daemon.kill()
            for n, call in enumerate(waiting):
                with contextlib.suppress(grpc.RpcError):
                    call.result()
                    acknowledged.add(f"{turn}-{n}")
    assert acknowledged
    last = Process(tmp_path)
    with calling(last.address()) as jobs:
        assert acknowledged <= names(jobs)
    last.kill()


def test_a_full_disk_ends_the_daemon_before_it_acknowledges_a_job_that_it_cannot_record(tmp_path: Path):
    """Without room for a job's record, the daemon ends with status 1; no acknowledged job is lost."""
    daemon = Process(tmp_path, file_bytes_max=600_000)
    acknowledged = set()
    with calling(daemon.address()) as jobs, contextlib.suppress(grpc.RpcError):
        for n in range(5000):
            submit(jobs, f"job-{n}")
            acknowledged.add(f"job-{n}")
    assert 0 < len(acknowledged) < 5000
    code, log = daemon.ended()
    assert code == 1
    assert "gavel serve: " in log.splitlines()[-1], log
    again = Process(tmp_path)
    with calling(again.address()) as jobs:
        assert acknowledged <= names(jobs)
    again.kill()


def test_two_daemons_do_not_share_a_directory(tmp_path: Path, wording: Wording):
    """The second one names the process that has it, and ends with status 1."""
    first = Process(tmp_path)
    first.address()
    code, log = Process(tmp_path).ended()
    line = log.splitlines()[-1]
    assert (code, f"process {first.process.pid}" in line) == (1, True), log
    wording(line, folder=tmp_path, pid=first.process.pid)
    first.kill()


def test_a_port_in_use_is_named(tmp_path: Path, wording: Wording):
    """The error names the port and a remedy; nothing else is left running."""
    first = Process(tmp_path / "a")
    address = first.address()
    code, log = Process(tmp_path / "b", "--listen", address).ended()
    assert code == 1
    assert (address in log.splitlines()[-1], "add_port" in log) == (True, False)
    wording(log.splitlines()[-1], address=address)
    first.kill()


def test_a_journal_of_a_newer_release_is_left_alone(tmp_path: Path):
    """The daemon refuses it in one line, and does not change a byte of it."""
    with SqliteJournal(tmp_path / "journal.db"):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("PRAGMA user_version = 99")
        put_meta(db, "format", "99")
        db.commit()
    before = (tmp_path / "journal.db").read_bytes()
    code, log = Process(tmp_path).ended()
    assert (code, "newer" in log.splitlines()[-1]) == (1, True), log
    assert (tmp_path / "journal.db").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        (("--listen", "0.0.0.0:7070"), "`gavel init`"),
        (("--set", "listen=some where"), "listen"),
        (("--set", "scheduler.round_s=-1"), "scheduler.round_s is -1"),
        (("--set", "scheduler.policy=lass"), "lass"),
        (("--set", "colour=red"), "--set colour"),
        (("--set", "auth=none", "--set", "tls=true"), "auth is 'none'"),
    ],
    ids=["open port", "address", "figure", "policy", "unknown", "contradiction"],
)
def test_wrong_settings_are_one_line(
    tmp_path: Path,
    options: tuple[str, ...],
    culprit: str,
    capsys: pytest.CaptureFixture[str],
    wording: Wording,
):
    """The command ends with status 2, before anything is created on disk."""
    with pytest.raises(SystemExit) as ended:
        main(["--data-dir", str(tmp_path), *options])
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert culprit in line
    wording(line)
    assert list(tmp_path.iterdir()) == []
