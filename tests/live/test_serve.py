"""The daemon as a process: it starts from what is on disk, says clearly why it cannot, and loses no promise."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
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

from protos.gavel.v1 import cluster_pb2, cluster_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from scheduler.__main__ import main
from scheduler.journal.layout import put_meta
from scheduler.journal.store import SqliteJournal
from scheduler.live.backup import restore
from scheduler.live.daemon_config import DaemonConfig
from scheduler.live.serve import STOP_S, Daemon
from scheduler.model.settings import Settings
from tests.support.linked import until
from tests.support.live import problem_of, spec

START_S = 60.0
USER = (("x-gavel-user", "ann"),)


class Process:
    """A daemon in a process of its own."""

    def __init__(self, folder: Path, *options: str, file_bytes_max: int | None = None) -> None:
        def limit() -> None:
            if file_bytes_max is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

        self.folder = folder
        (folder / "daemon.json").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "scheduler",
                "--data-dir",
                str(folder),
                "--listen",
                "127.0.0.1:0",
                *options,
            ],
            stderr=subprocess.PIPE,
            preexec_fn=limit,  # noqa: PLW1509 - nothing here runs in threads
        )

    def address(self) -> str:
        """Where it listens, once it does."""
        give_up_s = time.monotonic() + START_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(OSError, ValueError):
                where = json.loads((self.folder / "daemon.json").read_text())
                if where["pid"] == self.process.pid:
                    return str(where["listen"])
            assert self.process.poll() is None, self.ended()
            time.sleep(0.02)
        raise AssertionError("it did not come up")

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it said."""
        try:
            _, said = self.process.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("it did not end") from None
        return self.process.returncode, said.decode()

    def kill(self) -> None:
        """As a power cut would, but for the disk."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def calling(address: str) -> Iterator[jobs_pb2_grpc.JobsStub]:
    """Jobs, at this address."""
    with grpc.insecure_channel(address) as channel:
        yield jobs_pb2_grpc.JobsStub(channel)


def submit(jobs: jobs_pb2_grpc.JobsStub, name: str) -> list[str]:
    """One job; its id."""
    request = jobs_pb2.SubmitJobsRequest(specs=[spec(name=name)], idempotency_key=name)
    return list(jobs.SubmitJobs(request, metadata=USER, timeout=20).jobs)


async def read_out(stream: grpc.aio.UnaryStreamCall) -> None:  # type: ignore[type-arg]
    """Up to its end."""
    while await stream.read() is not grpc.aio.EOF:
        pass


def names(jobs: jobs_pb2_grpc.JobsStub) -> set[str]:
    """Of all jobs."""
    return {
        job.spec.name for job in jobs.ListJobs(jobs_pb2.ListJobsRequest(), metadata=USER, timeout=20).jobs
    }


def test_it_starts_answers_and_stops(tmp_path: Path):
    """Health says SERVING, SIGTERM ends it with status 0, and the next start knows its jobs."""
    daemon = Process(tmp_path)
    with grpc.insecure_channel(daemon.address()) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        asked = health_pb2.HealthCheckRequest(service="gavel.v1.Jobs")
        assert check(asked, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
        submit(jobs_pb2_grpc.JobsStub(channel), "first")
    daemon.process.send_signal(signal.SIGTERM)
    code, said = daemon.ended()
    assert (code, "running jobs go on" in said) == (0, True), said
    assert not (tmp_path / "daemon.json").exists()
    again = Process(tmp_path)
    with calling(again.address()) as jobs:
        assert names(jobs) == {"first"}
    again.kill()


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path):
    """Killed again and again in the middle of submissions: every acknowledged job is there afterwards (P1)."""
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
            for n, one in enumerate(waiting):
                with contextlib.suppress(grpc.RpcError):
                    one.result()
                    acknowledged.add(f"{turn}-{n}")
    assert acknowledged
    last = Process(tmp_path)
    with calling(last.address()) as jobs:
        assert acknowledged <= names(jobs)
    last.kill()


def test_a_full_disk_ends_it_before_it_promises_anything(tmp_path: Path):
    """No room for a record: no acknowledgement, one line why, status 1; with room again, every promise is kept."""
    daemon = Process(tmp_path, file_bytes_max=600_000)
    acknowledged = set()
    with calling(daemon.address()) as jobs, contextlib.suppress(grpc.RpcError):
        for n in range(5000):
            submit(jobs, f"job-{n}")
            acknowledged.add(f"job-{n}")
    assert 0 < len(acknowledged) < 5000
    code, said = daemon.ended()
    assert code == 1
    assert "gavel serve: " in said.splitlines()[-1], said
    again = Process(tmp_path)
    with calling(again.address()) as jobs:
        assert acknowledged <= names(jobs)
    again.kill()


def test_two_daemons_do_not_share_a_directory(tmp_path: Path):
    """The second one says who has it and ends with status 1."""
    first = Process(tmp_path)
    first.address()
    code, said = Process(tmp_path).ended()
    assert (code, said.splitlines()[-1]) == (
        1,
        f"gavel serve: {tmp_path}/journal.db is in use by process {first.process.pid}; "
        "stop that one first, or choose another journal",
    )
    first.kill()


def test_a_port_in_use_is_named(tmp_path: Path):
    """With what to do about it; nothing else is left running."""
    first = Process(tmp_path / "a")
    address = first.address()
    code, said = Process(tmp_path / "b", "--listen", address).ended()
    assert code == 1
    assert said.splitlines()[-1].startswith(f"gavel serve: cannot listen on {address}: another program does")
    first.kill()


def test_a_journal_of_a_newer_release_is_left_alone(tmp_path: Path):
    """It is refused in one line, and not a byte of it changes."""
    with SqliteJournal(tmp_path / "journal.db"):
        pass
    with contextlib.closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        db.execute("PRAGMA user_version = 99")
        put_meta(db, "format", "99")
        db.commit()
    before = (tmp_path / "journal.db").read_bytes()
    code, said = Process(tmp_path).ended()
    assert (code, "newer" in said.splitlines()[-1]) == (1, True), said
    assert (tmp_path / "journal.db").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--listen", "0.0.0.0:7070"), "without tls and auth = 'tokens': run `gavel init`"),
        (("--set", "listen=some where"), "must be an address such as 127.0.0.1:7070"),
        (
            ("--set", "scheduler.round_s=-1"),
            "scheduler.round_s is -1.0, must be a number above 0 in --set scheduler.round_s",
        ),
        (("--set", "scheduler.policy=lass"), "lass"),
        (("--set", "colour=red"), "unknown key 'colour'"),
        (("--set", "auth=none", "--set", "tls=true"), "tls is on, and auth is 'none'"),
    ],
)
def test_wrong_settings_are_one_line(
    tmp_path: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    """And status 2, before anything is made on disk."""
    with pytest.raises(SystemExit) as ended:
        main(["--data-dir", str(tmp_path), *options])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def running(folder: Path, **settings: object) -> Daemon:
    """A daemon in this process."""
    config = DaemonConfig(
        data_dir=str(folder),
        listen="127.0.0.1:0",
        scheduler=Settings(**settings),  # type: ignore[arg-type]
    )
    return Daemon(config)


async def policy(daemon: Daemon, wanted: str = "") -> str:
    """The policy in force, after setting it if one is wanted."""
    async with grpc.aio.insecure_channel(str(daemon.listen)) as channel:
        cluster = cluster_pb2_grpc.ClusterStub(channel)
        if wanted:
            await cluster.SetPolicy(cluster_pb2.SetPolicyRequest(policy=wanted), metadata=USER)
        return str((await cluster.GetPolicy(cluster_pb2.GetPolicyRequest(), metadata=USER)).policy)


def test_what_people_set_stays_until_the_file_says_something_else(tmp_path: Path):
    """A policy set by hand outlives a restart; a file that has changed goes over it."""

    async def story() -> list[str]:
        said = []
        async with running(tmp_path, policy="fifo") as daemon:
            said += [await policy(daemon), await policy(daemon, "las")]
        async with running(tmp_path, policy="fifo") as daemon:
            said.append(await policy(daemon))
        async with running(tmp_path, policy="makespan") as daemon:
            said.append(await policy(daemon))
        return said

    assert asyncio.run(story()) == ["fifo", "las", "las", "makespan"]


def test_a_core_that_cannot_go_on_keeps_no_caller_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The daemon ends with the error; who waited learns at once that it was not acknowledged, and asks again."""

    def broken(*_: object) -> None:
        raise KeyError("a fault of ours")

    async def story() -> float:
        async with running(tmp_path) as daemon:
            monkeypatch.setattr(daemon.world.core, "handle_all", broken)
            begun_s = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(policy(daemon, "las"), START_S)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            waited_s = time.monotonic() - begun_s
            with pytest.raises(KeyError, match="a fault of ours"):
                await asyncio.wait_for(daemon.ended(), START_S)
            return waited_s

    assert asyncio.run(story()) < STOP_S / 2


