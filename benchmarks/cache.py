"""The node cache against the law of its hits, and against strict LRU: `python -m benchmarks.cache`.

Jobs read a data set of 20,000 items of 4 KB through `CachedDataset`, each in a fresh order every epoch, on an arena
with room for a part of them. An arena that never evicts must hit exactly that part from the second epoch on. Strict
LRU, and the law of its hits, c + (1 - c)·ln(1 - c), stand beside it. Rates are per second of processor time of one
process, with sums: the median of interleaved runs.

The last tables are of a gang's nodes, which keep a data set together: where the samples of each epoch come from, and
how many items of another node a process reads per second.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.cache_worlds import ITEM_BYTES, MEMORY, Storage, data_sets, gang
from gavel.training import CachedDataset
from gavel.training.data.arena import Arena, hash_of, size_for
from worker_agent.node.node_cache import make_file

ITEMS = 20_000
CACHED = (0.1, 0.35, 0.5, 0.65, 0.95)
JOBS = (1, 2, 4)
# Of a gang: the number of nodes, and the part of the data for which each of them has room.
GANGS = ((1, 0.5), (2, 0.25), (2, 0.5), (4, 0.25), (8, 0.2))
GANG_ITEMS = 8000


class Reads(NamedTuple):
    """The parts of an epoch's samples that came from the reader's own node, another node, and storage."""

    local: float
    remote: float
    storage: float


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


def gang_epoch(sets: list[CachedDataset], storage: Storage, chance: random.Random) -> Reads:
    """Read every item once, each node a random part of equal size; return where the samples came from.

    Raises ValueError if a node receives a wrong item.
    """
    before = [data.counters.read() for data in sets]
    items = len(sets[0])
    for index, number in enumerate(chance.sample(range(items), items)):
        if sets[index % len(sets)][number] != storage.item(number):
            raise ValueError(f"item {number} is wrong")
    after = [data.counters.read() for data in sets]
    hits = sum(new.hits - old.hits for old, new in zip(before, after, strict=True))
    remote = sum(new.remote - old.remote for old, new in zip(before, after, strict=True))
    return Reads((hits - remote) / items, remote / items, 1 - hits / items)


def remote_rate(data: CachedDataset) -> tuple[float, float]:
    """Read what other nodes keep; return the items per second, by the wall and by this process's processor time."""
    hits = data.counters.read().remote
    remote = []
    for number in range(len(data)):
        data[number]
        before, hits = hits, data.counters.read().remote
        if hits > before:
            remote.append(number)
    random.Random(1).shuffle(remote)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for number in remote:
        data[number]
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    return len(remote) / wall_s, len(remote) / cpu_s


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


def print_gangs() -> None:
    """Print where the samples of a gang come from, and how fast those of other nodes do."""
    print(f"\nsamples of {GANG_ITEMS:,} items in epochs 1, 2 and 3, each read on a random node\n")
    print("| nodes | room on each | from this node | from another node | from storage |")
    print("|---|---|---|---|---|")
    for nodes, part in GANGS:
        with gang(GANG_ITEMS, round(GANG_ITEMS * part), nodes, ITEM_BYTES) as (sets, storage):
            chance = random.Random(nodes)
            epochs = [gang_epoch(sets, storage, chance) for _ in range(3)]
        columns = [
            ", ".join(f"{100 * value:.1f} %" for value in values) for values in zip(*epochs, strict=True)
        ]
        print(f"| {nodes} | {100 * part:.0f} % | {' | '.join(columns)} |")
    with gang(GANG_ITEMS, GANG_ITEMS, 2, ITEM_BYTES) as (sets, storage):
        gang_epoch(sets, storage, random.Random(0))
        rates_of = [remote_rate(sets[0]) for _ in range(7)]
    by_wall, by_processor = (statistics.median(values) for values in zip(*rates_of, strict=True))
    print(f"\nitems of {ITEM_BYTES} bytes that one process reads from another node on this machine\n")
    print(f"{'per second':32} {by_wall:>10,.0f}")
    print(f"{'per second of its processor time':32} {by_processor:>10,.0f}")


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
                make_file(Path(path), size_for(ITEMS, ITEMS * ITEM_BYTES))
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
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="how often each rate is measured")
    arguments = parser.parse_args()
    print_hits()
    print(f"\nitems of {ITEM_BYTES} bytes with sums, per second of processor time of one process\n")
    for name, value in rates(arguments.repeats).items():
        print(f"{name:32} {value:>10,.0f}")
    print_gangs()


if __name__ == "__main__":
    main()
