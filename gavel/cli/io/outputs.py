"""Files that a command writes; those that cannot be written are refused before the work, not after it."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from gavel.cli.faults import Fault
from gavel.cli.io.wording import printable

STDOUT = "-"


def check_file(option: str, path: str | None, *, new: bool = False) -> None:
    """Refuse a file that cannot be written; with `new`, one that is there already, too."""
    if path is None or path == STDOUT:
        return
    if not path:
        raise Fault(f"{option}: is empty, must be the name of a file")
    try:
        existed = Path(path).exists()
        if existed and new:
            raise Fault(f"{option}: {printable(path)}: is there already; give another name, or delete it")
        with open(path, "ab"):
            pass
        if not existed:
            Path(path).unlink()
    except (OSError, ValueError) as error:
        raise unwritable(option, path, error) from None


def check_apart(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Refuse files that would overwrite each other, or what is read."""
    others = {os.path.realpath(path): "is read, too" for path in inputs if path}
    for option, path in outputs.items():
        place = os.path.realpath(path or "")
        if place in others:
            raise Fault(f"{option}: {printable(path or '')}: {others[place]}; give another name")
        others[place] = f"is what {option} writes"


def check_directory(option: str, path: str | None) -> None:
    """Make a directory if it is not there, and refuse one that nothing can be written into."""
    if path is None:
        return
    if not path:
        raise Fault(f"{option}: is empty, must be the name of a directory")
    probe = Path(path) / ".gavel-probe"
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        raise unwritable(option, path, error) from None


def unwritable(option: str, path: str, error: Exception) -> Fault:
    """Return the fault that a file cannot be written, with the reason."""
    why = (getattr(error, "strerror", None) or str(error)).lower()
    return Fault(f"{option}: {printable(path)}: {why}")


def check_one_stdout(outputs: Mapping[str, str | None], never: Iterable[str] = ()) -> None:
    """Refuse `-` for more than one output, and for those of `never`, which are not text."""
    to_stdout = [option for option, path in outputs.items() if path == STDOUT]
    for option in never:
        if option in to_stdout:
            raise Fault(f"{option}: cannot be written to standard output; give the name of a file")
    if len(to_stdout) > 1:
        raise Fault(f"{' and '.join(to_stdout)}: only one of them can be standard output; give a file name")


def write_json(option: str, path: str, data: Mapping[str, Any]) -> None:
    """Write plain data without NaN; `-` is standard output."""
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    if path == STDOUT:
        click.echo(text, nl=False)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(option, path, error) from None


def write_csv(option: str, path: str, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table; None is an empty cell, and the path `-` is standard output."""
    if path == STDOUT:
        text = io.StringIO()
        _write_lines(text, header, rows)
        # As bytes it is UTF-8, as in a file, whatever the terminal's encoding.
        click.echo(text.getvalue().encode(), nl=False)
        return
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            _write_lines(file, header, rows)
    except OSError as error:
        raise unwritable(option, path, error) from None


def _write_lines(file: TextIO, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(header)
    lines.writerows(rows)


def say(words: str) -> None:
    """Print a message on standard error at once."""
    click.echo(words, err=True)
    sys.stderr.flush()
