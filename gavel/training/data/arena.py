"""A cache of byte strings in one file that never evicts, so that it needs no server: entries never change.

    header | index | items, one after another

The index is a hash table with open addressing. An entry is the 16-byte hash of a key, and the offset, length and
CRC-32 of its bytes. Rules:

- A file of zeros, which the agent makes with all of its room, is an empty arena: the first process that opens it writes
  the header, its first word last.
- Readers look into a shared mapping without any lock. A writer holds the lock of the file, appends the bytes, and then
  writes the entry, whose first word comes last. An entry without its first word is a miss.
- The sum is taken of the key and of the bytes that `get` returns. If it differs, the item is a miss. So whatever dies
  or writes at whatever moment, `get` returns the bytes that `put` was called with, or None.
- What does not fit is not stored, and nothing is removed. A writer that is killed costs at most the room of its item.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterator

MAGIC = b"GAVELAR1"
# Of the header: the magic word, the length of the file, the number of slots, and a sum of all three.
_HEADER = struct.Struct("<8sQQI")
# Where the end of the items is kept, as an offset into the file.
_END_AT = 64
_END = struct.Struct("<Q")
# Not 0: an item was refused, because there was no room for it.
_REFUSED_AT = 72
# The header has a page of its own.
_INDEX_AT = 4096
# Two words of the key, offset, length, sum.
_ENTRY = struct.Struct("<QQQII")
_ENTRY_REST = struct.Struct("<QQII")
_WORD = struct.Struct("<Q")
_WORDS = struct.Struct("<QQ")
# Longer items are not stored: their length has 32 bits.
ITEM_BYTES_MAX = 2**32 - 1
# How many slots a search visits at most. In an index that is half full, runs of slots in use are far shorter.
PROBES = 128
# The smallest arena: a header and four slots.
SIZE_MIN = _INDEX_AT + 4 * _ENTRY.size
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# How long a writer waits for another one; the item is then not stored. A suspended process may hold the lock, so
# writers do not try again for a while.
LOCK_S = 1.0
LOCK_PAUSE_S = 0.001
NO_WRITING_S = 10.0


class NoArena(Exception):
    """A file cannot be used as an arena; the message has the reason."""


def hash_of(key: bytes) -> bytes:
    """Return the hash of a key, of 16 bytes."""
    return hashlib.blake2b(key, digest_size=16).digest()


class Arena:
    """An arena that this process has opened. Threads, and processes after a fork, may use it at the same time."""

    def __init__(self, path: str, items: int) -> None:
        """Open the arena at `path`; raise NoArena if that is impossible.

        `items`: how many items it may have. The process that opens it first makes the index so large.
        """
        self.path = path
        self._no_writing_until_s = 0.0
        try:
            fd = os.open(path, _OPEN)
            try:
                self._size = os.fstat(fd).st_size
                if self._size < SIZE_MIN:
                    raise NoArena(f"{path} has {self._size} bytes: it is no arena")
                self._map = mmap.mmap(fd, self._size)
            finally:
                os.close(fd)
        except OSError as fault:
            raise NoArena(f"{path} cannot be opened: {fault.strerror}") from None
        if self._map[:8] != MAGIC:
            self._begin(items)
        size: int
        _, size, self._slots, checksum = _HEADER.unpack_from(self._map)
        if checksum != zlib.crc32(self._map[: _HEADER.size - 4]):
            raise NoArena(f"{path} has another content: it is no arena")
        self._items_at: int = _INDEX_AT + self._slots * _ENTRY.size
        if size != self._size or self._items_at > size:
            raise NoArena(f"{path} is damaged: it has {self._size} bytes and was made with {size}")

    def _begin(self, items: int) -> None:
        """Write the header of an empty arena, unless another process has done so."""
        with self._locked() as has_lock:
            if not has_lock:
                raise NoArena(f"{self.path} is locked by another process")
            if self._map[:8] == MAGIC:
                return
            if any(self._map[:8]):
                raise NoArena(f"{self.path} has another content: it is no arena")
            slots = slots_for(items, self._size)
            header = _HEADER.pack(MAGIC, self._size, slots, 0)[:-4]
            _END.pack_into(self._map, _END_AT, _INDEX_AT + slots * _ENTRY.size)
            self._map[8 : _HEADER.size] = header[8:] + struct.pack("<I", zlib.crc32(header))
            self._map[:8] = MAGIC

    def get(self, key: bytes) -> bytes | None:
        """Return the bytes of a key, as given by `hash_of`; None if they are not here."""
        first, second = _words(key)
        slot, slots, arena = first % self._slots, self._slots, self._map
        for _ in range(min(slots, PROBES)):
            word, other, offset, length, checksum = _ENTRY.unpack_from(arena, _INDEX_AT + slot * 32)
            if word == first and other == second:
                item = arena[offset : offset + length]
                # The sum is that of the copy, which cannot change any more.
                return item if len(item) == length and _sum(key, item) == checksum else None
            if word == 0:
                return None
            slot = slot + 1 if slot + 1 < slots else 0
        return None

    def put(self, key: bytes, item: bytes) -> bool:
        """Store the bytes of a key, as given by `hash_of`; return whether they are here now."""
        if len(item) > ITEM_BYTES_MAX or time.monotonic() < self._no_writing_until_s:
            return False
        with self._locked() as has_lock:
            if not has_lock:
                self._no_writing_until_s = time.monotonic() + NO_WRITING_S
                return False
            place = self._place(key)
            (end,) = _END.unpack_from(self._map, _END_AT)
            if place is not None and place[1]:
                return True
            if place is None or not self._items_at <= end <= self._size - len(item):
                self._write(_REFUSED_AT, b"\1")
                return False
            position, _ = place
            self._write(_END_AT, _END.pack(end + len(item)))
            self._write(end, item)
            first, second = _words(key)
            self._write(position + 8, _ENTRY_REST.pack(second, end, len(item), _sum(key, item)))
            self._write(position, _WORD.pack(first))
            return True

    def _place(self, key: bytes) -> tuple[int, bool] | None:
        """Return the position of the entry of a key, and whether it exists; None if there is no slot for it."""
        first, second = _words(key)
        for step in range(min(self._slots, PROBES)):
            position = _INDEX_AT + (first + step) % self._slots * _ENTRY.size
            word, other = _WORDS.unpack_from(self._map, position)
            if word == 0 or (word == first and other == second):
                return position, word != 0
        return None

    def _write(self, position: int, content: bytes) -> None:
        """Write to the mapping. Tests end a writer here."""
        self._map[position : position + len(content)] = content

    @property
    def has_refused(self) -> bool:
        """Whether any item was refused because there was no room for it."""
        return self._map[_REFUSED_AT] != 0

    @property
    def free(self) -> int:
        """The number of bytes that further items may take; 0 in a damaged arena."""
        return max(0, self.room - self.used)

    @property
    def used(self) -> int:
        """The number of bytes that items take."""
        end: int = _END.unpack_from(self._map, _END_AT)[0]
        return end - self._items_at

    @property
    def room(self) -> int:
        """The number of bytes that all items together may take."""
        return self._size - self._items_at

    def close(self) -> None:
        """Give up the mapping."""
        self._map.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of the file; yield False if another process has held it for too long."""
        # Each writer opens the file, so that threads and forks exclude each other, too.
        try:
            fd = os.open(self.path, _OPEN)
        except OSError:
            # The agent has removed the arena, or this process has too many open files.
            yield False
            return
        try:
            yield _lock(fd)
        finally:
            os.close(fd)


def slots_for(items: int, size: int) -> int:
    """Return the number of slots for so many items: two each, within half of the file, and at least 4."""
    return max(4, min(2 * items, size // 2 // _ENTRY.size))


def size_for(items: int, room: int) -> int:
    """Return the size of an arena that has so much room for items, beside an index for this number of them."""
    return _INDEX_AT + max(4, 2 * items) * _ENTRY.size + room


def _lock(fd: int) -> bool:
    end_s = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end_s:
                return False
            time.sleep(LOCK_PAUSE_S)


def _words(key: bytes) -> tuple[int, int]:
    """Return the two words of a hash. The first one is never 0, which marks a free slot."""
    first, second = _WORDS.unpack(key)
    return first or 1, second


def _sum(key: bytes, item: bytes) -> int:
    return zlib.crc32(item, zlib.crc32(key))
