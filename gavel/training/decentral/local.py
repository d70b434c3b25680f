"""The base of all exchanges: a model that steps by itself, and shares after each step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from gavel.training import session
from gavel.training.decentral.exchange import VALUES_MAX, Exchange, bytes_of, joined


class LocalTraining(ABC):
    """A model of this rank. Call `after_step` after each step of its optimizer; all ranks take the same steps.

    Every rank has to begin with the same weights. `theta` says how much the exchange leaves out; `ladder` lists values
    that suit, from those that leave out least.
    """

    ladder: tuple[float, ...] = ()

    def __init__(self, model: nn.Module, optimizer: Optimizer, exchange: Exchange | None = None) -> None:
        """Share the weights of the model that its optimizer changes."""
        self.model, self.optimizer = model, optimizer
        self.exchange = Exchange() if exchange is None else exchange
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        values = sum(weight.numel() for weight in self.weights)
        if not 0 < values <= VALUES_MAX:
            raise ValueError(f"model has {values} weights to train; give one with 1 to {VALUES_MAX}")
        self.steps = 0
        # The steps of this process, in which `bytes_sent` were sent.
        self._steps_here = 0
        self._session = session.current()
        # Called after each step and before the exchange, while the models differ most.
        self.before_share: list[Callable[[], None]] = []
        # The weights before the step to come.
        self.before = joined(self.weights)

    @property
    @abstractmethod
    def theta(self) -> float:
        """How much the exchange leaves out."""

    @theta.setter
    @abstractmethod
    def theta(self, theta: float) -> None: ...

    @property
    def bytes_sent(self) -> int:
        """How many bytes this rank has sent."""
        return self.exchange.bytes_sent

    @property
    def step_bytes(self) -> int:
        """How many bytes a rank sends in each step of BSP."""
        return bytes_of(self.before) if self.exchange.size > 1 else 0

    def after_step(self) -> None:
        """Exchange what the step has changed, as far as it is due."""
        self.steps += 1
        for look in self.before_share:
            look()
        self.share()
        self._steps_here += 1
        if self._session is not None:
            self._session.progress.measure(sent_bytes=self.bytes_sent / self._steps_here)

    @abstractmethod
    def share(self) -> None:
        """Exchange once."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this rank keeps beside model and optimizer."""
        return {"steps": self.steps, "theta": self.theta, "before": self.before, **self.residuals()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this rank."""
        self.steps, self.theta, self.before = int(state["steps"]), state["theta"], state["before"]
        for name, tensor in self.residuals().items():
            tensor.copy_(state[name])

    def residuals(self) -> dict[str, Tensor]:
        """Return the tensors with what was not sent yet, by name."""
        return {}


def must_be_fraction(name: str, value: float, most: float, example: str) -> float:
    """Return the number; raise ValueError unless it is at least 0 and below `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
        raise ValueError(f"{name} is {value!r}; give a number from 0 to below {most:g}, such as {example}")
    return float(value)
