"""The state of random numbers in this process: Python's, and NumPy's and PyTorch's where they are in use.

A snapshot is made of lists, numbers and tensors only, so that it can be stored without pickling code.
"""

from __future__ import annotations

import random
import sys
from typing import Any

Snapshot = dict[str, Any]


def snapshot() -> Snapshot:
    """The state of every generator that the process has by default."""
    version, words, gauss = random.getstate()
    taken: Snapshot = {"python": [version, list(words), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        taken["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    torch = sys.modules.get("torch")
    if torch is not None:
        taken["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            taken["cuda"] = torch.cuda.get_rng_state_all()
    return taken


def restore(taken: Snapshot) -> None:
    """Go on from a snapshot. What was not in use then, or is not in use now, is left as it is."""
    version, words, gauss = taken["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in taken:
        name, keys, position, has_gauss, cached = taken["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in taken:
        torch.set_rng_state(taken["torch"])
        if torch.cuda.is_available():
            for device in range(min(torch.cuda.device_count(), len(taken.get("cuda", [])))):
                torch.cuda.set_rng_state(taken["cuda"][device], device)
