"""GPUs that an operator declares with `--gpus`: `v100=4`, `v100=2:speed=0.5`, `h100=8:memory=80`.

Machines without NVML need this. A declaration stands for real GPUs, and each job sees its own GPUs by their numbers. If
a `speed` is given, the GPUs are emulated, for trials: jobs see no GPU, and pace their steps by that speed.
"""

from __future__ import annotations

import re

from worker_agent.node.gpus import Gpu, Inventory, InventoryError

_GPUS_MAX = 1024
_FORM = "expected TYPE=COUNT, such as v100=4, v100=2:speed=0.5 or h100=8:memory=80"
# The least and the greatest value of each option. Memory is in GB; a test compares its limits with the scheduler's.
_LIMITS = {"speed": (1e-3, 1_000_000), "memory": (1e-3, 10_000_000)}


def parse_gpus(text: str, visible: str | None = None) -> Inventory:
    """Return the inventory that `--gpus` declares; raise InventoryError if the declaration is wrong.

    `visible`: CUDA_VISIBLE_DEVICES of the agent, which names its GPUs.
    """
    if "," in text:
        raise InventoryError(f"--gpus {text!r}: a node has one worker type; start an agent for each")
    type_and_count, *options = text.strip().split(":")
    worker_type, equals, count_text = type_and_count.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", worker_type):
        raise InventoryError(f"--gpus {text!r}: {_FORM}")
    if not re.fullmatch(r"[0-9]{1,6}", count_text) or not 1 <= int(count_text) <= _GPUS_MAX:
        raise InventoryError(f"--gpus {text!r}: the count is {count_text!r}, expected 1 to {_GPUS_MAX}")
    values: dict[str, float] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _LIMITS:
            raise InventoryError(
                f"--gpus {text!r}: unknown option {name!r}; the options are {' and '.join(_LIMITS)}"
            )
        if name in values:
            raise InventoryError(f"--gpus {text!r}: {name} is given twice")
        values[name] = _number(text, name, value)
    worker_type, count = worker_type.lower(), int(count_text)
    devices = [""] * count if "speed" in values else _devices(text, count, visible)
    gpus = tuple(
        Gpu(index=index, name=worker_type, device=device, memory_gb=values.get("memory", 0.0))
        for index, device in enumerate(devices)
    )
    return Inventory(worker_type=worker_type, gpus=gpus, speed=values.get("speed", 1.0))


def _devices(text: str, count: int, visible: str | None) -> list[str]:
    """Return the names of declared GPUs: the names in the agent's CUDA_VISIBLE_DEVICES, or numbers without it."""
    if visible is None:
        return [str(index) for index in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if names and len(names) < count:
        raise InventoryError(
            f"--gpus {text!r}: {count} GPUs are declared, but CUDA_VISIBLE_DEVICES={visible} shows the agent "
            f"only {len(names)}"
        )
    return names[:count] or [""] * count


def _number(text: str, name: str, value: str) -> float:
    """Return the value of an option of `text` as a number; raise InventoryError if it is not within the limits."""
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    lowest, highest = _LIMITS[name]
    if not lowest <= number <= highest:
        raise InventoryError(
            f"--gpus {text!r}: {name} is {value!r}, expected a number from {lowest:g} to {highest:,}"
        )
    return number
