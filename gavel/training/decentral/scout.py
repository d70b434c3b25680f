"""SkewScout: how much an exchange may leave out, by what the skew of the data costs in accuracy (Hsieh et al., 2020).

The objective and its weights (50, 1, 5 %) are recalled, unverified: the text of the paper was not at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from gavel.training.decentral.exchange import divide, joined
from gavel.training.decentral.local import LocalTraining

LOSS_WEIGHT, COMMUNICATION_WEIGHT, TOLERATED_LOSS = 50.0, 1.0, 0.05
SIGNALS = ("travel", "average")
# Notes older than so many looks are forgotten, because the model has changed since.
REMEMBERED_LOOKS = 8


class Note(NamedTuple):
    """The last look at a value of theta."""

    accuracy_loss: float
    # The bytes that were sent, as a part of those of BSP.
    communication: float
    look: int


def objective(
    accuracy_loss: float,
    communication: float,
    loss_weight: float = LOSS_WEIGHT,
    communication_weight: float = COMMUNICATION_WEIGHT,
    tolerated: float = TOLERATED_LOSS,
) -> float:
    """Return what the scout minimises: accuracy that is lost beyond what is tolerated, and communication."""
    return loss_weight * max(0.0, accuracy_loss - tolerated) + communication_weight * communication


def next_theta(
    ladder: Sequence[float], theta: float, notes: Mapping[float, Note], tolerated: float = TOLERATED_LOSS
) -> float:
    """Return the next value of theta: at most one step of the ladder away, to where the objective is least.

    A step without a note is tried if the loss says so: one that leaves out more while the loss is tolerated, and one
    that leaves out less otherwise.
    """
    place = min(range(len(ladder)), key=lambda i: (abs(ladder[i] - theta), i))
    now = notes[theta]
    toward = place + 1 if now.accuracy_loss <= tolerated else place - 1
    if 0 <= toward < len(ladder) and ladder[toward] not in notes:
        return ladder[toward]
    near = [ladder[i] for i in (place - 1, place, place + 1) if 0 <= i < len(ladder)]
    known = {step: notes[step] for step in near if step in notes} or {theta: now}

    def cost(step: float) -> tuple[float, float]:
        return objective(known[step].accuracy_loss, known[step].communication, tolerated=tolerated), step

    return min(known, key=cost)


class SkewScout:
    """Tries values of `local.theta` in turn. Every rank calls `after_step` after that of `local`.

    `evaluate(model)` returns the accuracy on data of this rank that the model is not trained on. With the signal
    "travel", each model visits the next rank before it is exchanged, and the loss is what it scores less there than at
    home; weights that are always the same on all ranks, as with DGC, tell little by this. With "average",
    the loss is what the mean of all models has lost since its best score with a smaller theta.
    """

    def __init__(
        self,
        local: LocalTraining,
        evaluate: Callable[[nn.Module], float],
        travel_every: int = 500,
        sigma: float = TOLERATED_LOSS,
        signal: str = "travel",
    ) -> None:
        """Look every `travel_every` steps; tolerate a loss of `sigma`."""
        if isinstance(travel_every, bool) or not isinstance(travel_every, int) or travel_every < 1:
            raise ValueError(f"travel_every is {travel_every!r}; give a number of steps, such as 500")
        if not 0 <= sigma < 1:
            raise ValueError(f"sigma is {sigma!r}; give a part of 1, such as 0.05")
        if signal not in SIGNALS:
            raise ValueError(f"signal is {signal!r}; give one of {', '.join(SIGNALS)}")
        self.local, self.evaluate, self.signal = local, evaluate, signal
        self.travel_every, self.sigma = travel_every, sigma
        self.notes: dict[float, Note] = {}
        self.looks = 0
        self._bytes_before = local.bytes_sent
        # The loss of the last look and the bytes that it took, until theta is chosen.
        self._loss: float | None = None
        self._bytes_of_look = 0
        local.before_share.append(self._look)
        # By theta: the best score of the mean of all models.
        self._best: dict[float, float] = {}

    def after_step(self) -> None:
        """Choose theta, if the models were looked at in this step."""
        if self._loss is None:
            return
        local, loss = self.local, self._loss
        theta, sent = local.theta, local.bytes_sent - self._bytes_before - self._bytes_of_look
        self._loss = None
        # The same number on all ranks, which may have sent different amounts.
        sent_by_all = float(local.exchange.mean(local.before.new_tensor([float(sent)]))[0])
        communication = sent_by_all / max(local.step_bytes * self.travel_every, 1)
        self.looks += 1
        self.notes[theta] = Note(loss, communication, self.looks)
        self.notes = {
            step: note for step, note in self.notes.items() if self.looks - note.look < REMEMBERED_LOOKS
        }
        local.theta = next_theta(local.ladder, theta, self.notes, self.sigma)
        self._bytes_before = local.bytes_sent

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this rank keeps, beside the state of `local`."""
        return {
            "looks": self.looks,
            "notes": {step: tuple(note) for step, note in self.notes.items()},
            "best": dict(self._best),
            # Those since the last look, which differ between ranks.
            "sent_bytes": self.local.bytes_sent - self._bytes_before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint of this rank."""
        self.looks = int(state["looks"])
        self.notes = {step: Note(*note) for step, note in state["notes"].items()}
        # States of earlier releases have neither scores nor bytes.
        self._best = dict(state.get("best", {}))
        self._bytes_before = self.local.bytes_sent - int(state.get("sent_bytes", 0))

    def _look(self) -> None:
        """Look at the accuracy, if it is time."""
        local = self.local
        if local.steps % self.travel_every:
            return
        before = local.bytes_sent
        self._loss = self._travel_loss() if self.signal == "travel" else self._average_loss(local.theta)
        self._bytes_of_look = local.bytes_sent - before

    def _tensors(self) -> list[Tensor]:
        """Return the weights and the statistics of the model."""
        buffers = [buffer for buffer in self.local.model.buffers() if buffer.is_floating_point()]
        return [*self.local.weights, *buffers]

    def _travel_loss(self) -> float:
        """Return the mean accuracy at home less that at the next rank."""
        tensors = self._tensors()
        own = joined(tensors)
        at_home = self._accuracy()
        divide(self.local.exchange.pass_on(own), tensors)
        away = self._accuracy()
        divide(own, tensors)
        return self._mean(at_home - away)

    def _average_loss(self, theta: float) -> float:
        """Return what the mean of all models has lost since its best score with a smaller theta."""
        tensors = self._tensors()
        own = joined(tensors)
        divide(self.local.exchange.mean(own), tensors)
        accuracy = self._mean(self._accuracy())
        divide(own, tensors)
        before = max((best for step, best in self._best.items() if step < theta), default=accuracy)
        self._best[theta] = max(self._best.get(theta, 0.0), accuracy)
        return before - accuracy

    def _mean(self, value: float) -> float:
        return float(self.local.exchange.mean(self.local.before.new_tensor([value]))[0])

    def _accuracy(self) -> float:
        model = self.local.model
        was_training = model.training
        accuracy = float(self.evaluate(model))
        model.train(was_training)
        if not (math.isfinite(accuracy) and 0.0 <= accuracy <= 1.0):
            raise ValueError(f"evaluate has returned {accuracy}; return an accuracy from 0 to 1")
        return accuracy
