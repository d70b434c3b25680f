"""`CachedDataset`: a data set whose items the jobs of a user on a node read from storage once.

    data = CachedDataset(files, name="imagenet-1k", prepare=decode_and_augment)
    loader = DataLoader(data, batch_size=256, sampler=ResumableSampler(data, seed=1), num_workers=8)

The bytes of an item are kept in the node's cache, if the agent has one (`--cache`); they are prepared each time. The
cache keeps what it has and takes no more when it is full, so each epoch but the first reads only the rest from storage.
The nodes of a gang keep the data together (`partition.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import operator
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from gavel.training.data.arena import hash_of, size_for
from gavel.training.data.counters import Counters
from gavel.training.data.kept import kept
from gavel.training.data.node_arena import NodeArena
from gavel.training.data.partition import partition_of

log = logging.getLogger("gavel.training")

NAME_LENGTH_MAX = 128
# How many directories of the data are looked at for changes. Over a network, each may take a millisecond.
DIRECTORIES_MAX = 10_000
# Where the bytes of an item came from.
STORAGE, HERE, ELSEWHERE = range(3)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


class CachedDataset:
    """A map-style data set: sample i is `prepare(fetch(files[i]))`, and the bytes that `fetch` returns are kept.

    `files` are paths, or other texts and whole numbers that `fetch` understands. `name` and the fingerprint of the data
    decide which jobs share a cache: the number of items, and `version`, or without one the path, size and time of each
    directory that has files. Change `version` when the data or `fetch` changes. `size` in bytes, if known, leaves the
    rest of the node's cache to other data sets.
    """

    def __init__(
        self,
        files: Sequence[Any],
        *,
        name: str,
        fetch: Callable[[Any], bytes] = read_bytes,
        prepare: Callable[[bytes], Any] | None = None,
        version: str | None = None,
        size: int | None = None,
    ) -> None:
        _check(name, fetch, prepare, size)
        self.files = files
        self._fetch, self._prepare = fetch, prepare
        fingerprint = [
            name,
            len(files),
            _function(fetch),
            version,
            *(_directories(files) if version is None else ()),
        ]
        self._salt = hashlib.blake2b(json.dumps(fingerprint).encode(), digest_size=16).digest()
        self.counters = Counters()
        room = None if size is None else size_for(len(files), size)
        self._arena = NodeArena(name, self._salt.hex(), len(files), room)
        self._arena.request()
        self._partition = partition_of(self._salt, len(files))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        began_s = time.perf_counter()
        raw, source = self._read(index)
        read_s = time.perf_counter()
        sample = self.prepare(raw)
        self.counters.add(
            fetch_s=read_s - began_s,
            prepare_s=time.perf_counter() - read_s,
            size=len(raw),
            from_cache=source != STORAGE,
            remote=source == ELSEWHERE,
        )
        return sample

    def fetch(self, index: int) -> bytes:
        """Return the bytes of an item, from the cache if they are there."""
        return self._read(index)[0]

    def prepare(self, raw: bytes) -> Any:
        """Return the sample of an item's bytes."""
        return raw if self._prepare is None else self._prepare(raw)

    def _read(self, index: int) -> tuple[bytes, int]:
        """Return the bytes of an item, and where they came from."""
        item, arena = self.files[index], self._arena.open()

        def fetch() -> bytes:
            content: bytes = kept(index, lambda _: self._read_storage(item))
            return content

        if arena is None and self._partition is None:
            return fetch(), STORAGE
        key = hash_of(self._salt + _identity(item))
        raw = arena.get(key) if arena is not None else None
        if raw is not None:
            return raw, HERE
        if self._partition is not None:
            raw, is_remote = self._partition.read(key, arena, fetch)
            return raw, ELSEWHERE if is_remote else STORAGE
        raw = fetch()
        if arena is not None:
            arena.put(key, raw)
        return raw, STORAGE

    def _read_storage(self, item: Any) -> bytes:
        raw = self._fetch(item)
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise TypeError(f"fetch returned {type(raw).__name__} for {item!r}: expected bytes")
        return bytes(raw)


def _identity(item: Any) -> bytes:
    """Return bytes that differ between items."""
    if isinstance(item, (str, os.PathLike)):
        return b"text " + os.fsencode(item)
    try:
        return b"number %d" % operator.index(item)
    except TypeError:
        raise TypeError(
            f"files has the item {item!r}: expected paths, texts or whole numbers, which tell items apart"
        ) from None


def _directories(files: Sequence[Any]) -> list[Any]:
    """Return the path, size and time of each directory that has files, and of those between it and their common one."""
    if not len(files):
        return []
    if not all(isinstance(item, (str, os.PathLike)) for item in files):
        raise ValueError(
            "version is missing: the files are not all paths, so nothing shows when the data changes; give a text "
            "that changes with it, such as version='2026-11'"
        )
    # A relative path is another file elsewhere.
    here = [] if all(map(os.path.isabs, files)) else [os.getcwd()]
    if len(files) == 1:
        # One file may well be replaced in place, and others may be written beside it.
        return [_state(os.path.abspath(files[0])), *here]
    folders = {os.path.abspath(folder) for folder in {os.path.dirname(os.fspath(item)) for item in files}}
    paths = {os.path.commonpath(folders)}
    for folder in folders:
        while folder not in paths:
            paths.add(folder)
            folder = os.path.dirname(folder)
    # Those that are near the root come first.
    ordered = sorted(paths, key=lambda path: (path.count(os.sep), path))
    if len(ordered) > DIRECTORIES_MAX:
        log.warning(
            "gavel: the files have %d directories, and changes are seen in the first %d only: give a text that changes "
            "with the data, such as version='2026-11'",
            len(ordered),
            DIRECTORIES_MAX,
        )
    return [*map(_state, ordered[:DIRECTORIES_MAX]), *here]


def _state(directory: str) -> list[Any]:
    try:
        status = os.stat(directory)
    except OSError as fault:
        raise ValueError(
            f"files have the directory {directory}, which cannot be read ({fault.strerror}): if they are no paths, "
            "give a text that changes with the data, such as version='2026-11'"
        ) from None
    return [directory, status.st_size, status.st_mtime_ns]


def _function(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def _check(name: object, fetch: object, prepare: object, size: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable():
        raise ValueError(
            f"name is {name!r}: expected a text of 1 to {NAME_LENGTH_MAX} printable characters, such as 'imagenet-1k'"
        )
    for word, value in (("fetch", fetch), ("prepare", prepare)):
        if not callable(value) and not (word == "prepare" and value is None):
            raise TypeError(f"{word} is {value!r}: expected a function of one argument")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size <= 0):
        raise ValueError(
            f"size is {size!r}: expected a whole number of bytes above 0, such as 150_000_000_000"
        )
