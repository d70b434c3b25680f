"""Fixtures that run commands: arguments in, exit code and two streams out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gavel.cli.main import main
from tests.support.live_thread import LiveThread

Gavel = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_notes_about_slow_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the notes about slow calls: on a busy test machine, any call may be slow."""
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 3600.0)


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    """Run `gavel …` in this process. Raise every error that is not a clean exit."""
    result = CliRunner().invoke(main, arguments, input=input, prog_name="gavel")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def gavel() -> Gavel:
    """The command, as a function of its arguments."""
    return run


def keys(kind: Any) -> set[str]:
    """Return the documented keys of a result."""
    return {field.name for field in fields(kind)}


def as_words(value: object) -> str:
    """Return the id of a parameter: the words of a command line, or the text itself, no longer than a line."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))[:80] or "nothing"
    return str(value).strip(": ")[:80]


@pytest.fixture
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the addresses, tokens and contexts of the user who runs the tests."""
    for name in ("GAVEL_ADDRESS", "GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_settings: None) -> None:
    """A home directory of the test's own, without settings."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_settings: None) -> Iterator[LiveThread]:
    """A daemon with one node of two V100, at the address that GAVEL_ADDRESS names."""
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon") as live:
        monkeypatch.setenv("GAVEL_ADDRESS", live.address)
        live.do(live.daemon.node("n1", gpus=2, cpus=32.0, memory_gb=128.0))
        yield live


@pytest.fixture
def small() -> dict[str, Any]:
    """A problem of two types and three jobs with exactly one best answer."""
    return {
        "worker_types": {"v100": {"gpus": 1, "price_per_gpu_hour": 2.0}, "k80": {"gpus": 1}},
        "jobs": [
            {"id": "fast", "rates": {"v100": 8.0, "k80": 1.0}},
            {"id": "medium", "rates": {"v100": 4.0, "k80": 2.0}},
            {"id": "slow", "rates": {"v100": 2.0, "k80": 1.5}},
        ],
    }


@pytest.fixture
def problem_file(tmp_path: Path) -> Callable[[Any], str]:
    """A function that writes text, bytes or data (as JSON) to a file and returns its path."""

    def write(content: Any, name: str = "problem.json") -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write
