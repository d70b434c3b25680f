"""The reference answers about caches: data sets of `gavel.training` on real arenas, and strict LRU beside them.

Every answer is counted, from reads of a storage that counts them; none is computed from a formula.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.cache import epoch_reads, gang_epoch, lru_hits
from benchmarks.cache_worlds import Storage, data_sets, gang
from gavel.training import CachedDataset
from gavel.training.data.staging import LOOK_S, Staging

Values = dict[str, Any]
# Long enough that the index of an arena takes less than half of its file.
LONG_ITEM_BYTES = 1 << 16
EPOCHS = 6
# Of a data set over the nodes of a gang.
GANG_ITEMS = 4000


def hit_law(inputs: Values) -> Values:
    """The part of the reads that hit from the second epoch on, by what the cache does when it is full."""
    items, capacity = inputs["items"], round(inputs["items"] * inputs["cached"])
    with data_sets(items, capacity, jobs=1) as (sets, storage):
        chance = random.Random(0)
        epoch_reads(sets, storage, chance)
        reads = sum(epoch_reads(sets, storage, chance) for _ in range(2))
    return {
        "never_evict": 1 - reads / items / 2,
        "strict_lru": lru_hits(items, capacity, EPOCHS),
        "lru_same_order_every_epoch": lru_hits(items, capacity, EPOCHS, seed=None),
    }


def never_evict(inputs: Values) -> Values:
    """Hits and reads of storage in each epoch of one job."""
    items = inputs["items"]
    with data_sets(items, inputs["capacity_items"], 1, LONG_ITEM_BYTES) as (sets, storage):
        chance = random.Random(0)
        reads = [epoch_reads(sets, storage, chance) for _ in range(inputs["epochs"])]
    return {"hits_per_epoch": [items - count for count in reads], "reads_per_epoch": reads}


def concurrent_jobs(inputs: Values) -> Values:
    """Gigabytes that jobs read from storage in an epoch, and preparations of a sample: alone and as a group."""
    jobs, items = inputs["jobs"], 1000
    gigabytes = inputs["dataset_gb"] / items
    with data_sets(items, round(items * inputs["cached"]), jobs) as (sets, storage):
        epoch_reads(sets, storage, random.Random(0))
        samples = [data.counters.read().samples for data in sets]
        alone = epoch_reads(sets, storage, random.Random(1))
        prepared = sum(data.counters.read().samples for data in sets) - sum(samples)
        reads, preparations = group_epoch(sets, storage)
    return {
        "shared_never_evict_gb": alone * gigabytes,
        "coordinated_prep_gb": reads * gigabytes,
        "preps_per_sample_alone": prepared / items,
        "preps_per_sample_coordinated": preparations / items,
    }


def group_epoch(sets: list[CachedDataset], storage: Storage) -> tuple[int, int]:
    """Let members of a group go through an epoch in batches of one item; return the reads and the preparations."""
    items, now_s = len(sets[0]), 0.0
    reads, preparations = 0, 0

    def sleep(seconds: float) -> None:
        nonlocal now_s, reads, preparations
        now_s += max(seconds, LOOK_S)
        for member, data in zip(members, sets, strict=True):
            while (number := member.claim()) is not None:
                before = storage.reads.total()
                content = data[number % items]
                # Members prepare the beginning of the next epoch, too.
                if number < items:
                    reads, preparations = reads + storage.reads.total() - before, preparations + 1
                member.put(number, content)

    with tempfile.TemporaryDirectory() as folder:
        members = [Staging(folder, 30.0, clock=lambda: now_s, sleep=sleep) for _ in sets]
        for member in members:
            member.join(items, 0)
        for number in range(items):
            if any(member.take(number) != storage.item(number) for member in members):
                raise ValueError(f"batch {number} is wrong or missing")
        for member in members:
            member.leave()
    return reads, preparations


def partitioned(inputs: Values) -> Values:
    """The parts of later epochs' samples by their source: with nodes that share their caches, and without."""
    nodes, chance = inputs["nodes"], random.Random(0)
    capacity = round(GANG_ITEMS * inputs["cached_per_node"])
    with gang(GANG_ITEMS, capacity, nodes, LONG_ITEM_BYTES // 16) as (sets, storage):
        gang_epoch(sets, storage, chance)
        later = [gang_epoch(sets, storage, chance) for _ in range(EPOCHS)]
    local, remote, from_storage = (statistics.mean(parts) for parts in zip(*later, strict=True))
    # A node of a gang that shares nothing may meet any item, and has it in the part that it has cached.
    with data_sets(GANG_ITEMS, capacity, 1, LONG_ITEM_BYTES // 16) as (alone, storage):
        epoch_reads(alone, storage, chance)
        reads = epoch_reads(alone, storage, chance)
    return {
        "alone_storage": reads / GANG_ITEMS,
        "partitioned_local": local,
        "partitioned_remote": remote,
        "partitioned_storage": from_storage,
    }


# By the beginning of a case's id.
ANSWERS: dict[str, Callable[[Values], Values]] = {
    "hit-law-": hit_law,
    "never-evict-exact-": never_evict,
    "concurrent-jobs-": concurrent_jobs,
    "partitioned-": partitioned,
}
