"""The daemon in this process: what it keeps over restarts, how it stops, and a backup while it runs."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.gavel.v1 import cluster_pb2, cluster_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from scheduler.core.state import SchedulerState
from scheduler.journal.errors import AppendFailed
from scheduler.journal.recovery import recover_scheduler
from scheduler.journal.replay import Recovered
from scheduler.journal.store import SqliteJournal
from scheduler.live.agents.links import Links
from scheduler.live.config import DaemonConfig
from scheduler.live.daemon import Daemon
from scheduler.live.data.backup import RESTORED, restore
from scheduler.model.settings import Settings
from tests.support.linked import Peer, until
from tests.support.live import problem_of, spec

START_S = 60.0
USER = (("x-gavel-user", "ann"),)


def running(folder: Path, **settings: object) -> Daemon:
    """A daemon in this process."""
    config = DaemonConfig(
        data_dir=str(folder),
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        scheduler=Settings(**settings),  # type: ignore[arg-type]
    )
    return Daemon(config)


async def read_out(stream: grpc.aio.UnaryStreamCall) -> None:  # type: ignore[type-arg]
    """Read this stream to its end."""
    while await stream.read() is not grpc.aio.EOF:
        pass


async def policy(daemon: Daemon, name: str = "") -> str:
    """Return the policy in force, after setting it to `name` if that is given."""
    async with grpc.aio.insecure_channel(str(daemon.listen)) as channel:
        cluster = cluster_pb2_grpc.ClusterStub(channel)
        if name:
            await cluster.SetPolicy(cluster_pb2.SetPolicyRequest(policy=name), metadata=USER)
        return str((await cluster.GetPolicy(cluster_pb2.GetPolicyRequest(), metadata=USER)).policy)


def test_a_policy_set_by_hand_stays_until_the_file_changes(tmp_path: Path):
    """A policy set by hand outlives a restart; a changed file overrides it."""

    async def story() -> list[str]:
        policies = []
        async with running(tmp_path, policy="fifo") as daemon:
            policies += [await policy(daemon), await policy(daemon, "las")]
        async with running(tmp_path, policy="fifo") as daemon:
            policies.append(await policy(daemon))
        async with running(tmp_path, policy="makespan") as daemon:
            policies.append(await policy(daemon))
        return policies

    assert asyncio.run(story()) == ["fifo", "las", "las", "makespan"]


def broken(*_: object) -> None:
    """Replace the core's work by a failure."""
    raise KeyError("a fault of ours")


def full(*_: object) -> None:
    """Replace the core's work by a failed append to the journal."""
    raise AppendFailed("the disk is full")


def test_the_files_settings_are_in_force_before_the_daemon_reports_that_it_runs(tmp_path: Path):
    """A client that waited for the start finds the policy, and its first job finds the rates."""

    async def story() -> tuple[str, bool]:
        async with running(tmp_path, policy="fifo") as daemon:
            state = daemon.world.state
            return state.settings.policy, bool(state.rates.solo)

    assert asyncio.run(story()) == ("fifo", True)


def test_a_start_that_breaks_off_does_not_lose_the_files_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Settings count as given only once they are durable: the next start gives them again."""

    async def breaks_off() -> None:
        async with running(tmp_path, policy="fifo") as daemon:
            with pytest.raises(AppendFailed):
                await asyncio.wait_for(daemon.ended(), START_S)

    async def fails() -> None:
        async with running(tmp_path, policy="fifo") as daemon:
            assert await policy(daemon) != "fifo"

    async def goes_on() -> str:
        async with running(tmp_path, policy="fifo") as daemon:
            return await policy(daemon)

    for story, fault in ((breaks_off, full), (fails, broken)):
        with monkeypatch.context() as for_now:
            for_now.setattr("scheduler.core.core.Core.handle_all", fault)
            asyncio.run(story())
    assert asyncio.run(goes_on()) == "fifo"


def test_a_core_that_cannot_continue_keeps_no_caller_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The daemon ends with the error; a waiting caller gets at once the error that its call was not acknowledged."""

    monkeypatch.setattr("scheduler.live.daemon.STOP_S", START_S)

    async def story() -> float:
        async with running(tmp_path) as daemon:
            monkeypatch.setattr(daemon.world.core, "handle_all", full)
            begun_s = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(policy(daemon, "las"), START_S)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            waited_s = time.monotonic() - begun_s
            with pytest.raises(AppendFailed):
                await asyncio.wait_for(daemon.ended(), START_S)
            return waited_s

    assert asyncio.run(story()) < START_S / 2


