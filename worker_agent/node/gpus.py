"""The inventory of a node: GPUs of one worker type, detected by NVML (nvml.py) or declared (declared.py)."""

from __future__ import annotations

import re

import msgspec

# The part of a product name that becomes the worker type.
_PRODUCT = re.compile(
    r"\b(GH200|GB200|B200|H200|H100|A100|V100|P100|K80|L40S|L40|L4|T4|A10G|A10|A40|A30)\b"
    r"|\bGeForce (RTX \d{4}(?: Ti| SUPER)?)\b"
)
# Makers, form factors and memory sizes are dropped from the names of other products.
_MAKER = re.compile(r"\b(nvidia|tesla|geforce|graphics device)\b", re.IGNORECASE)
_FORM = re.compile(r"[-\s](pcie|sxm\d?|nvl|hbm\d\w?|\d+gb)\b", re.IGNORECASE)


class InventoryError(ValueError):
    """The GPUs of this node cannot be offered; the message has the reason and the remedy."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `device`: its name in CUDA_VISIBLE_DEVICES; empty if it is emulated."""

    index: int
    name: str
    device: str = ""
    memory_gb: float = 0.0


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node, all of one worker type."""

    worker_type: str
    gpus: tuple[Gpu, ...]
    # The speed of declared GPUs; None for detected GPUs.
    speed: float | None = None
    driver_version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the GPUs in CUDA_VISIBLE_DEVICES; none if they are emulated."""
        return tuple(gpu.device for gpu in self.gpus if gpu.device)


class GpuHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a GPU. `broken`: the fatal error that put it out of service, in words; else empty."""

    index: int
    memory_used_gb: float = 0.0
    temperature_c: float = 0.0
    broken: str = ""


def worker_type_of(product: str) -> str:
    """Return the worker type of a product name, such as h100 for "NVIDIA H100 80GB HBM3"."""
    if match := _PRODUCT.search(product):
        return (match[1] or match[2]).replace(" ", "").lower()
    rest = _FORM.sub(" ", _MAKER.sub(" ", product))
    return re.sub(r"[^a-z0-9]+", "-", rest.lower()).strip("-") or "gpu"


def common_worker_type(names: list[str]) -> str:
    """Return the worker type of GPUs with these product names; raise InventoryError if there are several types."""
    types: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        types.setdefault(worker_type_of(name), []).append(index)
    if len(types) > 1:
        listed = "; ".join(f"{name}: GPUs {','.join(map(str, indices))}" for name, indices in types.items())
        raise InventoryError(
            f"this node has GPUs of several types ({listed}), and an agent offers only one: start an agent for each,"
            " with its own node name, state directory and CUDA_VISIBLE_DEVICES"
        )
    return next(iter(types))
