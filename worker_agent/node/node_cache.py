"""The node's cache of training data: one file per user and data set in shared memory, which jobs fill and read.

A job names its data sets in its run directory (docs/job-directory.md). For each of them the agent makes a file of its
full length, of zeros, which belongs to the job's user; `gavel.training` lays it out. Rules:

- all files together have at most `size_max` bytes; a data set gets what it asks for, or all that is free;
- a file is never changed by the agent, and removed when no run on the node has named it for 10 minutes;
- users share no bytes, except of data sets that an operator opens to a group of users.

All state is in the files, so that a restarted agent finds it.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from worker_agent.node.staged_batches import remove_dead_rings
from worker_agent.node.trees import remove_tree
from worker_agent.node.users import Account

LOG = logging.getLogger(__name__)
# How long a file is kept that no run names.
KEEP_S = 600.0
# The smallest file that is of use.
FILE_BYTES_MIN = 1 << 20
# The part of a file system's free space that one file may take: other programs use shared memory, too.
FREE_PART = 0.9
KEY = re.compile(r"[0-9a-f]{32}")
# The unit of `st_blocks`.
BLOCK_BYTES = 512
# No data set is larger.
_SIZE_MAX = 1 << 60
_SUFFIX = ".arena"
_NEW_PREFIX = ".new-"
# The directory in which the jobs of a user pass prepared batches to each other.
_STAGING = "staging"


class CacheError(Exception):
    """The cache cannot be set up; the message has the remedy."""


class Wanted(msgspec.Struct, frozen=True):
    """A data set that a run names, and the account of the run."""

    account: Account
    name: str
    key: str
    # 0: unknown.
    size: int = 0


def wanted(content: Mapping[str, Any] | None, account: Account) -> Wanted | None:
    """Return what the file of a job asks for; None if it is invalid."""
    content = content or {}
    name, key, size = content.get("name"), content.get("key"), content.get("bytes") or 0
    is_valid = isinstance(name, str) and isinstance(key, str) and KEY.fullmatch(key) is not None
    if not is_valid or isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _SIZE_MAX:
        return None
    return Wanted(account, str(name), str(key), size)


class NodeCache:
    """The files of one agent's cache."""

    def __init__(self, root: Path, size_max: int, groups: Mapping[str, str] | None = None) -> None:
        """`groups`: by the name of a data set, the group of users who share it. Raises CacheError."""
        self.root, self.size_max = root, size_max
        try:
            self._groups = {name: grp.getgrnam(group).gr_gid for name, group in (groups or {}).items()}
        except KeyError as error:
            raise CacheError(
                f"cache_groups: {error}; create the group on this node, or remove the entry"
            ) from None
        # By file: when a run last named it.
        self._named_s: dict[Path, float] = {}
        for folder in (root.parent, root):
            _make_folder(folder)
        for path in root.glob(f"*/{_NEW_PREFIX}*"):
            path.unlink(missing_ok=True)

    @property
    def trouble(self) -> str:
        """Why the cache is smaller than its setting; empty if it is not."""
        status = os.statvfs(self.root)
        total = status.f_blocks * status.f_frsize
        if self.size_max <= total * FREE_PART:
            return ""
        return (
            f"cache is {self.size_max / 1e9:g} GB, but the file system of {self.root} has {total / 1e9:.1f} GB: "
            f"mount it with a greater size (mount -o remount,size=... {self.root.parent.parent}), or set a smaller"
            " cache"
        )

    def directory(self, account: Account) -> Path:
        """Return the directory of a user's data sets, which the user's jobs may enter, but not change."""
        path = self.root / f"user-{quote(account.name, safe='')}"
        _make_folder(path)
        staging = path / _STAGING
        # Jobs of the user may start at the same time.
        with contextlib.suppress(FileExistsError):
            staging.mkdir(mode=0o700)
            if account.uid is not None:
                os.chown(staging, account.uid, -1 if account.gid is None else account.gid)
        return path

    def remove_staging(self, running: Iterable[Account]) -> None:
        """Remove the prepared batches that no job uses any more; `running`: the accounts of the jobs that run here."""
        in_use = {self.directory(account) for account in running}
        for path in self.root.glob(f"user-*/{_STAGING}"):
            if path.parent in in_use:
                remove_dead_rings(path)
            else:
                for folder in os.listdir(path):
                    remove_tree(path / folder)

    def serve(self, named: Iterable[Wanted], now_s: float) -> None:
        """Make the files that runs name, and remove those that no run has named for 10 minutes."""
        missing = []
        for data_set in named:
            path = self.directory(data_set.account) / f"{data_set.key}{_SUFFIX}"
            self._named_s[path] = now_s
            group = self._group(data_set)
            if group is not None:
                self._named_s[self._shared(data_set, group)] = now_s
            if _is_missing(path):
                missing.append((data_set, path, group))
        self._remove_unnamed(now_s)
        for wish in missing:
            self._make(*wish)

    def _make(self, data_set: Wanted, path: Path, group: int | None) -> None:
        shared = path if group is None else self._shared(data_set, group)
        try:
            if _is_missing(shared):
                size = min(data_set.size or self.size_max, self._free())
                if size < FILE_BYTES_MIN:
                    path.touch(mode=0o644)
                    return
                make_file(shared, size, data_set.account, group)
                LOG.info(
                    "data set %s of %s has %.1f GB of the cache",
                    data_set.name,
                    data_set.account.name,
                    size / 1e9,
                )
            if shared != path:
                path.unlink(missing_ok=True)
                os.link(shared, path)
        except OSError as error:
            LOG.error("data set %s: no room can be made in the cache: %s", data_set.name, error)
            with contextlib.suppress(OSError):
                path.touch(mode=0o644)

    def _group(self, data_set: Wanted) -> int | None:
        """Return the group with which a run shares a data set; None if it shares it with its own user only."""
        group, account = self._groups.get(data_set.name), data_set.account
        return group if group is not None and group in (account.gid, *account.groups) else None

    def _shared(self, data_set: Wanted, group: int) -> Path:
        folder = self.root / f"group-{group}"
        _make_folder(folder)
        return folder / f"{data_set.key}{_SUFFIX}"

    def _free(self) -> int:
        """Return how many bytes are free for a new file."""
        sizes = {}
        for path in self.root.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                # What the agent has allocated. The owner of a file could make it longer, with holes.
                sizes[status.st_ino] = min(status.st_size, status.st_blocks * BLOCK_BYTES)
        disk = os.statvfs(self.root)
        available = int(disk.f_bavail * disk.f_frsize * FREE_PART)
        return min(self.size_max - sum(sizes.values()), available)

    def _remove_unnamed(self, now_s: float) -> None:
        for path in self.root.glob(f"*/*{_SUFFIX}"):
            # A file of an earlier agent counts as named when this agent first sees it.
            if now_s - self._named_s.setdefault(path, now_s) >= KEEP_S:
                LOG.info("%s is removed from the cache: no job here has used it for 10 minutes", path.name)
                path.unlink(missing_ok=True)
                del self._named_s[path]


