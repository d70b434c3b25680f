"""Layers that are split over ranks compute what whole layers compute, and resume as whole ones, or split otherwise."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

from gavel.training import LeasedIterator
from gavel.training.errors import CheckpointError, PlanError
from gavel.training.parallel import Pipeline, Plan
from gavel.training.parallel.tensor import Cut, Splits
from tests.support.wording import Wording
from tests.training.parallel.ranks import adam, run_ranks

STEPS = 20
WIDTH, HEADS, LENGTH, SAMPLES = 8, 4, 3, 8
DOUBLE = torch.float64
DECLARED = {"*.qkv": "column/3", "*.out": "row", "*.up": "column", "*.down": "row", "*.single.*": "column"}
Weights = dict[str, Tensor]


class Transformer(nn.Module):
    """A block whose attention and perceptron may be split; it does not know over how many ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        # A bias of the keys changes nothing: its gradient would be noise, which Adam makes as large as any other.
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        # Two layers that take the same input, as separate queries and keys do.
        self.single = nn.ModuleList([nn.Linear(WIDTH, 4 * WIDTH, bias=False) for _ in range(2)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, -1, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(attended))
        gate = torch.sigmoid(self.single[0](x)) * self.single[1](x)
        return x + self.dropout(self.down(torch.tanh(self.up(x)) * gate))


def model() -> nn.Sequential:
    """Return a model whose weights are the same in every process."""
    torch.manual_seed(7)
    return nn.Sequential(Transformer(), Transformer(), nn.Tanh(), nn.Linear(WIDTH, 2)).to(DOUBLE)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Return batches that are the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(SAMPLES, LENGTH, WIDTH, generator=generator, dtype=DOUBLE),
            torch.randn(SAMPLES, LENGTH, 2, generator=generator, dtype=DOUBLE),
        )
        for _ in range(STEPS)
    ]


def train(plan: Plan, folder: str = "", until: int = STEPS) -> Weights:
    """Train, from the newest checkpoint if there is a folder; return this rank's weights, by name and shard."""
    pipe = Pipeline(model(), mse_loss, adam, plan, tensor=DECLARED, clip_norm=0.5)
    if folder:
        steps = LeasedIterator(batches(), checkpoint=pipe.checkpoint(folder), steps=until)
        for batch in steps:
            pipe.step(batch)
        assert pipe.steps == until
    else:
        for batch in batches():
            pipe.step(batch)
        pipe.drain()
    return {
        f"{layer.index}.{name}|{pipe.grid.shard if name in layer.cuts else 0}": value
        for layer in pipe.layers
        for name, value in layer.module.state_dict().items()
    }


def train_all(legs: list[tuple[Any, ...]]) -> list[Weights]:
    """Train one leg after the other."""
    return [train(*leg) for leg in legs]


def whole(ranks: list[Weights]) -> Weights:
    """Put the parts of all ranks together."""
    parts: dict[str, dict[int, Tensor]] = {}
    for rank in ranks:
        for key, value in rank.items():
            name, _, shard = key.partition("|")
            parts.setdefault(name, {})[int(shard)] = value
    joined = {}
    for name, by_shard in parts.items():
        tensors = [by_shard[shard] for shard in sorted(by_shard)]
        cut = Cut(0, 3) if ".qkv." in name else Cut(1 if ".out." in name or ".down." in name else 0)
        joined[name] = cut.join(tensors) if len(tensors) > 1 else tensors[0]
    return joined


def assert_equal(expected: Weights, actual: Weights, tolerance: float) -> None:
    """Fail if some weight differs by more than a part of its size."""
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
        assert float(((actual[name] - value).abs() / value.abs().clamp(min=1e-3)).max()) <= tolerance, name


PLANS = [
    Plan(tensor=2),
    Plan(tensor=2, microbatch=4, recompute=True),
    Plan("2bw", tensor=2, microbatch=4),
    Plan("1f1b", 2, tensor=2, microbatch=4),
    Plan("1f1b", 1, data=2, tensor=2, microbatch=4),
    Plan("2bw", 2, tensor=2, microbatch=4),
    Plan("interleaved", 2, tensor=2, microbatch=4, chunks=2, recompute=True),
    Plan(tensor=4, microbatch=4),
]


def test_split_layers_compute_what_whole_layers_compute() -> None:
    """After 20 clipped updates in double precision, with dropout, weights agree to 1e-10 with those of one process."""
    on_2, on_4 = ([plan for plan in PLANS if plan.world == world] for world in (2, 4))
    for world, plans in ((2, on_2), (4, on_4)):
        by_rank = run_ranks(world, train_all, [(plan,) for plan in plans])
        for at, plan in enumerate(plans):
            samples = SAMPLES if plan.microbatch is None else plan.microbatch
            expected = train(Plan("2bw" if plan.schedule == "2bw" else "gpipe", microbatch=samples))
            actual = whole([rank[at] for rank in by_rank])
            assert_equal(whole([expected]), actual, 1e-10)


