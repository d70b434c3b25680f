"""Checkpoints of pipelines: stopped at any step, and resumed under the same or another plan, nothing changes."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gavel.training import LeasedIterator
from gavel.training.checkpoint import torch_state
from gavel.training.errors import CheckpointError, IncompleteCheckpoint, PlanError
from gavel.training.parallel import Pipeline, Plan
from tests.support.wording import Wording
from tests.training.parallel.ranks import adam, batches, model, run_ranks

STEPS = 7
DOUBLE = torch.float64
Weights = dict[str, Tensor]


class Leg(NamedTuple):
    """A part of a training: under this plan, until so many steps are done, with checkpoints in this folder."""

    plan: Plan
    folder: str
    until: int = STEPS
    # Whether a checkpoint is saved after every step, and not only at the end.
    often: bool = False


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule that halves the learning rate after every second update."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(leg: Leg) -> Weights:
    """Resume from the newest checkpoint, train, save; return the weights of this rank."""
    pipe = Pipeline(model(dtype=DOUBLE), mse_loss, adam, leg.plan, scheduler=halving)
    steps = LeasedIterator(
        batches(STEPS, dtype=DOUBLE),
        checkpoint=pipe.checkpoint(leg.folder),
        steps=leg.until,
        every_steps=1 if leg.often else None,
    )
    for batch in steps:
        pipe.step(batch)
    assert pipe.steps == steps.step == leg.until
    return {
        f"{layer.index}.{name}": value
        for layer in pipe.layers
        for name, value in layer.module.state_dict().items()
    }


def train_all(legs: list[Leg]) -> list[Weights]:
    """Train one leg after the other."""
    return [train(leg) for leg in legs]


def whole(by_rank: list[list[Weights]], at: int) -> Weights:
    """Return the weights of all layers after a leg."""
    return {name: value for rank in by_rank for name, value in rank[at].items()}


def difference(expected: Weights, actual: Weights) -> float:
    """Return the greatest relative difference between two sets of weights."""
    assert expected.keys() == actual.keys()
    return max(
        float(((actual[name] - value).abs() / value.abs().clamp(min=1e-3)).max())
        for name, value in expected.items()
    )


ON_2 = {
    "1f1b": Plan("1f1b", 2, microbatch=2),
    "interleaved": Plan("interleaved", 2, microbatch=2, chunks=2),
    "2bw": Plan("2bw", 2, microbatch=2),
    "stash": Plan("stash", 2, microbatch=8),
    "stash of several": Plan("stash", 2, microbatch=2),
}


def test_a_job_resumes_under_any_plan(tmp_path: Path) -> None:
    """Stopped after 3 steps and resumed: the same bits under this plan and at other depths, 1e-10 with copies.

    Under this plan, a stop after each step leaves the same bits, too.

    That holds for 2BW, too, whose older weights are kept whole; stashed weights belong to their stages.
    """
    stops = [Leg(plan, str(tmp_path / name), 3) for name, plan in ON_2.items()]
    again = [Leg(plan, str(tmp_path / name)) for name, plan in ON_2.items()]
    whole_runs = [Leg(plan, str(tmp_path / f"{name} whole")) for name, plan in ON_2.items()]
    often = [Leg(plan, str(tmp_path / f"{name} often"), STEPS, often=True) for name, plan in ON_2.items()]
    # A stop after every step.
    stepwise = [
        Leg(plan, str(tmp_path / f"{name} stepwise"), until)
        for until in range(1, STEPS + 1)
        for name, plan in ON_2.items()
    ]
    moved = [name for name in ON_2 if not name.startswith("stash")]
    for_later = [
        Leg(ON_2[name], str(tmp_path / f"{name} {where}"), 3) for name in moved for where in ("deep", "one")
    ]
    ran = run_ranks(2, train_all, [*stops, *again, *whole_runs, *often, *for_later, *stepwise])
    deeper = {"interleaved": Plan("gpipe", 2, 2, microbatch=2), "2bw": Plan("2bw", 4, microbatch=2)}
    deep = run_ranks(
        4,
        train_all,
        [
            Leg(deeper.get(name, Plan("1f1b", 4, microbatch=2)), str(tmp_path / f"{name} deep"))
            for name in moved
        ],
    )
    count = len(ON_2)
    for at, name in enumerate(ON_2):
        expected = whole(ran, 2 * count + at)
        assert difference(expected, whole(ran, count + at)) == 0.0, name
        assert difference(expected, whole(ran, 3 * count + at)) == 0.0, name
        assert difference(expected, whole(ran, at - count)) == 0.0, name
        if name in moved:
            copies = deeper.get(name, Plan()).data
            assert difference(expected, whole(deep, moved.index(name))) <= (1e-10 if copies > 1 else 0.0), (
                name
            )
            alone = Plan("2bw" if name == "2bw" else "gpipe", microbatch=2)
            assert difference(expected, train(Leg(alone, str(tmp_path / f"{name} one")))) == 0.0, name


def test_stashed_versions_belong_to_their_stages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Stashing that resumes at another depth warns, and so does 2BW that resumes from another schedule."""
    run_ranks(2, train_all, [Leg(Plan("stash", 2, microbatch=8), str(tmp_path), 1)])
    plans = [
        Plan("stash", microbatch=8),
        Plan("stash", microbatch=8),
        Plan("gpipe"),
        Plan("2bw", microbatch=2),
    ]
    with caplog.at_level(logging.WARNING, "gavel.training"):
        for until, plan in enumerate(plans, start=2):
            train(Leg(plan, str(tmp_path), until))
    assert [record.args for record in caplog.records] == [("stash", 1, "stash", 2), ("2bw", 1, "gpipe", 1)]


