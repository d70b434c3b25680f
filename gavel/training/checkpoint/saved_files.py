"""Single files for the state of a script with a loop of its own: always complete, never replaced by an older state.

    DIR/state.txt.e00000003-a00000017    the state that the attempt under lease 17 saved last

The file of the newest attempt counts. Under a lease, a relative path is in the job's checkpoint directory. Outside
Gavel the file is just `state.txt`; under Gavel, a job that has not saved any file yet resumes from `state.txt`.

An attempt that was suspended past its lease must not overwrite the state of a newer attempt:

- Before it saves, two checks stop it: one if its lease is over, the other if there is a file of a newer attempt. The
  checks are not enough: between a check and the rename after it, the process may be suspended again, for hours.
- The rename can replace only the older attempt's own file, which no reader uses after a newer attempt has saved.

A new file is on disk, under its final name, before older ones are deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gavel.training import session
from gavel.training.checkpoint import atomic
from gavel.training.checkpoint.store import Token, entries, parse_token, token_of_run
from gavel.training.environment import run_of
from gavel.training.errors import StaleAttempt


def save_text(path: str | os.PathLike[str], text: str) -> None:
    """Save a text (UTF-8) as the file `path`; on return it is completely on disk.

    A relative path is in the job's checkpoint directory. Raise StaleAttempt if a newer attempt runs, or may run. Of
    several ranks only one should save, or each should use a file of its own.
    """
    save_bytes(path, text.encode())


def save_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Save bytes as the file `path`, like `save_text`."""
    file = _File(path)
    file.check()
    atomic.make_directory(file.own_path.parent)
    try:
        atomic.replace_bytes(file.own_path, data, before_rename=file.check)
    except FileNotFoundError:
        # A newer attempt has deleted the temporary file of this one.
        file.check()
        raise
    file.delete_older()


def load_text(path: str | os.PathLike[str], default: str | None = None) -> str:
    """Return the text saved last under `path`. If there is none, return `default` or raise FileNotFoundError."""
    return load_bytes(path, None if default is None else default.encode()).decode()


def load_bytes(path: str | os.PathLike[str], default: bytes | None = None) -> bytes:
    """Return the bytes saved last under `path`, like `load_text`."""
    file = _File(path)
    while True:
        file.check()
        newest = file.newest()
        try:
            return newest.read_bytes()
        except FileNotFoundError:
            if newest != file.plain_path:
                # Meanwhile a newer attempt has saved its file and deleted this one.
                continue
            if default is None:
                raise
            return default


class _File:
    """A file of which each attempt has a version of its own."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        run = run_of()
        directory = os.environ.get("GAVEL_CHECKPOINT_DIR", "") if run is not None else ""
        self.plain_path = Path(directory, path).absolute()
        self._token = None if run is None else token_of_run(run)
        self.own_path = self.plain_path if self._token is None else self._path_of(self._token)

    def check(self) -> None:
        """Raise StaleAttempt if a newer attempt has saved this file, or may save it."""
        if self._token is None:
            return
        session.check_lease()
        newest = max(self._tokens(), default=self._token)
        if newest > self._token:
            raise StaleAttempt(
                f"attempt {newest} has saved {self.plain_path} already; this is attempt {self._token}, which must no "
                "longer save and ends here"
            )

    def newest(self) -> Path:
        """Return the path of the newest attempt's file, or else the plain path, which may not exist."""
        tokens = self._tokens() if self._token is not None else []
        return self._path_of(max(tokens)) if tokens else self.plain_path

    def delete_older(self) -> None:
        """Delete the versions that older attempts saved, and the temporary files that they left behind."""
        if self._token is None:
            return
        unfinished = re.compile(rf"\.{re.escape(self.plain_path.name)}\.([^.]*)\.[0-9a-f]+\.new")
        for path in entries(self.plain_path.parent):
            leftover = unfinished.fullmatch(path.name)
            token = parse_token(leftover[1]) if leftover is not None else self._parse_name(path.name)
            if token is not None and token < self._token:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _path_of(self, token: Token) -> Path:
        return self.plain_path.with_name(f"{self.plain_path.name}.{token}")

    def _tokens(self) -> list[Token]:
        named = [self._parse_name(path.name) for path in entries(self.plain_path.parent)]
        return [token for token in named if token is not None]

    def _parse_name(self, name: str) -> Token | None:
        prefix = f"{self.plain_path.name}."
        return parse_token(name[len(prefix) :]) if name.startswith(prefix) else None
