"""The runner: it carries out the actions of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import torch
from torch import Tensor

from gavel.training.parallel.actions import (
    Action,
    Actions,
    Kind,
    Schedule,
    actions_of_drain,
    actions_of_step,
)
from gavel.training.parallel.batch import Batch
from gavel.training.parallel.layers import Chunk, Counter, Passed, Tensors
from gavel.training.parallel.messages import Messages, Receipt
from gavel.training.parallel.versions import Versions
from gavel.training.parallel.watchdog import Watchdog

Key = tuple[Kind, int, int]


class Runner:
    """Carries out the actions of the rank of one stage, with its chunks, weights and messages.

    `update` is called with the sums of the gradients, by parameter, when the weights are to change. `place` is the
    place of this copy's first microbatch in the whole batch, which all copies together divide into `parts`.
    """

    def __init__(
        self,
        schedule: Schedule,
        stage: int,
        chunks: Sequence[Chunk],
        versions: Versions,
        messages: Messages,
        watchdog: Watchdog,
        update: Callable[[Action, list[Tensor | None]], None],
        place: int,
        parts: int,
        seed: int,
    ) -> None:
        self._schedule, self._stage, self._chunks = schedule, stage, chunks
        self._versions, self._messages, self._watchdog, self._update = versions, messages, watchdog, update
        self._place, self._parts, self._seed = place, parts, seed
        # The number of steps since the pipeline was empty.
        self._filled = 0
        self._batch: Batch | None = None
        self._losses: list[Tensor] = []
        self._gradients: list[Tensor | None] = [None] * len(versions.parameters)
        self._passed: dict[tuple[int, int], Passed] = {}
        self._outputs: dict[Key, Tensors] = {}
        self._receipts: dict[Key, Receipt] = {}
        self._lists: dict[tuple[bool, int], Actions] = {}
        self._carry_out = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.SEND_ACTIVATION: self._send,
            Kind.SEND_GRADIENT: self._send,
            Kind.RECEIVE_ACTIVATION: self._receive,
            Kind.RECEIVE_GRADIENT: self._receive,
            Kind.UPDATE: self._make_update,
        }

    def step(self, step: int, batch: Batch) -> Tensor | None:
        """Admit the batch of this step. Return its mean loss on the last stage, None on all others."""
        self._batch, self._losses = batch, []
        self._run(step, draining=False)
        self._filled += 1
        self._batch = None
        if self._schedule.flushes:
            self._messages.await_sends()
        return torch.stack(self._losses).mean() if self._losses else None

    def drain(self, step: int) -> None:
        """Finish what is in flight after `step` steps, and make the updates that belong to it."""
        self._run(step, draining=True)
        self._messages.await_sends()
        self._filled = 0

    # ----------------------------------------------------------------------------------------------- actions

    def _run(self, step: int, draining: bool) -> None:
        schedule = self._schedule
        # From then on all steps are alike.
        steady = -(-(schedule.stages - 1) // schedule.microbatches)
        alike = min(self._filled, steady)
        key = (draining, alike)
        if key not in self._lists:
            actions_of = actions_of_drain if draining else actions_of_step
            self._lists[key] = actions_of(schedule, alike, alike)[self._stage]
        later = (step - alike) * schedule.microbatches
        for action in self._lists[key]:
            microbatch = action.microbatch + later
            version = schedule.version(self._stage, microbatch)
            action = Action(action.kind, microbatch, action.chunk, version, action.peer)
            self._watchdog.action = action
            self._carry_out[action.kind](action)

    def _forward(self, action: Action) -> None:
        _, microbatch, number, version, _ = action
        step, index = divmod(microbatch, self._schedule.microbatches)
        chunk = self._chunks[number]
        # A step admits only microbatches of its own batch.
        assert self._batch is not None
        inputs = self._batch.inputs(index) if self._is_end(number, forward=False) else self._received(action)
        target = self._batch.target(index) if self._is_end(number, forward=True) else None
        counter = Counter(self._seed, step, self._place + index)
        outputs, passed = chunk.forward(inputs, target, self._versions.leaves(version), counter)
        self._passed[microbatch, number] = passed
        if self._is_end(number, forward=True):
            self._losses.append(outputs[0])
        else:
            self._outputs[Kind.SEND_ACTIVATION, microbatch, number] = outputs

    def _backward(self, action: Action) -> None:
        _, microbatch, number, _, _ = action
        passed = self._passed.pop((microbatch, number))
        if self._is_end(number, forward=True):
            gradients: Tensors = (torch.full_like(self._losses[-1], 1 / self._parts),)
        else:
            gradients = self._received(action)
        results = self._chunks[number].backward(passed, gradients, self._collect)
        if not self._is_end(number, forward=False):
            self._outputs[Kind.SEND_GRADIENT, microbatch, number] = results

    def _send(self, action: Action) -> None:
        self._messages.send(action, self._outputs.pop((action.kind, action.microbatch, action.chunk)))

    def _receive(self, action: Action) -> None:
        self._receipts[action.kind, action.microbatch, action.chunk] = self._messages.post(action)

    def _make_update(self, action: Action) -> None:
        gradients, self._gradients = self._gradients, [None] * len(self._gradients)
        self._update(action, gradients)

    # ----------------------------------------------------------------------------------------------- details

    def _received(self, action: Action) -> Tensors:
        """Return the input of a computation, which another rank has sent."""
        kind = Kind.RECEIVE_ACTIVATION if action.kind is Kind.FORWARD else Kind.RECEIVE_GRADIENT
        return self._messages.wait(self._receipts.pop((kind, action.microbatch, action.chunk)))

    def _collect(self, slot: int, gradient: Tensor) -> None:
        total = self._gradients[slot]
        if total is None:
            # Autograd may return one tensor as the gradient of several.
            self._gradients[slot] = gradient.clone()
        else:
            total.add_(gradient)

    def _is_end(self, chunk: int, forward: bool) -> bool:
        return self._schedule.neighbour(self._stage, chunk, forward) is None
