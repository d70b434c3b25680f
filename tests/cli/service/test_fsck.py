"""fsck and config as an operator meets them: sound, damaged and forged histories; right and wrong files."""

from __future__ import annotations

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
from tests.cli.live import live  # noqa: F401
from tests.cli.service.upkeep import directory, findings, free_port, nobody_else  # noqa: F401
from tests.journal.test_history import GOOD, granted, lease, moved
from tests.support.daemon_thread import DaemonThread


def test_a_sound_directory(tmp_path: Path, gavel: Gavel) -> None:
    """Nothing is wrong: told of people in lines, with code 0; and nothing in the directory changes."""
    folder = directory(tmp_path / "data", *GOOD)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = gavel("fsck", "--data-dir", str(folder))
    assert result.exit_code == 0
    assert [line[:4] for line in result.stdout.splitlines()] == ["ok  ", "ok  ", "ok  ", "ok  ", "noth"]
    assert "14 records add up to 3 jobs and 1 nodes" in result.stdout
    assert "14 facts keep every promise" in result.stdout
    assert "a round can be planned" in result.stdout
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_a_daemon_leaves_is_sound(tmp_path: Path, gavel: Gavel) -> None:
    """All its databases are looked at."""
    (tmp_path / "data").mkdir(mode=0o700)
    access = Access(tmp_path / "data" / "access.db", time.time)
    access.create("ann", Role.ADMIN, 3600.0)
    access.close()
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
            "unknown: job z is moved but was never submitted (job z: 4.000 cancel)",
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
    """Its journal is not looked at, so nobody can say that it is sound; the remedy says what to do."""
    with DaemonThread(tmp_path / "data"):
        code, found = findings(gavel, "fsck", "--data-dir", str(tmp_path / "data"))
    (note,) = found["bad"]
    assert (code, note[1]) == (1, "stop the daemon, then check again")
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
        (("--agent",), "colour = 'red'", "wrong.toml, line 1: colour"),
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


def test_checking_a_file_needs_no_solver(tmp_path: Path) -> None:
    """The policy that holds unless another is named is known to exist; importing solvers takes most of the time."""
    (tmp_path / "a.toml").write_text("[scheduler]\nround_s = 60\n")
    program = (
        "import sys; from gavel.cli.main import main;"
        "main(['config', '--check', sys.argv[1]], standalone_mode=False);"
        "sys.exit('scipy' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a.toml")], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout) == (0, f"{tmp_path / 'a.toml'} is right\n"), said.stderr
