"""The metrics of a real daemon, scraped over HTTP: what it counts, who may read it, and what happens without a port."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import ssl
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from protos.files.settings import ConfigError
from protos.gavel.v1 import cluster_pb2, jobs_pb2
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.live.config import daemon_config
from scheduler.live.observe import timeline
from scheduler.live.observe.notify.channels import Channel
from tests.live.observe.test_timeline import with_turns
from tests.support.daemon_thread import DaemonThread
from tests.support.live import Live, problem_of, spec, with_daemon
from tests.support.receiver import Receiver
from tests.support.wording import Wording

TIMEOUT_S = 60.0


def scraped(address: str, token: str = "", ca: Path | None = None) -> tuple[int, str]:
    """Return the status and the text of the answer at this address."""
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    if ca is not None:
        connection = HTTPSConnection(
            host, int(port), timeout=TIMEOUT_S, context=ssl.create_default_context(cafile=ca)
        )
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def values(text: str) -> dict[str, float]:
    """Return the value of each series."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


@with_daemon()
async def test_calls_records_and_jobs_are_counted(live: Live) -> None:
    """Submitted jobs appear in counters at once and in gauges after the next update; so do calls and records."""
    await live.jobs().SubmitJobs(jobs_pb2.SubmitJobsRequest(specs=[spec(), spec()]))
    await live.cluster().GetStatus(cluster_pb2.GetStatusRequest())
    exporter = live.people.exporter
    await exporter.set_gauges()
    await exporter.measure_delay()
    series = values(exporter.metrics.text())
    assert series["gavel_jobs_submitted_total"] == 2
    assert series['gavel_jobs{state="queued"}'] == 2
    assert series['gavel_call_seconds_count{method="Jobs/SubmitJobs",code="ok"}'] == 1
    assert series['gavel_call_seconds_count{method="Cluster/GetStatus",code="ok"}'] == 1
    assert series["gavel_journal_records_total"] == series["gavel_journal_append_seconds_count"] > 0
    assert series["gavel_loop_delay_seconds_count"] >= 1


@with_daemon()
async def test_calls_count_by_how_they_end_and_streams_do_not(live: Live) -> None:
    """A refused call has its reason as code. How long a stream lasts says nothing about the scheduler."""
    await problem_of(live.jobs().GetJob(jobs_pb2.GetJobRequest(job="9")))
    watching = live.jobs().WatchJobs(jobs_pb2.WatchJobsRequest())
    await watching.read()
    watching.cancel()
    calls = live.people.exporter.metrics.calls
    assert calls.count("Jobs/GetJob", "not_found") == 1
    assert not any("WatchJobs" in line for line in calls.series())


@with_daemon()
async def test_a_gauge_that_cannot_be_set_is_a_warning(live: Live) -> None:
    """The scheduler goes on, and `gavel status` shows the trouble until the gauges are set again."""
    exporter, explained = live.people.exporter, KeyError("a fault of ours")

    def broken(now_s: float) -> None:
        raise explained

    update, exporter._gauges.update = exporter._gauges.update, broken  # type: ignore[method-assign]
    with pytest.raises(KeyError):
        await exporter.set_gauges()
    assert len(list(exporter.warnings())) == 1
    exporter._gauges.update = update  # type: ignore[method-assign]
    await exporter.set_gauges()
    assert list(exporter.warnings()) == []