def die_while_saving(plan: Plan, folder: str) -> str:
    """Save after 3 steps, and again after 5, while rank 1 is killed; return what the other rank says about it."""
    pipe = Pipeline(model(dtype=DOUBLE), mse_loss, adam, plan, scheduler=halving)
    checkpoint = pipe.checkpoint(folder, wait_s=5.0)
    for batch in batches(3, dtype=DOUBLE):
        pipe.step(batch)
    checkpoint.save(3)
    for batch in batches(5, dtype=DOUBLE)[3:]:
        pipe.step(batch)
    pipe.drain()
    if pipe.grid.rank == 1:

        def kill(_: object, file: BinaryIO) -> None:
            file.write(b"half of a layer")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_state, "write", kill)
            checkpoint.save(5)
    with pytest.raises(IncompleteCheckpoint):
        checkpoint.save(5)
    return "incomplete"


@pytest.mark.parametrize("name", ["1f1b", "stash"])
def test_a_kill_during_a_save_leaves_the_checkpoint_before(name: str, tmp_path: Path) -> None:
    """A rank that is killed while it writes spoils no set: the job resumes from the one before, to the same bits."""
    folder, plan = str(tmp_path / "killed"), ON_2[name]
    with pytest.raises(AssertionError, match=r"\Arank 1 died\Z"):
        run_ranks(2, die_while_saving, plan, folder)
    resumed = Pipeline(model(dtype=DOUBLE), mse_loss, adam, Plan("gpipe"), scheduler=halving).checkpoint(
        folder
    )
    assert resumed.load() == 3
    ran = run_ranks(2, train_all, [Leg(plan, folder), Leg(plan, str(tmp_path / "whole"))])
    assert difference(whole(ran, 1), whole(ran, 0)) == 0.0


@pytest.mark.parametrize(
    "layers",
    [
        {"in": nn.Linear(3, 2)},
        {"in": nn.Linear(3, 2), "last": nn.Tanh()},
        {"in": nn.Linear(3, 1), "out": nn.Tanh()},
    ],
)
def test_the_checkpoint_of_another_model_is_refused(layers: Any, tmp_path: Path, wording: Wording) -> None:
    """The error names the first layer that differs in name or shape, or the number of layers."""
    saved = {"in": nn.Linear(3, 2), "out": nn.Tanh()}
    Pipeline(saved, mse_loss, adam).checkpoint(tmp_path).save(1)
    with pytest.raises(CheckpointError) as refused:
        Pipeline(layers, mse_loss, adam).checkpoint(tmp_path).load()
    wording(str(refused.value).splitlines()[0], folder=tmp_path)


def test_an_object_that_was_not_saved_is_refused(tmp_path: Path) -> None:
    """Named objects must be in the checkpoint."""
    pipe = Pipeline(model(), mse_loss, adam)
    pipe.checkpoint(tmp_path).save(1)
    with pytest.raises(CheckpointError, match="generator"):
        pipe.checkpoint(tmp_path, generator=torch.Generator()).load()


def different_batches() -> str:
    """Step with a batch of this rank's own; return the error."""
    pipe = Pipeline(model(), mse_loss, adam, Plan(pipeline=2))
    torch.manual_seed(pipe.grid.rank)
    with pytest.raises(PlanError) as refused:
        pipe.step((torch.randn(4, 3), torch.randn(4, 2)))
    return str(refused.value)


def test_ranks_with_different_batches_are_refused(wording: Wording) -> None:
    """A loader that divides the data among the ranks would train on nonsense; the first step notices."""
    first, second = run_ranks(2, different_batches)
    assert first == second
    wording(first)
