"""A scout that goes on from a checkpoint."""

from __future__ import annotations

import functools
import io
import itertools
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from benchmarks.rank_threads import ThreadExchange, run_ranks  # noqa: E402
from gavel.training.checkpoint import torch_state  # noqa: E402
from gavel.training.decentral import FedAvg, SkewScout  # noqa: E402

RANKS = 3
LOOK_EVERY = 3
STEPS = 12 * LOOK_EVERY


class Apart(FedAvg):
    """Ranks that never come nearer to each other, and send different amounts: less, the greater theta is."""

    def share(self) -> None:
        """Send nothing, but count it."""
        self.exchange.bytes_sent += round(self.step_bytes * 60 * (self.exchange.rank + 1) / self.theta)


class Decision(NamedTuple):
    """What a scout has chosen in a step, and from which loss and communication."""

    step: int
    theta: float
    noted: dict[float, tuple[float, ...]]


class Rank:
    """A process of a rank: its models agree while theta is small, and are worth less beyond."""

    def __init__(self, exchange: ThreadExchange, signal: str) -> None:
        """Start at an interval of 5 steps."""
        model = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(model.weight, float(exchange.rank))
        self.local = Apart(model, torch.optim.SGD(model.parameters(), lr=0.0), 5, exchange)
        self.scout = SkewScout(self.local, self.accuracy, LOOK_EVERY, signal=signal)

    def accuracy(self, visitor: torch.nn.Module) -> float:
        """Return the accuracy of a visitor: less with a greater theta, and less away from home."""
        away = float(visitor.weight.detach()[0, 0]) != float(self.local.exchange.rank)
        return (0.9 if self.local.theta <= 10 else 0.6) - (0.2 if away and self.local.theta > 10 else 0.0)

    def state(self) -> dict[str, Any]:
        """Return the state as a checkpoint keeps it."""
        file = io.BytesIO()
        states = {"local": self.local.state_dict(), "scout": self.scout.state_dict()}
        torch.save(torch_state.plain(states, "rank"), file)
        file.seek(0)
        return dict(torch.load(file, weights_only=True))

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.local.load_state_dict(state["local"])
        self.scout.load_state_dict(state["scout"])


@functools.cache
def decisions(signal: str, killed_at: int = 0) -> list[list[Decision]]:
    """Return the decisions of each rank; `killed_at`: the step after which a new process goes on from a checkpoint."""

    def run(exchange: ThreadExchange) -> list[Decision]:
        rank, choices = Rank(exchange, signal), []
        for step in range(1, STEPS + 1):
            rank.local.after_step()
            rank.scout.after_step()
            if step % LOOK_EVERY == 0:
                notes = {theta: tuple(note) for theta, note in rank.scout.notes.items()}
                choices.append(Decision(step, rank.local.theta, notes))
            if step == killed_at:
                state = rank.state()
                exchange.bytes_sent = 0
                rank = Rank(exchange, signal)
                rank.restore(state)
        return choices

    return run_ranks(RANKS, run)


@pytest.mark.parametrize("signal", ["travel", "average"])
@pytest.mark.parametrize("killed_at", [1, 6, 10, 14, STEPS - 1])
def test_a_scout_that_was_interrupted_decides_as_one_that_was_not(signal: str, killed_at: int) -> None:
    """Between two looks and at one: each theta is the same, and each note has the same loss and bytes."""
    assert decisions(signal, killed_at) == decisions(signal)


def test_the_scenario_needs_what_is_saved() -> None:
    """The comparison could fail: the losses are not all 0, theta goes up and down, and ranks decide alike."""
    for own in decisions("average"):
        assert any(loss > 0.05 for decision in own for loss, *_ in decision.noted.values())
        thetas = [decision.theta for decision in own]
        changes = [after - before for before, after in itertools.pairwise(thetas)]
        assert min(changes) < 0 < max(changes)
        assert thetas == [decision.theta for decision in decisions("average")[0]]


def test_states_without_scores_are_loaded() -> None:
    """A checkpoint of an earlier release has only looks and notes; the scores begin anew."""

    def run(exchange: ThreadExchange) -> tuple[int, list[float], float]:
        rank = Rank(exchange, "average")
        rank.scout.load_state_dict({"looks": 4, "notes": {5.0: (0.01, 0.5, 3)}})
        for _ in range(LOOK_EVERY):
            rank.local.after_step()
            rank.scout.after_step()
        return rank.scout.looks, sorted(rank.scout.notes), rank.scout.notes[5.0].accuracy_loss

    assert run_ranks(RANKS, run) == [(5, [5.0], 0.0)] * RANKS
