"""Single files in which a script with a loop of its own keeps its state: always complete, and never set back.

    DIR/state.txt.e00000003-a00000017    the last state saved by the attempt under lease 17; the newest file counts

Under a lease DIR is the job's checkpoint directory for a relative path. Outside Gavel the file is `state.txt`. A script
that kept its state there before it used these functions resumes from it.

An attempt that returns after a suspension past its lease is refused, by the clock and by the file of a newer attempt.
No check is certain, because the process may be suspended again, for hours, between the check and the rename after it.
But the target of that rename is certain: the name of its own attempt, which no reader uses once a newer attempt has
saved. That needs no clock, lock or message. A file is on disk, under its name, before older ones are deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gavel.training import session
from gavel.training.checkpoint import atomic
from gavel.training.checkpoint.store import Token, entries, token_of, token_of_run
from gavel.training.environment import run_of
from gavel.training.errors import StaleAttempt


def save_text(path: str | os.PathLike[str], text: str) -> None:
    """Save a text (UTF-8) as the file `path`; on return it is completely on disk.

    A relative path is in the job's checkpoint directory. Raise StaleAttempt if a newer attempt runs, or may run. If
    there are several ranks, one of them should save, or each should use a file of its own.
    """
    save_bytes(path, text.encode())


def save_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Save bytes as the file `path`, as `save_text` does."""
    file = _File(path)
    file.check()
    atomic.make_directory(file.own.parent)
    try:
        atomic.replace_bytes(file.own, data, before_rename=file.check)
    except FileNotFoundError:
        # A newer attempt has deleted the temporary file of this one.
        file.check()
        raise
    file.delete_older()


def load_text(path: str | os.PathLike[str], default: str | None = None) -> str:
    """Return the text saved last under `path`; if there is none, `default`, or raise FileNotFoundError."""
    return load_bytes(path, None if default is None else default.encode()).decode()


def load_bytes(path: str | os.PathLike[str], default: bytes | None = None) -> bytes:
    """Return the bytes that were saved last under `path`, as `load_text` does."""
    file = _File(path)
    while True:
        file.check()
        newest = file.newest()
        try:
            return newest.read_bytes()
        except FileNotFoundError:
            if newest != file.plain:
                # A newer file was saved meanwhile, and this one deleted.
                continue
            if default is None:
                raise
            return default


class _File:
    """A file of which each attempt has a version of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        run = run_of()
        directory = os.environ.get("GAVEL_CHECKPOINT_DIR", "") if run is not None else ""
        self.plain = Path(directory, path).absolute()
        self._token = None if run is None else token_of_run(run)
        self.own = self.plain if self._token is None else self._of(self._token)

    def check(self) -> None:
        """Raise StaleAttempt if a newer attempt has saved this file, or may."""
        if self._token is None:
            return
        session.check_lease()
        newest = max(self._tokens(), default=self._token)
        if newest > self._token:
            raise StaleAttempt(
                f"attempt {newest} has saved {self.plain} already; this is attempt {self._token}, which must no "
                "longer save and ends here"
            )

    def newest(self) -> Path:
        """Return the path of the file that counts; it may not exist."""
        tokens = self._tokens() if self._token is not None else []
        return self._of(max(tokens)) if tokens else self.plain

    def delete_older(self) -> None:
        """Delete the files that older attempts saved under this name, and those they left unfinished."""
        if self._token is None:
            return
        unfinished = re.compile(rf"\.{re.escape(self.plain.name)}\.([^.]*)\.[0-9a-f]+\.new")
        for path in entries(self.plain.parent):
            aside = unfinished.fullmatch(path.name)
            token = token_of(aside[1]) if aside is not None else self._token_in(path.name)
            if token is not None and token < self._token:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _of(self, token: Token) -> Path:
        return self.plain.with_name(f"{self.plain.name}.{token}")

    def _tokens(self) -> list[Token]:
        named = [self._token_in(path.name) for path in entries(self.plain.parent)]
        return [token for token in named if token is not None]

    def _token_in(self, name: str) -> Token | None:
        return token_of(name[len(self.plain.name) + 1 :]) if name.startswith(f"{self.plain.name}.") else None