def test_links_are_closed_even_when_ending_the_streams_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error is raised after the links are closed."""
    closed: list[Links] = []

    def close(links: Links) -> None:
        closed.append(links)

    monkeypatch.setattr(Links, "close", close)

    async def story() -> None:
        async with running(tmp_path) as daemon:
            monkeypatch.setattr(daemon.people.guard.streams, "stop", broken)

    with pytest.raises(KeyError, match="a fault of ours"):
        asyncio.run(story())
    assert len(closed) == 1


def test_watchers_are_ended_at_a_stop_and_do_not_delay_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Jobs, rounds, a log, health: each stream ends at once, with a status that asks its client to come back."""
    monkeypatch.setattr("scheduler.live.daemon.STOP_S", START_S)

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
            await until(lambda: daemon.people.watchers.used == 3)
            begun_s = time.monotonic()
        took_s = time.monotonic() - begun_s
        problems = [await problem_of(read_out(stream)) for stream in (*streams, logs)]
        await channel.close()
        return [(problem.code.name, problem.reason) for problem in problems], took_s

    ends, took_s = asyncio.run(story())
    assert ends == [("UNAVAILABLE", "stopping")] * 4
    assert took_s < START_S / 2


def test_a_scheduler_that_stops_calls_no_node_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """However long the stop takes, no node is called silent because its link ended: the scheduler ended it."""

    async def story() -> tuple[str, grpc.StatusCode]:
        async with running(tmp_path) as daemon:
            peer = Peer(str(daemon.listen), "n1")
            await peer.__aenter__()
            await peer.join()
        ended = await peer.ended()
        await peer.drop()
        return daemon.world.state.nodes["n1"].state, ended

    caplog.set_level(logging.INFO, "scheduler.live.agents.links")
    assert asyncio.run(story()) == ("up", grpc.StatusCode.UNAVAILABLE)
    assert "the link is gone" not in caplog.text


def test_a_backup_of_a_running_daemon_can_be_restored(tmp_path: Path):
    """Earlier jobs are restored, and numbers that may have been used after the backup are not used again."""

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


def test_a_backup_is_in_the_audit_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A backup holds keys and token hashes, so the user is logged, even if the download is cut off."""
    monkeypatch.setattr("scheduler.live.api.upkeep.CHUNK_BYTES", 16)

    def noted() -> list[tuple[str, str, str]]:
        lines = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
        return [(line["user"], line["call"], line["result"]) for line in lines]

    async def story() -> None:
        async with running(tmp_path) as daemon, grpc.aio.insecure_channel(str(daemon.listen)) as channel:
            backup = cluster_pb2_grpc.UpkeepStub(channel).Backup
            await read_out(backup(cluster_pb2.BackupRequest(), metadata=USER))
            aborted = backup(cluster_pb2.BackupRequest(), metadata=USER)
            await aborted.read()
            aborted.cancel()
            await until(lambda: len(noted()) == 2)

    asyncio.run(story())
    assert noted() == [("ann", "Upkeep/Backup", "ok"), ("ann", "Upkeep/Backup", "broken_off")]


def test_a_restored_journal_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Reading a large journal takes long: the jump in numbers is durable and not repeated at the next start."""
    read = []

    def counted(journal: SqliteJournal) -> Recovered[SchedulerState]:
        read.append(journal)
        return recover_scheduler(journal)

    async def started() -> tuple[int, int, int]:
        async with running(tmp_path / "a") as daemon:
            state = daemon.world.state
            return state.epoch, state.next_lease, state.next_job

    before = asyncio.run(started())
    monkeypatch.setattr("scheduler.live.daemon.recover_scheduler", counted)
    (tmp_path / "a" / RESTORED).write_text("{}")
    restored = asyncio.run(started())
    assert len(read) == 1
    assert tuple(b - a for a, b in zip(before, restored, strict=True)) == (1001, 1_000_000, 1_000_000)
    assert asyncio.run(started()) == (restored[0] + 1, *restored[1:])


def test_the_data_directory_is_for_its_owner_alone(tmp_path: Path):
    """The daemon creates the directory so that other users cannot read it."""

    async def story() -> int:
        async with running(tmp_path / "a"):
            return os.stat(tmp_path / "a").st_mode & 0o777

    assert asyncio.run(story()) == 0o700


def test_a_new_directory_begins_beyond_what_an_agent_may_remember(tmp_path: Path):
    """Epochs and leases of two schedulers in turn have no number in common; jobs begin at 1."""

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
