"""The state of training with PyTorch, saved and restored; and damaged or foreign files."""

from __future__ import annotations

import enum
import io
import random
import re
import threading
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from gavel.training import CheckpointError, StaleAttempt, TorchCheckpoint
from gavel.training.checkpoint import torch_state
from tests.support.wording import Wording
from tests.training.leases import RunDirectory

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch", reason="torch is not installed")


class Own:
    """A user's object with any state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        """Return the state."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Set the state."""
        self.state = state


def trained() -> dict[str, Any]:
    """Return a model and all its training objects, after some steps."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2]),
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
        ],
        milestones=[3],
    )
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "generator": generator,
    }


def same(first: Any, other: Any) -> bool:
    """Return whether two states are equal, bit for bit."""
    if isinstance(first, torch.Tensor):
        return first.dtype == other.dtype and torch.equal(first, other)
    if isinstance(first, np.ndarray):
        return first.dtype == other.dtype and np.array_equal(first, other)
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(same(first[key], other[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(same, first, other))
    return type(first) is type(other) and first == other


def state_of(thing: Any) -> Any:
    """The state of anything."""
    return thing.get_state() if isinstance(thing, torch.Generator) else thing.state_dict()


def test_the_whole_state_of_training_comes_back(tmp_path: Path) -> None:
    """Fresh objects get the state of model, optimizer, chained schedulers, scaler and generator, bit for bit."""
    before, after = trained(), trained()
    TorchCheckpoint(tmp_path, **before).save(5)
    assert not same(state_of(before["model"]), state_of(after["model"]))
    assert TorchCheckpoint(tmp_path, **after).load() == 5
    assert [name for name in before if not same(state_of(before[name]), state_of(after[name]))] == []


def test_random_numbers_continue(tmp_path: Path) -> None:
    """Python's, NumPy's and PyTorch's generators continue their sequences."""
    checkpoint = TorchCheckpoint(tmp_path, own=Own(1))

    def draws() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.normal(), torch.rand(1).item()]

    np.random.normal()
    checkpoint.save(1)
    expected = draws()
    draws()
    checkpoint.load()
    assert draws() == expected


ANY_STATE = {
    "none": None,
    "numbers": [True, 2, 3.5, float("inf"), 1j, 2**70],
    "text": ("ü", b"\x00\xff", b"", ""),
    "set": {1, 2},
    "nested": {"a": [{"b": (1, (2,))}], 3: "key"},
    "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "empty": np.zeros((0, 2)),
    "scalar": 1.5,
    "tensor": torch.ones(2, dtype=torch.bfloat16),
}


def test_states_of_the_users_own_come_back(tmp_path: Path) -> None:
    """Numbers, text, containers, arrays and tensors come back unchanged; NumPy's scalars as plain numbers."""
    TorchCheckpoint(tmp_path, own=Own({**ANY_STATE, "scalar": np.float64(1.5)})).save(1)
    own = Own()
    TorchCheckpoint(tmp_path, own=own).load()
    assert own.state.pop("set") == ANY_STATE["set"]
    assert same(own.state, {key: value for key, value in ANY_STATE.items() if key != "set"})


def test_an_unsafe_value_is_refused_when_saving(tmp_path: Path, wording: Wording) -> None:
    """The refusal comes at saving, not at loading; the error has the value's place, and the old checkpoint stays."""
    own = Own({"fine": 1})
    checkpoint = TorchCheckpoint(tmp_path, own=own)
    checkpoint.save(1)
    for odd in (Own(), enum.IntEnum("Colour", "RED")(1), frozenset(), np.array([object()])):
        own.state = {"a": [1, {"b": odd}]}
        place = rf"own\['a'\]\[1\]\['b'\] is a {type(odd).__name__}"
        with pytest.raises(CheckpointError, match=place) as refused:
            checkpoint.save(2)
        wording(refused.value)
    assert TorchCheckpoint(tmp_path, own=Own()).load() == 1


class Trap:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("was-here"),))


def test_a_checkpoint_cannot_run_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, wording: Wording
) -> None:
    """A file that would run code when it is read, checksums and all, is refused."""
    monkeypatch.chdir(tmp_path)
    checkpoint = TorchCheckpoint(tmp_path / "job", own=Own(1))
    checkpoint._store.write(1, "state.pt", lambda file: torch.save({"own": Trap()}, file))
    checkpoint._store.commit(1, 1.0)
    with pytest.raises(CheckpointError, match=re.escape(str(tmp_path))) as refused:
        TorchCheckpoint(tmp_path / "job", own=Own()).load()
    wording(str(refused.value).splitlines()[0], folder=tmp_path)
    assert not (tmp_path / "was-here").exists()


def test_objects_that_do_not_match_are_an_error(tmp_path: Path, wording: Wording) -> None:
    """A name that the checkpoint does not have, and a model of another shape: the error has the remedy."""
    TorchCheckpoint(tmp_path, model=torch.nn.Linear(2, 3)).save(1)
    with pytest.raises(CheckpointError, match=r"'scaler'.* model") as unknown:
        TorchCheckpoint(tmp_path, model=torch.nn.Linear(2, 3), scaler=Own()).load()
    wording(unknown.value, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"model: [\s\S]*size mismatch"):
        TorchCheckpoint(tmp_path, model=torch.nn.Linear(2, 4)).load()


