"""Training on data that stays where it is: the laws of the exchanges, their bytes, and the choice of the scout."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from benchmarks.rank_threads import ThreadExchange, run_ranks  # noqa: E402
from benchmarks.skew_laws import DIFFERENT, LAWS, train  # noqa: E402
from gavel.training.decentral import BSP, DGC, FedAvg, Gaia, SkewScout  # noqa: E402
from gavel.training.decentral.dgc import sparsity_at, values_sent  # noqa: E402
from gavel.training.decentral.exchange import joined  # noqa: E402
from gavel.training.decentral.local import LocalTraining  # noqa: E402
from gavel.training.decentral.scout import Note, next_theta, objective  # noqa: E402
from tests.training.leases import RunDirectory, under_a_lease  # noqa: E402

RANKS = 3


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: str) -> None:
    """Exchanges that leave nothing out are bulk-synchronous SGD: all ranks have its weights."""
    weights, expected = run_ranks(RANKS, LAWS[law]), run_ranks(RANKS, LAWS["bsp"])
    for own in (*weights, *expected):
        assert (own - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("way", DIFFERENT)
def test_exchanges_that_leave_something_out_are_not(way: str) -> None:
    """The laws could fail: with other settings, the weights differ."""
    weights, expected = run_ranks(RANKS, DIFFERENT[way]), run_ranks(RANKS, LAWS["bsp"])
    assert max(float((own - expected[0]).abs().max()) for own in weights) > 1e-4


def test_bulk_synchronous_steps_are_steps_with_the_mean_gradient() -> None:
    """BSP of three ranks is SGD on all of their data."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        sum((rank + 1.0) * (model.weight.sum() - rank) ** 2 for rank in range(RANKS)).div(RANKS).backward()
        optimizer.step()

    def rank(exchange: ThreadExchange) -> float:
        own = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(own.weight)
        sgd = torch.optim.SGD(own.parameters(), lr=0.1)
        local = BSP(own, sgd, exchange=exchange)
        for _ in range(4):
            sgd.zero_grad()
            ((exchange.rank + 1.0) * (own.weight.sum() - exchange.rank) ** 2).backward()
            sgd.step()
            local.after_step()
        return float(own.weight.detach())

    assert run_ranks(RANKS, rank) == pytest.approx([float(model.weight.detach())] * RANKS, abs=1e-6)


def small(
    make: Callable[[torch.nn.Module, torch.optim.Optimizer, ThreadExchange], LocalTraining], steps: int
) -> list[int]:
    """Bytes that each rank sends in some steps of a model of 100 weights."""

    def rank(exchange: ThreadExchange) -> int:
        torch.manual_seed(1)
        model = torch.nn.Linear(10, 10, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local = make(model, optimizer, exchange)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((1, 10), 1.0 + exchange.rank + step)).square().sum().backward()
            optimizer.step()
            local.after_step()
        return local.bytes_sent

    return run_ranks(RANKS, rank)


def test_bytes_are_counted_exactly() -> None:
    """Dense: 4 bytes a value. Sparse: 4 for the value, 8 for their number, and 4 a position or 1 bit a weight."""
    assert small(BSP, 10) == [10 * 400] * RANKS
    assert small(lambda model, sgd, exchange: FedAvg(model, sgd, 4, exchange), 10) == [2 * 400] * RANKS
    sparse = small(lambda model, sgd, exchange: DGC(model, sgd, 0.98, exchange=exchange), 10)
    assert sparse == [10 * (2 * (4 + 4) + 8)] * RANKS
    as_bits = small(lambda model, sgd, exchange: DGC(model, sgd, 0.9, exchange=exchange), 10)
    assert as_bits == [10 * (10 * 4 + 13 + 8)] * RANKS
    nothing = small(lambda model, sgd, exchange: Gaia(model, sgd, 1e5, exchange), 1)
    assert all(8 <= sent < 408 for sent in nothing)


