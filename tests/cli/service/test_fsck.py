"""fsck and config for an operator: sound, damaged and forged histories; right and wrong settings files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.facts import Fact, JobMoved, LeasesStarted
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.model.jobs import Move
from tests.cli.conftest import Gavel
from tests.cli.service.upkeep import directory, findings
from tests.journal.test_history import GOOD, granted, lease, moved
from tests.support.daemon_thread import DaemonThread
from tests.support.wording import Wording

pytestmark = pytest.mark.usefixtures("own_home")


def test_a_sound_directory(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """A sound directory gives four good findings with code 0, and fsck changes no file of it."""
    folder = directory(tmp_path / "data", *GOOD)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = gavel("fsck", "--data-dir", str(folder))
    assert result.exit_code == 0
    assert [line[:4] for line in result.stdout.splitlines()[:-1]] == ["ok  "] * 4
    wording(result.stdout, folder=folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_directory_of_a_daemon_is_sound(tmp_path: Path, gavel: Gavel) -> None:
    """All databases of a daemon that ran are checked and sound, whatever the name of their directory."""
    folder = tmp_path / "100% of it?"
    folder.mkdir(mode=0o700)
    access = Access(folder / "access.db", time.time)
    access.create("ann", Role.ADMIN, 3600.0)
    access.close()
    with DaemonThread(folder, auth="tokens"):
        pass
    code, report = findings(gavel, "fsck", "--data-dir", str(folder))
    assert (code, report["bad"], report["note"]) == (0, [], [])
    checked = {finding.split()[0] for finding, _ in report["ok"]}
    assert {"access.db", "usage.db", "attempts.db"} <= checked


def test_open_permissions(tmp_path: Path, gavel: Gavel) -> None:
    """Each file that others can read is named, with a `chmod` command; after these commands the directory is sound."""
    folder = directory(tmp_path / "data")
    Keys(folder / "tls").make([])
    folder.chmod(0o755)
    (folder / "tls" / "ca.key").chmod(0o640)
    code, report = findings(gavel, "fsck", "--data-dir", str(folder))
    assert (code, {remedy for _, remedy in report["bad"]}) == (
        1,
        {f"chmod 700 {folder}", f"chmod 600 {folder}/tls/ca.key"},
    )
    for _, remedy in report["bad"]:
        _, mode, path = remedy.split()
        Path(path).chmod(int(mode, 8))
    assert gavel("fsck", "--data-dir", str(folder)).exit_code == 0


def cut(data: bytes) -> bytes:
    """Return the first half, in whole pages."""
    return data[: len(data) // 2 // 4096 * 4096]


def zeroed(data: bytes) -> bytes:
    """Return the data with pages of zeros where records are."""
    at = data.index(b"padding")
    return data[: at - 4096] + bytes(8192) + data[at + 4096 :]


def flipped(data: bytes) -> bytes:
    """Return the data with one bit of a record flipped."""
    at = data.index(b"padding")
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("damage", [cut, zeroed, flipped, lambda data: b"", lambda data: bytes(8192)])
def test_a_damaged_journal(tmp_path: Path, gavel: Gavel, damage: Any) -> None:
    """A truncated, zeroed, flipped or empty journal is a fault with a remedy, and fsck changes no file."""
    facts = [JobMoved(job="101", move=Move.HOLD, why="padding" * 200), moved("101", Move.RELEASE)] * 20
    folder = directory(tmp_path / "data", *facts)
    path = folder / "journal.db"
    path.write_bytes(damage(path.read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, report = findings(gavel, "fsck", "--data-dir", str(folder))
    assert code == 1
    assert all(remedy for _, remedy in report["bad"])
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("facts", "promise", "job"),
    [
        (
            (granted(lease("1", "101"), lease("2", "102", "n1:0 n1:1")), LeasesStarted(leases=("1", "2"))),
            "two_holders",
            "102",
        ),
        ((moved("101", Move.CANCEL), moved("101", Move.COMPLETE)), "two_ends", "101"),
        ((moved("z", Move.CANCEL),), "unknown", "z"),
    ],
    ids=["two holders", "two ends", "unknown job"],
)
def test_a_forged_history(
    tmp_path: Path, gavel: Gavel, facts: tuple[Fact, ...], promise: str, job: str, wording: Wording
) -> None:
    """The records are sound but contradict each other: the broken promise is named, with the job's history."""
    folder = directory(tmp_path / "data", *facts)
    code, report = findings(gavel, "fsck", "--data-dir", str(folder))
    assert code == 1
    (broken,) = [finding for finding, _ in report["bad"] if f" {promise}: " in finding]
    assert f"(job {job}: " in broken
    wording(broken)
    assert not [finding for finding, _ in report["ok"] if "promise" in finding]


