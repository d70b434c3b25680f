"""Activations and gradients between neighbouring stages.

The first activation over an edge is preceded by the shapes and types of its tensors; from then on both ends know them,
and those of the gradients, too. A change of shape is refused by the sender. Sends do not wait for their receiver, and
receipts are posted where the schedule says, and awaited where they are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from gavel.training.errors import PlanError
from gavel.training.parallel.actions import Action, Kind
from gavel.training.parallel.groups import Grid
from gavel.training.parallel.layers import Tensors
from gavel.training.parallel.watchdog import Watchdog

TENSORS_MAX = 16
DIMENSIONS_MAX = 8
# A header: the number of tensors, then for each its type, its number of dimensions, and the dimensions.
_HEADER = 1 + TENSORS_MAX * (2 + DIMENSIONS_MAX)
_TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


class Form(NamedTuple):
    """The shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Receipt(NamedTuple):
    """Tensors that are on their way."""

    action: Action
    tensors: Tensors
    works: list[dist.Work]


class Messages:
    """The messages of one rank. `unawaited_max` bounds the sends that nothing has waited for yet."""

    def __init__(self, grid: Grid, device: torch.device, unawaited_max: int, watchdog: Watchdog) -> None:
        self._grid, self._device, self._unawaited_max, self._watchdog = grid, device, unawaited_max, watchdog
        self._sends: deque[tuple[Action, dist.Work, Tensor]] = deque()
        # By chunk: the forms of the activations that this rank sends and receives.
        self._sent: dict[int, list[Form]] = {}
        self._received: dict[int, list[Form]] = {}

    def send(self, action: Action, tensors: Tensors) -> None:
        """Send an activation, or the gradients of one."""
        if action.kind is Kind.SEND_ACTIVATION:
            forms = [Form(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
            if action.chunk not in self._sent:
                self._send(action, _header(forms).to(self._device))
                self._sent[action.chunk] = forms
            elif forms != self._sent[action.chunk]:
                raise PlanError(
                    f"the activation of microbatch {action.microbatch} has another shape than before: {_text(forms)}, "
                    f"not {_text(self._sent[action.chunk])}; all batches of a pipeline must have one shape"
                )
        for tensor in tensors:
            self._send(action, tensor.contiguous())
        while len(self._sends) > self._unawaited_max:
            self._await_oldest_send()

    def post(self, action: Action) -> Receipt:
        """Begin to receive what this action names."""
        if action.kind is Kind.RECEIVE_ACTIVATION:
            if action.chunk not in self._received:
                header = torch.zeros(_HEADER, dtype=torch.int64, device=self._device)
                self.wait(Receipt(action, (header,), [self._receive(action, header)]))
                self._received[action.chunk] = _forms(header.tolist())
            forms = self._received[action.chunk]
        else:
            forms = [form for form in self._sent[action.chunk] if form.dtype.is_floating_point]
        tensors = tuple(torch.empty(form.shape, dtype=form.dtype, device=self._device) for form in forms)
        return Receipt(action, tensors, [self._receive(action, tensor) for tensor in tensors])

    def wait(self, receipt: Receipt) -> Tensors:
        """Return the tensors of a receipt once they have arrived; raise RankLost if they cannot arrive any more."""
        for work in receipt.works:
            self._wait(receipt.action, work)
        return receipt.tensors

    def await_sends(self) -> None:
        """Wait until everything that was sent has been received."""
        while self._sends:
            self._await_oldest_send()

    def _send(self, action: Action, tensor: Tensor) -> None:
        peer = self._grid.rank_at(action.peer)
        with self._watchdog.watching(action, peer):
            work = dist.isend(tensor, peer)
        assert work is not None
        self._sends.append((action, work, tensor))

    def _receive(self, action: Action, tensor: Tensor) -> dist.Work:
        peer = self._grid.rank_at(action.peer)
        with self._watchdog.watching(action, peer):
            work = dist.irecv(tensor, peer)
        assert work is not None
        return work

    def _await_oldest_send(self) -> None:
        action, work, _ = self._sends.popleft()
        self._wait(action, work)

    def _wait(self, action: Action, work: dist.Work) -> None:
        with self._watchdog.watching(action, self._grid.rank_at(action.peer)):
            work.wait()


def _header(forms: Sequence[Form]) -> Tensor:
    if len(forms) > TENSORS_MAX or any(len(form.shape) > DIMENSIONS_MAX for form in forms):
        raise PlanError(
            f"a stage returned {_text(forms)}: at most {TENSORS_MAX} tensors of {DIMENSIONS_MAX} dimensions pass "
            "between stages"
        )
    numbers = [len(forms)]
    for shape, dtype in forms:
        if dtype not in _TYPES:
            raise PlanError(f"a stage returned {dtype}: expected floating-point or whole numbers")
        numbers += [_TYPES.index(dtype), len(shape), *shape, *[0] * (DIMENSIONS_MAX - len(shape))]
    return torch.tensor(numbers + [0] * (_HEADER - len(numbers)), dtype=torch.int64)


def _forms(numbers: Sequence[int]) -> list[Form]:
    forms = []
    for index in range(numbers[0]):
        dtype, dimensions, *shape = numbers[1 + index * (2 + DIMENSIONS_MAX) :][: 2 + DIMENSIONS_MAX]
        forms.append(Form(tuple(shape[:dimensions]), _TYPES[dtype]))
    return forms


def _text(forms: Sequence[Form]) -> str:
    return ", ".join(f"{list(form.shape)} {str(form.dtype).replace('torch.', '')}" for form in forms)