@settings(deadline=None)
@given(
    st.integers(1, 70).flatmap(
        lambda of: st.lists(st.sets(st.integers(0, of - 1)), min_size=2, max_size=3).map(
            lambda sets: (of, [sorted(each) for each in sets])
        )
    )
)
def test_positions_arrive_however_they_travel(drawn: tuple[int, list[list[int]]]) -> None:
    """Each rank receives the positions and values of all, and none sends more than numbers would take."""
    of, positions = drawn

    def rank(exchange: ThreadExchange) -> tuple[list[tuple[list[int], list[float]]], int]:
        own = torch.tensor(positions[exchange.rank], dtype=torch.int64)
        pairs = exchange.sparse(own, own / 2.0, of)
        return [(index.tolist(), values.tolist()) for index, values in pairs], exchange.bytes_sent

    for number, (received, sent) in enumerate(run_ranks(len(positions), rank)):
        assert received == [(each, [place / 2.0 for place in each]) for each in positions]
        count = len(positions[number])
        assert sent == 8 + 4 * count + min(4 * count, math.ceil(of / 8))


def test_bytes_go_to_what_the_job_measures(tmp_path: Path) -> None:
    """The mean of a step counts, of the steps of this process: a resumed one does not count what it never sent."""

    def train(local: LocalTraining, steps: int) -> None:
        for _ in range(steps):
            local.after_step()

    with under_a_lease(RunDirectory(tmp_path).environ()) as session:

        def rank(exchange: ThreadExchange) -> None:
            model = torch.nn.Linear(10, 10, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            local = FedAvg(model, optimizer, 5, exchange)
            train(local, 10)
            resumed = FedAvg(model, optimizer, 5, exchange)
            resumed.exchange.bytes_sent = 0
            resumed.load_state_dict(local.state_dict())
            train(resumed, 10)

        run_ranks(RANKS, rank)
        assert session.progress.measured(1.0, 20)["sent_bytes"] == 2 * 400 / 10


def test_what_is_not_sent_is_not_lost() -> None:
    """With a constant gradient, DGC has sent all of it in the end, up to what waits; no weight moves twice."""

    def rank(exchange: ThreadExchange) -> tuple[torch.Tensor, torch.Tensor]:
        model = torch.nn.Linear(20, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        local = DGC(model, optimizer, 0.9, exchange=exchange)
        for _ in range(50):
            model.weight.grad = torch.arange(1.0, 21.0).view(1, 20)
            optimizer.step()
            local.after_step()
        return joined(local.weights), local.unsent

    for weights, unsent in run_ranks(RANKS, rank):
        torch.testing.assert_close(weights + unsent, -50.0 * torch.arange(1.0, 21.0))


def test_a_checkpoint_goes_on() -> None:
    """A rank restored from its state takes the same steps as one that was not interrupted."""
    whole = run_ranks(RANKS, lambda exchange: train(exchange, lambda *a: DGC(*a[:2], 0.9, exchange=a[2]), 8))
    resumed = run_ranks(
        RANKS, lambda exchange: train(exchange, lambda *a: DGC(*a[:2], 0.9, exchange=a[2]), 8, resume_at=5)
    )
    for weights, again in zip(whole, resumed, strict=True):
        torch.testing.assert_close(again, weights, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda m, o: FedAvg(m, o, every=0), "every"),
        (lambda m, o: FedAvg(m, o, every=math.nan), "every"),
        (lambda m, o: FedAvg(m, o, every=2.5), "every"),
        (lambda m, o: Gaia(m, o, threshold=-0.1), "threshold"),
        (lambda m, o: Gaia(m, o, threshold=math.nan), "threshold"),
        (lambda m, o: DGC(m, o, sparsity=1.0), "sparsity"),
        (lambda m, o: DGC(m, o, momentum=1.0), "momentum"),
        (lambda m, o: DGC(m, o, warm_up_steps=-1), "warm_up_steps"),
        (lambda m, o: SkewScout(BSP(m, o), lambda _: 1.0, travel_every=0), "travel_every"),
        (lambda m, o: SkewScout(BSP(m, o), lambda _: 1.0, sigma=2.0), "sigma"),
        (lambda m, o: SkewScout(BSP(m, o), lambda _: 1.0, signal="both"), "signal"),
        (lambda m, o: BSP(torch.nn.Identity(), o), "model"),
    ],
)
def test_bad_values_are_refused(make: Callable[..., object], field: str) -> None:
    """The error begins with the field."""
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=f"^{field} "):
        make(model, torch.optim.SGD(model.parameters(), lr=0.1))


@given(st.integers(1, 10**7), st.integers(0, 9))
def test_values_sent(values: int, stage: int) -> None:
    """At least one value, at most all, and the part that the stage leaves, to the value."""
    count = values_sent(values, sparsity_at(stage))
    assert 1 <= count <= values
    assert abs(count - max(values * (1 - sparsity_at(stage)), 1)) <= 1


