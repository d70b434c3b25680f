"""Patterns of files that are not uploaded, from .gavelignore in the work directory or, without one, from .gitignore.

Only the file at the top level is read.

Each line is a pattern. The last match decides, and `!` includes what an earlier pattern ignored. A pattern with a slash
at its beginning or inside is relative to the work directory; any other pattern matches at every depth. A slash at the
end of a pattern restricts it to directories. `*` and `?` do not match slashes; `**` does. Files in an ignored directory
cannot be included again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FILE = ".gavelignore"
# Files that git ignores are seldom worth sending: data, caches, secrets.
FALLBACK = ".gitignore"
ALWAYS = (".git", ".hg", ".svn", "__pycache__/", ".venv/", ".mypy_cache/", ".ruff_cache/", ".pytest_cache/")


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    # Whether the line begins with `!`, so that matching files are uploaded.
    includes: bool
    only_directories: bool


class Ignore:
    """The patterns of an ignore file, and those of files that are never uploaded."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._rules = [rule for line in (*ALWAYS, *lines) if (rule := _rule(line))]

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Return whether a path is ignored by its own name, without regard to its directories.

        `path` starts at the work directory and has / between its parts.
        """
        ignored = False
        for rule in self._rules:
            if (is_directory or not rule.only_directories) and rule.pattern.fullmatch(path):
                ignored = not rule.includes
        return ignored


def ignore_file(folder: Path) -> Path | None:
    """Return the path of the file with the patterns, if there is one."""
    return next((path for path in (folder / FILE, folder / FALLBACK) if path.is_file()), None)


def _rule(line: str) -> _Rule | None:
    text = line.rstrip("\r\n")
    text = re.sub(r"(?<!\\) +$", "", text)
    if not text or text.startswith("#"):
        return None
    includes = text.startswith("!")
    text = text[1:] if includes else text
    only_directories = text.endswith("/")
    text = text.rstrip("/")
    anchored = "/" in text
    text = text.lstrip("/")
    if not text:
        return None
    pattern = re.compile(("" if anchored else "(?:.*/)?") + _regex(text), re.DOTALL)
    return _Rule(pattern, includes, only_directories)


def _regex(text: str) -> str:
    """Return a regular expression for a pattern: `**/` is any number of directories, `/**` is everything below."""
    out, start = "", 0
    while start < len(text):
        rest = text[start:]
        if rest.startswith("**/") and (start == 0 or text[start - 1] == "/"):
            out, start = out + "(?:.*/)?", start + 3
        elif rest == "**" and start and text[start - 1] == "/":
            out, start = out + ".+", start + 2
        elif rest[0] == "*":
            out, start = out + "[^/]*", start + len(re.match(r"\*+", rest)[0])  # type: ignore[index]
        elif rest[0] == "?":
            out, start = out + "[^/]", start + 1
        elif rest[0] == "[" and (brackets := re.match(r"\[([!^]?)(\]?[^\]]*)\]", rest)):
            body = brackets[2].replace("\\", "\\\\").replace("[", "\\[")
            out, start = out + f"(?!/)[{'^' if brackets[1] else ''}{body}]", start + len(brackets[0])
        elif rest[0] == "\\" and len(rest) > 1:
            out, start = out + re.escape(rest[1]), start + 2
        else:
            out, start = out + re.escape(rest[0]), start + 1
    return out