def test_a_job_resumes_split_otherwise(tmp_path: Path) -> None:
    """Stopped while split in two, and resumed as it was, whole, in four and in stages: the weights of no stop."""
    plan = Plan(tensor=2, microbatch=4)
    folders = {name: str(tmp_path / name) for name in ("same", "one", "four", "deep", "through")}
    stops = [(plan, folders[name], 2) for name in ("same", "one", "four", "deep")]
    ran = run_ranks(2, train_all, [*stops, (plan, folders["same"], 5), (plan, folders["through"], 5)])
    same, expected = (whole([rank[at] for rank in ran]) for at in (-2, -1))
    assert_equal(expected, same, 0.0)
    legs = [(Plan(tensor=4, microbatch=4), folders["four"], 5)]
    legs.append((Plan("1f1b", 2, tensor=2, microbatch=4), folders["deep"], 5))
    on_4 = run_ranks(4, train_all, legs)
    alone = train(Plan("gpipe", microbatch=4), folders["one"], 5)
    for ranks in ([rank[0] for rank in on_4], [rank[1] for rank in on_4], [alone]):
        assert_equal(expected, whole(ranks), 1e-10)


def memory_of_rank() -> tuple[int, int]:
    """Return how many weights this rank has, and how many messages its tensor group exchanges for a microbatch."""
    sums = []
    with pytest.MonkeyPatch.context() as patch:
        all_reduce = torch.distributed.all_reduce
        pipe = Pipeline(model(), mse_loss, adam, Plan(tensor=2), tensor=DECLARED)
        pipe.step(batches()[0])
        patch.setattr(
            torch.distributed, "all_reduce", lambda *a, **named: (sums.append(1), all_reduce(*a, **named))
        )
        pipe.step(batches()[1])
    return sum(parameter.numel() for parameter in pipe.parameters), len(sums)


def test_each_rank_has_its_part() -> None:
    """Split weights are halved, whole ones not; two sums forward and two backward for each block."""
    parameters = dict(model().named_parameters())
    halved = (
        "qkv.weight",
        "qkv.bias",
        "out.weight",
        "up.weight",
        "up.bias",
        "down.weight",
        ".0.weight",
        ".1.weight",
    )
    expected = sum(
        value.numel() // (2 if name.endswith(halved) and not name.startswith("3.") else 1)
        for name, value in parameters.items()
    )
    # The input of the first block needs no gradient, but that of its attention does, through the norm.
    assert run_ranks(2, memory_of_rank) == [(expected, 8), (expected, 8)]


@pytest.mark.parametrize(
    ("declared", "layers"),
    [
        (None, {}),
        ({"*.nothing": "column"}, {}),
        ({"in": "columns"}, {}),
        ({"in": "row"}, {}),
        ({"in": "column/2"}, {}),
        ({"in": "column", "again": "column"}, {"again": "in"}),
    ],
)
def test_what_cannot_be_split_is_refused(
    declared: Any, layers: dict[str, str], wording: Wording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No declaration, no such layer, an unknown word, features that cannot be divided, and a shared weight."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("gavel.training.parallel.groups._connect", lambda *_: None)
    monkeypatch.setattr("torch.distributed.new_group", lambda ranks, **_: ranks)
    modules: dict[str, nn.Module] = {"in": nn.Linear(5, 6), "out": nn.Linear(6, 2)}
    modules.update((name, modules[other]) for name, other in layers.items())
    with pytest.raises(PlanError) as refused:
        Pipeline(modules, mse_loss, adam, Plan(tensor=2), tensor=declared)
    wording(refused.value)


def between() -> list[str]:
    """Step with a parameter between a column and its row; return the error. The row starts at zero, or not."""
    faults = []
    for scale in (1.0, 0.0):
        torch.manual_seed(7)
        up, down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        nn.init.uniform_(down.weight, -scale, scale)
        layers = {"mlp": nn.Sequential(up, nn.PReLU(), down).to(DOUBLE)}
        declared = {"mlp.0": "column", "mlp.2": "row"}
        pipe = Pipeline(layers, mse_loss, adam, Plan(tensor=2), tensor=declared)
        with pytest.raises(PlanError) as refused:
            deque(map(pipe.step, batches()[:2]), 0)
        faults.append(f"{refused.value}, in step {pipe.steps}")
    return faults


def test_a_parameter_between_split_layers_is_refused(wording: Wording) -> None:
    """Every rank would train its own: all raise at the first update in which it has a gradient."""
    first, second = run_ranks(2, between)
    assert first == second
    for fault in first:
        wording(fault)


class Doubled(nn.Linear):
    """A layer that does something else than its base."""

    def forward(self, x: Tensor) -> Tensor:
        """Return twice what a linear layer does."""
        return 2 * super().forward(x)


def hooked(*, before: bool) -> nn.Linear:
    """Return a linear layer with a hook."""
    layer = nn.Linear(4, 4)
    if before:
        layer.register_forward_pre_hook(lambda *_: None)
    else:
        layer.register_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        Doubled(4, 4),
        hooked(before=True),
        hooked(before=False),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
)
def test_only_plain_linear_layers_are_split(layer: nn.Module) -> None:
    """A subclass, or a layer with hooks or parametrizations, computes something else than its parts would."""
    with pytest.raises(PlanError, match=r"up.*down"):
        Splits({"up": "column"}, {"up": layer, "down": nn.Linear(4, 4)})


