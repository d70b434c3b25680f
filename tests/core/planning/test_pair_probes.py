"""Pairs of unknown job types share GPUs for a round, so that policies with packing know their rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.messages import Progress
from scheduler.core.planning import round_inputs
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.pairing import ESTIMATED, packed_rate, pair_rate, pair_rates
from scheduler.core.planning.probes import gpus_for_probes
from scheduler.core.state import SchedulerState
from scheduler.explain import Reason, explain
from scheduler.model.lease import Bundle
from scheduler.model.settings import Settings
from scheduler.model.throughput import RateKey
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]
PACKING = {"policy": "las+packing", "learn_rates": True, "explore": 0.5, "trust_after_s": 60.0}
# Job types of the table, and how much of a GPU each needs: two share it in proportion.
LOAD = {"a": 0.3, "b": 0.45, "c": 0.6, "d": 0.75, "e": 0.9, "new": 0.5}


def part(job_type: str, partner: str) -> float:
    """The rate of a type beside another one, as a part of its rate alone."""
    return min(1.0, 0.95 / (LOAD[job_type] + LOAD[partner]))


def with_references(desk: Desk) -> Desk:
    """Give the desk a table with all pairs of the types but `new`, whose rate alone it has."""
    book = desk.core.state.rates
    book.put([(name, 1, "v100", 10.0) for name in LOAD])
    known = [name for name in LOAD if name != "new"]
    book.put_pairs(
        [("v100", a, b, 1, 10 * part(a, b), 10 * part(b, a)) for a in known for b in known if a <= b]
    )
    return desk


def running(
    desk_of: DeskOf, waiting: int = 2, specs: tuple[dict[str, Any], ...] = ({}, {}), **changed: Any
) -> Desk:
    """Two jobs of unknown types that have stepped for 100 s on two GPUs, and others that wait."""
    desk = desk_of(node("n1", 2, gpu_memory_gb=16.0), **{**PACKING, **changed})
    leases = desk.run(
        *[job(job_type=name, steps=None, **spec) for name, spec in zip(("x", "y"), specs, strict=True)]
    )
    desk.until(110.0)
    desk.report(progress=tuple(Progress(lease, 500.0, 0.0, 100.0) for lease in leases))
    desk.settle()
    if waiting:
        desk.submit(*[job(steps=None)] * waiting)
    desk.until(desk.core.state.round.ends_s - 9.0)
    return desk


def exit_and_start(desk: Desk) -> None:
    """Let leases that are stopping exit, and those that were sent start."""
    for stopping in (True, False):
        for holding in list(desk.core.state.leases.values()):
            if stopping and holding.phase == "stopping":
                figures = {"steps": holding.steps, "stepping_s": holding.stepping_s}
                desk.report(exits=(exited(holding.lease.id, ran_s=300.0, saved=holding.steps, **figures),))
            elif not stopping and holding.phase == "sent":
                desk.report(started=(holding.lease.id,))
            desk.settle()


def probed(desk: Desk) -> list[Bundle]:
    """The pairs that the next round will try."""
    state = desk.core.state
    inputs = round_inputs.at_boundary(state, Kinds(), desk.now_s, state.round.ends_s)
    columns = inputs.candidates
    return [
        columns.bundles[row] for row in np.flatnonzero(columns.explore) if columns.columns.second[row] >= 0
    ]


def test_a_pair_of_running_jobs_shares_gpus_for_a_round(desk_of: DeskOf) -> None:
    """While others wait, two jobs of unknown types share a GPU; their rates are measured, and it is not tried again."""
    desk = running(desk_of)
    (pair,) = probed(desk)
    assert pair == Bundle(("1", "2"), "v100", 1)
    state = desk.core.state
    desk.until(state.round.ends_s + 5.0)
    together = [holding for holding in state.leases.values() if holding.bundle == pair]
    assert len(together) == 2
    exit_and_start(desk)
    for at_s, steps in ((100.0, 900.0), (200.0, 1200.0)):
        desk.until(state.round.starts_s + at_s)
        for holding in together:
            stepping_s = holding.stepping_s + 100.0
            desk.report(progress=(Progress(holding.lease.id, steps, 0.0, stepping_s),))
            desk.settle()
    keys = RateKey("x", 1, "v100", "y"), RateKey("y", 1, "v100", "x")
    assert [state.rates.measured[key].believed for key in keys] == pytest.approx([3.0, 3.0], rel=0.2)
    rates = pair_rate(state, "v100", "x", "y", 1)
    assert rates is not None
    assert rates.source == "measured"
    assert packed_rate(state, pair, "1") == (rates.first, "measured", 0.0)
    assert packed_rate(state, pair, "2") == (rates.second, "measured", 0.0)
    assert packed_rate(state, Bundle(("1",), "v100", 1), "1") is None
    desk.until(state.round.ends_s - 9.0)
    assert not probed(desk)


@pytest.mark.parametrize(
    ("settings", "specs"),
    [
        ({"explore": 0.0}, {}),
        ({"policy": "las"}, {}),
        ({"learn_rates": False}, {}),
        ({}, {"preemptible": False}),
        ({}, {"packable": False}),
        ({}, {"reports_steps": False}),
        ({}, {"min_run_s": 3600.0}),
        ({}, {"gpu_memory_gb": 9.0}),
    ],
)
def test_who_is_not_probed(desk_of: DeskOf, settings: dict[str, Any], specs: dict[str, Any]) -> None:
    """Nothing is probed if the settings exclude it, a job may not share or move, or the memory is too small."""
    assert not probed(running(desk_of, specs=(specs, specs), **settings))


def test_nothing_is_probed_while_no_job_waits(desk_of: DeskOf) -> None:
    """Packing gains nothing while every job has its GPUs, so no job is disturbed for it."""
    assert not probed(running(desk_of, waiting=0))


@given(st.floats(0, 0.5), st.integers(1, 200), st.integers(1, 300))
def test_probes_take_no_more_than_their_part(explore: float, gpus: int, rounds: int) -> None:
    """Over any number of rounds, probes get at most the part `explore` of all GPUs, and all but one GPU of it."""
    state, kinds = SchedulerState(), Kinds()
    state.settings, kinds.capacity = Settings(explore=explore), np.array([float(gpus)])
    total = 0
    for number in range(rounds):
        state.round.number = number
        total += gpus_for_probes(state, kinds)
    assert explore * gpus * rounds - 1 < total <= explore * gpus * rounds + 1e-6


def test_a_type_with_a_measured_pair_is_packed_by_estimates(desk_of: DeskOf) -> None:
    """One measured pair of a new type gives cautious rates for its pairs with all references, and its own."""
    desk = with_references(desk_of(node("n1", 2), **PACKING))
    state = desk.core.state
    assert pair_rate(state, "v100", "new", "a", 1) is None
    for key, rate in ((("new", "c"), part("new", "c")), (("c", "new"), part("c", "new"))):
        state.rates.observe(RateKey(key[0], 1, "v100", key[1]), 1e4 * rate, 1e3, 60.0)
    for partner in ("a", "b", "d", "e", "new"):
        rates = pair_rate(state, "v100", "new", partner, 1)
        assert rates is not None
        assert rates.source == ESTIMATED
        truth = 10 * part("new", partner), 10 * part(partner, "new")
        assert (rates.first, rates.second) == pytest.approx(truth, abs=2.0)
        assert 0 <= rates.first <= 10
        assert (rates.second, rates.first) == pair_rates(state, "v100", partner, "new", 1)
    assert pair_rate(state, "v100", "new", "c", 1) == pytest.approx(
        (10 * part("new", "c"), 10 * part("c", "new"), "measured", 0, 0)
    )
    desk.submit(job(job_type="new", steps=None), job(job_type="a", steps=None))
    desk.submit(*[job(job_type="a", steps=None)] * 2)
    desk.until(desk.core.state.round.ends_s + 400.0)
    exit_and_start(desk)
    packed = next(holding for holding in state.leases.values() if len(holding.bundle.jobs) > 1)
    answer = explain(state, packed.lease.job, desk.now_s)
    assert answer.reason is Reason.EXPLORING
    assert any(way.guessed and way.with_job for way in answer.evidence)


@pytest.mark.parametrize("rate", [1e300, 1e12, 0.0])
def test_absurd_measurements_stay_within_the_rate_alone(desk_of: DeskOf, rate: float) -> None:
    """A job that reports absurd steps beside another one changes no estimate beyond the rates alone."""
    desk = with_references(desk_of(node("n1", 2), **PACKING))
    state = desk.core.state
    state.rates.observe(RateKey("new", 1, "v100", "c"), rate * 1e3, 1e3, 60.0)
    state.rates.observe(RateKey("c", 1, "v100", "new"), 1e3 * part("c", "new"), 1e3, 60.0)
    for partner in ("a", "b", "d", "e"):
        rates = pair_rate(state, "v100", "new", partner, 1)
        assert rates is None or max(rates.first, rates.second) <= 10.0


def test_estimates_are_the_same_after_a_restart(desk_of: DeskOf) -> None:
    """A scheduler that reads its state back decides by the same estimates."""
    desk = with_references(desk_of(node("n1", 2), **PACKING))
    state = desk.core.state
    state.rates.observe(RateKey("new", 1, "v100", "c"), 6e3, 1e3, 60.0)
    state.rates.observe(RateKey("c", 1, "v100", "new"), 7e3, 1e3, 60.0)
    restored = SchedulerState.restore(state.snapshot())
    pairs = [(a, b) for a in LOAD for b in LOAD]
    assert [pair_rate(restored, "v100", a, b, 1) for a, b in pairs] == [
        pair_rate(state, "v100", a, b, 1) for a, b in pairs
    ]
