"""Profiles for tests of the planner: documents as `gavel profile` writes them."""

from __future__ import annotations

import random
from typing import Any


def layer(name: str, **changed: Any) -> dict[str, Any]:
    """Return a layer of a document that takes 1 ms forward and 2 ms backward for a sample, and 8 times that for 8."""
    return {
        "name": name,
        "parameters": 1e6,
        "output_bytes": 1e5,
        "stored_bytes": 1e6,
        "flops": 1e9,
        "ms": {"a100": {"1": [1.0, 2.0], "8": [8.0, 16.0]}},
    } | changed


def document(layers: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """Return a document with these layers."""
    return {
        "format": "gavel-profile/1",
        "model": "small",
        "samples": [1, 8],
        "dtype_bytes": 2,
        "gradient_bytes_per_parameter": 2,
        "optimizer_bytes_per_parameter": 12,
        "layers": layers,
    } | changed


def random_document(seed: int, count: int, spread: float = 2.0) -> dict[str, Any]:
    """Return a document with unequal layers, the largest up to `spread`² times as large as the smallest."""
    chance = random.Random(seed)

    def size() -> float:
        return spread ** chance.uniform(-1, 1)

    layers = []
    for index in range(count):
        forward, backward = size(), 2 * size()
        ms = {"a100": {str(n): [forward * (n + 0.5), backward * (n + 0.5)] for n in (1, 2, 4, 8)}}
        layers.append(
            layer(
                f"h.{index}",
                ms=ms,
                parameters=2e7 * size(),
                stored_bytes=6e7 * size(),
                output_bytes=4e6 * size(),
            )
        )
    return document(layers)