def test_whoever_watches_is_told_that_it_stops_and_holds_it_up_no_longer(tmp_path: Path):
    """Jobs, rounds, a log, health: each stream ends at once, and says that it is worth coming back."""

    async def story() -> tuple[list[tuple[str, str]], float]:
        daemon = running(tmp_path)
        async with daemon:
            channel = grpc.aio.insecure_channel(str(daemon.listen))
            jobs, cluster = jobs_pb2_grpc.JobsStub(channel), cluster_pb2_grpc.ClusterStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            await jobs.SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec()]), metadata=USER)
            streams = [
                jobs.WatchJobs(jobs_pb2.WatchJobsRequest(skip_present=True), metadata=USER),
                cluster.WatchRounds(cluster_pb2.WatchRoundsRequest(follow=True), metadata=USER),
                health.Watch(health_pb2.HealthCheckRequest()),
            ]
            for stream in streams:
                await stream.read()
            logs = jobs.ReadLogs(jobs_pb2.ReadLogsRequest(job="1", follow=True), metadata=USER)
            await until(lambda: daemon.people.watchers.taken == 3)
            begun_s = time.monotonic()
        took_s = time.monotonic() - begun_s
        problems = [await problem_of(read_out(stream)) for stream in (*streams, logs)]
        await channel.close()
        return [(problem.code.name, problem.reason) for problem in problems], took_s

    said, took_s = asyncio.run(story())
    assert said == [("UNAVAILABLE", "stopping")] * 4
    assert took_s < STOP_S / 2


