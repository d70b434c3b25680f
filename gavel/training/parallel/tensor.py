"""Layers that are split over the ranks of a tensor group: each rank has a part of their weights.

The script declares which linear layers are split, and how; a plan decides over how many ranks.

| declared | each rank has | input | output |
|---|---|---|---|
| `column` | some of the output features | whole | its part |
| `row` | some of the input features | its part | whole: the sum over the ranks |

So a `column` layer is followed, after what treats its features alike, by a `row` layer, and only the latter's output is
exchanged; in the backward pass it is the gradient of the former's input. `column/3` is a layer whose output is three
tensors side by side, such as queries, keys and values; each of them is split.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from gavel.training.errors import PlanError
from gavel.training.parallel.groups import Group
from gavel.training.parallel.watchdog import Watchdog

# How far the gradients of a whole parameter may differ between ranks, as a part of the sum of their absolute values.
_TOLERANCE = 1e-3
# A parameter whose gradient is zero, as below layers that start at zero, is looked at again in so many updates.
_UPDATES_CHECKED = 10

_WORD = re.compile(r"row|column(?:/([1-9][0-9]{0,2}))?")


class Cut(NamedTuple):
    """How a tensor is divided: along a dimension, in which it is this many tensors side by side."""

    dimension: int
    parts: int = 1

    def part(self, whole: Tensor, shard: int, shards: int) -> Tensor:
        """Return the part of one rank."""
        blocks = whole.chunk(self.parts, self.dimension)
        return torch.cat([block.chunk(shards, self.dimension)[shard] for block in blocks], self.dimension)

    def join(self, shards: list[Tensor]) -> Tensor:
        """Return the whole of which these are the parts."""
        blocks = [shard.chunk(self.parts, self.dimension) for shard in shards]
        return torch.cat([block[part] for part in range(self.parts) for block in blocks], self.dimension)


class Region:
    """The tensor group of this rank, as the layers that are split need it."""

    def __init__(self, group: Group, watchdog: Watchdog) -> None:
        self._group, self._watchdog = group, watchdog
        # The last input of a split layer, whether gradients were recorded, and the input as those layers take it.
        self._entered: tuple[Tensor, bool, Tensor] | None = None

    def enter(self, whole: Tensor) -> Tensor:
        """Return an input of layers that are split. Layers with one input share the sum of its gradients."""
        recorded = torch.is_grad_enabled()
        if self._entered is None or self._entered[0] is not whole or self._entered[1] != recorded:
            self._entered = (whole, recorded, _Enter.apply(whole, self))  # type: ignore[no-untyped-call]
        return self._entered[2]

    def leave(self, part: Tensor) -> Tensor:
        """Return the sum of an output over the ranks."""
        result: Tensor = _Leave.apply(part, self)  # type: ignore[no-untyped-call]
        return result

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over the ranks."""
        with self._watchdog.watching(None, *self._group.others):
            dist.all_reduce(tensor, group=self._group.handle)
        return tensor


