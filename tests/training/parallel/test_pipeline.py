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
from gavel.training.parallel.pipeline import device_of_process
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


class Nothing(nn.Module):
    """A layer without an output."""

    def forward(self, _: Tensor) -> tuple[()]:
        """Return no tensor."""
        return ()


@pytest.mark.parametrize(
    ("layers", "loss"),
    [
        ([nn.Linear(3, 2)], lambda output, target: output - target),
        ([nn.LSTM(3, 2)], mse_loss),
        ([Nothing()], mse_loss),
    ],
)
def test_layers_and_losses_that_return_other_things_are_refused(
    layers: Any, loss: Any, wording: Wording
) -> None:
    """Layers return tensors, and a loss one number."""
    with pytest.raises(PlanError) as refused:
        pipeline(layers=layers, loss=loss).step((INPUTS, TARGET))
    wording(refused.value)


@pytest.mark.parametrize(("wish", "index"), [(None, 1), ("cuda", 1), ("cuda:0", 0)])
def test_each_rank_takes_the_gpu_of_its_place_on_the_node(
    wish: str | None, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks share no GPU unless the script names it: the local rank chooses, and the GPU becomes the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", current.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device_of_process(wish) == torch.device("cuda", index)
    assert current == [torch.device("cuda", index)]


@pytest.mark.parametrize("wish", ["cuda", "cuda:1"])
def test_a_gpu_that_is_missing_is_refused(
    wish: str, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """A script that names a GPU on a node without any gets one line that says so."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(PlanError) as refused:
        device_of_process(wish)
    wording(refused.value)


@pytest.mark.parametrize("norm", [0, -1.0, float("nan")])
def test_a_norm_for_clipping_is_above_0(norm: float) -> None:
    """Zero, negative numbers and NaN are refused."""
    with pytest.raises(PlanError, match="clip_norm"):
        pipeline(clip_norm=norm)


def test_a_failure_of_clipping_is_no_lost_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process alone waits for no rank, so it names none if it fails."""

    def fail(*_: Any) -> None:
        raise RuntimeError("not implemented")

    monkeypatch.setattr("gavel.training.parallel.reduce.clip", fail)
    with pytest.raises(RuntimeError, match="not implemented") as failure:
        pipeline(clip_norm=1.0).step((INPUTS, TARGET))
    assert not isinstance(failure.value, RankLost)


def test_statistics_of_microbatches_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """BatchNorm sees one microbatch at a time; the warning names the layer and comes once."""
    pipe = pipeline(Plan(microbatch=4), {"in": nn.Linear(3, 2), "norm": nn.BatchNorm1d(2)})
    with caplog.at_level(logging.WARNING, "gavel.training"):
        pipe.step((INPUTS, TARGET))
        pipe.step((INPUTS, TARGET))
    assert [record.args for record in caplog.records] == [("norm",)]


class Held(nn.Module):
    """A layer that reads its weight from a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.held = [self.inner.weight]

    def forward(self, x: Tensor) -> Tensor:
        """Return what the linear layer would."""
        return x @ self.held[0].t() + self.inner.bias


def test_a_parameter_that_is_not_trained_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """A layer that takes a weight from elsewhere than its module, or does not use it, is named with the weight."""
    pipe = pipeline(Plan(microbatch=4), {"in": Held()})
    with caplog.at_level(logging.WARNING, "gavel.training"):
        pipe.step((INPUTS, TARGET))
        pipe.step((INPUTS, TARGET))
    assert [record.args for record in caplog.records] == [("in", "inner.weight")]


# ----------------------------------------------------------------------------------------------------- two ranks


class Growing(nn.Module):
    """A layer whose output has more columns every time."""

    columns = 1

    def forward(self, x: Tensor) -> Tensor:
        """Return more columns than before."""
        self.columns += 1
        return x[:, :1].expand(-1, self.columns)


def lose_a_neighbour(plan: Plan) -> str:
    """Run until the other rank is gone; return what the pipeline says about it."""
    block = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    pipe = Pipeline([block, nn.Identity()], mse_loss, sgd, plan, tensor={"0.0": "column", "0.2": "row"})
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


@pytest.mark.parametrize(
    ("plan", "action"),
    [
        # The send or the receipt fails first.
        (Plan(pipeline=2, microbatch=2), "(receipt of the gradient|send of the activation)"),
        (Plan(tensor=2, microbatch=4), "forward"),
        (Plan(data=2, microbatch=4), "update"),
    ],
)
def test_a_lost_rank_is_named(plan: Plan, action: str) -> None:
    """A rank whose neighbour ended says which rank, which microbatch and which action, and does not hang.

    A neighbour is the next stage, a rank with another part of the same layers, or another copy.
    """
    message, _ = run_ranks(2, lose_a_neighbour, plan)
    assert re.match(rf"rank 0 lost rank 1 at the {action} of microbatch \d+: ", message)


def test_activations_that_change_their_shape_are_refused(wording: Wording) -> None:
    """The sender refuses an activation of another shape, before its receiver misreads it."""
    message, _ = run_ranks(2, change_shapes)
    wording(message)
