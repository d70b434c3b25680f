"""doctor as an operator meets it: every finding with its remedy, here and at a scheduler that answers."""

from __future__ import annotations

import os
import re
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.cli.service import checks
from gavel.client import Client
from scheduler.core.messages import NodeReport, NodeSilent
from scheduler.live.access.tls import Keys
from scheduler.live.node_views import GpuSeen, NodeSeen
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.cli.service.upkeep import directory, findings, free_port, nobody_else  # noqa: F401
from tests.support.daemon_thread import DaemonThread
from tests.support.live_thread import LiveThread

Room = namedtuple("Room", "total used free")


@pytest.fixture(autouse=True)
def plenty_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full this machine's disk is."""
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: Room(2**40, 0, 2**39))


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def look(gavel: Gavel, folder: Path, listen: str, config: str = "") -> tuple[int, dict[str, Any]]:
    """`gavel doctor` for a scheduler with this file of settings."""
    path = folder.parent / "gavel.toml"
    path.write_text(f"data_dir = '{folder}'\nlisten = '{listen}'\n{config}")
    return findings(gavel, "doctor", "--config", str(path))


def test_a_machine_that_is_ready(tmp_path: Path, gavel: Gavel) -> None:
    """Ports, disk, Python, SQLite; that there are no GPUs here is a note at most."""
    listen = f"127.0.0.1:{free_port()}"
    code, found = look(gavel, tmp_path / "data", listen)
    assert (code, found["bad"]) == (0, [])
    assert {f"listen: {listen} is free", f"512 GiB are free for {tmp_path}/data"} <= {
        w for w, _ in found["ok"]
    }
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("version", "level"), [("3.40.1", "note"), ("3.51.2", "note"), ("3.51.3", "ok"), ("3.60.0", "ok")]
)
def test_sqlite_is_what_it_is(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, version: str, level: str
) -> None:
    """The version that is linked; one that can damage a log is a note with what to do, and no fault of this machine."""
    fields = {
        "sqlite_version": version,
        "sqlite_version_info": tuple(map(int, version.split("."))),
        "threadsafety": 3,
    }
    monkeypatch.setattr(checks, "sqlite3", SimpleNamespace(**fields))
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    told = {
        how: [one for one in found[how] if f"SQLite {version}" in one[0]] for how in ("ok", "note", "bad")
    }
    assert (code, [how for how, some in told.items() if some]) == (0, [level])
    ((what, remedy),) = told[level]
    assert ("it alone writes its files" in what, "no other program" in remedy) == ((level == "note"),) * 2


def test_an_sqlite_that_threads_may_not_share(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault: backups are copied beside the appends."""
    monkeypatch.setattr(checks.sqlite3, "threadsafety", 1)
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, "SQLITE_THREADSAFE=1" in found["bad"][0][1]) == (1, True)


def test_a_taken_port(tmp_path: Path, gavel: Gavel, port: socket.socket) -> None:
    """Named with its setting, and how to find who it is."""
    listen = f"127.0.0.1:{port.getsockname()[1]}"
    code, found = look(gavel, tmp_path / "data", listen)
    assert (code, found["bad"]) == (
        1,
        [
            (
                f"listen: {listen} cannot be listened on: address already in use",
                "stop what listens there (`ss -ltnp`), or choose another address",
            )
        ],
    )


def test_no_room(tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is almost full."""
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: Room(2**40, 2**40, 2**29))
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"]) == (
        1,
        [
            (
                f"512 MiB are free for {tmp_path}/data",
                "make room: a scheduler that cannot write its journal ends",
            )
        ],
    )


