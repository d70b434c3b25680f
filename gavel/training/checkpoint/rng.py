"""The state of the random number generators of this process: Python's, and NumPy's and PyTorch's if they are in use.

A snapshot holds only lists, numbers and tensors, so that it can be stored without pickling code.
"""

from __future__ import annotations

import random
import sys
from typing import Any

Snapshot = dict[str, Any]


def snapshot() -> Snapshot:
    """Return the state of every default generator of the process."""
    version, words, gauss = random.getstate()
    state: Snapshot = {"python": [version, list(words), gauss]}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: Snapshot) -> None:
    """Restore a snapshot. Skip generators that were not in use when it was taken, or are not in use now."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            for device in range(min(torch.cuda.device_count(), len(state.get("cuda", [])))):
                torch.cuda.set_rng_state(state["cuda"][device], device)
