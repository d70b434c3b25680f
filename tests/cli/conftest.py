"""The command as a user meets it: arguments in, exit code and two streams out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gavel.cli.main import main

Gavel = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_word_of_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a moment makes calls slow, which commands would remark on."""
    monkeypatch.setattr("gavel.client.transport.channels.SILENT_S", 3600.0)


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    """`gavel …` in this process. Whatever is not a clean exit is raised."""
    result = CliRunner().invoke(main, arguments, input=input, prog_name="gavel")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def gavel() -> Gavel:
    """The command."""
    return run


@pytest.fixture
def small() -> dict[str, Any]:
    """Two types, three jobs, and an answer that is the only one."""
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
    """Writes data, or text as it is, into a file and gives back its path."""

    def write(content: Any, name: str = "problem.json") -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write