def test_a_directory_that_cannot_be_written(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of somebody else, or a file that is in its place."""
    there = {name: getattr(os, name) for name in ("path", "W_OK", "X_OK", "environ")}
    monkeypatch.setattr(checks, "os", SimpleNamespace(access=lambda path, mode: False, **there))
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"]) == (
        1,
        [(f"{tmp_path} is not writable for this user", "choose another data_dir, or run as its owner")],
    )
    (tmp_path / "data").write_text("")
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"][0][0]) == (1, f"{tmp_path}/data is not a directory")


def test_certificates(tmp_path: Path, gavel: Gavel) -> None:
    """None, good ones, one that expires soon, one that has expired: with the command that renews it."""
    folder, listen, config = tmp_path / "data", f"127.0.0.1:{free_port()}", "tls = true\nauth = 'tokens'"
    code, found = look(gavel, folder, listen, config)
    assert (code, found["bad"][0][1]) == (1, f"run `gavel init {folder}`")
    keys = Keys(folder / "tls")
    keys.make([])
    code, found = look(gavel, folder, listen, config)
    assert (code, "keys and certificates are valid" in {what for what, _ in found["ok"]}) == (0, True)
    for ago_days, words in ((380, "expires in 16 days"), (500, "has expired")):
        keys.renew([], datetime.now(UTC) - timedelta(days=ago_days, hours=1))
        code, found = look(gavel, folder, listen, config)
        assert (code, found["bad"]) == (
            1,
            [(f"the certificate server.pem {words}", f"run `gavel init {folder} --renew`")],
        )
    (folder / "tls" / "server.pem").unlink()
    assert look(gavel, folder, listen, config)[0] == 1


def test_a_scheduler_that_answers(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Nodes of another release, silent ones, GPUs out of service: all told, with what to do."""
    daemon = live.daemon
    live.do(daemon.node("n2", gpus=2))
    live.do(daemon.node("n3", gpus=1))
    daemon.world.tell(NodeSilent(node="n3"))
    generation = daemon.world.state.nodes["n2"].generation
    daemon.world.tell(NodeReport(node="n2", generation=generation, broken_gpus=(1,)))
    live.do(daemon.until(lambda: bool(daemon.world.state.nodes["n2"].broken)))
    daemon.nodes.news["n1"] = NodeSeen(heard_s=daemon.world.now_s(), agent_version="9.9.9", gpus={})
    daemon.nodes.news["n2"] = NodeSeen(
        heard_s=daemon.world.now_s(), gpus={1: GpuSeen(name="V100", broken="fell off the bus")}
    )
    code, found = findings(gavel, "doctor")
    assert code == 1
    assert [what for what, _ in found["ok"] if f"the scheduler at {live.address} answers" in what]
    notes = dict(found["note"])
    (said,) = [what for what in notes if what.startswith("node n1 runs agent 9.9.9, the scheduler is ")]
    assert notes[said] == "upgrade the agent: jobs go on while it restarts"
    bad = dict(found["bad"])
    (broken,) = [what for what in bad if what.startswith("GPU n2:1 is out of service")]
    assert "fell off the bus" in broken
    (silent,) = [what for what in bad if what.startswith("node n3 is ")]
    assert "`gavel remove`" in bad[silent]


def test_a_clock_that_is_off(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compared with the scheduler's."""
    now_s = time.time
    monkeypatch.setattr(checks, "time", SimpleNamespace(time=lambda: now_s() + 90))
    code, found = findings(gavel, "doctor")
    ((what, remedy),) = [one for one in found["note"] if one[0].startswith("this clock is ")]
    assert (code, remedy) == (0, "check time synchronisation")
    told = re.fullmatch(r"this clock is \+(\d+) s from the scheduler's", what)
    assert told
    assert 60 < int(told[1]) <= 90  # less by what the answer was on its way


def test_a_slow_answer_is_no_clock_that_is_off(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the scheduler takes to tell the time, or its nodes after that."""
    now_s, later_s = time.time, [0.0]
    monkeypatch.setattr(checks, "time", SimpleNamespace(time=lambda: now_s() + later_s[0]))

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            later_s[0] += 30
            return call(*arguments)

        return called

    for name in ("status", "nodes"):
        monkeypatch.setattr(Client, name, slow(getattr(Client, name)))
    _, found = findings(gavel, "doctor")
    assert later_s[0] >= 60
    assert [what for what, _ in found["note"] if "clock" in what] == []


def test_a_scheduler_of_another_release(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This command is older."""
    monkeypatch.setattr(checks.gavel, "__version__", "0.0.1")
    _, found = findings(gavel, "doctor")
    assert [what for what, _ in found["note"] if what.endswith("this command is 0.0.1")]


def test_a_scheduler_that_does_not_answer(gavel: Gavel) -> None:
    """Asked for by its address."""
    code, found = findings(gavel, "doctor", "--address", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"][0][1]) == (1, "look at its log")


def test_a_token_that_is_missing(tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler of this machine that asks for tokens: the remedy says so, and a token of its helps."""
    said = gavel("init", str(tmp_path / "data"), "--token-file", str(tmp_path / "token"))
    assert said.exit_code == 0
    config = tmp_path / "data" / "gavel.toml"
    with DaemonThread(tmp_path / "data", config, listen="127.0.0.1:0", agents_listen="127.0.0.1:0"):
        code, found = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
        assert (code, found["bad"][0][1]) == (1, "set GAVEL_TOKEN, or `gavel login` with a token")
        monkeypatch.setenv("GAVEL_TOKEN", (tmp_path / "token").read_text().strip())
        code, found = findings(gavel, "doctor", "--data-dir", str(tmp_path / "data"))
    assert (code, found["bad"]) == (0, [])
    assert "keys and certificates are valid" in {what for what, _ in found["ok"]}
