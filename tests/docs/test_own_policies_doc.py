"""docs/own-policies.md leads from a file to a scheduler: its Python, its commands and its settings work as shown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.client import Client
from scheduler.live.config import daemon_config
from tests.cli.conftest import Gavel, gavel  # noqa: F401
from tests.support.daemon_thread import DaemonThread
from tests.support.policy_files import own_registry

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-policies.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    gavel (.*)$", PAGE, re.MULTILINE)
# The commands that run until they are stopped: the test starts their daemon in another way.
ENDLESS = ("serve", "up")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the files of the page; its commands name our examples as from the project's root."""
    (python,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    settings, _ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ours.py").write_text(python)
    (tmp_path / "gavel.toml").write_text(settings.replace("/etc/gavel", str(tmp_path)))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    with own_registry():
        yield tmp_path


def test_the_commands(gavel: Gavel) -> None:  # noqa: F811
    """Each succeeds, in the order of the page."""
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] not in ENDLESS:
            result = gavel(*words)
            assert result.exit_code == 0, (command, result.stderr)


def test_the_scheduler(folder: Path) -> None:
    """With the settings of the page, a scheduler runs by the policy of the file, and can be set to its alias."""
    config = daemon_config(str(folder / "gavel.toml"), {}, (), {})
    assert config.policy_files == (str(folder / "ours.py"),)
    with DaemonThread(folder / "data", folder / "gavel.toml") as daemon, Client(daemon.address) as client:
        assert client.policy().policy == "proportional(power=0.5)"
        assert client.set_policy("pf+packing").policy == "pf+packing"
