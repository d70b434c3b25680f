"""The first half hours of docs/coming-from.md: each command runs in order, against real programs."""

from __future__ import annotations

import re
from pathlib import Path

import click

from gavel.cli.main import main
from tests.docs.transcripts import ROOT, follow, running, steps

PAGE = ROOT / "docs" / "coming-from.md"


def test_the_first_half_hours(tmp_path: Path) -> None:
    """A user of SkyPilot and a user of Ray submit, watch, enter, fetch and cancel, and see what the page says."""
    folder = tmp_path / "work"
    folder.mkdir()
    # With the long rounds of the page, a busy machine does not take the GPU away from a job.
    with running(tmp_path / "up", "--round-s", "30") as address:
        follow(PAGE, folder, GAVEL_ADDRESS=address)


def test_every_command_of_the_tables_exists() -> None:
    """Each `gavel COMMAND --option` in the page names a command and options of Gavel."""
    page = PAGE.read_text(encoding="utf-8")
    commands = [
        *re.findall(r"`gavel ([^`]*)`", page),
        *(step.partition("gavel ")[2] for step, _ in steps(page)),
    ]
    assert len(commands) > 30
    for words in (command.partition(" -- ")[0].split() for command in commands if command):
        command = main.commands[words[0]]
        if isinstance(command, click.Group) and len(words) > 1:
            command = command.commands[words[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        options = {word for word in words[1:] if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert options <= known, words
