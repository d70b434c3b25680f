"""doctor for an operator: every finding has a remedy, about this machine and about a running scheduler."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel import __version__
from gavel.cli.service import checks
from gavel.client import Client
from scheduler.core.messages import NodeReport, NodeSilent
from scheduler.live.access.tls import Keys
from scheduler.live.node_views import GpuDetails, NodeDetails
from tests.cli.conftest import Gavel
from tests.cli.service.upkeep import findings, free_port
from tests.support.daemon_thread import DaemonThread
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording
from worker_agent.runs.runtimes import installed

pytestmark = pytest.mark.usefixtures("own_home")

Room = namedtuple("Room", "total used free")


@pytest.fixture(autouse=True)
def plenty_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a half-empty disk, however full this machine's is."""
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: Room(2**40, 0, 2**39))


@pytest.fixture(autouse=True)
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which this machine's container runtimes are looked for; it is empty."""
    folder = tmp_path / "runtimes"
    folder.mkdir()
    monkeypatch.setattr("worker_agent.runs.runtimes.installed", partial(installed, str(folder)))
    return folder


@pytest.fixture
def busy_port() -> Iterator[socket.socket]:
    """Yield a socket that listens on a port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def look(gavel: Gavel, folder: Path, listen: str, config: str = "") -> tuple[int, dict[str, Any]]:
    """Run `gavel doctor` on a file of settings with these values."""
    path = folder.parent / "gavel.toml"
    path.write_text(f"data_dir = '{folder}'\nlisten = '{listen}'\n{config}")
    return findings(gavel, "doctor", "--config", str(path))


def test_a_machine_that_is_ready(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """Ports, disk, Python and SQLite are good; missing GPUs are a note at most."""
    listen = f"127.0.0.1:{free_port()}"
    code, report = look(gavel, tmp_path / "data", listen)
    assert (code, report["bad"]) == (0, [])
    (about_port,) = [finding for finding, _ in report["ok"] if listen in finding]
    (about_disk,) = [finding for finding, _ in report["ok"] if f"{tmp_path}/data" in finding]
    assert (about_port.startswith("listen: "), "512 GiB" in about_disk) == (True, True)
    wording(about_port, address=listen)
    wording(about_disk, folder=tmp_path)
    assert not (tmp_path / "data").exists()


def test_container_runtimes_are_tried(tmp_path: Path, gavel: Gavel, runtimes: Path, wording: Wording) -> None:
    """A runtime that works is good; one that does not, or none at all, is a note, as not every job needs one."""
    listen = f"127.0.0.1:{free_port()}"

    def about_containers(level: str) -> list[tuple[str, str]]:
        code, report = look(gavel, tmp_path / "data", listen)
        assert (code, report["bad"]) == (0, [])
        return [
            finding for finding in report[level] if re.match("(no )?contain|docker|charliecloud", finding[0])
        ]

    ((none, _),) = about_containers("note")
    wording(none)
    for name, script in {
        "ch-run": "exit 0",
        "docker": "exit 0",
        "podman": "echo no rights >&2; exit 1",
    }.items():
        (runtimes / name).write_text(f"#!/bin/sh\n[ $1 = --version ] && echo {name} 1.2 && exit\n{script}\n")
        (runtimes / name).chmod(0o755)
    for finding, _ in (*about_containers("ok"), *about_containers("note")):
        wording(finding)


@pytest.mark.parametrize(
    ("version", "level"), [("3.40.1", "note"), ("3.51.2", "note"), ("3.51.3", "ok"), ("3.60.0", "ok")]
)
def test_the_version_of_sqlite(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, version: str, level: str, wording: Wording
) -> None:
    """A linked version that can damage a log is a note with a remedy, not a fault of this machine."""
    fields = {
        "sqlite_version": version,
        "sqlite_version_info": tuple(map(int, version.split("."))),
        "threadsafety": 3,
    }
    monkeypatch.setattr(checks, "sqlite3", SimpleNamespace(**fields))
    code, report = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    by_level = {
        grade: [finding for finding in report[grade] if f"SQLite {version}" in finding[0]]
        for grade in ("ok", "note", "bad")
    }
    assert (code, [grade for grade, findings in by_level.items() if findings]) == (0, [level])
    ((finding, remedy),) = by_level[level]
    assert bool(remedy) == (level == "note")
    wording(f"{finding}\n{remedy}")


def test_an_sqlite_without_thread_safety(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite without thread safety is a fault, because a backup is copied while records are appended."""
    monkeypatch.setattr(checks.sqlite3, "threadsafety", 1)
    code, report = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, "SQLITE_THREADSAFE=1" in report["bad"][0][1]) == (1, True)


