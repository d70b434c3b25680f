"""A pipeline and its user: scripts that cannot work are refused, and a rank that is lost is named."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from gavel.training.errors import PlanError, RankLost
from gavel.training.parallel import Pipeline, Plan
from gavel.training.parallel.layers import named_layers
from tests.support.wording import Wording
from tests.training.parallel.ranks import batches, model, run_ranks, sgd


def pipeline(plan: Plan | None = None, layers: Any = None, **more: Any) -> Pipeline:
    """Return a pipeline in this process."""
    return Pipeline(layers or model(), more.pop("loss", mse_loss), sgd, plan, **more)


def test_layers_have_names() -> None:
    """The names are those of a Sequential or a mapping, or numbers."""
    linear = nn.Linear(1, 1)
    assert list(named_layers(nn.Sequential(linear))) == list(named_layers([linear])) == ["0"]
    assert list(named_layers({"head": linear})) == ["head"]


@pytest.mark.parametrize("layers", [nn.Linear(1, 1), [nn.Linear(1, 1), torch.tanh], nn.Sequential()])
def test_what_is_not_a_list_of_layers_is_refused(layers: Any, wording: Wording) -> None:
    """A model that is not a chain, a function among the layers, and an empty model are refused."""
    with pytest.raises(PlanError) as refused:
        named_layers(layers)
    wording(refused.value)


INPUTS, TARGET = batches(1)[0]


@pytest.mark.parametrize(
    "batch",
    [INPUTS, (INPUTS,), ("text", TARGET), ((), TARGET), (INPUTS, TARGET[:3]), (torch.tensor(1.0), TARGET)],
)
def test_a_batch_of_another_form_is_refused(batch: Any, wording: Wording) -> None:
    """A batch has two parts, tensors as inputs, and the same number of samples everywhere."""
    with pytest.raises(PlanError) as refused:
        pipeline().step(batch)
    wording(refused.value)


def test_a_smaller_last_batch_is_refused(wording: Wording) -> None:
    """All batches have the size of the first one, as an update is over a fixed batch."""
    pipe = pipeline(Plan(microbatch=2))
    pipe.step((INPUTS, TARGET))
    with pytest.raises(PlanError) as refused:
        pipe.step((INPUTS[:4], TARGET[:4]))
    wording(refused.value)


def test_targets_may_have_any_form() -> None:
    """A target may be a mapping or a list of tensors; what is no tensor is passed on; inputs may be several."""

    class Add(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return x + y, y

    def loss(outputs: tuple[Tensor, Tensor], target: dict[str, Any]) -> Tensor:
        assert target["unit"] == "m"
        return mse_loss(outputs[0], target["rows"][0]) * outputs[1].mean()

    pipe = Pipeline([Add()], loss, sgd, Plan(microbatch=4))
    batch = ((INPUTS, torch.ones(8, 3)), {"unit": "m", "rows": [INPUTS]})
    loss_of_step = pipe.step(batch)
    assert loss_of_step is not None
    assert loss_of_step.item() == 1.0


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ([nn.Linear(3, 2)], lambda output, target: output - target),
        ([nn.LSTM(3, 2)], mse_loss),
    ],
)
def test_layers_and_losses_that_return_other_things_are_refused(
    layers: Any, loss: Any, wording: Wording
) -> None:
    """Layers return tensors, and a loss one number."""
    with pytest.raises(PlanError) as refused:
        pipeline(layers=layers, loss=loss).step((INPUTS, TARGET))
    wording(refused.value)


@pytest.mark.parametrize("norm", [0, -1.0, float("nan")])
def test_a_norm_for_clipping_is_above_0(norm: float) -> None:
    """Zero, negative numbers and NaN are refused."""
    with pytest.raises(PlanError, match="clip_norm"):
        pipeline(clip_norm=norm)


def test_statistics_of_microbatches_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """BatchNorm sees one microbatch at a time; the warning names the layer and comes once."""
    pipe = pipeline(Plan(microbatch=4), {"in": nn.Linear(3, 2), "norm": nn.BatchNorm1d(2)})
    with caplog.at_level(logging.WARNING, "gavel.training"):
        pipe.step((INPUTS, TARGET))
        pipe.step((INPUTS, TARGET))
    assert [record.args for record in caplog.records] == [("norm",)]


# ----------------------------------------------------------------------------------------------------- two ranks


class Growing(nn.Module):
    """A layer whose output has more columns every time."""

    columns = 1

    def forward(self, x: Tensor) -> Tensor:
        """Return more columns than before."""
        self.columns += 1
        return x[:, :1].expand(-1, self.columns)


def lose_a_neighbour() -> str:
    """Run until the other rank is gone; return what the pipeline says about it."""
    pipe = Pipeline(model(), mse_loss, sgd, Plan(pipeline=2, microbatch=2))
    pipe.step((INPUTS, TARGET))
    if pipe.grid.rank == 1:
        return ""
    with pytest.raises(RankLost) as lost:
        pipe.step((INPUTS, TARGET))
    return str(lost.value)


def change_shapes() -> str:
    """Run a model whose activations change their shape; return what the pipeline says about it."""
    pipe = Pipeline([Growing(), nn.Identity()], lambda x, _: x.mean(), sgd, Plan(pipeline=2, microbatch=4))
    with pytest.raises((PlanError, RankLost)) as refused:
        pipe.step((INPUTS, TARGET))
    # The other rank may still need this one's connection to fail in its own time.
    return str(refused.value) if os.environ["RANK"] == "0" else ""


def test_a_lost_rank_is_named() -> None:
    """A rank whose neighbour ended says which rank, which microbatch and which action, and does not hang."""
    message, _ = run_ranks(2, lose_a_neighbour)
    # The send or the receipt fails first.
    assert re.match(
        r"rank 0 lost rank 1 at the (receipt of the gradient|send of the activation) of microbatch \d",
        message,
    )


def test_activations_that_change_their_shape_are_refused(wording: Wording) -> None:
    """The sender refuses an activation of another shape, before its receiver misreads it."""
    message, _ = run_ranks(2, change_shapes)
    wording(message)
