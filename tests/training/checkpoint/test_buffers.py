"""The memory of copies when it runs short: pinned memory, its limit, and errors that mean that there is none left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import CheckpointError, LeasedIterator, TorchCheckpoint
from gavel.training.checkpoint import buffers as buffers_module
from gavel.training.checkpoint.buffers import Buffers

torch = pytest.importorskip("torch")

MACHINE_BYTES = 4000


class Memory:
    """The memory of a machine with GPUs: it records what is allocated, and pins no more than it has."""

    def __init__(self, pinnable_bytes: float = float("inf")) -> None:
        self.pinnable_bytes = pinnable_bytes
        # Whether each allocation was pinned, and its size.
        self.allocated: list[tuple[bool, int]] = []

    def empty_bytes(self, size_bytes: int, pin_memory: bool = False) -> Any:
        """Return new memory. None of it is really pinned."""
        if pin_memory and size_bytes > self.pinnable_bytes:
            raise RuntimeError("CUDA error: out of memory")
        self.allocated.append((pin_memory, size_bytes))
        return torch.empty(size_bytes, dtype=torch.uint8)

    def take(self) -> list[tuple[bool, int]]:
        """Return what was allocated since the last call."""
        allocated, self.allocated = self.allocated, []
        return allocated


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Treat all tensors as those of a GPU, on a machine of 4,000 bytes of which a single rank may pin 1,000."""
    machine = Memory()
    sizes = {"SC_PHYS_PAGES": MACHINE_BYTES // 4, "SC_PAGE_SIZE": 4}
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(buffers_module, "os", SimpleNamespace(sysconf=sizes.__getitem__, environ=os.environ))
    monkeypatch.setattr(buffers_module, "empty_bytes", machine.empty_bytes)
    monkeypatch.setattr(buffers_module, "is_on_gpu", lambda tensor: True)
    return machine


def state_of(*sizes: int) -> list[Any]:
    """Return a state of tensors of these sizes in bytes."""
    return [torch.arange(size, dtype=torch.int64).to(torch.uint8) for size in sizes]


def test_a_quarter_of_the_memory_is_pinned(memory: Memory) -> None:
    """Storages are pinned while they fit into the limit, to the byte; the others have usual memory."""
    kept, state = Buffers(), state_of(600, 401, 400, 1)
    assert all(map(torch.equal, kept.copy(state), state))
    assert memory.take() == [(True, 600), (False, 401), (True, 400), (False, 1)]
    kept.copy(state)
    assert memory.take() == []


@pytest.mark.parametrize(("ranks", "pinned"), [("4", 250), ("0", 1000), ("some", 1000)])
def test_the_ranks_of_a_node_share_the_limit(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, ranks: str, pinned: int
) -> None:
    """Of four ranks, each pins a quarter of what one alone may; a senseless number of ranks is one."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    Buffers().copy(state_of(pinned))
    Buffers().copy(state_of(pinned + 1))
    assert memory.take() == [(True, pinned), (False, pinned + 1)]


def test_memory_that_the_driver_does_not_pin_is_replaced_by_other_memory(memory: Memory) -> None:
    """The copy is made, and what failed to be pinned does not count towards the limit."""
    memory.pinnable_bytes = 400
    kept, state = Buffers(), state_of(900, 400, 300)
    assert all(map(torch.equal, kept.copy(state), state))
    assert memory.take() == [(False, 900), (True, 400), (True, 300)]


def test_memory_that_is_replaced_or_dropped_counts_as_pinned_no_longer(memory: Memory) -> None:
    """Whatever the shapes of a state were before, as much of it is pinned as of a state that is new."""
    kept = Buffers()
    for sizes in ([1000], [999], [500, 500], [998], [10, 900], [1000], [200, 700], [600, 300, 100]):
        kept.copy(state_of(*sizes))
        assert all(pinned for pinned, _ in memory.take()), sizes
    kept.copy(state_of(600))
    kept.copy(state_of(600, 400))
    assert memory.take() == [(True, 400)]


def test_a_copy_that_failed_leaves_nothing_pinned(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error the whole limit is free again."""
    kept = Buffers()
    kept.copy(state_of(1000))
    memory.take()
    monkeypatch.setattr(torch.Tensor, "clone", raising(torch.OutOfMemoryError("CUDA out of memory.")))
    with pytest.raises(MemoryError):
        kept.copy([*state_of(1000), torch.eye(2).to_sparse()])
    kept.copy(state_of(1000))
    assert memory.take() == [(True, 1000)]


# -------------------------------------------------------------------------- tensors that are cloned

NO_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000 bytes."),
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("unsupported memory format option Preserve"),
    RuntimeError("No space left on device"),
]


def raising(fault: Exception) -> Callable[..., Any]:
    """Return a function that raises this error."""

    def fail(*_: Any, **__: Any) -> Any:
        raise fault

    return fail


class Sparse:
    """A thing whose state has a tensor that is cloned."""

    def state_dict(self) -> dict[str, Any]:
        """Return a sparse matrix."""
        return {"values": torch.eye(3).to_sparse()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""


@pytest.mark.parametrize("fault", NO_MEMORY, ids=str)
def test_a_clone_without_room_is_a_memory_error(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    """Sparse and similar tensors, of which no storage is copied, report it like all others, in one line."""
    monkeypatch.setattr(torch.Tensor, "clone", raising(fault))
    with pytest.raises(MemoryError, match=r"^no room for a copy of the state ") as caught:
        Buffers().copy(Sparse().state_dict())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", OTHERS, ids=str)
def test_other_errors_of_a_clone_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """An error that speaks of memory, but does not mean that it is used up, does not make the loop wait."""
    checkpoint = TorchCheckpoint(tmp_path, background=True, sparse=Sparse())
    monkeypatch.setattr(torch.Tensor, "clone", raising(fault))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.snapshot(1)
    assert str(caught.value) == str(fault)


@pytest.mark.parametrize("fault", NO_MEMORY, ids=str)
def test_without_memory_the_loop_saves_in_the_foreground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """All steps are done and every checkpoint is complete; the log says once why the loop waits."""
    monkeypatch.setattr(torch.Tensor, "clone", raising(fault))
    checkpoint = TorchCheckpoint(tmp_path, background=True, sparse=Sparse())
    steps = LeasedIterator(range(6), checkpoint=checkpoint, steps=6, every_steps=2)
    saved = []
    for _ in steps:
        saved.append(steps._saver.saved)
    assert (steps.finished, saved) == (True, [0, 0, 2, 2, 4, 4])
    assert TorchCheckpoint(tmp_path, sparse=Sparse()).load() == 6
    assert len(caplog.messages) == 1
    assert caplog.messages[0].endswith("from now on the loop waits while checkpoints are written")
