"""GPUs that are declared, not measured: `v100=4`, `v100=2:speed=0.5`, `h100=8:memory=80`.

For machines without NVML, where they stand for the GPUs that are there: each job sees its own by number. With a `speed`
they are emulated, for trying things: jobs see no GPU, and pace their steps by it.
"""

from __future__ import annotations

import re

from worker_agent.node.gpus import Gpu, Inventory, InventoryError

_GPUS_MAX = 1024
_FORM = "expected TYPE=COUNT, such as v100=4, v100=2:speed=0.5 or h100=8:memory=80"
# Memory is in GB, with the limits that the scheduler has for it; a test keeps them equal.
_LIMITS = {"speed": (1e-3, 1_000_000), "memory": (1e-3, 10_000_000)}


def parse_gpus(text: str, visible: str | None = None) -> Inventory:
    """Return the inventory that `--gpus` declares; InventoryError says what is wrong with it.

    `visible`: CUDA_VISIBLE_DEVICES of the agent, which says what its GPUs are called.
    """
    if "," in text:
        raise InventoryError(f"--gpus {text!r}: a node has one worker type; start an agent for each")
    head, *options = text.strip().split(":")
    worker_type, equals, count_text = head.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", worker_type):
        raise InventoryError(f"--gpus {text!r}: {_FORM}")
    if not re.fullmatch(r"[0-9]{1,6}", count_text) or not 1 <= int(count_text) <= _GPUS_MAX:
        raise InventoryError(f"--gpus {text!r}: the count is {count_text!r}, expected 1 to {_GPUS_MAX}")
    values: dict[str, float] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _LIMITS:
            raise InventoryError(
                f"--gpus {text!r}: unknown option {name!r}; there are {' and '.join(_LIMITS)}"
            )
        if name in values:
            raise InventoryError(f"--gpus {text!r}: {name} is given twice")
        values[name] = _positive(text, name, value)
    worker_type, count = worker_type.lower(), int(count_text)
    devices = [""] * count if "speed" in values else _devices(text, count, visible)
    gpus = tuple(
        Gpu(index=index, name=worker_type, device=device, memory_gb=values.get("memory", 0.0))
        for index, device in enumerate(devices)
    )
    return Inventory(worker_type=worker_type, gpus=gpus, speed=values.get("speed", 1.0))


def _devices(text: str, count: int, visible: str | None) -> list[str]:
    """Return the names of declared GPUs: numbers, or those in the agent's CUDA_VISIBLE_DEVICES."""
    if visible is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if names and len(names) < count:
        raise InventoryError(
            f"--gpus {text!r}: {count} GPUs are declared, and CUDA_VISIBLE_DEVICES={visible} shows the agent "
            f"{len(names)}"
        )
    return names[:count] or [""] * count


def _positive(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    least, most = _LIMITS[name]
    if not least <= number <= most:
        raise InventoryError(
            f"--gpus {text!r}: {name} is {value!r}, expected a number from {least:g} to {most:,}"
        )
    return number