def test_a_port_in_use(tmp_path: Path, gavel: Gavel, busy_port: socket.socket, wording: Wording) -> None:
    """The finding names the setting and the address; the remedy finds the other program."""
    listen = f"127.0.0.1:{busy_port.getsockname()[1]}"
    code, report = look(gavel, tmp_path / "data", listen)
    ((finding, remedy),) = report["bad"]
    assert (code, finding.startswith(f"listen: {listen} "), "`ss -ltnp`" in remedy) == (1, True, True)
    wording(f"{finding}\n{remedy}", address=listen)


def test_a_port_for_metrics_in_use(
    tmp_path: Path, gavel: Gavel, busy_port: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a note, as the scheduler runs without metrics, too."""
    monkeypatch.delenv("GAVEL_SERVE_METRICS_LISTEN")
    metrics = f"127.0.0.1:{busy_port.getsockname()[1]}"
    listen = f"127.0.0.1:{free_port()}"
    code, report = look(gavel, tmp_path / "data", listen, f"metrics_listen = '{metrics}'")
    (about_metrics,) = [finding for finding, _ in report["note"] if finding.startswith("metrics_listen: ")]
    assert (code, report["bad"], metrics in about_metrics) == (0, [], True)


def test_no_room(tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """A disk that is almost full is a fault."""
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: Room(2**40, 2**40, 2**29))
    code, report = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    ((finding, remedy),) = report["bad"]
    assert (code, "512 MiB" in finding, f"{tmp_path}/data" in finding) == (1, True, True)
    wording(f"{finding}\n{remedy}", folder=tmp_path)


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A directory of another user is a fault, and so is a file in its place."""
    others = {name: getattr(os, name) for name in ("path", "W_OK", "X_OK", "environ")}
    monkeypatch.setattr(checks, "os", SimpleNamespace(access=lambda path, mode: False, **others))
    code, report = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    ((finding, remedy),) = report["bad"]
    assert (code, finding.startswith(f"{tmp_path} "), "data_dir" in remedy) == (1, True, True)
    wording(f"{finding}\n{remedy}", folder=tmp_path)
    (tmp_path / "data").write_text("")
    code, report = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, report["bad"][0][0].startswith(f"{tmp_path}/data ")) == (1, True)
    wording(report["bad"][0][0], folder=tmp_path)