LADDER = (1.0, 2.0, 5.0, 20.0)
LOSSES = st.floats(0, 1)


@settings(deadline=None)
@given(
    st.sampled_from(LADDER),
    st.dictionaries(st.sampled_from(LADDER), st.tuples(LOSSES, LOSSES)),
    LOSSES,
    LOSSES,
)
def test_the_scout_takes_one_step_and_never_to_a_worse_place(
    theta: float, known: dict[float, tuple[float, float]], loss: float, part: float
) -> None:
    """It stays within one step; a place with a note is chosen only if its objective is no greater than here."""
    notes = {step: Note(*values, 1) for step, values in known.items()} | {theta: Note(loss, part, 2)}
    chosen = next_theta(LADDER, theta, notes)
    assert abs(LADDER.index(chosen) - LADDER.index(theta)) <= 1
    if chosen in notes:
        assert objective(*notes[chosen][:2]) <= objective(loss, part)
    else:
        assert (chosen > theta) == (loss <= 0.05)


@pytest.mark.parametrize(("skewed", "signal"), [(False, "travel"), (True, "travel"), (False, "average")])
def test_the_scout_relaxes_where_travelling_costs_nothing(skewed: bool, signal: str) -> None:
    """Ranks that score alike everywhere leave out more and more; ranks that score worse away stay near BSP."""

    class Apart(FedAvg):
        """Ranks that never come nearer to each other, and send as much as if they averaged."""

        def share(self) -> None:
            self.exchange.bytes_sent += round(self.step_bytes * 60 / self.theta)

    def rank(exchange: ThreadExchange) -> tuple[float, int]:
        model = torch.nn.Linear(4, 1)
        torch.nn.init.constant_(model.weight, float(exchange.rank))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        local = Apart(model, optimizer, 5, exchange)

        def accuracy(visitor: torch.nn.Module) -> float:
            at_home = float(visitor.weight.detach()[0, 0]) == float(exchange.rank)
            return 0.2 if skewed and not at_home and local.theta > 1 else 0.9

        scout = SkewScout(local, accuracy, travel_every=3, signal=signal)
        for _ in range(3 * 12):
            local.after_step()
            scout.after_step()
        assert float(model.weight.detach()[0, 0]) == exchange.rank
        return local.theta, len(scout.notes)

    thetas = run_ranks(RANKS, rank)
    assert len({theta for theta, _ in thetas}) == 1
    assert thetas[0][0] <= 2.0 if skewed else thetas[0][0] == 500.0


@pytest.mark.parametrize("score", [math.nan, -0.1, 1.1])
def test_an_accuracy_that_is_none_is_refused(score: float) -> None:
    """The error names the value."""
    model = torch.nn.Linear(2, 2)
    scout = SkewScout(
        FedAvg(model, torch.optim.SGD(model.parameters(), lr=0.1)), lambda _: score, travel_every=1
    )
    with pytest.raises(ValueError, match="evaluate"):
        scout.local.after_step()


def test_travelling_sees_models_before_they_are_averaged() -> None:
    """Ranks whose models drift apart between averages have a loss, also if a look falls on the step of an average."""

    def rank(exchange: ThreadExchange) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        local = FedAvg(model, optimizer, 5, exchange)
        goal = float(exchange.rank)
        scout = SkewScout(local, lambda _: math.exp(-abs(float(model.weight.detach()) - goal)), 5)
        for _ in range(5):
            optimizer.zero_grad()
            (0.5 * (model.weight - goal).square()).sum().backward()
            optimizer.step()
            local.after_step()
            scout.after_step()
        assert local.theta == 2.0
        return scout.notes[5.0].accuracy_loss

    losses = run_ranks(RANKS, rank)
    assert losses == pytest.approx([losses[0]] * RANKS)
    assert losses[0] > 0.5


def test_processes_do_what_threads_do(tmp_path: Path) -> None:
    """Two processes over gloo end with the weights of two threads, in every way to exchange."""
    command = [sys.executable, "-m", "benchmarks.skew_laws", str(tmp_path / "store")]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        outputs = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for name, work in {**LAWS, **DIFFERENT}.items():
        for rank, weights in enumerate(run_ranks(2, work)):
            assert outputs[rank][name] == pytest.approx(weights.tolist(), abs=1e-6)
