"""Secrets by reference: a job file has their names, the node has their values, and nothing in between sees the values.

With `env_from: {NAME: "secret:path"}`, the variable NAME gets the content of the file `path` below the agent's
directory of secrets. If jobs run as their submitting users, each user has a directory of secrets below that one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

_PREFIX = "secret:"
_BYTES_MAX = 64 << 10
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SecretError(ValueError):
    """A secret cannot be read; the message has its name and the reason."""


def read_secrets(root: Path | None, references: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the variables that are given by reference."""
    values = {}
    for name, reference in references.items():
        path = reference.removeprefix(_PREFIX)
        parts = path.split("/")
        if path == reference or not all(parts) or any(part.startswith(".") for part in parts):
            raise SecretError(
                f"env_from.{name}: {reference!r} is not of the form secret:NAME or secret:FOLDER/NAME"
            )
        if root is None:
            raise SecretError(
                f"env_from.{name}: this node has no directory of secrets; an operator can set one with "
                f"`gavel agent --secrets-dir DIR` and put the secret into the file DIR/{path}"
            )
        values[name] = _read(root, parts, f"env_from.{name}: {reference}")
    return values


def _read(root: Path, parts: list[str], reference: str) -> str:
    """Read a file below the root, never through a link."""
    fds: list[int] = []
    try:
        fds.append(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for part in parts[:-1]:
            fds.append(os.open(part, _FLAGS | os.O_DIRECTORY, dir_fd=fds[-1]))
        fds.append(os.open(parts[-1], _FLAGS, dir_fd=fds[-1]))
        status = os.fstat(fds[-1])
        if not stat.S_ISREG(status.st_mode) or status.st_size > _BYTES_MAX:
            raise SecretError(f"{reference} is not a file of at most {_BYTES_MAX >> 10} KiB on this node")
        value = os.read(fds[-1], _BYTES_MAX).decode().removesuffix("\n")
    except OSError as error:
        raise SecretError(
            f"{reference} cannot be read on this node: {error.strerror} ({root / Path(*parts)})"
        ) from error
    except UnicodeDecodeError:
        raise SecretError(f"{reference} is not text") from None
    finally:
        for fd in fds:
            os.close(fd)
    if "\0" in value:
        raise SecretError(f"{reference} contains a NUL byte, which environment variables cannot have")
    return value
