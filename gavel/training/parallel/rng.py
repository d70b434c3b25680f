"""Random numbers from a counter: a layer draws the same ones for a microbatch under every plan, and when recomputed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

_MASK = (1 << 64) - 1


def seed_of(*counters: int) -> int:
    """Mix counters into a seed: neighbouring counters give unrelated seeds."""
    state = 0
    for counter in counters:
        # One round of SplitMix64 for each counter.
        state = (state + (counter & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def reseed(device: torch.device, *counters: int) -> None:
    """Seed the default generators that a layer on this device draws from."""
    seed = seed_of(*counters)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextlib.contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Leave the random numbers of the script as they are: restore the default generators after the block."""
    state = torch.default_generator.get_state()
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
