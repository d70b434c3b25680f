"""The pages "in ten minutes": every command runs in order, against real programs, and prints what the page says."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gavel.client import Client, NodeState
from tests.docs.transcripts import FILE, check, printed, steps
from tests.e2e.cluster import PATIENCE_S, eventually, processes_of
from tests.support.up import Up
from worker_agent.shim import process_tree

PAGES = Path(__file__).parents[2] / "docs" / "ten-minutes"


def follow(name: str, folder: Path, **environ: str) -> None:
    """Write the files of a page, and run its commands."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for file, text in FILE.findall(page):
        (folder / file).write_text(text)
    commands = folder / "bin"
    commands.mkdir()
    (commands / "gavel").write_text(f'#!/bin/sh\nexec {sys.executable} -m gavel "$@"\n')
    (commands / "gavel").chmod(0o755)
    kept: Mapping[str, str] = {key: text for key, text in os.environ.items() if not key.startswith("GAVEL_")}
    full = {
        **kept,
        **environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "HOME": str(folder),
        "PYTHONPATH": str(PAGES.parents[1]),
    }
    for command, expected in steps(page):
        check(command, expected, printed(command, folder, full))


@pytest.mark.parametrize("name", ["ml-engineers", "operators"])
def test_with_a_scheduler(name: str, tmp_path: Path) -> None:
    """The commands of these pages run beside `gavel up`."""
    folder = tmp_path / "work"
    folder.mkdir()
    up = Up(tmp_path / "up", "--listen", "127.0.0.1:0")
    try:
        address = up.address()
        with Client(address, retry_s=PATIENCE_S) as client:
            eventually(
                lambda: [node for node in client.nodes() if node.state is NodeState.UP], "its node joins"
            )
        follow(name, folder, GAVEL_ADDRESS=address)
    finally:
        process_tree.kill_all(lambda: processes_of(tmp_path / "up"))
        up.process.wait(PATIENCE_S)


def test_in_virtual_time(tmp_path: Path) -> None:
    """The researchers' commands need no scheduler."""
    follow("researchers", tmp_path)


def test_no_page_is_forgotten() -> None:
    """Each page of the folder is tried above, and has commands."""
    assert {path.stem for path in PAGES.glob("*.md")} == {"ml-engineers", "operators", "researchers"}
    assert all(len(steps(path.read_text(encoding="utf-8"))) > 5 for path in PAGES.glob("*.md"))


@pytest.mark.parametrize(
    ("expected", "lines", "fits"),
    [
        (["a …", "…", "z"], ["a b c", "m", "z"], True),
        (["a …", "…", "z"], ["a b c", "z"], True),
        (["a   b"], ["a b"], True),
        (["a b"], ["a b", "c"], False),
        (["a", "b"], ["b", "a"], False),
    ],
)
def test_outputs_are_compared(expected: list[str], lines: list[str], fits: bool) -> None:
    """`…` stands for any text or any lines; nothing else may differ but gaps."""
    try:
        check("x", expected, lines)
    except AssertionError:
        assert not fits
    else:
        assert fits