def test_a_backup_of_a_running_daemon_can_be_restored(tmp_path: Path):
    """Jobs from before are there; numbers that may have been given away since are not used again."""

    async def story() -> tuple[list[str], list[str]]:
        async with (
            running(tmp_path / "a") as daemon,
            grpc.aio.insecure_channel(str(daemon.listen)) as channel,
        ):
            jobs, upkeep = jobs_pb2_grpc.JobsStub(channel), cluster_pb2_grpc.UpkeepStub(channel)
            before = await jobs.SubmitJobs(
                jobs_pb2.SubmitJobsRequest(specs=[spec(name="kept")]), metadata=USER
            )
            with open(tmp_path / "b.tar.gz", "wb") as file:
                async for part in upkeep.Backup(cluster_pb2.BackupRequest(), metadata=USER):
                    file.write(part.data)
        restore(tmp_path / "b.tar.gz", tmp_path / "c")
        async with (
            running(tmp_path / "c") as daemon,
            grpc.aio.insecure_channel(str(daemon.listen)) as channel,
        ):
            jobs = jobs_pb2_grpc.JobsStub(channel)
            listed = await jobs.ListJobs(jobs_pb2.ListJobsRequest(), metadata=USER)
            after = await jobs.SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec()]), metadata=USER)
        return [job.spec.name for job in listed.jobs] + list(before.jobs), list(after.jobs)

    (name, before), (after,) = asyncio.run(story())
    assert name == "kept"
    assert int(after) >= int(before) + 1_000_000


def test_what_is_kept_is_for_its_owner_alone(tmp_path: Path):
    """The data directory is made so that others cannot look into it."""

    async def story() -> int:
        async with running(tmp_path / "a"):
            return os.stat(tmp_path / "a").st_mode & 0o777

    assert asyncio.run(story()) == 0o700


def test_a_new_directory_begins_beyond_what_an_agent_may_remember(tmp_path: Path):
    """Epochs and leases of two schedulers, one after the other, have no number in common; jobs begin at 1."""

    async def story(name: str) -> tuple[int, int, int]:
        async with running(tmp_path / name) as daemon:
            state = daemon.world.state
            return state.epoch, state.next_lease, state.next_job

    first = asyncio.run(story("a"))
    again = asyncio.run(story("a"))
    other = asyncio.run(story("b"))
    assert again[0] == first[0] + 1
    assert other[0] > first[0] > 1_000_000
    assert other[1] > again[1] == first[1] > 1_000_000
    assert first[2] == other[2] == 1
