"""GPUs that are declared, not measured: `v100=4`, `v100=2:speed=0.5`, `h100=8:memory=80`.

For machines without NVML, and for trying things: jobs that ask pace their steps by `speed`.
"""

from __future__ import annotations

import math
import re

from worker_agent.gpus import Gpu, Inventory, InventoryError

_GPUS_MAX = 1024
_FORM = "expected TYPE=COUNT, such as v100=4, v100=2:speed=0.5 or h100=8:memory=80"
_OPTIONS = ("speed", "memory")


def parse_gpus(text: str) -> Inventory:
    """The inventory that `--gpus` declares; InventoryError says what is wrong with it."""
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
        if name not in _OPTIONS:
            raise InventoryError(
                f"--gpus {text!r}: unknown option {name!r}; there are {' and '.join(_OPTIONS)}"
            )
        if name in values:
            raise InventoryError(f"--gpus {text!r}: {name} is given twice")
        values[name] = _positive(text, name, value)
    worker_type = worker_type.lower()
    gpus = tuple(
        Gpu(index=index, name=worker_type, memory_gb=values.get("memory", 0.0))
        for index in range(int(count_text))
    )
    return Inventory(worker_type=worker_type, gpus=gpus, speed=values.get("speed", 1.0))


def _positive(text: str, name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not (number > 0 and math.isfinite(number)):
        raise InventoryError(f"--gpus {text!r}: {name} is {value!r}, expected a number above 0")
    return number
