"""The reference answers about caches: data sets of `gavel.training` on real arenas, and strict LRU beside them.

Every answer is counted, from reads of a storage that counts them; none is computed from a formula.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from benchmarks.cache import data_sets, epoch_reads, lru_hits

Values = dict[str, Any]
# Long enough that the index of an arena takes less than half of its file.
LONG_ITEM_BYTES = 1 << 16
EPOCHS = 6


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


# By the beginning of a case's id.
ANSWERS: dict[str, Callable[[Values], Values]] = {
    "hit-law-": hit_law,
    "never-evict-exact-": never_evict,
}
