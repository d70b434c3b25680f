"""Checkpoints from a copy of the state: the copy, its memory, and what is left when the process dies meanwhile."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gavel.training import CheckpointError, StaleAttempt, TorchCheckpoint
from gavel.training.checkpoint import buffers as buffers_module
from gavel.training.checkpoint.buffers import Buffers
from tests.training.checkpoint.faults import DyingDisk, Killed
from tests.training.leases import RunDirectory, under_a_lease

torch = pytest.importorskip("torch")

FAULTS = 1000


class Training:
    """A model with an optimizer; each step changes every value of its state, by the step's number alone."""

    def __init__(self, width: int = 4) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.width = width

    def checkpoint(self, directory: Path) -> TorchCheckpoint:
        """Return a checkpoint of all of it, written from copies."""
        return TorchCheckpoint(directory, background=True, model=self.model, optimizer=self.optimizer)

    def train(self, step: int) -> None:
        """Do the step of this number."""
        batch = torch.randn(3, self.width, generator=torch.Generator().manual_seed(step))
        self.optimizer.zero_grad()
        (self.model(batch) - step).pow(2).sum().backward()
        self.optimizer.step()


def files(directory: Path, step: int) -> dict[str, bytes]:
    """Return the files of a set with states."""
    (path,) = directory.glob(f"e*/step-{step:012d}")
    return {file.name: file.read_bytes() for file in path.glob("*.pt")}


# ---------------------------------------------------------------------------------------------- the copy


def test_weights_that_change_while_a_copy_is_written_are_not_in_it(tmp_path: Path) -> None:
    """The files are those of a twin that waited, byte by byte, although training went on."""
    training = Training()
    training.train(1)
    training.checkpoint(tmp_path / "twin").save(1)
    write = training.checkpoint(tmp_path / "copy").snapshot(1)
    training.train(2)
    training.train(3)
    write()
    assert files(tmp_path / "copy", 1) == files(tmp_path / "twin", 1)


def test_a_copy_shares_what_the_state_shares() -> None:
    """Tied weights stay tied, and views keep their place, strides and type; nothing is shared with the state."""
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "tied": [base, base],
        "view": base[1:3, ::2],
        "turned": base.t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "empty": torch.empty(0, 2),
        "number": torch.tensor(5),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "plain": ("a", 1, None, {2.5}),
    }
    copy = Buffers().copy(state)
    before = base.clone()
    base.zero_()
    assert torch.equal(copy["tied"][0], before)
    assert torch.equal(copy["view"], before[1:3, ::2])
    assert torch.equal(copy["turned"], before.t())
    assert copy["turned"].stride() == base.t().stride()
    shared = {tensor.untyped_storage().data_ptr() for tensor in [*copy["tied"], copy["view"], copy["turned"]]}
    assert len(shared) == 1
    for name in ("half", "empty", "number", "conjugate"):
        assert torch.equal(copy[name], state[name])
        assert copy[name].dtype == state[name].dtype
    assert torch.equal(copy["sparse"].to_dense(), torch.eye(3))
    assert copy["plain"] == state["plain"]


def test_the_memory_of_a_copy_is_kept() -> None:
    """The next copy is written over the last one; only a tensor of another size gets new memory."""
    kept = Buffers()
    first = kept.copy([torch.ones(1000), torch.ones(2000)])
    second = kept.copy([torch.zeros(1000), torch.zeros(3000), torch.zeros(10)])
    assert second[0].data_ptr() == first[0].data_ptr()
    assert float(first[0].sum()) == 0.0
    assert second[1].data_ptr() != first[1].data_ptr()
    third = kept.copy([torch.ones(1000)])
    assert third[0].data_ptr() == first[0].data_ptr()