def test_certificates(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """Missing and expiring certificates are faults with the command that renews them; good ones are reported."""
    folder, listen, config = tmp_path / "data", f"127.0.0.1:{free_port()}", "tls = true\nauth = 'tokens'"
    code, report = look(gavel, folder, listen, config)
    assert (code, report["bad"][0][1]) == (1, f"run `gavel init {folder}`")
    keys = Keys(folder / "tls")
    keys.make([])
    code, report = look(gavel, folder, listen, config)
    (valid,) = [finding for finding, _ in report["ok"] if finding.startswith("keys ")]
    assert (code, report["bad"]) == (0, [])
    wording(valid)
    for ago_days, time_left in ((380, " 16 days"), (500, "")):
        keys.renew([], datetime.now(UTC) - timedelta(days=ago_days, hours=1))
        code, report = look(gavel, folder, listen, config)
        ((finding, remedy),) = report["bad"]
        assert (code, "server.pem" in finding, time_left in finding) == (1, True, True)
        assert remedy == f"run `gavel init {folder} --renew`, and restart the scheduler"
        wording(finding)
    (folder / "tls" / "server.pem").unlink()
    assert look(gavel, folder, listen, config)[0] == 1


def test_a_scheduler_that_answers(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """Nodes of another release, silent nodes and GPUs out of service are reported with remedies."""
    daemon = live.daemon
    live.do(daemon.node("n2", gpus=2))
    live.do(daemon.node("n3", gpus=1))
    daemon.world.send(NodeSilent(node="n3"))
    generation = daemon.world.state.nodes["n2"].generation
    daemon.world.send(NodeReport(node="n2", generation=generation, broken_gpus=(1,)))
    live.do(daemon.until(lambda: bool(daemon.world.state.nodes["n2"].broken)))
    daemon.nodes.news["n1"] = NodeDetails(last_message_s=daemon.world.now_s(), agent_version="9.9.9", gpus={})
    daemon.nodes.news["n2"] = NodeDetails(
        last_message_s=daemon.world.now_s(), gpus={1: GpuDetails(name="V100", broken="XID 79")}
    )
    code, report = findings(gavel, "doctor")
    assert code == 1
    (answers,) = [finding for finding, _ in report["ok"] if live.address in finding]
    wording(answers, address=live.address, version=__version__)
    ((outdated, remedy),) = [finding for finding in report["note"] if "9.9.9" in finding[0]]
    assert "n1" in outdated
    wording(f"{outdated}\n{remedy}", version=__version__)
    ((broken, remedy),) = [finding for finding in report["bad"] if "n2:1" in finding[0]]
    assert "XID 79" in broken
    wording(f"{broken}\n{remedy}")
    ((silent, remedy),) = [finding for finding in report["bad"] if "n3" in finding[0]]
    assert "`gavel remove`" in remedy
    wording(f"{silent}\n{remedy}")


def test_a_clock_that_is_wrong(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """This machine's clock is compared with the scheduler's."""
    now_s = time.time
    monkeypatch.setattr(checks, "time", SimpleNamespace(time=lambda: now_s() + 90))
    code, report = findings(gavel, "doctor")
    ((finding, remedy),) = [finding for finding in report["note"] if "clock" in finding[0]]
    (difference_s,) = re.findall(r"\+(\d+) s", finding)
    # The time that the answer took is not counted, so the difference may be smaller than 90 s.
    assert (code, 60 < int(difference_s) <= 90) == (0, True)
    wording(f"{finding}\n{remedy}", difference=f"+{difference_s}")


def test_a_slow_answer_is_no_wrong_clock(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks are compared without the time that the scheduler took to answer."""
    now_s, later_s = time.time, [0.0]
    monkeypatch.setattr(checks, "time", SimpleNamespace(time=lambda: now_s() + later_s[0]))

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            later_s[0] += 30
            return call(*arguments)

        return called

    for name in ("status", "nodes"):
        monkeypatch.setattr(Client, name, slow(getattr(Client, name)))
    _, report = findings(gavel, "doctor")
    assert later_s[0] >= 60
    assert [finding for finding, _ in report["note"] if "clock" in finding] == []


def test_a_scheduler_of_another_release(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A command that is older than the scheduler is a note."""
    monkeypatch.setattr(checks.gavel, "__version__", "0.0.1")
    _, report = findings(gavel, "doctor")
    (older,) = [finding for finding, _ in report["note"] if "0.0.1" in finding]
    wording(older, version=__version__)


def test_a_scheduler_that_does_not_answer(gavel: Gavel, wording: Wording) -> None:
    """A scheduler named by its address that does not answer is a fault."""
    code, report = findings(gavel, "doctor", "--address", f"127.0.0.1:{free_port()}")
    assert code == 1
    wording(report["bad"][0][1])


def test_a_token_that_is_missing(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """If the scheduler needs a token, the remedy names GAVEL_TOKEN; with a token of this scheduler, nothing is bad."""
    result = gavel("init", str(tmp_path / "data"), "--token-file", str(tmp_path / "token"))
    assert result.exit_code == 0
    config = tmp_path / "data" / "gavel.toml"
    with DaemonThread(tmp_path / "data", config, listen="127.0.0.1:0", agents_listen="127.0.0.1:0"):
        code, report = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
        remedy = report["bad"][0][1]
        assert (code, "GAVEL_TOKEN" in remedy) == (1, True)
        wording(remedy)
        monkeypatch.setenv("GAVEL_TOKEN", (tmp_path / "token").read_text().strip())
        code, report = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
    assert (code, report["bad"]) == (0, [])
    assert [finding for finding, _ in report["ok"] if finding.startswith("keys ")]