def test_a_damaged_database_beside_the_journal(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """A database of tokens that cannot be read is named."""
    folder = directory(tmp_path / "data")
    (folder / "access.db").write_bytes(b"no database at all" * 400)
    (folder / "access.db").chmod(0o600)
    code, report = findings(gavel, "fsck", "--data-dir", str(folder))
    ((finding, _),) = report["bad"]
    assert (code, finding.startswith("access.db ")) == (1, True)
    wording(finding)


def test_a_running_daemon_is_left_alone(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """The journal of a running daemon cannot be checked: fsck reports this, with the daemon's pid, as a fault."""
    with DaemonThread(tmp_path / "data"):
        code, report = findings(gavel, "fsck", "--data-dir", str(tmp_path / "data"))
    ((finding, remedy),) = report["bad"]
    assert (code, str(os.getpid()) in finding) == (1, True)
    wording(f"{finding}\n{remedy}", folder=tmp_path, pid=os.getpid())


def test_no_data_directory(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """A missing directory is named, and so is a file in its place."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "nothing", tmp_path / "file"):
        code, report = findings(gavel, "fsck", "--data-dir", str(folder))
        ((finding, remedy),) = report["bad"]
        assert (code, str(folder) in finding) == (1, True)
        wording(f"{finding}\n{remedy}", folder=tmp_path)


def test_the_example_is_a_right_file_of_defaults(tmp_path: Path, gavel: Gavel) -> None:
    """The example files for the scheduler and for agents pass the check."""
    for which in ((), ("--agent",)):
        path = tmp_path / "example.toml"
        path.write_text(gavel("config", "--example", *which).stdout)
        result = gavel("config", "--check", str(path), *which)
        assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("which", "text", "part"),
    [
        ((), "round_s = 3", "round_s"),
        ((), "[scheduler]\nround_s = 'x'", "line 2"),
        ((), "listen = '0.0.0.0:7070'", "gavel init"),
        ((), "[scheduler]\npolicy = 'lass'", "lass"),
        (("--agent",), "gpus = 'v100'", "gpus"),
        (("--agent",), "colour = 'red'", "wrong.toml, line 1: colour"),
    ],
    ids=["no table", "no number", "open address", "policy", "GPUs", "unknown"],
)
def test_a_wrong_settings_file_is_one_line(
    tmp_path: Path, gavel: Gavel, which: tuple[str, ...], text: str, part: str, wording: Wording
) -> None:
    """The line names the place in the file, or the setting. Exit code 2."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    result = gavel("config", "--check", str(path), *which)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert part in result.stderr
    wording(result.stderr, folder=tmp_path)


def test_config_needs_an_option(gavel: Gavel, wording: Wording) -> None:
    """Without --example or --check, `config` is refused, and the error names both options."""
    result = gavel("config")
    assert (result.exit_code, "--example" in result.stderr, "--check" in result.stderr) == (2, True, True)
    wording(result.stderr)


def test_checking_a_file_needs_no_solver(tmp_path: Path, wording: Wording) -> None:
    """The default policy certainly exists, so the check does not spend time on importing the solvers."""
    (tmp_path / "a.toml").write_text("[scheduler]\nround_s = 60\n")
    program = (
        "import sys; from gavel.cli.main import main;"
        "main(['config', '--check', sys.argv[1]], standalone_mode=False);"
        "sys.exit('scipy' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.toml")], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout.count("\n")) == (0, 1), result.stderr
    wording(result.stdout, folder=tmp_path)