def test_a_copy_without_room_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's error becomes Python's, the memory is released, and a later copy may fit again."""
    kept = Buffers()
    state = [torch.ones(10), torch.ones(1000)]

    def full(size_bytes: int, pin_memory: bool = False) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    kept.copy(state[:1])
    with monkeypatch.context() as patch:
        patch.setattr(buffers_module, "empty_bytes", full)
        with pytest.raises(MemoryError, match="no room for a copy of"):
            kept.copy(state)
    assert torch.equal(kept.copy(state)[1], state[1])


def test_a_state_that_cannot_be_stored_is_refused_before_the_copy(tmp_path: Path) -> None:
    """The loop learns of it at once, and not from the thread."""

    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"odd": object()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError(state)

    with pytest.raises(CheckpointError, match="cannot be stored safely"):
        TorchCheckpoint(tmp_path, background=True, odd=Odd()).snapshot(1)


# ------------------------------------------------------------------------------------------ faults


class Numbers:
    """The smallest thing with a state: a tensor that each step changes in place."""

    def __init__(self) -> None:
        self.values = torch.zeros(5)

    def state_dict(self) -> dict[str, Any]:
        """Return the tensor itself."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the tensor."""
        self.values.copy_(state["values"])

    def train(self, step: int) -> None:
        """Do the step of this number."""
        self.values.mul_(0.7).add_(step)


def train_until_killed(directory: Path, disk: DyingDisk, steps: int = 4) -> None:
    """Train with a checkpoint after every second step, written after the next step."""
    numbers = Numbers()
    with disk.mounted(), contextlib.suppress(Killed):
        checkpoint = TorchCheckpoint(directory, background=True, numbers=numbers)
        write: Callable[[], None] | None = None
        for step in range(checkpoint.load() + 1, steps + 1):
            numbers.train(step)
            if write is not None:
                write()
            write = checkpoint.snapshot(step) if step % 2 == 0 else None
        if write is not None:
            write()


def test_a_process_killed_at_any_byte_resumes_from_the_newest_complete_set(tmp_path: Path) -> None:
    """1,000 seeded kills in the file layer: the newest complete set is loaded, bit for bit as without a kill."""
    states, numbers = {0: torch.zeros(5)}, Numbers()
    for step in range(1, 5):
        numbers.train(step)
        states[step] = numbers.values.clone()
    disk = DyingDisk(None)
    train_until_killed(tmp_path / "whole", disk)
    chance = random.Random(20261123)
    resumed_from = set()
    for seed in range(FAULTS):
        directory = tmp_path / str(seed)
        dies_at = chance.randrange(1, disk.operations + 1)
        train_until_killed(directory, DyingDisk(dies_at, chance.random()))
        complete = [int(path.parent.name[5:]) for path in directory.glob("e*/step-*/COMPLETE")]
        resumed = Numbers()
        with DyingDisk(None).mounted():
            step = TorchCheckpoint(directory, numbers=resumed).load()
        assert step == max(complete, default=0), (seed, dies_at)
        assert torch.equal(resumed.values, states[step]), (seed, dies_at)
        resumed_from.add(step)
    assert resumed_from == {0, 2, 4}


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's error is the disk's, and the half-written set is deleted."""
    training = Training()
    checkpoint = training.checkpoint(tmp_path)
    checkpoint.snapshot(1)()
    write = checkpoint.snapshot(2)
    with monkeypatch.context() as patch:

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr("gavel.training.checkpoint.atomic.ChecksumFile.write", full)
        with pytest.raises((OSError, CheckpointError)):
            write()
    assert Training().checkpoint(tmp_path).load() == 1
    assert not list(tmp_path.glob("e*/step-000000000002"))


def test_a_stale_attempt_that_writes_its_copy_completes_nothing(tmp_path: Path) -> None:
    """A newer attempt has claimed the directory since the copy was made: the set never counts."""
    directory = tmp_path / "checkpoints"
    old = RunDirectory(tmp_path / "old", attempt=2)
    new = RunDirectory(tmp_path / "new", attempt=3)
    place = {"GAVEL_CHECKPOINT_DIR": directory}
    with under_a_lease(old.environ(**place)):
        stale = Training().checkpoint(directory)
        stale.load()
        write = stale.snapshot(5)
    with under_a_lease(new.environ(**place)):
        assert Training().checkpoint(directory).load() == 0
    with under_a_lease(old.environ(**place)), pytest.raises(StaleAttempt):
        write()
    assert not list(directory.glob("**/COMPLETE"))
