"""gavel init makes a data directory with matching keys, token and settings, and never overwrites a file."""

from __future__ import annotations

import re
import stat
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gavel.cli.main import main
from scheduler.live.access.roles import Role
from scheduler.live.access.tls import Keys
from scheduler.live.access.tokens import Access
from scheduler.live.config import daemon_config


def run(*arguments: str) -> Result:
    """Run `gavel init …`."""
    return CliRunner().invoke(main, ["init", *arguments])


def test_keys_token_and_settings_belong_together(tmp_path: Path) -> None:
    """The printed token is an admin's, and the settings turn TLS and tokens on and name the directory."""
    folder = tmp_path / "data"
    result = run(str(folder), "--host", "gpu.example.org", "--user", "ann", "--port", "7171")
    assert result.exit_code == 0, result.output
    secret = re.search(r"gavel_\w+_[\w-]+", result.output)
    assert secret is not None
    access = Access(folder / "access.db", time.time)
    token = access.recognise(secret.group())
    access.close()
    assert (token.user, token.role) == ("ann", Role.ADMIN)
    config = daemon_config(str(folder / "gavel.toml"), {}, {})
    assert (folder, "0.0.0.0:7171", True, "tokens") == (
        *(config.folder, config.listen),
        *(config.tls, config.auth),
    )
    assert Keys(folder / "tls").fingerprint() in result.output
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_without_a_host_it_is_for_this_machine_only(tmp_path: Path) -> None:
    """Without `--host`, the scheduler listens on the loopback address."""
    folder = tmp_path / "data"
    assert run(str(folder), "--token-file", str(tmp_path / "token")).exit_code == 0
    assert daemon_config(str(folder / "gavel.toml"), {}, {}).listen == "127.0.0.1:7070"


def test_a_token_file_is_private_and_the_token_is_not_printed(tmp_path: Path) -> None:
    """With `--token-file` the secret is in that private file alone."""
    path = tmp_path / "token"
    result = run(str(tmp_path / "data"), "--token-file", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() not in result.output


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A second `init` is refused in one line with the remedy, and every file stays unchanged."""
    folder = tmp_path / "data"
    run(str(folder))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = run(str(folder))
    assert result.exit_code == 2
    assert "--renew" in result.output
    assert len(result.output.splitlines()) == 1
    assert before == {path: path.read_bytes() for path in before}


def test_the_certificate_is_renewed_and_another_token_made(tmp_path: Path) -> None:
    """`--renew` and `--token` use the same authority; without keys there is nothing to renew."""
    folder = tmp_path / "data"
    assert run(str(folder), "--renew").exit_code == 2
    run(str(folder), "--host", "gpu.example.org")
    keys = Keys(folder / "tls")
    ca, server = keys.ca_pem, keys.server()
    assert run(str(folder), "--renew").exit_code == 0
    assert (ca == keys.ca_pem, server == keys.server()) == (True, False)
    assert run(str(folder), "--token", "--user", "bob").exit_code == 0
    access = Access(folder / "access.db", time.time)
    assert "bob" in {token.user for token in access.tokens()}
    access.close()


@pytest.mark.parametrize("options", [("--host", "a b"), ("--user", "a b"), ("--port", "0")])
def test_wrong_values_are_refused_before_any_file_is_written(
    tmp_path: Path, options: tuple[str, str]
) -> None:
    """The refusal is one line, and no directory is left."""
    result = run(str(tmp_path / "data"), *options)
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "data").exists()
