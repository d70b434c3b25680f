"""Which files of a work directory stay at home: those that its .gavelignore names, or, without one, its .gitignore.

Only the file at the top is read.

A line is a pattern; the last one that fits decides, and `!` brings back what an earlier one ignored. A pattern with a
slash at its beginning or inside is meant from the top, any other one at every depth; with one at its end it means
directories. `*` and `?` stop at slashes, `**` does not. What is in an ignored directory cannot be brought back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = ".gavelignore"
ELSE = ".gitignore"  # what is not worth keeping is seldom worth sending: data, caches, secrets
ALWAYS = (".git", ".hg", ".svn", "__pycache__/", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/")


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    back: bool
    directories: bool


class Ignore:
    """What the lines of a file ignore, beside what is never wanted."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._rules = [rule for line in (*ALWAYS, *lines) if (rule := _rule(line))]

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Whether a path from the top, with / between its parts, stays at home; its directories are not asked."""
        ignored = False
        for rule in self._rules:
            if (is_directory or not rule.directories) and rule.pattern.fullmatch(path):
                ignored = not rule.back
        return ignored


def ignore_file(folder: Path) -> Path | None:
    """The file with the patterns, if there is one."""
    return next((path for path in (folder / FILE, folder / ELSE) if path.is_file()), None)


def _rule(line: str) -> _Rule | None:
    text = line.rstrip("\r\n")
    text = re.sub(r"(?<!\\) +$", "", text)
    if not text or text.startswith("#"):
        return None
    back = text.startswith("!")
    text = text[1:] if back else text
    directories = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    text = text.lstrip("/")
    if not text:
        return None
    return _Rule(re.compile(("" if anchored else "(?:.*/)?") + _regex(text), re.DOTALL), back, directories)


def _regex(text: str) -> str:
    """`**/` is any number of directories, `/**` all that is below."""
    out, at = "", 0
    while at < len(text):
        rest = text[at:]
        if rest.startswith("**/") and (at == 0 or text[at - 1] == "/"):
            out, at = out + "(?:.*/)?", at + 3
        elif rest == "**" and at and text[at - 1] == "/":
            out, at = out + ".+", at + 2
        elif rest[0] == "*":
            out, at = out + "[^/]*", at + len(re.match(r"\*+", rest)[0])  # type: ignore[index]
        elif rest[0] == "?":
            out, at = out + "[^/]", at + 1
        elif rest[0] == "[" and (found := re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest)):
            body = found[2].replace("\\", "\\\\").replace("[", "\\[")
            out, at = out + f"(?!/)[{'^' if found[1] else ''}{body}]", at + len(found[0])
        elif rest[0] == "\\" and len(rest) > 1:
            out, at = out + re.escape(rest[1]), at + 2
        else:
            out, at = out + re.escape(rest[0]), at + 1
    return out
