"""What a pipeline computes: bit for bit what one process computes, with the weights that its schedule promises."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gavel.training.parallel import Pipeline, Plan, pipeline
from gavel.training.parallel.actions import Schedule
from gavel.training.parallel.versions import Versions
from tests.training.parallel.oracles import MakeOptimizer, Oracle
from tests.training.parallel.ranks import adam, batches, model, run_ranks, sgd
from tests.training.parallel.test_actions import reference

STEPS = 9
SAMPLES = 8


class Case(NamedTuple):
    """A plan, an optimizer, and the number of layers of the model."""

    plan: Plan
    make: MakeOptimizer
    layers: int = 4


class Trained(NamedTuple):
    """What one rank ends with."""

    # By layer and name.
    weights: dict[tuple[int, str], Tensor]
    losses: list[float]
    # The versions of its forwards, in their order, and how many buffers there were for the first weight.
    versions: list[int]
    buffers: int


ON_2 = [
    Case(Plan("gpipe", 2, microbatch=2), sgd),
    Case(Plan("1f1b", 2, microbatch=2), adam),
    Case(Plan("1f1b", 2, microbatch=1, recompute=True), adam),
    Case(Plan("1f1b", 2, microbatch=2, stages=(1, 3)), adam),
    Case(Plan("interleaved", 2, microbatch=2, chunks=2), adam),
    Case(Plan("interleaved", 2, microbatch=4, chunks=2, recompute=True), sgd),
    Case(Plan("2bw", 2, microbatch=2), adam),
    Case(Plan("2bw", 2, microbatch=4, recompute=True), sgd),
    Case(Plan("stash", 2, microbatch=8), adam),
    Case(Plan("stash", 2, microbatch=4), sgd),
]
ON_4 = [
    Case(Plan("gpipe", 4, microbatch=2), adam),
    Case(Plan("1f1b", 4, microbatch=1), adam),
    Case(Plan("interleaved", 4, microbatch=1, chunks=2), adam, 8),
    Case(Plan("2bw", 4, microbatch=1), adam, 6),
    Case(Plan("stash", 4, microbatch=8), adam),
    Case(Plan("stash", 4, microbatch=4, recompute=True), sgd, 6),
]


def train(case: Case) -> Trained:
    """Train under a plan."""
    used: list[int] = []
    addresses: set[int] = set()

    class Recorded(Versions):
        def leaves(self, version: int) -> list[Tensor]:
            used.append(version)
            leaves = super().leaves(version)
            addresses.add(leaves[0].data_ptr())
            return leaves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "Versions", Recorded)
        pipe = Pipeline(model(case.layers), mse_loss, case.make, case.plan)
        # The random numbers of the script are no part of what is computed.
        torch.manual_seed(pipe.grid.rank)
        losses = [pipe.step(batch) for batch in batches(STEPS, SAMPLES)]
    pipe.drain()
    weights = {
        (layer.index, name): value
        for layer in pipe.layers
        for name, value in layer.module.state_dict().items()
    }
    return Trained(weights, [loss.item() for loss in losses if loss is not None], used, len(addresses))


def train_all(cases: list[Case]) -> list[tuple[Any, ...]]:
    """Train one case after the other."""
    return [tuple(train(case)) for case in cases]


@cache
def trained(world: int) -> list[list[Trained]]:
    """Return what each rank ended with, case by case."""
    by_rank = run_ranks(world, train_all, ON_2 if world == 2 else ON_4)
    return [[Trained(*result) for result in results] for results in by_rank]


def oracle_of(case: Case) -> Oracle:
    """Train the case in one process."""
    plan = case.plan
    assert plan.microbatch is not None
    oracle = Oracle(model(case.layers), case.make, batches(STEPS, SAMPLES), SAMPLES // plan.microbatch)
    if plan.schedule == "2bw":
        oracle.two_versions()
    elif plan.schedule == "stash":
        oracle.stash(plan.layers_of_stages([str(index) for index in range(case.layers)]))
    else:
        oracle.flush()
    return oracle


def name_of(case: Case) -> str:
    """Name a case for pytest."""
    plan = case.plan
    return f"{plan.schedule}-p{plan.pipeline}-b{plan.microbatch}" + ("-recompute" if plan.recompute else "")


CASES = [
    pytest.param(world, at, id=name_of(case))
    for world, cases in ((2, ON_2), (4, ON_4))
    for at, case in enumerate(cases)
]


@pytest.mark.parametrize(("world", "at"), CASES)
def test_the_weights_are_bit_for_bit_those_of_one_process(world: int, at: int) -> None:
    """After 9 updates with dropout, all weights and losses equal those of the plain loop of this schedule."""
    case = (ON_2 if world == 2 else ON_4)[at]
    oracle = oracle_of(case)
    weights = {key: value for rank in trained(world) for key, value in rank[at].weights.items()}
    expected = {
        (index, name): value
        for index, layer in enumerate(oracle.model)
        for name, value in layer.state_dict().items()
    }
    assert expected.keys() == weights.keys()
    assert not [key for key, value in expected.items() if not torch.equal(value, weights[key])]
    by_step = torch.tensor(oracle.losses).view(STEPS, -1).mean(1)
    assert by_step.tolist() == trained(world)[-1][at].losses


@pytest.mark.parametrize(("world", "at"), CASES)
def test_each_microbatch_uses_the_promised_version(world: int, at: int) -> None:
    """The versions that ranks use are those of the formula, and no rank has more buffers than it needs for them."""
    case = (ON_2 if world == 2 else ON_4)[at]
    plan = case.plan
    schedule = plan.schedule_for(SAMPLES)
    for rank, result in enumerate(trained(world)):
        microbatches = range(STEPS * schedule.microbatches)
        expected = [
            schedule.version(rank, microbatch) for microbatch in microbatches for _ in range(plan.chunks)
        ]
        assert expected == sorted(result[at].versions)
        assert schedule.versions_kept(rank) == result[at].buffers
        if plan.schedule == "2bw":
            assert result[at].buffers == 2
        if plan.schedule == "stash" and schedule.microbatches == 1:
            assert result[at].buffers == world - rank


# ------------------------------------------------------------------------------- published trajectories of scalars


class Scale(nn.Module):
    """A stage with one weight."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input times the weight."""
        return self.weight * x