def test_only_objects_with_a_state_can_be_named(tmp_path: Path, wording: Wording) -> None:
    """A number that was passed by mistake is refused at once."""
    with pytest.raises(TypeError, match=r"epochs .*int.*state_dict\(\)") as refused:
        TorchCheckpoint(tmp_path, epochs=3)
    wording(refused.value)


def test_outside_gavel_a_directory_is_needed(wording: Wording) -> None:
    """Outside Gavel, saving without a directory is an error."""
    with pytest.raises(CheckpointError) as refused:
        TorchCheckpoint(own=Own())
    wording(refused.value)


def test_under_a_lease_the_jobs_directory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a lease, the script's own directory is not used; the path has epoch and attempt, and a claim is written."""
    for name, value in RunDirectory(tmp_path / "run").environ(GAVEL_CHECKPOINT_DIR=tmp_path / "job").items():
        monkeypatch.setenv(name, value)
    # No thread may watch the lease after this test.
    monkeypatch.setattr("gavel.training.session.current", lambda: None)
    checkpoint = TorchCheckpoint(tmp_path / "own", own=Own(1))
    assert checkpoint.load() == 0
    (tmp_path / "job" / "claims" / "e00000003-a00000003.json").write_text("{}")
    with pytest.raises(StaleAttempt):
        checkpoint.save(1)
    (tmp_path / "job" / "claims" / "e00000003-a00000003.json").unlink()
    checkpoint.save(2)
    assert (tmp_path / "job" / "e00000003-a00000002" / "step-000000000002" / "COMPLETE").exists()
    assert not (tmp_path / "own").exists()


def test_the_width_of_a_job_may_change(tmp_path: Path) -> None:
    """A wrapper for several devices, or a compiled module, is not part of the state."""
    wrapped = torch.nn.DataParallel(torch.nn.Linear(2, 2))
    TorchCheckpoint(tmp_path, model=wrapped).save(1)
    bare = torch.nn.Linear(2, 2)
    TorchCheckpoint(tmp_path, model=bare).load()
    assert same(bare.state_dict(), wrapped.module.state_dict())
    compiled = torch.compile(torch.nn.Linear(2, 2))
    TorchCheckpoint(tmp_path, model=compiled).load()
    assert same(compiled._orig_mod.state_dict(), bare.state_dict())


@pytest.mark.parametrize("world", [1, 2, 3])
def test_another_number_of_ranks_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """After two ranks have saved, one, two or three continue.

    Each gets the common state; a rank that saved gets its own state back, and a new rank keeps its state.
    """

    def rank_of(rank: int, world: int, common: Own, own: Own) -> TorchCheckpoint:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        return TorchCheckpoint(tmp_path, of_rank={"own": own}, common=common)

    saving = [rank_of(rank, 2, Own("common"), Own(f"of rank {rank}")) for rank in range(2)]
    threads = [threading.Thread(target=each.save, args=(7,)) for each in saving]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank in range(world):
        common, own = Own(), Own("as it was")
        assert rank_of(rank, world, common, own).load() == 7
        assert (common.state, own.state) == ("common", f"of rank {rank}" if rank < 2 else "as it was")


def test_a_full_disk_is_an_error_and_the_good_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's own error becomes a CheckpointError, and half-written files are removed."""
    checkpoint = TorchCheckpoint(tmp_path, own=Own(torch.zeros(1000)))
    checkpoint.save(1)

    def full(*_: Any) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(2)
    assert not list(tmp_path.rglob("step-000000000002"))
    assert TorchCheckpoint(tmp_path, own=Own()).load() == 1


def test_only_our_own_files_have_no_checksums_of_pytorch() -> None:
    """The file as a whole has one. What the script saves itself, meanwhile or later, has them as ever."""
    options: list[bool] = []

    class Sink(io.BytesIO):
        def write(self, data: Any) -> int:
            options.append(torch.serialization.get_crc32_options())
            return super().write(data)

    sink = Sink()
    torch_state.write({"values": torch.arange(1000)}, cast(BinaryIO, sink))
    assert options
    assert not any(options)
    assert torch.serialization.get_crc32_options()
    sink.seek(0)
    assert torch.equal(torch.load(sink, weights_only=True)["values"], torch.arange(1000))


def test_checksums_that_only_all_threads_could_leave_out_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of PyTorch have one option for the whole process, or none: they write them as ever."""
    option = [True]
    monkeypatch.setattr(torch.serialization, "get_crc32_options", lambda: option[0])
    monkeypatch.setattr(torch.serialization, "set_crc32_options", lambda value: option.__setitem__(0, value))
    assert not torch_state._checksums_are_optional.__wrapped__()
    assert option == [True]
    monkeypatch.delattr(torch.serialization, "set_crc32_options")
    assert not torch_state._checksums_are_optional.__wrapped__()
