"""Transcripts in pages: blocks in which `$ command` is followed by what it prints.

In the expected output, `…` stands for any text, and a line that is only `…` for any number of lines. The width of gaps
does not matter.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

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


def printed(command: str, folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the lines that a command prints, without empty lines; it must succeed."""
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
    return [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]


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
