"""The output of commands. A file that cannot be written is refused before the work begins, not after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import STDOUT
from gavel.cli.io.wording import printable


def check_file(option: str, path: str | None, *, new: bool = False) -> None:
    """Refuse a file that cannot be written; with `new`, also one that exists."""
    if path is None or path == STDOUT:
        return
    if not path:
        raise Fault(f"{option}: is empty, must be the name of a file")
    with refusing(OSError, ValueError, subject=f"{option}: {path}"):
        existed = Path(path).exists()
        if existed and new:
            raise Fault(f"{option}: {path}: exists already; give another name, or delete it")
        with open(path, "ab"):
            pass
        if not existed:
            Path(path).unlink()


def check_apart(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Refuse files that would overwrite each other or an input."""
    uses = {os.path.realpath(path): "is read, too" for path in inputs if path}
    for option, path in outputs.items():
        real_path = os.path.realpath(path or "")
        if real_path in uses:
            raise Fault(f"{option}: {path}: {uses[real_path]}; give another name")
        uses[real_path] = f"{option} writes it, too"


def check_directory(option: str, path: str | None) -> None:
    """Create a directory if it does not exist; refuse a directory that cannot be written to."""
    if path is None:
        return
    if not path:
        raise Fault(f"{option}: is empty, must be the name of a directory")
    probe = Path(path) / ".gavel-probe"
    with refusing(OSError, ValueError, subject=f"{option}: {path}"):
        Path(path).mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()


def check_one_stdout(outputs: Mapping[str, str | None], never: Iterable[str] = ()) -> None:
    """Refuse `-` for more than one output, and for the options in `never`, whose output is not text."""
    to_stdout = [option for option, path in outputs.items() if path == STDOUT]
    for option in never:
        if option in to_stdout:
            raise Fault(f"{option}: cannot be written to standard output; give the name of a file")
    if len(to_stdout) > 1:
        raise Fault(f"{' and '.join(to_stdout)}: only one of them can be standard output; give a file name")


def print_data(data: Any) -> None:
    """Print plain data as JSON; it must not contain NaN."""
    write_json("--json", STDOUT, data)


def write_json(option: str, path: str, data: Any) -> None:
    """Write plain data as JSON; it must not contain NaN. The path `-` is standard output."""
    import json

    text = json.dumps(data, indent=2, allow_nan=False)
    with _opened(option, path) as file:
        file.write(f"{text}\n")


def write_csv(option: str, path: str, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as CSV, None as an empty cell. The path `-` is standard output."""
    import csv

    with _opened(option, path) as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(header)
        lines.writerows(rows)


@contextmanager
def _opened(option: str, path: str) -> Iterator[IO[str]]:
    """Open a file, or standard output, for text in UTF-8, independent of the terminal's encoding."""
    if path == STDOUT:
        with click.open_file(path, "w", encoding="utf-8") as file:
            yield file
            file.flush()
        return
    with (
        refusing(OSError, subject=f"{option}: {path}"),
        open(path, "w", encoding="utf-8", newline="") as file,
    ):
        yield file


def echo(line: str) -> None:
    """Print a line of a result, with characters that do not print escaped."""
    click.echo(printable(line))


def say(line: str) -> None:
    """Print a message on standard error at once, with characters that do not print escaped."""
    click.echo(printable(line), err=True)
    sys.stderr.flush()
