"""backup and restore as an operator meets them: of a scheduler that runs, is stopped, was killed or is elsewhere."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from gavel.client import Client, JobSpec
from scheduler.live.config import daemon_config
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.cli.service.upkeep import directory, findings, free_port, nobody_else  # noqa: F401
from tests.journal.test_history import GOOD
from tests.support.daemon_thread import DaemonThread


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
    old, new = str(tmp_path / "data"), str(tmp_path / "new")
    assert f"named {old} as data_dir; it names {new} now" in said.stdout
    assert (tmp_path / "new" / "gavel.toml").read_text() == config.read_text().replace(old, new)
    assert daemon_config(f"{new}/gavel.toml", {}, (), {}).folder == Path(new)
    shutil.move(old, tmp_path / "away")
    said = gavel("restore", archive, "--data-dir", old)
    assert "as data_dir" not in said.stdout
    assert config.read_bytes() == (tmp_path / "away" / "gavel.toml").read_bytes()


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