class _Enter(torch.autograd.Function):
    """The same values forward; backward the sum of the gradients of all ranks."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, region: Region) -> Tensor:
        ctx.region = region
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.region.sum(gradient.clone(memory_format=torch.contiguous_format)), None


class _Leave(torch.autograd.Function):
    """The sum of all ranks forward; the same gradient backward."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, region: Region) -> Tensor:
        ctx.mark_dirty(part)
        return region.sum(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class _Split(nn.Module):
    """A linear layer of which this rank has a part. Its parameters have the names that they had before."""

    def __init__(
        self, whole: nn.Linear, cuts: Mapping[str, Cut], region: Region, shard: int, shards: int
    ) -> None:
        super().__init__()
        self.cuts, self._region = cuts, region

        def own(name: str, value: Tensor) -> nn.Parameter:
            part = cuts[name].part(value.detach(), shard, shards) if name in cuts else value.detach()
            return nn.Parameter(part.clone(), value.requires_grad)

        self.weight = own("weight", whole.weight)
        self.bias: nn.Parameter | None = None if whole.bias is None else own("bias", whole.bias)
        self.train(whole.training)


class _Column(_Split):
    def forward(self, whole: Tensor) -> Tensor:
        return linear(self._region.enter(whole), self.weight, self.bias)


class _Row(_Split):
    def forward(self, part: Tensor) -> Tensor:
        total = self._region.leave(linear(part, self.weight))
        return total if self.bias is None else total + self.bias


class WholeGradients:
    """Checks in the first updates that parameters which all ranks of a tensor group have whole get the same gradients.

    One between a `column` and its `row` sees a part of the features, so each rank would train a weight of its own.
    """

    def __init__(self, group: dist.ProcessGroup, names: Mapping[int, str]) -> None:
        """`names` are those of the whole parameters, by slot."""
        self._group, self._names, self._updates_left = group, dict(names), _UPDATES_CHECKED

    def compare(self, gradients: Sequence[Tensor | None], device: torch.device) -> None:
        """Raise PlanError, on all ranks of the group, if they have different gradients of a parameter."""
        if not self._names or self._updates_left == 0:
            return
        self._updates_left -= 1
        figures = torch.zeros(3, max(self._names) + 1, dtype=torch.float64, device=device)
        for slot in self._names:
            gradient = gradients[slot]
            if gradient is not None:
                total, size = (value.sum(dtype=torch.float64) for value in (gradient, gradient.abs()))
                figures[:, slot] = torch.stack([total, -total, size])
        # Gradients that overflow are no matter of how layers are split.
        figures.nan_to_num_(0.0, 0.0, 0.0)
        dist.all_reduce(figures, dist.ReduceOp.MAX, group=self._group)
        highest, lowest, sizes = figures.tolist()
        for slot, name in list(self._names.items()):
            if highest[slot] + lowest[slot] > _TOLERANCE * sizes[slot]:
                raise PlanError(
                    f"{name} sees a part of the features, so it cannot be split this way: its gradients differ between "
                    "ranks; keep parameters out from between a column and its row, or take a plan with tensor 1"
                )
            if sizes[slot] > 0:
                del self._names[slot]


class Splits:
    """The declaration of a script: how linear layers are split, by patterns of their names, such as `*.up`."""

    def __init__(self, declared: Mapping[str, str] | None, modules: Mapping[str, nn.Module]) -> None:
        """Raise PlanError if a pattern names no plain linear layer of the model, or says something unknown of it."""
        self._declared = dict(declared or {})
        linears = {name: part for layer, module in modules.items() for name, part in _linears(layer, module)}
        names = list(linears)
        for pattern, word in self._declared.items():
            if not isinstance(word, str) or not _WORD.fullmatch(word):
                raise PlanError(f"tensor[{pattern!r}] is {word!r}: expected column, column/3 or row")
            if not fnmatch.filter(names, pattern):
                raise PlanError(
                    f"tensor[{pattern!r}] names no plain nn.Linear; the model has {', '.join(names[:8]) or 'none'}"
                    + (", …" if len(names) > 8 else "")
                )
        uses = Counter(
            id(parameter)
            for module in modules.values()
            for _, parameter in module.named_parameters(remove_duplicate=False)
        )
        self._shared = [
            name
            for name, part in linears.items()
            if self._word_of(name) and any(uses[id(parameter)] > 1 for parameter in part.parameters())
        ]

    def check(self, shards: int) -> None:
        """Raise PlanError if a plan splits layers of a script that declares none."""
        if shards > 1 and not self._declared:
            raise PlanError(
                f"the plan splits layers over {shards} ranks (tensor), but the script does not declare which: pass "
                'Pipeline(…, tensor={"*.up": "column", "*.down": "row"}), or take a plan with tensor 1'
            )
        if shards > 1 and self._shared:
            raise PlanError(f"'{self._shared[0]}' shares a weight with another layer, so it cannot be split")

    def split(self, layer: str, module: nn.Module, region: Region, shard: int, shards: int) -> nn.Module:
        """Replace the linear layers of a layer by the parts of this rank; return the layer."""
        for name, linear_layer in list(_linears(layer, module)):
            word = self._word_of(name)
            if not word:
                continue
            part = _part(name, linear_layer, word, region, shard, shards)
            if name == layer:
                return part
            parent, _, attribute = name.removeprefix(f"{layer}.").rpartition(".")
            setattr(module.get_submodule(parent), attribute, part)
        return module

    def _word_of(self, name: str) -> str:
        words = (word for pattern, word in self._declared.items() if fnmatch.fnmatchcase(name, pattern))
        return next(words, "")


def cuts_of(module: nn.Module) -> dict[str, Cut]:
    """Return the cuts of a layer's parameters, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: cut
        for prefix, part in module.named_modules()
        if isinstance(part, _Split)
        for name, cut in part.cuts.items()
    }


def _part(name: str, whole: nn.Linear, word: str, region: Region, shard: int, shards: int) -> _Split:
    match = _WORD.fullmatch(word)
    assert match is not None
    parts = int(match[1] or 1)
    features, kind = (whole.in_features, "in") if word == "row" else (whole.out_features, "out")
    if features % (parts * shards):
        unit = parts * shards
        raise PlanError(
            f"'{name}' has {features} {kind}put features: tensor {shards} needs a multiple of {unit}; nearest: "
            f"{max(1, round(features / unit)) * unit}"
        )
    if word == "row":
        return _Row(whole, {"weight": Cut(1)}, region, shard, shards)
    cuts = {"weight": Cut(0, parts), **({} if whole.bias is None else {"bias": Cut(0, parts)})}
    return _Column(whole, cuts, region, shard, shards)


def _linears(layer: str, module: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers that compute what nn.Linear does: no subclasses, as parametrized ones are, no hooks."""
    for name, part in module.named_modules():
        if type(part) is nn.Linear and not part._forward_hooks and not part._forward_pre_hooks:
            yield f"{layer}.{name}" if name else layer, part
