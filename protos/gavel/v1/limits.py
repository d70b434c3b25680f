"""Checks that client, scheduler and agent share: names, digests, variables, containers, sizes, addresses.

Standard library only. The client checks early, so that its user gets a good message; the scheduler's checks decide; an
agent trusts its scheduler. The core does not import this module: its own limits are in scheduler/model/bounds.py, and a
test keeps both modules in agreement.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple

# The size of one message, in either direction.
MESSAGE_BYTES_MAX = 16 * 2**20

# The length of a name, and the number of entries in a list or map.
NAME_CHARS_MAX = 256
ENTRIES_MAX = 10_000

# The greatest values of numbers that the client checks, too; only the scheduler checks other numbers.
GPUS_MAX = 1_000_000
COUNT_MAX = 1_000_000_000
INDEX_MAX = 1_000_000_000
ARRAY_MAX = 100_000

# The size of one argument, variable or script (Linux allows 128 KiB), and of all those of a process together.
TEXT_BYTES_MAX = 120_000
ARGUMENTS_BYTES_MAX = 2**20
PATH_CHARS_MAX = 4096

# The files of a job in one call of FetchFiles, and the patterns in one of ListFiles or in `outputs`.
FETCHED_FILES_MAX = 1000
PATTERNS_MAX = 1000

# An uploaded work directory: its size packed and unpacked, the number of its files, and the length of their paths.
PACKAGE_BYTES_MAX = 2**30
UNPACKED_BYTES_MAX = 4 * 2**30
PACKAGE_FILES_MAX = 100_000
PACKAGE_PATH_CHARS_MAX = 1000

# Variables that Gavel sets for every process of a job, in addition to those that begin with GAVEL_.
SET_BY_GAVEL = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"),
        *("MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"),
    }
)

# The programs that run containers, in the order in which a node without a setting looks for them.
CONTAINER_RUNTIMES = ("charliecloud", "apptainer", "podman", "docker")
CONTAINER_MOUNTS_MAX = 100

# The errors of PyTorch, CUDA and JAX if a GPU has no memory left.
OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|cuda[^\n]*out of memory|RESOURCE_EXHAUSTED: out of memory", re.IGNORECASE
)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,255}")
# Runtimes separate the parts of their own mount options by these.
_MOUNT_SEPARATORS = frozenset(':,"')
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def ran_out_of_memory(last_lines: str) -> bool:
    """Whether a job whose output ends like this had too little memory on a GPU."""
    return bool(OUT_OF_MEMORY.search(last_lines))


def is_digest(text: str) -> bool:
    """Return whether a text has the form of a digest, which names a package."""
    return _DIGEST.fullmatch(text) is not None


def is_variable(name: str) -> bool:
    """Return whether this is a valid name of an environment variable."""
    return len(name) <= NAME_CHARS_MAX and _VARIABLE.fullmatch(name) is not None


def is_set_by_gavel(variable: str) -> bool:
    """Return whether Gavel sets this variable, so that a job must not."""
    return variable in SET_BY_GAVEL or variable.startswith("GAVEL_")


def is_secret(name: str) -> bool:
    """Return whether this is a valid name of a secret that nodes keep."""
    return _SECRET.fullmatch(name) is not None


def program_fault(command: Sequence[str], script: str) -> tuple[str, str]:
    """Return the field at fault and the problem if a job has no valid program; two empty texts if it has one."""
    if command and script:
        return "script", "and command cannot both be given: leave one out"
    if not command and not script:
        return "command", "is missing: give a program such as [python, train.py], or a script"
    if command and not command[0]:
        return "command[0]", "is empty, must be a program"
    return "", ""


class Mount(NamedTuple):
    """A folder or file of the node that is mounted in a container, there under the path `target`."""

    source: str
    target: str
    is_read_only: bool = False


def mount_of(text: str) -> Mount:
    """Return the mount in a text such as /data, /data:/inside or /data:/inside:ro; raise ValueError if it has none."""
    source, *rest = text.split(":")
    is_read_only = rest[-1:] == ["ro"]
    target, *others = rest[: len(rest) - is_read_only] or [source]
    for path in (source, target, *others):
        if others or not is_mountable(path):
            raise ValueError(
                f"is {text[:80]!r}, must be /path, /path:/inside or /path:/inside:ro, with absolute paths without "
                "'..', ',' or '\"'"
            )
    return Mount(source, target, is_read_only)


def is_mountable(path: str) -> bool:
    """Return whether a path can be mounted in a container: absolute, without `..`, and no root of a file system."""
    return (
        path.startswith("/")
        and path.strip("/.") != ""
        and path.isprintable()
        and len(path) <= PATH_CHARS_MAX
        and ".." not in path.split("/")
        and _MOUNT_SEPARATORS.isdisjoint(path)
    )


def image_fault(image: str) -> str:
    """Return what is wrong with the image of a container; an empty text if it is a path or a name of a registry."""
    if not image:
        return "is missing: give a path, or the name of an image such as docker.io/library/python:3.12"
    if image.startswith("/"):
        return "" if is_mountable(image) else "must be a path without '..', ':', ',' and '\"'"
    scheme, colon, rest = image.partition("://")
    if colon and rest:
        return f"must be without {scheme}://: write {rest[:80]}"
    if image.startswith((".", "~")) or image.endswith((".sif", ".sqfs")):
        return "must be an absolute path, the same on every node, or the name of an image in a registry"
    if not _IMAGE.fullmatch(image) or ".." in image.split("/"):
        return "must be an absolute path, or the name of an image such as docker.io/library/python:3.12"
    return ""


def leads_out(link: str, target: str) -> bool:
    """Return whether a symbolic link at this path of a work directory may lead out of it.

    `..` is safe only at the beginning of the target, where it leaves real directories; after another link, it could
    lead anywhere.
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return target.startswith("/") or ".." in parts[ups:] or ups > link.count("/")


def path_fault(path: str) -> str:
    """Return why a text is no path within a directory; empty if it is one. `.`, the directory itself, is one."""
    if not path or path.startswith("/"):
        return "must be a relative path"
    if ".." in path.split("/"):
        return "must not contain '..'"
    if "\0" in path or len(path) > PATH_CHARS_MAX:
        return f"must be at most {PATH_CHARS_MAX:,} characters, without NUL"
    return ""


def is_plain_path(path: str) -> bool:
    """Return whether a path within a directory is written without `.`, `..` and empty components."""
    return not path_fault(path) and not {"", "."} & set(path.split("/"))


def is_loopback(address: str) -> bool:
    """Return whether an address, with or without a port, belongs to this machine, so that TLS is optional.

    Of all names, only `localhost` counts, because others may resolve to any address.
    """
    for text in (address, address.rpartition(":")[0]):
        host = text.removeprefix("[").removesuffix("]")
        if host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
    return False
