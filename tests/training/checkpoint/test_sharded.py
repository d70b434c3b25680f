"""Checkpoints of models that are spread over ranks: the width changes, ranks are killed, sets do not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.training import CheckpointError, ShardedCheckpoint, TorchCheckpoint
from tests.support.wording import Wording
from tests.training.leases import eventually
from tests.training.test_preemption import Job, digests, not_run_yet

torch = pytest.importorskip("torch")
STEPS = 24


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job whose model is spread over its ranks."""
    yield from not_run_yet(tmp_path, "spread_model.py")


def test_the_width_changes_between_leases_and_after_a_kill(job: Job) -> None:
    """Two ranks that are killed, one, then two: the whole state is that of one rank that ran through."""
    alone = job.without_gavel(STEPS)
    job.attempt(STEPS, world=2, HOLD_AT=8)
    eventually(lambda: len(job.steps_of(0)) >= 8 and saved_at_least(job, 3))
    for process in job.processes:
        process.kill()
    job.attempt(STEPS, world=1, HOLD_AT=16)
    assert job.end_after(16) == [0], job.processes[0].text()
    assert job.processes[0].text().splitlines()[0] in {"begins at 3", "begins at 6"}
    job.attempt(STEPS, world=2)
    assert [process.wait() for process in job.processes] == [0, 0], job.processes[0].text()
    job.processes = job.processes[:1]
    assert digests(job.processes) == digests(alone)


def saved_at_least(job: Job, step: int) -> bool:
    """Return whether a complete set of this step or a later one is on disk."""
    sets = (job.place / "job").glob("e*/step-*/COMPLETE")
    return any(int(path.parent.name[5:]) >= step for path in sets)


class Spread:
    """A model with an optimizer, on one rank, after a step."""

    def __init__(self, width: int = 4) -> None:
        torch.manual_seed(width)
        self.model = torch.nn.Linear(width, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.model(torch.ones(1, width)).sum().backward()
        self.optimizer.step()

    def checkpoint(self, directory: Path, **named: Any) -> ShardedCheckpoint:
        """Return a checkpoint of it."""
        return ShardedCheckpoint(directory, model=self.model, optimizer=self.optimizer, **named)

    def bits(self) -> list[Any]:
        """Return all values of the state."""
        states = [
            self.optimizer.state[parameter][key]
            for parameter in self.model.parameters()
            for key in ("step", "exp_avg", "exp_avg_sq")
        ]
        return [value.tolist() for value in [*self.model.parameters(), *states]]


def test_one_rank_saves_and_resumes_without_a_group(tmp_path: Path) -> None:
    """Weights, moments and the learning rate come back, and every file of the set has its sum."""
    before, after = Spread(), Spread()
    before.optimizer.param_groups[0]["lr"] = 0.025
    before.checkpoint(tmp_path).save(7)
    with torch.no_grad():
        after.model.weight.zero_()
    assert after.checkpoint(tmp_path).load() == 7
    assert after.bits() == before.bits()
    assert after.optimizer.param_groups[0]["lr"] == 0.025
    (complete,) = tmp_path.glob("e*/step-*/COMPLETE")
    assert sorted(json.loads(complete.read_text())["files"]) == ["rank-0.pt", "shards-0.pt", "state.pt"]


def test_a_copy_is_that_of_its_step(tmp_path: Path) -> None:
    """Training goes on while the copy is written."""
    training, twin = Spread(), Spread()
    write = training.checkpoint(tmp_path).snapshot(1)
    training.optimizer.step()
    write()
    resumed = Spread(4)
    resumed.checkpoint(tmp_path).load()
    assert resumed.bits() == twin.bits() != training.bits()


@pytest.mark.parametrize("other", ["size", "names", "kind"])
def test_a_checkpoint_that_does_not_fit_is_an_error(tmp_path: Path, wording: Wording, other: str) -> None:
    """A tensor of another size, other names, and a checkpoint of another kind are refused, each by its name."""
    saved, here = Spread(), Spread(4 if other != "size" else 6)
    if other == "kind":
        TorchCheckpoint(tmp_path / "set", model=saved.model).save(1)
    else:
        saved.checkpoint(tmp_path / "set").save(1)
    if other == "names":
        here.model = torch.nn.Sequential(here.model)
        here.optimizer = torch.optim.AdamW(here.model.parameters(), lr=0.1)
    with pytest.raises(CheckpointError) as raised:
        here.checkpoint(tmp_path / "set").load()
    wording(raised.value, folder=tmp_path)


def test_a_damaged_part_is_passed_over(tmp_path: Path) -> None:
    """The set before it is used, as with every checkpoint."""
    training = Spread()
    checkpoint = training.checkpoint(tmp_path)
    checkpoint.save(1)
    checkpoint.save(2)
    (part,) = tmp_path.glob("e*/step-000000000002/shards-0.pt")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    assert Spread().checkpoint(tmp_path).load() == 1
