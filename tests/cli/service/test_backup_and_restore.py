"""backup and restore for an operator: of a scheduler that runs, is stopped, was killed or is elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import stat
from pathlib import Path

import pytest

from gavel.client import Client, JobSpec
from scheduler.live.config import daemon_config
from tests.cli.conftest import Gavel
from tests.cli.service.upkeep import directory, free_port
from tests.journal.test_history import GOOD
from tests.support.daemon_thread import DaemonThread
from tests.support.wording import Wording

pytestmark = pytest.mark.usefixtures("own_home")


def test_backup_and_restore_of_a_stopped_scheduler(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """A private archive restores the directory; a directory in the way is refused and keeps its files."""
    folder, archive = directory(tmp_path / "data", *GOOD), tmp_path / "b.tar.gz"
    result = gavel("backup", str(archive), "--data-dir", str(folder))
    assert (str(archive) in result.stdout, " 14 records" in result.stdout) == (True, True), result.stderr
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    result = gavel("restore", str(archive), "--data-dir", str(folder))
    assert (result.exit_code, str(folder) in result.stderr) == (2, True)
    wording(result.stderr, folder=folder)
    shutil.rmtree(folder)
    result = gavel("restore", str(archive), "--data-dir", str(folder))
    assert (result.exit_code, str(folder) in result.stdout, " 14 records" in result.stdout) == (0, True, True)
    wording(result.stdout.splitlines()[0], folder=folder)
    assert gavel("fsck", "--data-dir", str(folder)).exit_code == 0


def test_backup_of_a_running_scheduler(tmp_path: Path, gavel: Gavel, wording: Wording) -> None:
    """A running scheduler makes the archive itself, and the command names its address."""
    archive = tmp_path / "b.tar.gz"
    with DaemonThread(tmp_path / "data") as daemon:
        result = gavel("backup", str(archive), "--data-dir", str(tmp_path / "data"))
        assert daemon.address in result.stdout, result.stderr
        missing = tmp_path / "missing" / "b.tar.gz"
        result = gavel("backup", str(missing), "--data-dir", str(tmp_path / "data"))
        assert (result.exit_code, str(missing) in result.stderr) == (2, True)
        wording(result.stderr, folder=tmp_path)
    assert gavel("restore", str(archive), "--data-dir", str(tmp_path / "new")).exit_code == 0


def test_a_killed_scheduler_does_not_mislead(tmp_path: Path, gavel: Gavel) -> None:
    """daemon.json names a live process but the journal is not locked, so the command makes the backup itself."""
    folder = directory(tmp_path / "data")
    (folder / "daemon.json").write_text(json.dumps({"pid": 1, "listen": "127.0.0.1:1"}))
    result = gavel("backup", str(tmp_path / "b.tar.gz"), "--data-dir", str(folder))
    assert (result.exit_code, "records" in result.stdout) == (0, True), result.stderr


def test_backup_with_keys_and_tokens(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """The command trusts the directory's own CA; it needs the token of an admin, also from a context."""
    gavel("init", str(tmp_path / "data"), "--token-file", str(tmp_path / "token"))
    token, archive = (tmp_path / "token").read_text().strip(), str(tmp_path / "b.tar.gz")
    config, here = tmp_path / "data" / "gavel.toml", ("--data-dir", str(tmp_path / "data"))
    with DaemonThread(tmp_path / "data", config, listen="0.0.0.0:0", agents_listen="127.0.0.1:0") as daemon:
        port = daemon.address.rpartition(":")[2]
        result = gavel("backup", archive, *here)
        assert (result.exit_code, len(result.stderr.splitlines())) == (5, 1), result.stderr
        with Client(f"127.0.0.1:{port}", token=token, ca=str(tmp_path / "data/tls/ca.pem")) as client:
            user = client.create_token("bob").secret
        monkeypatch.setenv("GAVEL_TOKEN", user)
        result = gavel("backup", archive, *here)
        assert (result.exit_code, "admin" in result.stderr) == (5, True), result.stderr
        wording(result.stderr)
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
        result = gavel("backup", archive, "--context", "lab")
        assert f"localhost:{port}" in result.stdout, result.stderr
    result = gavel("restore", archive, "--data-dir", str(tmp_path / "new"))
    assert result.exit_code == 0, result.stderr
    old, new = str(tmp_path / "data"), str(tmp_path / "new")
    (change,) = [line for line in result.stdout.splitlines() if "data_dir" in line]
    assert (old in change, new in change) == (True, True)
    wording(change, old=old, new=new)
    assert (tmp_path / "new" / "gavel.toml").read_text() == config.read_text().replace(old, new)
    assert daemon_config(f"{new}/gavel.toml", {}, (), {}).folder == Path(new)
    shutil.move(old, tmp_path / "away")
    result = gavel("restore", archive, "--data-dir", old)
    assert "data_dir" not in result.stdout
    assert config.read_bytes() == (tmp_path / "away" / "gavel.toml").read_bytes()


def test_a_scheduler_elsewhere(
    tmp_path: Path, gavel: Gavel, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """`--address` or GAVEL_ADDRESS names the scheduler; `--data-dir` overrides GAVEL_ADDRESS, excludes `--address`."""
    folder, archive = directory(tmp_path / "stopped"), str(tmp_path / "b.tar.gz")
    with DaemonThread(tmp_path / "data") as daemon:
        with Client(daemon.address) as client:
            client.submit(JobSpec(command=("true",)))
        remote = gavel("backup", archive, "--address", daemon.address).stdout
        wording(remote, archive=archive, address=daemon.address, size=re.compile(r"[\d.,]+ [kKMG]?i?B"))
        monkeypatch.setenv("GAVEL_ADDRESS", daemon.address)
        assert daemon.address in gavel("backup", archive).stdout
        assert daemon.address not in gavel("backup", archive, "--data-dir", str(folder)).stdout
        both = gavel("backup", archive, "--data-dir", str(folder), "--address", daemon.address)
    assert both.exit_code == 2
    wording(both.stderr)


def test_no_scheduler_answers(tmp_path: Path, gavel: Gavel) -> None:
    """If no scheduler answers, the command prints one line and ends with exit code 4, and no file is written."""
    result = gavel("backup", str(tmp_path / "b.tar.gz"), "--address", f"127.0.0.1:{free_port()}")
    assert (result.exit_code, len(result.stderr.splitlines())) == (4, 1)
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_not_a_backup(tmp_path: Path, gavel: Gavel, content: bytes) -> None:
    """Restoring the file is refused in one line with its name, and no directory is made."""
    (tmp_path / "b.tar.gz").write_bytes(content)
    result = gavel("restore", str(tmp_path / "b.tar.gz"), "--data-dir", str(tmp_path / "new"))
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert str(tmp_path / "b.tar.gz") in result.stderr
    assert not (tmp_path / "new").exists()