def _is_missing(path: Path) -> bool:
    """Return whether a file does not exist, or is empty, which tells a job that there was no room for it."""
    try:
        return path.stat().st_size == 0
    except FileNotFoundError:
        return True


def _make_folder(path: Path) -> None:
    """Make a directory of ours that others may enter, but not list or change; raise CacheError if it is not ours."""
    try:
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise CacheError(
                f"{path} belongs to another user: remove it, or choose another directory with --cache-dir"
            )
        path.chmod(0o711)
    except OSError as error:
        raise CacheError(
            f"cache directory {path}: {error.strerror}; choose another one with --cache-dir"
        ) from None


def make_file(path: Path, size: int, account: Account | None = None, group: int | None = None) -> None:
    """Make a file of zeros with all of its room, which is an empty arena; raise OSError if there is no room.

    Writing to a hole could end a job with SIGBUS when memory is full. `account`: its owner, if not this user.
    """
    fd, new_path = tempfile.mkstemp(prefix=_NEW_PREFIX, dir=path.parent)
    try:
        os.posix_fallocate(fd, 0, size)
        if group is not None:
            os.fchown(fd, -1, group)
            os.fchmod(fd, 0o660)
        elif account is not None and account.uid is not None:
            os.fchown(fd, account.uid, -1 if account.gid is None else account.gid)
        os.rename(new_path, path)
    except OSError:
        os.unlink(new_path)
        raise
    finally:
        os.close(fd)
