"""The node cache against the law of its hits, and against strict LRU: `python -m benchmarks.cache`.

Jobs read a data set of 20,000 items of 4 KB through `CachedDataset`, each in a fresh order every epoch, on an arena
with room for a part of them. An arena that never evicts must hit exactly that part from the second epoch on. Strict
LRU, and the law of its hits, c + (1 - c)·ln(1 - c), stand beside it. Rates are per second of processor time of one
process, with sums: the median of interleaved runs.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

from gavel.training import CachedDataset
from gavel.training.data import node_arena
from gavel.training.data.arena import Arena, create, hash_of, size_for

ITEMS, ITEM_BYTES = 20_000, 4096
CACHED = (0.1, 0.35, 0.5, 0.65, 0.95)
JOBS = (1, 2, 4)
MEMORY = Path("/dev/shm")  # noqa: S108


class Storage:
    """A storage of numbered items of one length, which counts how often each is read."""

    def __init__(self, item_bytes: int) -> None:
        self.item_bytes = item_bytes
        self.reads: Counter[int] = Counter()

    def fetch(self, number: int) -> bytes:
        """Return an item, which begins with its number."""
        self.reads[number] += 1
        return self.item(number)

    def item(self, number: int) -> bytes:
        """Return an item without counting that."""
        return number.to_bytes(8, "little") * (self.item_bytes // 8)


@contextlib.contextmanager
def data_sets(
    items: int, capacity: int, jobs: int, item_bytes: int = ITEM_BYTES
) -> Iterator[tuple[list[CachedDataset], Storage]]:
    """Return the data sets of jobs on one node, whose cache has room for `capacity` items."""
    storage = Storage(item_bytes)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        environ = {"GAVEL_CACHE": folder, "GAVEL_RUN_DIR": folder}
        with mock.patch.dict(os.environ, environ), mock.patch.object(node_arena, "WAIT_S", 0.0):

            def data_set() -> CachedDataset:
                return CachedDataset(range(items), name="items", fetch=storage.fetch, version="1")

            data_set()
            (request,) = Path(folder).glob("cache-*.json")
            key = request.stem.removeprefix("cache-")
            if capacity:
                create(f"{folder}/{key}.arena", size_for(items, capacity * item_bytes))
            yield [data_set() for _ in range(jobs)], storage


def epoch_reads(sets: list[CachedDataset], storage: Storage, chance: random.Random) -> int:
    """Let all jobs read every item once, in turn, each in an order of its own; return the reads of storage.

    Raises ValueError if a job receives a wrong item.
    """
    before = storage.reads.total()
    orders = [chance.sample(range(len(data)), len(data)) for data in sets]
    for numbers in zip(*orders, strict=True):
        for data, number in zip(sets, numbers, strict=True):
            if data[number] != storage.item(number):
                raise ValueError(f"item {number} is wrong")
    return storage.reads.total() - before


def lru_hits(items: int, capacity: int, epochs: int, seed: int | None = 0) -> float:
    """Return the part of the reads that strict LRU hits after the first epoch. `seed`: None repeats one order."""
    chance, cached, hits = random.Random(seed or 0), OrderedDict[int, None](), 0
    order = list(range(items))
    for epoch in range(epochs):
        if seed is not None:
            chance.shuffle(order)
        for number in order:
            if number in cached:
                cached.move_to_end(number)
                hits += epoch > 0
            else:
                cached[number] = None
                if len(cached) > capacity:
                    cached.popitem(last=False)
    return hits / items / (epochs - 1)


def lru_law(cached: float) -> float:
    """Return the part of the reads that strict LRU hits if each epoch has a fresh order."""
    return cached + (1 - cached) * math.log1p(-cached)


def print_hits() -> None:
    """Print the table of hits."""
    print(f"hits of {ITEMS:,} items from the second epoch on\n")
    print("| cached | never evicts: 1, 2, 4 jobs | strict LRU | its law |")
    print("|---|---|---|---|")
    for part in CACHED:
        capacity = round(ITEMS * part)
        hits = []
        for jobs in JOBS:
            with data_sets(ITEMS, capacity, jobs) as (sets, storage):
                chance = random.Random(jobs)
                epoch_reads(sets, storage, chance)
                hits.append(1 - epoch_reads(sets, storage, chance) / ITEMS / jobs)
        never = ", ".join(f"{100 * value:.2f} %" for value in hits)
        lru = lru_hits(ITEMS, capacity, 4)
        print(f"| {100 * part:.0f} % | {never} | {100 * lru:.2f} % | {100 * lru_law(part):.2f} % |")


def rates(repeats: int) -> dict[str, float]:
    """Return operations per second of processor time, the median of interleaved runs."""
    operations: dict[str, list[float]] = {}
    content = os.urandom(ITEM_BYTES)
    keys = [hash_of(b"%d" % number) for number in range(ITEMS)]
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        folder_files = Path(folder) / "files"
        folder_files.mkdir()
        files = [folder_files / f"{number}" for number in range(2000)]
        for file in files:
            file.write_bytes(content)
        with data_sets(ITEMS, ITEMS, 1) as ([data], _):
            for repeat in range(repeats):
                path = f"{folder}/{repeat}"
                create(path, size_for(ITEMS, ITEMS * ITEM_BYTES))
                arena = Arena(path, ITEMS)
                runs: dict[str, tuple[Callable[[int], object], int]] = {
                    "appends to the arena": (partial(append, arena, keys, content), ITEMS),
                    "hits in the arena": (partial(hit, arena, keys), ITEMS),
                    "hits through CachedDataset": (data.__getitem__, ITEMS),
                    "files read from the page cache": (partial(read, files), len(files)),
                }
                for number in range(ITEMS if repeat == 0 else 0):
                    data[number]
                for name, (run, count) in runs.items():
                    operations.setdefault(name, []).append(rate(run, count))
                arena.close()
                os.unlink(path)
    return {name: statistics.median(values) for name, values in operations.items()}


def append(arena: Arena, keys: list[bytes], content: bytes, number: int) -> None:
    """Store an item."""
    arena.put(keys[number], content)


def hit(arena: Arena, keys: list[bytes], number: int) -> None:
    """Read an item that is there."""
    arena.get(keys[number])


def read(files: list[Path], number: int) -> None:
    """Read a file."""
    files[number].read_bytes()


def rate(run: Callable[[int], object], count: int) -> float:
    """Return how often `run` can be called per second of processor time."""
    order = random.Random(1).sample(range(count), count)
    began_s = time.process_time()
    for number in order:
        run(number)
    return count / (time.process_time() - began_s)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="how often each rate is measured")
    arguments = parser.parse_args()
    print_hits()
    print(f"\nitems of {ITEM_BYTES} bytes with sums, per second of processor time of one process\n")
    for name, value in rates(arguments.repeats).items():
        print(f"{name:32} {value:>10,.0f}")


if __name__ == "__main__":
    main()