def test_the_metrics_count_the_gpu_time_of_a_lease_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count what the file has, also if the file could not be written at first."""

    def fails(*arguments: Any, **options: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async def test(live: Live, leases: Sequence[str]) -> None:
        past, counted = live.people.historian.timeline, live.people.exporter.metrics.gpu_seconds.values
        with monkeypatch.context() as patch:
            patch.setattr(timeline, "add", fails)
            with pytest.raises(sqlite3.Error):
                await past.write()
        await past.write()
        ((held, useful, lost, idle),) = past._file.rows(
            "SELECT sum(gpus * held_ms), sum(gpus * useful_ms), sum(gpus * lost_ms), sum(gpus * idle_ms) FROM lease"
        )
        kinds = {"useful": useful, "restart": held - useful - lost - idle, "lost": lost, "idle": idle}
        expected = {("v100", "org/a", kind): part / 1000 for kind, part in kinds.items() if part}
        assert counted == pytest.approx(expected)
        assert len(expected) >= 3

    with_turns(2, test, tmp_path)


def test_a_daemon_serves_its_metrics_on_loopback_without_a_token(tmp_path: Path) -> None:
    """daemon.json has the address; journal and build are there with the first scrape."""
    with DaemonThread(tmp_path, listen="127.0.0.1:0"):
        address = json.loads((tmp_path / "daemon.json").read_text())["metrics_listen"]
        status, text = scraped(address)
    series = values(text)
    assert status == 200
    assert series["gavel_journal_size_bytes"] > 0
    assert series["gavel_epoch"] > 0
    assert "gavel_facts_after_snapshot" in series
    with pytest.raises(OSError):
        scraped(address)


def test_a_port_that_is_taken_stops_nothing(tmp_path: Path, wording: Wording) -> None:
    """The scheduler starts, and `gavel status` names the address and the setting."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with DaemonThread(tmp_path, listen="127.0.0.1:0", metrics_listen=address) as thread:
            (warning,) = thread.daemon.people.exporter.warnings()
            assert json.loads((tmp_path / "daemon.json").read_text())["metrics_listen"] == ""
    wording(warning, address=address)


def test_notifications_are_counted_by_channel(tmp_path: Path) -> None:
    """Each channel has series from the start; what its receiver confirms and refuses is counted."""
    outcomes = [("ops", "sent"), ("ops", "failed"), ("quiet", "sent"), ("quiet", "failed")]

    async def story() -> None:
        with Receiver() as receiver:
            receiver.answers += [500]
            channels = [Channel(name=name, url=receiver.url, for_jobs=True) for name in ("ops", "quiet")]
            async with Live(tmp_path, channels=channels) as live:
                exporter = live.people.exporter
                metrics = exporter.metrics
                assert metrics.notifications.values == dict.fromkeys(outcomes, 0)
                for _ in range(2):
                    await live.people.notifier.test("ops", "ann")
                await exporter.set_gauges()
                assert metrics.notifications.values == dict(zip(outcomes, (1, 1, 0, 0), strict=True))
                assert metrics.notifications_waiting.values == {("ops",): 0, ("quiet",): 0}

    asyncio.run(story())


def test_without_an_address_nothing_is_served(tmp_path: Path) -> None:
    """`metrics_listen` may be empty; that is no trouble."""
    with DaemonThread(tmp_path, listen="127.0.0.1:0", metrics_listen="") as thread:
        assert thread.daemon.people.exporter.address is None
        assert list(thread.daemon.people.exporter.warnings()) == []


def test_beyond_this_machine_a_scrape_needs_tls_and_a_viewers_token(tmp_path: Path) -> None:
    """With the token of a viewer, Prometheus reads the metrics over TLS; no token and a wrong one are refused."""
    (tmp_path / "tls").mkdir()
    Keys(tmp_path / "tls").make([])
    access = Access(tmp_path / "access.db", lambda: 0.0)
    _, token = access.create("prom", Role.VIEWER, 1e10)
    access.close()
    settings = {"listen": "127.0.0.1:0", "metrics_listen": "0.0.0.0:0", "tls": "true", "auth": "tokens"}
    with DaemonThread(tmp_path, **settings) as thread:
        where = thread.daemon.people.exporter.address
        assert where is not None
        address, ca = f"127.0.0.1:{where.port}", tmp_path / "tls" / "ca.pem"
        status, text = scraped(address, token, ca)
        assert status == 200
        assert "gavel_certificate_expiry_timestamp_seconds" in text
        assert [scraped(address, wrong, ca)[0] for wrong in ("", f"{token}x")] == [401, 401]


@pytest.mark.parametrize("value", ["0.0.0.0:7075", "192.168.1.2", "127.0.0.1:http", "nowhere:99999999"])
def test_settings_that_would_expose_or_make_no_sense_are_refused(value: str, wording: Wording) -> None:
    """Other machines may read metrics only with TLS and tokens; the error names the field."""
    with pytest.raises(ConfigError, match=r"^--set metrics_listen: ") as caught:
        daemon_config(None, {}, (f"metrics_listen={value}",), {})
    wording(str(caught.value))


def test_an_address_without_a_port_gets_the_default_one() -> None:
    """A host alone stands for port 7075 there."""
    assert daemon_config(None, {}, ("metrics_listen=localhost",), {}).metrics_listen == "localhost"
