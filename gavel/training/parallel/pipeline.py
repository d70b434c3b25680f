"""`Pipeline`: trains a chain of layers that a plan divides among the ranks of a job.

    pipe = Pipeline(layers, loss=loss, optimizer=lambda parameters: AdamW(parameters, 1e-4))
    steps = LeasedIterator(loader, checkpoint=pipe.checkpoint("checkpoints"))
    for batch in steps:
        loss = pipe.step(batch)

The script is the same for every plan. Without one, every rank trains a copy of the model; a single process trains as
if there were no pipeline. The loader gives every rank the whole batch, of which the pipeline takes its part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gavel.training.errors import PlanError
from gavel.training.parallel import reduce, rng
from gavel.training.parallel.actions import Action
from gavel.training.parallel.batch import Batch, samples_of, tensors_of
from gavel.training.parallel.groups import Grid, Group
from gavel.training.parallel.layers import Chunk, Layer, Loss, named_layers, statistics
from gavel.training.parallel.messages import Messages
from gavel.training.parallel.parts import PipelineCheckpoint
from gavel.training.parallel.plan import Plan, plan_of_process
from gavel.training.parallel.profiler import NoCheckpoint, profile_and_exit, profile_path
from gavel.training.parallel.runner import Runner
from gavel.training.parallel.tensor import Region, Splits, WholeGradients, cuts_of
from gavel.training.parallel.versions import Versions
from gavel.training.parallel.watchdog import Watchdog

log = logging.getLogger("gavel.training")

# How long a rank waits for another one before it gives up.
TIMEOUT_S = 1800.0


class Pipeline:
    """A model in training, of which this process has some layers.

    `layers` is an nn.Sequential, a list or a mapping of modules; all ranks build all of them, with the same values.
    `loss(output, target)` returns the mean over the samples. `optimizer` makes one from parameters, and `scheduler` a
    learning rate scheduler from the optimizer; it advances with every update. `clip_norm` bounds the norm of the
    gradients of the whole model. `tensor` declares which linear layers a plan may split, by patterns of their names:
    `{"*.up": "column", "*.down": "row"}` (`tensor.py`). `seed` determines the random
    numbers that layers draw, as dropout does.
    """

    def __init__(
        self,
        layers: nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module],
        loss: Loss,
        optimizer: Callable[[list[Parameter]], Optimizer],
        plan: Plan | str | None = None,
        *,
        tensor: Mapping[str, str] | None = None,
        scheduler: Callable[[Optimizer], Any] | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        modules = named_layers(layers)
        self.names = list(modules)
        # Where the first batch is to be profiled instead of trained on.
        self._profile_path = profile_path()
        self.plan = plan_of_process(plan) if self._profile_path is None else Plan()
        stages = self.plan.layers_of_stages(self.names)
        splits = Splits(tensor, modules)
        splits.check(self.plan.tensor)
        if clip_norm is not None and not 0 < clip_norm < float("inf"):
            raise PlanError(f"clip_norm is {clip_norm!r}: expected a number above 0, such as 1.0")
        self.device = device_of_process(device)
        self.grid = Grid(self.plan, self.device, timeout_s)
        self._watchdog = Watchdog(self.grid.rank)
        if self.grid.world > 1:
            self._watchdog.start()
        self._seed, self._clip_norm = seed, clip_norm
        own_stages = stages[self.grid.stage :: self.plan.pipeline]
        self.parameters: list[Parameter] = []
        self.layers = self._own_layers(modules, splits, [index for stage in own_stages for index in stage])
        by_index = {layer.index: layer for layer in self.layers}
        self._chunks = [
            Chunk(
                [by_index[index] for index in stage],
                loss if stage[-1] == len(modules) - 1 else None,
                self.plan.recompute,
            )
            for stage in own_stages
        ]
        self._tied = self._tied_slots(modules, stages)
        self._modules, self._loss, self._make_optimizer = modules, loss, optimizer
        self.optimizer = optimizer(self.parameters) if self.parameters else None
        self.scheduler = scheduler(self.optimizer) if scheduler and self.optimizer is not None else None
        self._whole_gradients = self._whole_slots()
        self._statistics = list(statistics(modules))
        self._warned_of_unused = False
        # The steps that were admitted over the whole life of the job.
        self.steps = 0
        self._samples = 0
        self._runner: Runner | None = None
        self._versions: Versions | None = None
        # Older versions of the weights from a checkpoint, until the first batch tells how many are kept.
        self._restored: Mapping[int, Sequence[Tensor]] = {}

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last layer, and so knows the loss."""
        return self.layers[-1].index == len(self.names) - 1

    def step(self, batch: Any) -> Tensor | None:
        """Train on a batch, a pair (inputs, target). Return its mean loss on ranks with the last layer, else None.

        With copies of the model, the loss is that of this copy's part of the batch.
        """
        samples = samples_of(batch)
        if self._profile_path is not None:
            profile_and_exit(
                self._profile_path, self._modules, self._loss, self._make_optimizer, batch, self.device
            )
        runner = self._start(batch, samples) if self._runner is None else self._runner
        if samples != self._samples:
            raise PlanError(
                f"a batch of {samples} samples, after batches of {self._samples}: all batches of a pipeline must have "
                "one size; drop the last batch of an epoch, as DataLoader(…, drop_last=True) does"
            )
        parts = self.plan.data * self._microbatches
        part = Batch(batch, parts, self.grid.copy * self._microbatches, self.device)
        with rng.preserved(self.device):
            loss = runner.step(self.steps, part)
        self.steps += 1
        return loss

    def drain(self) -> None:
        """Finish the microbatches that are in flight. Schedules that flush have none after a step."""
        if self._runner is not None:
            with rng.preserved(self.device):
                self._runner.drain(self.steps)

    # -------------------------------------------------------------------------------------- for checkpoints

    def checkpoint(
        self, directory: str | os.PathLike[str] | None = None, *, wait_s: float = 60.0, **named: Any
    ) -> PipelineCheckpoint | NoCheckpoint:
        """Return the checkpoint of this pipeline, and of further named objects, for a `LeasedIterator`.

        Outside Gavel it is in `directory`; under a lease, in the job's `GAVEL_CHECKPOINT_DIR`. All ranks wait at most
        `wait_s` for each other's parts.
        """
        if self._profile_path is not None:
            return NoCheckpoint()
        return PipelineCheckpoint(self, directory, wait_s=wait_s, **named)

    def older_versions(self) -> Mapping[int, Sequence[Tensor]]:
        """Return the older versions of this rank's parameters that microbatches to come still use."""
        return self._restored if self._versions is None else self._versions.older()

    def restore(self, steps: int, older: Mapping[int, Sequence[Tensor]]) -> None:
        """Continue after `steps` steps, with the parameters as they are now, and these older versions of them."""
        self.steps, self._restored = steps, older
        if self._versions is not None:
            self._versions.restore(steps, older)

    # ------------------------------------------------------------------------------------------------ details

    def _start(self, batch: Any, samples: int) -> Runner:
        """Prepare for batches like this one."""
        schedule = self.plan.schedule_for(samples)
        self._check_that_all_have(batch)
        self._samples, self._microbatches = samples, schedule.microbatches
        if self._statistics and self._microbatches * self.plan.data > 1:
            log.warning(
                "gavel: layer '%s' keeps statistics, which are those of one microbatch at a time, not of the batch",
                self._statistics[0],
            )
        self._versions = Versions(self.parameters, schedule.versions_kept(self.grid.stage))
        self._versions.restore(self.steps, self._restored)
        self._runner = Runner(
            schedule,
            self.grid.stage,
            self._chunks,
            self._versions,
            Messages(self.grid, self.device, 2 * schedule.stages * schedule.chunks, self._watchdog),
            self._watchdog,
            self._update,
            self.grid.copy * schedule.microbatches,
            self.plan.data * schedule.microbatches,
            self._seed,
        )
        return self._runner

    def _check_that_all_have(self, batch: Any) -> None:
        """Raise PlanError unless all ranks have this batch: each takes its part of it."""
        if self.grid.world == 1:
            return
        total = (
            torch.stack([tensor.detach().double().sum().cpu() for tensor in tensors_of(batch)])
            .nan_to_num()
            .sum()
        )
        extremes = torch.stack([total, -total]).to(self.device)
        dist.all_reduce(extremes, dist.ReduceOp.MAX)
        if extremes[0] != -extremes[1]:
            raise PlanError(
                "the ranks have different batches, but every rank needs the whole one: load the data in the same order "
                "on all ranks, as ResumableSampler(data, rank=0, world=1) does"
            )

    def _update(self, action: Action, gradients: list[Tensor | None]) -> None:
        """Change the weights by these gradients, after they have been summed and clipped."""
        self._warn_of_unused(gradients)
        shared = self.plan.data > 1
        for slot, parameter in enumerate(self.parameters):
            if gradients[slot] is None and parameter.requires_grad and (shared or slot in self._tied):
                gradients[slot] = torch.zeros_like(parameter)
        self._sum(action, self.grid.copies, gradients)
        for slot, (group, _) in self._tied.items():
            self._sum(action, group, [gradients[slot]])
        if self._whole_gradients is not None:
            with self._watching(action, self.grid.shards):
                self._whole_gradients.compare(gradients, self.device)
        if self._clip_norm is not None:
            with self._watching(action, self.grid.model):
                self._clip(gradients, self._clip_norm)
        assert self._versions is not None
        # An optimizer that adds noise adds the same on all copies.
        rng.reseed(self.device, self._seed, action.version, self.grid.stage)
        self._versions.update(self.optimizer, gradients)
        if self.scheduler is not None:
            self.scheduler.step()

    def _warn_of_unused(self, gradients: Sequence[Tensor | None]) -> None:
        """Warn, once, of the first parameter without a gradient: a module must look it up where it registered it."""
        names = (
            (layer.name, name)
            for layer in self.layers
            for name, slot in layer.slots.items()
            if gradients[slot] is None and self.parameters[slot].requires_grad
        )
        if not self._warned_of_unused and (unused := next(names, None)) is not None:
            self._warned_of_unused = True
            log.warning(
                "gavel: layer '%s' did not use its parameter '%s' in an update, so it was not trained",
                *unused,
            )

    def _sum(self, action: Action, group: Group | None, gradients: Sequence[Tensor | None]) -> None:
        if group is not None:
            with self._watching(action, group):
                reduce.sum_over(group.handle, [gradient for gradient in gradients if gradient is not None])

    def _watching(self, action: Action, group: Group | None) -> AbstractContextManager[None]:
        return nullcontext() if group is None else self._watchdog.watching(action, *group.others)

    def _whole_slots(self) -> WholeGradients | None:
        """Return the check of the parameters that all ranks of the tensor group have whole, if there is a group."""
        if self.grid.shards is None:
            return None
        names: dict[int, str] = {}
        for layer in self.layers:
            for name, slot in layer.slots.items():
                if name not in layer.cuts:
                    names.setdefault(slot, f"layer '{layer.name}': the parameter '{name}'")
        return WholeGradients(self.grid.shards.handle, names)

    def _clip(self, gradients: Sequence[Tensor | None], norm_max: float) -> None:
        layer_of = {slot: layer.index for layer in reversed(self.layers) for slot in layer.slots.values()}
        is_cut = {layer.slots[name] for layer in self.layers for name in layer.cuts}
        # A tied weight counts once, in its first layer, and one that all shards have in the first; all scale it alike.
        counted = {
            slot: (slot not in self._tied or self._tied[slot][1]) and (slot in is_cut or self.grid.shard == 0)
            for slot in layer_of
        }
        present = [
            (layer_of[slot] if counted[slot] else None, gradient)
            for slot, gradient in enumerate(gradients)
            if gradient is not None
        ]
        group = None if self.grid.model is None else self.grid.model.handle
        reduce.clip(present, len(self.names), norm_max, group, self.device)

    def _own_layers(
        self, modules: dict[str, nn.Module], splits: Splits, indices: Sequence[int]
    ) -> list[Layer]:
        """Take this rank's part of the layers with these indices, on the device, and number their parameters."""
        region = Region(self.grid.shards, self._watchdog) if self.grid.shards is not None else None
        layers = []
        slots: dict[int, int] = {}
        for index in indices:
            name = self.names[index]
            if region is not None:
                modules[name] = splits.split(name, modules[name], region, self.grid.shard, self.plan.tensor)
            # To be profiled, one layer at a time goes to the device.
            module = modules[name] if self._profile_path else modules[name].to(self.device)
            own = {}
            for parameter_name, parameter in module.named_parameters():
                if id(parameter) not in slots:
                    slots[id(parameter)] = len(self.parameters)
                    self.parameters.append(parameter)
                own[parameter_name] = slots[id(parameter)]
            layers.append(Layer(index, name, module, own, cuts_of(module)))
        return layers

    def _tied_slots(
        self, modules: Mapping[str, nn.Module], stages: Sequence[range]
    ) -> dict[int, tuple[Group | None, bool]]:
        """Return, by slot, the group of the ranks that share a weight, and whether this rank is the first of them."""
        owners: dict[int, set[int]] = {}
        for stage, layers in enumerate(stages):
            for index in layers:
                for parameter in modules[self.names[index]].parameters():
                    owners.setdefault(id(parameter), set()).add(stage % self.plan.pipeline)
        slots = {id(parameter): slot for slot, parameter in enumerate(self.parameters)}
        tied = {}
        groups: dict[frozenset[int], Group | None] = {}
        for parameter_id, ranks in owners.items():
            if len(ranks) > 1:
                key = frozenset(ranks)
                if key not in groups:
                    groups[key] = self.grid.group_of_stages(ranks)
                if parameter_id in slots:
                    tied[slots[parameter_id]] = (groups[key], self.grid.stage == min(ranks))
        return tied


def device_of_process(device: torch.device | str | None) -> torch.device:
    """Return the device of this rank: without another wish its GPU, or the CPU. A GPU becomes the current one."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise PlanError(f"device is '{chosen}', but PyTorch finds no GPU here: give \"cpu\", or no device")
    if chosen == torch.device("cuda"):
        # Every rank of a node sees all GPUs of the lease.
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return chosen
