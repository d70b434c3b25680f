"""The content of the node's cache, as the scheduler has to know it: the bytes of each data set.

The scheduler prefers, among equal places, the node that has more of a job's data. A job may write anything into its own
files here, so no value is believed beyond the room that its file takes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec

from protos.gavel.v1 import agents_pb2 as pb
from worker_agent.node.node_cache import BLOCK_BYTES, KEY

# How often the content is looked at, and at most sent.
CONTENT_S = 10.0
# A number of bytes is sent when it has changed by more than this part since it was last sent.
MOVED = 0.1
# Only the largest data sets of a node are sent, and only so many of a job.
DATA_SETS_MAX, OF_A_JOB_MAX = 32, 8
# The layout of a file is that of gavel.training: the magic word, the length of the file, the number of slots, and a sum
# of all three; then, as an offset into the file, the end of the items, which follow an index of so many bytes a slot.
_MAGIC = b"GAVELAR1"
_HEADER = struct.Struct("<8sQQI")
_END, _END_AT = struct.Struct("<Q"), 64
_INDEX_AT, _SLOT_BYTES = 4096, 32
_USER_PREFIX = "user-"


class Cached(msgspec.Struct, frozen=True, order=True):
    """A data set in the cache."""

    # Empty: jobs of several users may use it.
    user: str
    key: str
    used_bytes: int


class Content(msgspec.Struct, frozen=True):
    """The data sets in the cache, and those that runs on this node name: by lease, the size of each by its key."""

    cached: tuple[Cached, ...] = ()
    named: Mapping[str, Mapping[str, int]] = {}


def used_bytes(path: Path) -> int:
    """Return how many bytes of items a file of the cache has; 0 if it is no arena. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        head = os.pread(fd, _END_AT + _END.size, 0) if stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(fd)
    if len(head) < _END_AT + _END.size:
        return 0
    size: int
    slots: int
    magic, size, slots, checksum = _HEADER.unpack_from(head)
    if magic != _MAGIC or size != status.st_size or checksum != zlib.crc32(head[: _HEADER.size - 4]):
        return 0
    end: int = _END.unpack_from(head, _END_AT)[0]
    # The agent allocates files as a whole. A file that its owner has made longer has holes.
    allocated = status.st_blocks * BLOCK_BYTES
    return max(0, min(end, size, allocated) - _INDEX_AT - slots * _SLOT_BYTES)


def cached_in(root: Path) -> tuple[Cached, ...]:
    """Return the data sets below the root of a cache that have items, the largest first."""
    by_inode: dict[int, Cached] = {}
    for path in sorted(root.glob("*/*.arena")):
        # Jobs that run as the agent's user may make files and folders of any name here.
        if not (KEY.fullmatch(path.stem) and path.parent.name.isascii()):
            continue
        # The agent may remove the file meanwhile, and its owner may make it unreadable.
        with contextlib.suppress(OSError):
            status, used = path.lstat(), used_bytes(path)
            # Files of the agent itself belong to a group of users, or to all users if jobs run as the agent's user.
            is_common = status.st_uid == os.geteuid() or not path.parent.name.startswith(_USER_PREFIX)
            user = "" if is_common else unquote(path.parent.name.removeprefix(_USER_PREFIX))
            if used:
                # The folders of groups come first: there, a file counts for all, also under its users' names for it.
                by_inode.setdefault(status.st_ino, Cached(user, path.stem, used))
    largest = sorted(by_inode.values(), key=lambda entry: (-entry.used_bytes, entry))
    return tuple(largest[:DATA_SETS_MAX])


class ContentReports:
    """Sends the content of the cache when it has changed, at most every `CONTENT_S` seconds."""

    def __init__(self, send: Callable[[pb.AgentMessage], object]) -> None:
        self._send = send
        self._sent: Content | None = None
        self._looked_s = -CONTENT_S

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time to look at the content again."""
        return now_s - self._looked_s >= CONTENT_S

    def update(self, content: Content, now_s: float) -> None:
        """Send this content if it differs enough from what was sent last."""
        self._looked_s = now_s
        if self._sent is not None and not _has_changed(self._sent, content):
            return
        self._sent = content
        self._send(pb.AgentMessage(cache_content=content_to(content)))


def named_by(wishes: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Return the sizes of the data sets that runs name, by lease and key. `wishes`: lease, key and size of each."""
    named: dict[str, dict[str, int]] = {}
    for lease, key, size in wishes:
        own = named.setdefault(lease, {})
        if len(own) < OF_A_JOB_MAX:
            own[key] = size
    return named


def _has_changed(sent: Content, now: Content) -> bool:
    before = {(entry.user, entry.key): entry.used_bytes for entry in sent.cached}
    after = {(entry.user, entry.key): entry.used_bytes for entry in now.cached}
    # A run that has ended needs no message.
    has_new_names = any(sent.named.get(lease) != sizes for lease, sizes in now.named.items())
    return (
        has_new_names
        or before.keys() != after.keys()
        or any(abs(used - before[key]) > MOVED * before[key] for key, used in after.items())
    )


def content_to(content: Content) -> pb.CacheContent:
    """Return the message with this content."""
    return pb.CacheContent(
        cached=[pb.CachedData(user=e.user, key=e.key, used_bytes=e.used_bytes) for e in content.cached],
        named=[
            pb.NamedData(lease=lease, key=key, size_bytes=size)
            for lease, sizes in content.named.items()
            for key, size in sizes.items()
        ],
    )
