"""Copies of a state in memory that is kept: a new copy is written over the last one.

Fresh memory costs most of a copy's time, because each of its pages is first mapped and cleared. So the copies of the
tensors' storages are kept, in the order in which a state refers to them, and a storage of another size gets a new one.
Whole storages are copied, so tensors that share one still do, and a file of the copy equals a file of the state.

Tensors on a GPU are copied into pinned memory of the host, while the loop waits; beyond a limit, and if the driver has
no more of it, into other memory, which is only slower.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

# The part of the machine's memory that the copies of all its ranks may pin.
PINNED = 0.25
# How PyTorch and its drivers report that memory is used up, on CPUs and on GPUs whose error has no class of its own.
_NO_MEMORY = re.compile(r"out of memory|not enough memory|can(?:'t|not) allocate memory", re.IGNORECASE)


class _Kept(NamedTuple):
    """Memory for one storage, as a tensor of bytes."""

    buffer: Any
    pinned: bool


class Buffers:
    """The memory for one copy of a state. The next copy overwrites it, so the last one must no longer be in use."""

    def __init__(self) -> None:
        # In the order in which storages appear in the state.
        self._kept: list[_Kept] = []
        self._pinned_bytes = 0
        self._used = 0
        self._copies: dict[tuple[Any, int, int], Any] = {}

    def copy(self, state: Any) -> Any:
        """Return a copy of a plain state (`torch_state.plain`). Raise MemoryError if there is no room for it."""
        self._used, self._copies = 0, {}
        try:
            return self._copy(state)
        except MemoryError:
            self._release(0)
            raise
        except RuntimeError as fault:
            if not is_out_of_memory(fault):
                raise
            self._release(0)
            raise MemoryError(
                f"no room for a copy of the state ({str(fault).partition(chr(10))[0]})"
            ) from fault
        finally:
            self._release(self._used)
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
            buffer = self._copies[key] = self._next(storage.nbytes(), pinned=is_on_gpu(tensor))
            source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            buffer.copy_(source)
        copy = torch.empty(0, dtype=tensor.dtype)
        return copy.set_(buffer.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())

    def _next(self, size_bytes: int, pinned: bool) -> Any:
        """Return the kept memory for the next storage, or new one if that has another size."""
        index, self._used = self._used, self._used + 1
        if index < len(self._kept) and self._kept[index].buffer.numel() == size_bytes:
            return self._kept[index].buffer
        # The memory that is replaced must not be in use beside the new one, nor count as pinned.
        self._release(index, index + 1)
        if pinned and not self._may_pin(size_bytes):
            # What follows is from the last copy, and may be of storages that are gone.
            self._release(index)
        kept = self._allocate(size_bytes, pinned and self._may_pin(size_bytes))
        self._kept.insert(index, kept)
        return kept.buffer

    def _release(self, start: int, end: int | None = None) -> None:
        """Release the kept memory from one place to another, or to the last one."""
        self._pinned_bytes -= sum(kept.buffer.numel() for kept in self._kept[start:end] if kept.pinned)
        del self._kept[start:end]

    def _may_pin(self, size_bytes: int) -> bool:
        """Return whether so much memory can be pinned beside what is."""
        return self._pinned_bytes + size_bytes <= _pinned_bytes_max()

    def _allocate(self, size_bytes: int, pinned: bool) -> _Kept:
        if pinned:
            try:
                buffer = empty_bytes(size_bytes, pin_memory=True)
                self._pinned_bytes += size_bytes
                return _Kept(buffer, True)
            except RuntimeError:
                # The driver may have no more memory to pin; other memory is only slower.
                pass
        try:
            return _Kept(empty_bytes(size_bytes), False)
        except RuntimeError as fault:
            raise MemoryError(f"no room for a copy of {size_bytes / 1e6:.3g} MB") from fault


def is_on_gpu(tensor: Any) -> bool:
    """Return whether a tensor is copied faster into pinned memory."""
    return bool(tensor.is_cuda)


def is_out_of_memory(fault: RuntimeError) -> bool:
    """Return whether PyTorch reports by this error that the memory of the host or of a GPU is used up."""
    import torch

    return isinstance(fault, torch.cuda.OutOfMemoryError) or bool(_NO_MEMORY.search(str(fault)))


def empty_bytes(size_bytes: int, pin_memory: bool = False) -> Any:
    """Return new memory as a tensor of bytes."""
    import torch

    return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=pin_memory)


def _pinned_bytes_max() -> float:
    """Return how much memory this rank may pin."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return PINNED * machine_bytes / max(int(ranks) if ranks.isdecimal() else 1, 1)
