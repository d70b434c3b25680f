"""Copies, tied weights and clipping: what is summed over ranks gives what one process computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gavel.training.parallel import Pipeline, Plan
from tests.training.parallel.ranks import adam, batches, run_ranks, sgd
from tests.training.parallel.ranks import model as model_of

STEPS = 20
DOUBLE = torch.float64


def plain_model() -> nn.Sequential:
    """Return a model with dropout, in double precision."""
    return model_of(4, dtype=DOUBLE)


def model_without_dropout() -> nn.Sequential:
    """Return a model that computes the same for any division into microbatches."""
    return model_of(4, dropout=0.0, dtype=DOUBLE)


def tied_model() -> nn.Sequential:
    """Return a model whose second and third layer share a weight, on different stages of 2 and of 4."""
    model = model_of(4, dtype=DOUBLE)
    model[2].inner.weight = model[1].inner.weight
    return model


def frozen_model() -> nn.Sequential:
    """Return a model with a frozen layer, and one without parameters."""
    model = model_of(4, dtype=DOUBLE)
    model[1].requires_grad_(False)
    return nn.Sequential(model[0], model[1], nn.Tanh(), model[3])


def normalised_model() -> nn.Sequential:
    """Return a model with BatchNorm, which keeps averages."""
    model = model_of(4, dtype=DOUBLE)
    return nn.Sequential(model[0], nn.BatchNorm1d(6, dtype=DOUBLE), model[2], model[3])


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a schedule that halves the learning rate after every third update."""
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def train(make: Callable[[], nn.Sequential], plan: Plan, **more: Any) -> dict[str, Tensor]:
    """Train under this plan; return the state of this rank's layers."""
    pipe = Pipeline(make(), mse_loss, sgd if "clip_norm" in more else adam, plan, scheduler=halving, **more)
    for batch in batches(STEPS, dtype=DOUBLE):
        pipe.step(batch)
    pipe.drain()
    layers = {layer.index: layer.module.state_dict() for layer in pipe.layers}
    return {f"{index}.{name}": value for index, state in layers.items() for name, value in state.items()}


def train_all(
    cases: list[tuple[Callable[[], nn.Sequential], Plan, dict[str, Any]]],
) -> list[dict[str, Tensor]]:
    """Train one case after the other."""
    return [train(make, plan, **more) for make, plan, more in cases]


def difference(expected: dict[str, Tensor], ranks: list[dict[str, Tensor]]) -> float:
    """Return the greatest relative difference between the states of ranks and that of one process."""
    assert expected.keys() == {name for state in ranks for name in state}
    return max(
        float(((state[name] - value).abs() / value.abs().clamp(min=1e-3)).max())
        for state in ranks
        for name, value in expected.items()
        if name in state
    )


def test_copies_and_stages_together_compute_what_one_process_computes() -> None:
    """On 4 ranks, 20 steps in double precision differ from one process by at most 1e-10, or not at all."""
    cases: list[tuple[Callable[[], nn.Sequential], Plan, dict[str, Any]]] = [
        (plain_model, Plan("1f1b", 2, 2, microbatch=2), {}),
        (plain_model, Plan("gpipe", 1, 4, microbatch=2), {}),
        (plain_model, Plan("1f1b", 4, 1, microbatch=2), {"clip_norm": 0.05}),
        (plain_model, Plan("interleaved", 2, 2, microbatch=2, chunks=2), {"clip_norm": 0.05}),
        (tied_model, Plan("1f1b", 2, 2, microbatch=2), {}),
        (tied_model, Plan("1f1b", 4, 1, microbatch=2), {"clip_norm": 0.05}),
        (frozen_model, Plan("1f1b", 4, 1, microbatch=2), {}),
        (frozen_model, Plan("1f1b", 2, 2, microbatch=2, recompute=True), {}),
        (normalised_model, Plan("1f1b", 4, 1, microbatch=2, recompute=True), {}),
    ]
    by_rank = run_ranks(4, train_all, cases)
    for at, (make, plan, more) in enumerate(cases):
        expected = train(make, Plan("gpipe", microbatch=2), **more)
        states = [rank[at] for rank in by_rank]
        exact = plan.data == 1 and make is not tied_model
        assert difference(expected, states) <= (0.0 if exact else 1e-10), (at, plan)


def test_sparse_gradients_are_clipped() -> None:
    """An embedding with sparse gradients, whose rows occur several times, is trained as one with dense gradients."""
    rows, target = torch.tensor([[0, 1, 1, 4], [1, 1, 3, 0]]), torch.zeros(2, 4, 3)
    trained = []
    for sparse in (False, True):
        torch.manual_seed(0)
        pipe = Pipeline(
            [nn.Embedding(5, 3, sparse=sparse)], mse_loss, sgd, Plan(microbatch=1), clip_norm=0.01
        )
        pipe.step((rows, target))
        trained.append(pipe.parameters[0].detach())
    torch.testing.assert_close(trained[1], trained[0])


def test_2bw_clips_and_ties_over_all_stages() -> None:
    """2BW with copies, tied weights and clipping: 2 × 2 ranks compute what 2 ranks compute, to 1e-10."""
    more = {"clip_norm": 0.05}
    wide = run_ranks(4, train_all, [(tied_model, Plan("2bw", 2, 2, microbatch=2), more)])
    narrow = run_ranks(2, train_all, [(tied_model, Plan("2bw", 2, 1, microbatch=2), more)])
    expected = {name: value for (state,) in narrow for name, value in state.items()}
    assert difference(expected, [state for (state,) in wide]) <= 1e-10


def test_stashing_with_copies_computes_what_it_computes_without() -> None:
    """Weight stashing on 2 × 2 ranks, with half a batch each: what 2 ranks compute, to 1e-10."""
    wide = run_ranks(4, train_all, [(model_without_dropout, Plan("stash", 2, 2, microbatch=4), {})])
    narrow = run_ranks(2, train_all, [(model_without_dropout, Plan("stash", 2, 1, microbatch=8), {})])
    expected = {name: value for (state,) in narrow for name, value in state.items()}
    assert difference(expected, [state for (state,) in wide]) <= 1e-10