def compiled() -> list[Weights]:
    """Train blocks that are compiled, and blocks that are not; return the weights of both."""
    weights = []
    for compile_block in (False, True):
        pipe = Pipeline(model(), mse_loss, adam, Plan(tensor=2, microbatch=4), tensor=DECLARED)
        for layer in pipe.layers[:2] if compile_block else ():
            layer.module.compile(backend="eager")
        for batch in batches()[:2]:
            pipe.step(batch)
        weights.append(dict(nn.ModuleList(layer.module for layer in pipe.layers).state_dict()))
    return weights


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_split_layers_may_be_compiled() -> None:
    """Compiled blocks train to the bits of blocks that are not compiled: exchanges interrupt the compiled code."""
    for plain, through_compiler in run_ranks(2, compiled):
        assert_equal(plain, through_compiler, 0.0)


def evaluated() -> Tensor:
    """Return the output of a block before the first step."""
    pipe = Pipeline(model(), mse_loss, adam, Plan(tensor=2), tensor=DECLARED)
    output: Tensor = pipe.layers[0].module.eval()(batches()[0][0])
    return output.detach()


def test_split_layers_are_evaluated_before_the_first_step() -> None:
    """A split layer works outside of steps."""
    expected = model()[0].eval()(batches()[0][0])
    for output in run_ranks(2, evaluated):
        torch.testing.assert_close(output, expected)


def factored(folder: str, until: int, tensor: int = 2) -> list[Tensor]:
    """Train with Adafactor, whose state has means of rows and columns, from the newest checkpoint."""
    torch.manual_seed(7)
    layers = {"up": nn.Linear(WIDTH, 16), "down": nn.Linear(16, 2)}
    modules = {name: layer.to(DOUBLE) for name, layer in layers.items()}
    declared = {"up": "column", "down": "row"}
    pipe = Pipeline(modules, mse_loss, torch.optim.Adafactor, Plan(tensor=tensor), tensor=declared)
    for batch in LeasedIterator(batches(), checkpoint=pipe.checkpoint(folder), steps=until):
        pipe.step(batch)
    return [parameter.detach() for parameter in pipe.parameters]


def factored_with_a_stop(folder: str) -> list[list[Tensor]]:
    """Train with a stop, and without one."""
    return [factored(folder, 2), factored(folder, 5), factored(f"{folder} through", 5)]


def test_an_optimizer_that_is_not_element_wise_resumes_as_it_was(tmp_path: Path, wording: Wording) -> None:
    """Split alike, each rank reads its own file, so the result is that of no stop; otherwise it is refused."""
    for _, stopped, through in run_ranks(2, factored_with_a_stop, str(tmp_path / "job")):
        assert all(torch.equal(*pair) for pair in zip(stopped, through, strict=True))
    with pytest.raises(CheckpointError) as refused:
        factored(str(tmp_path / "job"), 6, 1)
    wording(refused.value)


@pytest.mark.parametrize(
    ("shape", "cut", "shards"), [((6, 2), Cut(0, 3), 2), ((4, 8), Cut(1), 4), ((6,), Cut(0, 3), 2)]
)
def test_parts_join_to_the_whole(shape: tuple[int, ...], cut: Cut, shards: int) -> None:
    """Dividing and joining are inverse; a part has an equal share of each of the tensors side by side."""
    value = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert torch.equal(value, cut.join([cut.part(value, shard, shards) for shard in range(shards)]))
    assert cut.part(value, 0, shards).numel() * shards == value.numel()
