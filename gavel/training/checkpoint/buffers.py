"""Copies of a state in memory that is kept: a new copy is written over the last one.

Fresh memory costs most of a copy's time, because each of its pages is first mapped and cleared. So the copies of the
tensors' storages are kept, in the order in which a state refers to them, and a storage of another size gets a new one.
Whole storages are copied, so tensors that share one still do, and a file of the copy equals a file of the state.

Tensors on a GPU are copied into pinned memory of the host, while the loop waits.
"""

from __future__ import annotations

import os
from typing import Any

# The part of the machine's memory that the copies of all its ranks may pin.
PINNED = 0.25


class Buffers:
    """The memory for one copy of a state. The next copy overwrites it, so the last one must no longer be in use."""

    def __init__(self) -> None:
        # Bytes as tensors, in the order in which storages appear in the state.
        self._kept: list[Any] = []
        self._used = 0
        self._copies: dict[tuple[Any, int, int], Any] = {}
        self._pinned_bytes = 0

    def copy(self, state: Any) -> Any:
        """Return a copy of a plain state (`torch_state.plain`). Raise MemoryError if there is no room for it."""
        self._used, self._copies = 0, {}
        try:
            return self._copy(state)
        except MemoryError:
            self._kept = []
            raise
        finally:
            del self._kept[self._used :]
            self._copies = {}

    def _copy(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return self._copy_tensor(value)
        if isinstance(value, dict):
            copied = type(value)()
            for key, part in value.items():
                copied[key] = self._copy(part)
            return copied
        if type(value) in (list, tuple, set):
            return type(value)(self._copy(part) for part in value)
        return value

    def _copy_tensor(self, tensor: Any) -> Any:
        import torch

        usual = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
        if not usual or tensor.is_conj() or tensor.is_neg() or tensor.device.type == "meta":
            return tensor.clone()
        storage = tensor.untyped_storage()
        key = (tensor.device, storage.data_ptr(), storage.nbytes())
        if storage.nbytes() == 0:
            return tensor.clone()
        buffer = self._copies.get(key)
        if buffer is None:
            buffer = self._copies[key] = self._next(storage.nbytes(), pinned=tensor.is_cuda)
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            buffer.copy_(source)
        copy = torch.empty(0, dtype=tensor.dtype)
        return copy.set_(buffer.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def _next(self, size_bytes: int, pinned: bool) -> Any:
        """Return the kept memory for the next storage, or new one if that has another size."""
        index, self._used = self._used, self._used + 1
        if index < len(self._kept) and self._kept[index].numel() == size_bytes:
            return self._kept[index]
        buffer = self._allocate(size_bytes, pinned)
        self._kept[index : index + 1] = [buffer]
        return buffer

    def _allocate(self, size_bytes: int, pinned: bool) -> Any:
        if pinned and self._pinned_bytes + size_bytes <= _pinned_bytes_max():
            try:
                buffer = empty_bytes(size_bytes, pin_memory=True)
                self._pinned_bytes += size_bytes
                return buffer
            except RuntimeError:
                # The driver may have no more memory to pin; other memory is only slower.
                pass
        try:
            return empty_bytes(size_bytes)
        except RuntimeError as fault:
            raise MemoryError(f"no room for a copy of {size_bytes / 1e6:.3g} MB") from fault


def empty_bytes(size_bytes: int, pin_memory: bool = False) -> Any:
    """Return new memory as a tensor of bytes."""
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pin_memory)


def _pinned_bytes_max() -> float:
    """Return how much memory this rank may pin."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return PINNED * machine_bytes / max(int(ranks) if ranks.isdecimal() else 1, 1)
