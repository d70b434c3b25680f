"""Pack a work directory into one file, which depends only on the directory's content and is named by a hash.

Names are sorted; owners and times are left out, and of the permissions only the executable bit is kept. Links that lead
out of the directory are refused here, where the user can correct them, rather than on a node.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gavel.client.jobs.ignore import FILE, Ignore, ignore_file
from protos.gavel.v1 import limits

PIECE_BYTES = 1 << 20

# Called with the current activity, the number of bytes done and the number of all bytes.
Progress = Callable[[str, int, int], None]


class TooLarge(ValueError):
    """The directory cannot be packed, or no agent would accept it; the message is the reason."""


@dataclass(frozen=True)
class Entry:
    """A file, directory or link to pack. `name` is its path within the work directory, with / between its parts."""

    name: str
    path: Path
    status: os.stat_result


@dataclass(frozen=True)
class Package:
    """A packed directory."""

    # "sha256:…" of the packed file.
    digest: str
    size_bytes: int
    # The number of files in it.
    files: int
    # The packed file, open for reading.
    file: IO[bytes]


def entries(folder: Path) -> list[Entry]:
    """Return the entries to pack, sorted by name. Raises TooLarge if they cannot be packed."""
    patterns = ignore_file(folder)
    patterns_name = FILE if patterns is None else patterns.name
    try:
        lines = [] if patterns is None else patterns.read_text("utf-8").splitlines()
        listed = list(_walk(folder, "", Ignore(lines)))
    except UnicodeError:
        raise TooLarge(f"a file name in it, or {patterns_name}, is not UTF-8") from None
    except OSError as error:
        raise TooLarge(f"{error.filename}: {(error.strerror or str(error)).lower()}") from None
    except re.error as error:
        raise TooLarge(f"{patterns_name}: a pattern cannot be read: {error}") from None
    if len(listed) > limits.PACKAGE_FILES_MAX:
        raise TooLarge(f"has {len(listed):,} files; the limit is {limits.PACKAGE_FILES_MAX:,}; {_ADVICE}")
    files = [entry for entry in listed if stat.S_ISREG(entry.status.st_mode)]
    size = sum(entry.status.st_size for entry in files)
    if size > limits.UNPACKED_BYTES_MAX:
        largest = max(files, key=lambda entry: entry.status.st_size)
        raise TooLarge(
            f"has {_gib(size)} of files; the limit is {_gib(limits.UNPACKED_BYTES_MAX)} (the largest is "
            f"{largest.name}, {_gib(largest.status.st_size)}); {_ADVICE}"
        )
    return sorted(listed, key=lambda entry: entry.name.split("/"))


def _walk(folder: Path, prefix: str, ignore: Ignore) -> Iterator[Entry]:
    with os.scandir(folder) as scanned:
        for file in scanned:
            name = prefix + file.name
            # Raises UnicodeError for a name that is not UTF-8.
            name.encode()
            is_directory = file.is_dir(follow_symlinks=False)
            if ignore.ignores(name, is_directory):
                continue
            status = file.stat(follow_symlinks=False)
            # Sockets and pipes are skipped.
            if not (is_directory or file.is_file(follow_symlinks=False) or file.is_symlink()):
                continue
            if len(name) > limits.PACKAGE_PATH_CHARS_MAX:
                raise TooLarge(
                    f"a path in it is longer than {limits.PACKAGE_PATH_CHARS_MAX} characters: {name[:60]}…"
                )
            yield Entry(name, Path(file.path), status)
            if is_directory:
                yield from _walk(Path(file.path), f"{name}/", ignore)


def pack(folder: Path, into: IO[bytes], progress: Progress | None = None) -> Package:
    """Pack the directory as a .tar.gz. Raises TooLarge if it cannot be packed."""
    listed = entries(folder)
    total = sum(entry.status.st_size for entry in listed if stat.S_ISREG(entry.status.st_mode))
    done, files = 0, 0
    with (
        gzip.GzipFile("", "wb", 6, into, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in listed:
            done += _add(tar, entry)
            files += not stat.S_ISDIR(entry.status.st_mode)
            if into.tell() > limits.PACKAGE_BYTES_MAX:
                raise TooLarge(f"is larger than {_gib(limits.PACKAGE_BYTES_MAX)} when packed; {_ADVICE}")
            if progress is not None:
                progress("packing", min(done, total), total)
    size = into.tell()
    if size > limits.PACKAGE_BYTES_MAX:
        raise TooLarge(f"is larger than {_gib(limits.PACKAGE_BYTES_MAX)} when packed; {_ADVICE}")
    into.seek(0)
    digest = hashlib.sha256()
    while piece := into.read(PIECE_BYTES):
        digest.update(piece)
    return Package(f"sha256:{digest.hexdigest()}", size, files, into)


def _add(tar: tarfile.TarFile, entry: Entry) -> int:
    info = tarfile.TarInfo(entry.name)
    mode = entry.status.st_mode
    if stat.S_ISLNK(mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, _target(entry), 0o777
    elif stat.S_ISDIR(mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    else:
        info.mode = 0o755 if mode & 0o111 else 0o644
        try:
            with open(entry.path, "rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise TooLarge(f"{entry.name}: {why} (it may have changed while it was packed)") from None
        return info.size
    tar.addfile(info)
    return 0


def _target(entry: Entry) -> str:
    """Return the target of a link. Raises TooLarge if agents would refuse it."""
    target = os.readlink(entry.path)
    if limits.leads_out(entry.name, target):
        raise TooLarge(
            f"{entry.name} is a link to {target}, which is outside the directory: list the link in {FILE}, or copy the "
            "file"
        )
    return target


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 100 else f"{size / 2**20:.2f} MiB"


_ADVICE = f"list what the job does not need in {FILE}, or put data where every node sees it"
