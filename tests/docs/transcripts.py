"""Transcripts in pages: blocks in which `$ command` is followed by what it prints.

In the expected output, `…` stands for any text, and a line that is only `…` for any number of lines. The width of gaps
does not matter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gavel.client import Client, NodeState
from tests.e2e.cluster import PATIENCE_S as NODE_PATIENCE_S
from tests.e2e.cluster import eventually, processes_of
from tests.support.notes import without_notes
from tests.support.up import Up
from worker_agent.shim import process_tree

ROOT = Path(__file__).parents[2]
PROMPT = "    $ "
PATIENCE_S = 120.0
# A file that a page shows: its name at the end of a sentence, then its content.
FILE = re.compile(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)


def steps(page: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that it prints."""
    listed: list[tuple[str, list[str]]] = []
    for block in re.findall(r"(?:^    .*\n|^\n+(?=    ))+", page, re.MULTILINE):
        lines = block.strip("\n").splitlines()
        if not lines[0].startswith(PROMPT):
            continue
        for line in lines:
            if line.startswith(PROMPT):
                listed.append((line.removeprefix(PROMPT), []))
            else:
                listed[-1][1].append(line)
    return listed


@contextmanager
def running(folder: Path, *options: str) -> Iterator[str]:
    """Run `gavel up` with its data in this folder; yield its address when its node has joined."""
    up = Up(folder, "--listen", "127.0.0.1:0", *options)
    try:
        address = up.address()
        with Client(address, retry_s=NODE_PATIENCE_S) as client:
            eventually(
                lambda: [node for node in client.nodes() if node.state is NodeState.UP], "its node joins"
            )
        yield address
    finally:
        process_tree.kill_all(lambda: processes_of(folder))
        up.process.wait(NODE_PATIENCE_S)


def follow(page: Path, folder: Path, **environ: str) -> None:
    """Write the files of a page into this folder, and run its commands there."""
    text = page.read_text(encoding="utf-8")
    for file, content in FILE.findall(text):
        (folder / file).write_text(content)
    commands = folder / "bin"
    commands.mkdir()
    for name, words in (("gavel", "-m gavel "), ("python3", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        (commands / name).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GAVEL_")}
    full = {
        **kept,
        **environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        # A work directory must not be the home directory.
        "HOME": str(commands),
        "PYTHONPATH": str(ROOT),
    }
    for command, expected in steps(text):
        check(command, expected, printed(command, folder, full))


def printed(command: str, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the lines that a command prints, without empty lines and notes about a slow scheduler; it must succeed."""
    done = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=folder,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return [" ".join(line.split()) for line in without_notes(done.stdout).splitlines() if line.strip()]


def pattern(expected: list[str]) -> str:
    """Return the regular expression of an expected output."""
    parts = []
    for line in filter(str.strip, expected):
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
            continue
        words = " ".join(line.split())
        parts.append(re.escape(words).replace("…", ".*") + r"\n")
    return "".join(parts)


def check(command: str, expected: list[str], lines: list[str]) -> None:
    """Fail if the output is not what the page says."""
    text = "".join(f"{line}\n" for line in lines)
    assert re.fullmatch(pattern(expected), text), f"$ {command}\nprints:\n{text}expected:\n" + "\n".join(
        expected
    )