def half_square(output: Tensor, target: Tensor) -> Tensor:
    """Return half the mean squared error."""
    return ((output - target) ** 2 / 2).mean()


def follow(cases: list[dict[str, Any]]) -> list[list[float]]:
    """Return this rank's weight after every update of every case."""
    trajectories = []
    for case in cases:
        per_update, rate = case["microbatches_per_update"], case["learning_rate"]
        schedule = "1f1b" if case["mode"] == "flush" else case["mode"]
        pipe = Pipeline(
            [Scale(case["u0"]), Scale(case["v0"])],
            half_square,
            lambda parameters, rate=rate: torch.optim.SGD(parameters, rate),
            Plan(schedule, 2, microbatch=1),
        )
        trajectory = [pipe.parameters[0].item()]
        assert pipe.optimizer is not None
        pipe.optimizer.register_step_post_hook(
            lambda *_, pipe=pipe, trajectory=trajectory: trajectory.append(pipe.parameters[0].item())
        )
        data = (torch.tensor(case[key], dtype=torch.float64).split(per_update) for key in ("x", "target"))
        for batch in zip(*data, strict=True):
            pipe.step(batch)
        pipe.drain()
        trajectories.append(trajectory)
    return trajectories


def test_two_scalar_stages_follow_the_published_trajectories() -> None:
    """Both weights take the published values after every update, with a flush, 2BW and stashing."""
    cases = reference()["semantics"]
    first, second = run_ranks(2, follow, cases)
    for case, u, v in zip(cases, first, second, strict=True):
        assert case["expected_after_each_update"]["u"] == pytest.approx(u, rel=1e-9, abs=1e-12)
        assert case["expected_after_each_update"]["v"] == pytest.approx(v, rel=1e-9, abs=1e-12)


def test_one_process_without_a_plan_trains_as_if_nothing_was_there() -> None:
    """Without a plan a single process computes what a plain loop over whole batches computes."""
    oracle = Oracle(model(), adam, batches(STEPS, SAMPLES), 1)
    oracle.flush()
    pipe = Pipeline(model(), mse_loss, adam)
    losses = [pipe.step(batch) for batch in batches(STEPS, SAMPLES)]
    assert [loss.item() for loss in losses if loss is not None] == oracle.losses
    assert all(map(torch.equal, pipe.parameters, oracle.parameters))
    assert Schedule("1f1b", 1, 1) == pipe.plan.schedule_for(SAMPLES)
