"""Data directories for tests of upkeep, free ports, and the findings that a command reports."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path

from scheduler.core.facts import Fact
from scheduler.journal.store import SqliteJournal
from tests.cli.conftest import Gavel
from tests.journal.test_history import BEGINNING


def free_port() -> int:
    """Return a port that is free together with the next one, below the range from which the kernel assigns ports."""
    while True:
        number = random.randrange(20_000, 32_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", number))
                second.bind(("127.0.0.1", number + 1))
            except OSError:
                continue
            return number


def directory(folder: Path, *facts: Fact) -> Path:
    """Make a data directory whose journal holds these facts after the common beginning."""
    folder.mkdir(mode=0o700, parents=True)
    with SqliteJournal(folder / "journal.db") as journal:
        for number, fact in enumerate((*BEGINNING, *facts)):
            journal.append(float(number), [fact])
    return folder


def findings(gavel: Gavel, *arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Run the command; return its exit code, and its findings with their remedies by level."""
    result = gavel(*arguments, "--json")
    report = json.loads(result.stdout)
    by_level: dict[str, list[tuple[str, str]]] = {"ok": [], "note": [], "bad": []}
    for finding in report["findings"]:
        by_level[finding["level"]].append((finding["what"], finding["remedy"]))
    assert report["sound"] == (not by_level["bad"]) == (result.exit_code == 0)
    return result.exit_code, by_level
