"""doctor, fsck, backup and restore as an operator meets them: every finding with its remedy, and what the codes say."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import time
from collections import namedtuple
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.cli import doctor as doctor_module
from gavel.client import Client, JobSpec
from scheduler.core.facts import Fact, JobMoved, LeasesStarted
from scheduler.core.messages import NodeReport, NodeSilent
from scheduler.journal.store import SqliteJournal
from scheduler.live.log_source import GpuSeen, NodeSeen
from scheduler.live.tls import Keys
from scheduler.model.jobs import Move
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.journal.test_history import BEGINNING, GOOD, granted, lease, moved
from tests.support.daemon_thread import DaemonThread
from tests.support.live_thread import LiveThread

Room = namedtuple("Room", "total used free")


@pytest.fixture(autouse=True)
def nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither settings nor contexts of whoever runs the tests, and room on the disk."""
    for name in ("GAVEL_ADDRESS", "GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda path: Room(2**40, 0, 2**39))


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def free_port() -> int:
    """A port that nobody listens on; with the next one free, too."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            try:
                other.bind(("127.0.0.1", one.getsockname()[1] + 1))
            except OSError:
                continue
            return int(one.getsockname()[1])


def directory(folder: Path, *facts: Fact) -> Path:
    """A data directory whose journal tells this."""
    folder.mkdir(mode=0o700, parents=True)
    with SqliteJournal(folder / "journal.db") as journal:
        for number, fact in enumerate((*BEGINNING, *facts)):
            journal.append(float(number), [fact])
    return folder


def findings(gavel: Gavel, *arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit code, and what was found with its remedy, by level."""
    result = gavel(*arguments, "--json")
    told = json.loads(result.stdout)
    by: dict[str, list[tuple[str, str]]] = {"ok": [], "note": [], "bad": []}
    for one in told["findings"]:
        by[one["level"]].append((one["what"], one["remedy"]))
    assert told["sound"] == (not by["bad"]) == (result.exit_code == 0)
    return result.exit_code, by


# --------------------------------------------------------------------------------------------------------- fsck


def test_a_sound_directory(tmp_path: Path, gavel: Gavel) -> None:
    """Nothing is wrong: told of people in lines, with code 0; and nothing in the directory changes."""
    folder = directory(tmp_path / "data", *GOOD)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = gavel("fsck", "--data-dir", str(folder))
    assert result.exit_code == 0
    assert [line[:4] for line in result.stdout.splitlines()] == ["ok  ", "ok  ", "ok  ", "noth"]
    assert "14 records add up to 3 jobs and 1 nodes" in result.stdout
    assert "14 facts keep every promise" in result.stdout
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_a_daemon_leaves_is_sound(tmp_path: Path, gavel: Gavel) -> None:
    """All its databases are looked at."""
    with DaemonThread(tmp_path / "data", auth="tokens"):
        pass
    code, found = findings(gavel, "fsck", "--data-dir", str(tmp_path / "data"))
    assert (code, found["bad"], found["note"]) == (0, [], [])
    assert {"access.db is sound", "usage.db is sound", "attempts.db is sound"} <= {w for w, _ in found["ok"]}


def test_open_permissions(tmp_path: Path, gavel: Gavel) -> None:
    """Each file that others can read is named with the command that mends it; then it is sound."""
    folder = directory(tmp_path / "data")
    Keys(folder / "tls").make([])
    folder.chmod(0o755)
    (folder / "tls" / "ca.key").chmod(0o640)
    code, found = findings(gavel, "fsck", "--data-dir", str(folder))
    assert (code, {remedy for _, remedy in found["bad"]}) == (
        1,
        {f"chmod 700 {folder}", f"chmod 600 {folder}/tls/ca.key"},
    )
    for _, remedy in found["bad"]:
        _, mode, path = remedy.split()
        Path(path).chmod(int(mode, 8))
    assert gavel("fsck", "--data-dir", str(folder)).exit_code == 0


def cut(data: bytes) -> bytes:
    """Half of it."""
    return data[: len(data) // 2 // 4096 * 4096]


def zeroed(data: bytes) -> bytes:
    """A page of zeros where records are."""
    at = data.index(b"padding")
    return data[: at - 4096] + bytes(8192) + data[at + 4096 :]


def flipped(data: bytes) -> bytes:
    """One bit of a record."""
    at = data.index(b"padding")
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [cut, zeroed, flipped, lambda data: b"", lambda data: bytes(8192)])
def test_a_damaged_journal(tmp_path: Path, gavel: Gavel, damage: Any) -> None:
    """Truncated, zeroed, a bit flipped, empty, all zeros: something is wrong, a remedy is named; nothing is changed."""
    facts = [JobMoved(job="101", move=Move.HOLD, why="padding" * 200), moved("101", Move.RELEASE)] * 20
    folder = directory(tmp_path / "data", *facts)
    path = folder / "journal.db"
    path.write_bytes(damage(path.read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, found = findings(gavel, "fsck", "--data-dir", str(folder))
    assert code == 1
    assert all(remedy for _, remedy in found["bad"])
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (
            (granted(lease("1", "101"), lease("2", "102", "n1:0 n1:1")), LeasesStarted(leases=("1", "2"))),
            "two_holders: jobs 101 and 102 have processes on n1:0 (job 102: 2.000 submitted; 4.000 lease 2",
        ),
        (
            (moved("101", Move.CANCEL), moved("101", Move.COMPLETE)),
            "two_ends: job 101 had ended and is moved by 'complete' (job 101: 1.000 submitted; 4.000 cancel",
        ),
        (
            (moved("z", Move.CANCEL),),
            "unknown: job z is moved, and was never submitted (job z: 4.000 cancel)",
        ),
    ],
)
def test_a_forged_history(tmp_path: Path, gavel: Gavel, facts: tuple[Fact, ...], told: str) -> None:
    """Every record is sound, and the story is not: the promise is named, with the story of the job."""
    folder = directory(tmp_path / "data", *facts)
    code, found = findings(gavel, "fsck", "--data-dir", str(folder))
    assert code == 1
    assert [what for what, _ in found["bad"] if f"a promise is broken: {told}" in what], found
    assert not [what for what, _ in found["ok"] if "keep every promise" in what]


def test_a_damaged_database_beside_the_journal(tmp_path: Path, gavel: Gavel) -> None:
    """Tokens that cannot be read are named."""
    folder = directory(tmp_path / "data")
    (folder / "access.db").write_bytes(b"no database at all" * 400)
    (folder / "access.db").chmod(0o600)
    code, found = findings(gavel, "fsck", "--data-dir", str(folder))
    assert (code, [what for what, _ in found["bad"]]) == (
        1,
        ["access.db is damaged: file is not a database"],
    )


def test_a_running_daemon_is_left_alone(tmp_path: Path, gavel: Gavel) -> None:
    """Its journal is not looked at, which is no fault; the remedy says what to do."""
    with DaemonThread(tmp_path / "data"):
        code, found = findings(gavel, "fsck", "--data-dir", str(tmp_path / "data"))
    (note,) = found["note"]
    assert (code, note[1]) == (0, "stop the daemon, then look again")
    assert "is in use by process" in note[0]


def test_no_data_directory(tmp_path: Path, gavel: Gavel) -> None:
    """It is named; so is a file in its place."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nothing", tmp_path / "file"):
        code, found = findings(gavel, "fsck", "--data-dir", str(folder))
        assert (code, found["bad"]) == (
            1,
            [(f"there is no journal.db in {folder}", "name the data directory of a scheduler")],
        )


# ------------------------------------------------------------------------------------------------------- doctor


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
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda path: Room(2**40, 2**40, 2**29))
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
    monkeypatch.setattr(doctor_module, "os", SimpleNamespace(access=lambda path, mode: False, **there))
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"]) == (
        1,
        [(f"{tmp_path} is not writable for this user", "choose another data_dir, or run as its owner")],
    )
    (tmp_path / "data").write_text("")
    code, found = look(gavel, tmp_path / "data", f"127.0.0.1:{free_port()}")
    assert (code, found["bad"][0][0]) == (1, f"{tmp_path}/data is not a directory")


def test_certificates(tmp_path: Path, gavel: Gavel) -> None:
    """None, good ones, one that ends soon, one that has ended: with the command that renews it."""
    folder, listen, config = tmp_path / "data", f"127.0.0.1:{free_port()}", "tls = true\nauth = 'tokens'"
    code, found = look(gavel, folder, listen, config)
    assert (code, found["bad"][0][1]) == (1, f"run `gavel init {folder}`")
    keys = Keys(folder / "tls")
    keys.make([])
    code, found = look(gavel, folder, listen, config)
    assert (code, "keys and certificates are valid" in {what for what, _ in found["ok"]}) == (0, True)
    for ago_days, words in ((380, "ends in 16 days"), (500, "has ended")):
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
    monkeypatch.setattr(doctor_module.time, "time", lambda: now_s() + 90)
    code, found = findings(gavel, "doctor")
    assert ("this clock is +90 s from the scheduler's", "check time synchronisation") in found["note"]
    assert code == 0


def test_a_scheduler_of_another_release(
    live: LiveThread,  # noqa: F811
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This command is older."""
    monkeypatch.setattr(doctor_module.gavel, "__version__", "0.0.1")
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


# ------------------------------------------------------------------------------------------- backup and restore


def test_backup_and_restore_of_a_stopped_scheduler(tmp_path: Path, gavel: Gavel) -> None:
    """There and back; the archive is private; what is in the way is named and stays."""
    folder, archive = directory(tmp_path / "data", *GOOD), tmp_path / "b.tar.gz"
    said = gavel("backup", str(archive), "--data-dir", str(folder))
    assert said.stdout.startswith(f"{archive}: 14 records, "), said.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    said = gavel("restore", str(archive), "--data-dir", str(folder))
    assert (said.exit_code, said.stderr) == (
        2,
        f"gavel restore: {folder} is not empty: move it away first, or name another data directory\n",
    )
    shutil.rmtree(folder)
    said = gavel("restore", str(archive), "--data-dir", str(folder))
    assert (said.exit_code, said.stdout.splitlines()[0]) == (
        0,
        f"restored to {folder}: 14 records; what came after the backup is lost",
    )
    assert gavel("fsck", "--data-dir", str(folder)).exit_code == 0


def test_backup_of_a_running_scheduler(tmp_path: Path, gavel: Gavel) -> None:
    """It makes the archive itself."""
    archive = tmp_path / "b.tar.gz"
    with DaemonThread(tmp_path / "data") as daemon:
        said = gavel("backup", str(archive), "--data-dir", str(tmp_path / "data"))
        assert f"made by the scheduler at {daemon.address}" in said.stdout, said.stderr
        missing = tmp_path / "missing" / "b.tar.gz"
        said = gavel("backup", str(missing), "--data-dir", str(tmp_path / "data"))
        assert (said.exit_code, said.stderr) == (
            2,
            f"gavel backup: cannot write {missing}: no such file or directory\n",
        )
    assert gavel("restore", str(archive), "--data-dir", str(tmp_path / "new")).exit_code == 0


def test_what_a_killed_scheduler_left_misleads_nobody(tmp_path: Path, gavel: Gavel) -> None:
    """daemon.json names a process that lives, and nobody holds the journal: the backup is made here."""
    folder = directory(tmp_path / "data")
    (folder / "daemon.json").write_text(json.dumps({"pid": 1, "listen": "127.0.0.1:1"}))
    said = gavel("backup", str(tmp_path / "b.tar.gz"), "--data-dir", str(folder))
    assert (said.exit_code, "records" in said.stdout) == (0, True), said.stderr


def test_backup_with_keys_and_tokens(tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the directory's own authority; without a token refused with code 5, with an admin's or its context done."""
    gavel("init", str(tmp_path / "data"), "--token-file", str(tmp_path / "token"))
    token, archive = (tmp_path / "token").read_text().strip(), str(tmp_path / "b.tar.gz")
    config, here = tmp_path / "data" / "gavel.toml", ("--data-dir", str(tmp_path / "data"))
    with DaemonThread(tmp_path / "data", config, listen="0.0.0.0:0", agents_listen="127.0.0.1:0") as daemon:
        port = daemon.address.rpartition(":")[2]
        said = gavel("backup", archive, *here)
        assert (said.exit_code, len(said.stderr.splitlines())) == (5, 1), said.stderr
        with Client(f"127.0.0.1:{port}", token=token, ca=str(tmp_path / "data/tls/ca.pem")) as client:
            user = client.create_token("bob").secret
        monkeypatch.setenv("GAVEL_TOKEN", user)
        said = gavel("backup", archive, *here)
        assert (said.exit_code, "needs the role admin" in said.stderr) == (5, True), said.stderr
        assert not Path(archive).exists()
        monkeypatch.setenv("GAVEL_TOKEN", token)
        assert gavel("backup", archive, *here).exit_code == 0
        monkeypatch.delenv("GAVEL_TOKEN")
        contexts = tmp_path / "config" / "gavel" / "client.toml"
        contexts.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "data/tls/ca.pem", contexts.parent / "lab.pem")
        (contexts.parent / "other.pem").write_text("another authority")
        contexts.write_text(
            "current = 'other'\n"
            "[contexts.other]\naddress = 'elsewhere.invalid:7070'\ntoken = 'of-another'\nca = 'other.pem'\n"
            f"[contexts.lab]\naddress = 'localhost:{port}'\ntoken = '{token}'\nca = 'lab.pem'\n"
        )
        contexts.chmod(0o600)
        assert gavel("backup", archive, *here).exit_code == 0
        said = gavel("backup", archive, "--context", "lab")
        assert f"made by the scheduler at localhost:{port}" in said.stdout, said.stderr
    said = gavel("restore", archive, "--data-dir", str(tmp_path / "new"))
    assert said.exit_code == 0, said.stderr
    assert (tmp_path / "new" / "gavel.toml").read_text() == config.read_text()


def test_a_scheduler_elsewhere(tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --address or GAVEL_ADDRESS; a directory that is named goes before the environment; both are too much."""
    folder, archive = directory(tmp_path / "stopped"), str(tmp_path / "b.tar.gz")
    with DaemonThread(tmp_path / "data") as daemon:
        with Client(daemon.address) as client:
            client.submit(JobSpec(command=("true",)))
        made = f"made by the scheduler at {daemon.address}"
        assert made in gavel("backup", archive, "--address", daemon.address).stdout
        monkeypatch.setenv("GAVEL_ADDRESS", daemon.address)
        assert made in gavel("backup", archive).stdout
        assert made not in gavel("backup", archive, "--data-dir", str(folder)).stdout
        both = gavel("backup", archive, "--data-dir", str(folder), "--address", daemon.address)
    assert (both.exit_code, "say one" in both.stderr) == (2, True)


def test_nobody_answers(tmp_path: Path, gavel: Gavel) -> None:
    """Code 4 in one line, and nothing is written."""
    said = gavel("backup", str(tmp_path / "b.tar.gz"), "--address", f"127.0.0.1:{free_port()}")
    assert (said.exit_code, len(said.stderr.splitlines())) == (4, 1)
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_backup(tmp_path: Path, gavel: Gavel, content: bytes) -> None:
    """One line that names it; no directory is made."""
    (tmp_path / "b.tar.gz").write_bytes(content)
    said = gavel("restore", str(tmp_path / "b.tar.gz"), "--data-dir", str(tmp_path / "new"))
    assert (said.exit_code, len(said.stderr.splitlines())) == (2, 1)
    assert str(tmp_path / "b.tar.gz") in said.stderr
    assert not (tmp_path / "new").exists()


# ------------------------------------------------------------------------------------------------------- config


def test_the_example_is_a_right_file_of_defaults(tmp_path: Path, gavel: Gavel) -> None:
    """For the scheduler and for agents."""
    for which in ((), ("--agent",)):
        path = tmp_path / "example.toml"
        path.write_text(gavel("config", "--example", *which).stdout)
        said = gavel("config", "--check", str(path), *which)
        assert said.exit_code == 0, said.stderr


@pytest.mark.parametrize(
    ("which", "text", "message"),
    [
        ((), "round_s = 3", "round_s"),
        ((), "[scheduler]\nround_s = 'x'", "line 2"),
        ((), "listen = '0.0.0.0:7070'", "gavel init"),
        ((), "[scheduler]\npolicy = 'lass'", "lass"),
        (("--agent",), "gpus = 'v100'", "gpus"),
        (("--agent",), "colour = 'red'", "unknown key 'colour' in wrong.toml, line 1"),
    ],
)
def test_a_wrong_file_is_one_line(
    tmp_path: Path, gavel: Gavel, which: tuple[str, ...], text: str, message: str
) -> None:
    """Code 2, with the place."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    said = gavel("config", "--check", str(path), *which)
    assert (said.exit_code, len(said.stderr.splitlines()), message in said.stderr) == (2, 1, True), (
        said.stderr
    )


def test_config_needs_to_be_told_what(gavel: Gavel) -> None:
    """Neither --example nor --check."""
    assert gavel("config").stderr == "gavel config: say --example or --check FILE\n"
