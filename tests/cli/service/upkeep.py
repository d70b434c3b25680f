"""What tests of upkeep have in common: data directories, what was found in them, and nobody else's settings."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

import pytest

from scheduler.core.facts import Fact
from scheduler.journal.store import SqliteJournal
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.journal.test_history import BEGINNING


@pytest.fixture(autouse=True)
def nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither settings nor contexts of whoever runs the tests."""
    for name in ("GAVEL_ADDRESS", "GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def free_port() -> int:
    """A port that nobody listens on; with the next one free, too. None that others are given who do not mind which."""
    while True:
        number = random.randrange(20_000, 32_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", number))
                other.bind(("127.0.0.1", number + 1))
            except OSError:
                continue
            return number


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
