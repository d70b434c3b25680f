"""Random draws as hashes of (seed, job id): a job has the same draw in every problem it is part of."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from policies.problem import Floats


def draw(seed: int, ids: Sequence[str], per_id: int = 1) -> Floats:
    """Return [n × per_id] numbers in [0, 1), independent of the other jobs and of their order."""
    key = str(seed).encode()
    # A digest has room for 8 numbers; each further block of 8 numbers uses another seed.
    base = blake2b(key=key, digest_size=8 * per_id) if per_id <= 8 else None
    if base is None:
        return np.concatenate(
            [draw(seed + (block << 64), ids, min(8, per_id - block)) for block in range(0, per_id, 8)], axis=1
        )
    digests = bytearray()
    for job in ids:
        digest = base.copy()
        digest.update(job.encode())
        digests += digest.digest()
    return (
        np.frombuffer(bytes(digests), dtype=np.uint64).reshape(len(ids), per_id) >> np.uint64(11)
    ) / 2.0**53
