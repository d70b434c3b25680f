"""The interval between checkpoints: its formula, and how the tuner follows a machine in virtual time."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.training import Interval
from gavel.training.interval import SKIPPED_STEPS, Tuner, choose, young_s
from tests.support.wording import Wording
from tests.training.loops import Loop

BOUND = 0.035
times_s = st.floats(1e-4, 1e3)
MACHINE = {"step_s": 0.5, "pause_s": 0.1, "durable_s": 2.2, "slower": 1.1}


def loop(tuner: Tuner | None = None, **changes: float) -> Loop:
    """Return a loop on a machine of which some times are other ones."""
    return Loop(tuner or Tuner(BOUND), **{**MACHINE, **changes})


# ------------------------------------------------------------------------------------------- the formula


@given(times_s, times_s, times_s, st.floats(0.001, 0.5))
def test_the_interval_is_the_least_that_keeps_both_conditions(
    step_s: float, stall_s: float, durable_s: float, bound: float
) -> None:
    """A checkpoint is on disk before the next one, and costs at most the bound; one step less breaks either."""
    steps, overhead, _ = choose(step_s=step_s, stall_s=stall_s, durable_s=durable_s, overhead=bound)
    assert steps * step_s >= durable_s * (1 - 1e-9)
    assert overhead <= bound * (1 + 1e-9)
    if steps > 1:
        less = (steps - 1) * step_s
        assert less < durable_s * (1 + 1e-9) or stall_s / less > bound * (1 - 1e-9)


@given(times_s, times_s, times_s, st.floats(1, 1e8))
def test_rare_failures_only_lengthen_the_interval(
    step_s: float, stall_s: float, durable_s: float, mtbf_s: float
) -> None:
    """Young's optimum counts where it is rarer than the bound asks for; it never breaks the bound."""
    alone = choose(step_s=step_s, stall_s=stall_s, durable_s=durable_s)
    known = choose(step_s=step_s, stall_s=stall_s, durable_s=durable_s, mtbf_s=mtbf_s)
    assert known.steps == max(alone.steps, round(young_s(stall_s, mtbf_s) / step_s))


def test_the_loss_over_the_wish_is_reported() -> None:
    """The bound on the overhead wins over the wish to lose little."""
    tight = choose(step_s=0.1, stall_s=1.0, durable_s=0.1, overhead=0.01, lose_at_most_s=60)
    assert (tight.steps, tight.over_lose_at_most) == (1000, True)


# --------------------------------------------------------------------------------------------- the tuner


def test_the_first_checkpoint_follows_a_profile() -> None:
    """Five steps are skipped, then 20 steps or 5 s are measured, at most 100 steps."""
    for step_s, steps in ((0.5, 20), (0.1, 50), (0.001, 100), (10.0, 20)):
        machine = loop(step_s=step_s)
        machine.run_checkpoints(1)
        assert machine.saves[0] == pytest.approx(SKIPPED_STEPS + steps, abs=1), step_s


def test_the_first_checkpoint_sets_the_interval_and_the_second_replaces_it() -> None:
    """The first one is slower, because memory is allocated for it: its times hold only until the second."""
    machine = loop(pause_s=1.0)
    machine.run_checkpoints(1)
    machine.pause_s = 0.1
    machine.run_checkpoints(1)
    assert machine.tuner.interval == 66
    machine.run_checkpoints(1)
    assert machine.tuner.interval == 18


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 5.0),
    st.floats(0.0, 3.0),
    st.floats(0.01, 20.0),
    st.floats(1.0, 1.8),
    st.sampled_from([0.01, 0.035, 0.05, 0.2]),
)
def test_the_overhead_stays_within_the_bound(
    step_s: float, pause_s: float, durable_s: float, slower: float, bound: float
) -> None:
    """On a machine that stays as it is, every checkpoint after the first two keeps the bound, without a gap."""
    tuner = Tuner(bound, math.inf)
    machine = Loop(tuner, step_s=step_s, pause_s=pause_s, durable_s=pause_s + durable_s, slower=slower)
    machine.run_checkpoints(6)
    for checkpoint in range(2, 5):
        assert machine.overhead(checkpoint) <= bound + 1e-9
    assert tuner.times is not None
    assert tuner.times.step_s == pytest.approx(step_s)


def test_a_neighbour_on_the_machine_is_followed_within_two_checkpoints() -> None:
    """When pauses and slower steps cost four times as much, the third checkpoint is within the bound again."""
    machine = loop()
    machine.run_checkpoints(7)
    machine.pause_s, machine.slower, machine.durable_s = 0.8, 1.5, 5.0
    machine.run_checkpoints(4)
    assert machine.overhead(7) > BOUND
    assert machine.overhead(9) <= BOUND


def test_a_neighbour_that_slows_all_steps_alike_is_no_overhead() -> None:
    """Steps are compared with those between checkpoints: slower ones are saved as often, in steps."""
    machine = loop()
    machine.run_checkpoints(6)
    before = machine.tuner.interval
    for name in ("step_s", "pause_s", "durable_s"):
        setattr(machine, name, 3 * getattr(machine, name))
    machine.run_checkpoints(6)
    assert machine.tuner.interval == before


def test_a_neighbour_that_leaves_is_noticed_though_checkpoints_follow_each_other() -> None:
    """If a checkpoint is always in progress, the few steps between two of them still give the time of a step."""
    machine = loop(Tuner(0.05), step_s=2.0, pause_s=0.01, durable_s=40.0, slower=1.0)
    machine.run_checkpoints(6)
    machine.step_s, machine.slower = 1.0, 1.2
    machine.run_checkpoints(14)
    assert machine.tuner.times is not None
    assert machine.tuner.times.step_s == pytest.approx(1.0)
    assert machine.overhead(18) <= 0.05


def test_the_interval_falls_after_three_checkpoints_that_ask_for_less() -> None:
    """One fast checkpoint changes nothing."""
    machine = loop(pause_s=1.0)
    machine.run_checkpoints(8)
    long = machine.tuner.interval
    assert long is not None
    machine.pause_s = 0.1
    machine.run_checkpoints(4)
    assert machine.tuner.interval == long
    machine.run_checkpoints(3)
    assert machine.tuner.interval is not None
    assert machine.tuner.interval <= 0.8 * long


@pytest.mark.parametrize("checkpoints", [3, 4, 7])
def test_a_process_suspended_in_a_step_changes_no_interval(checkpoints: int) -> None:
    """A minute in which the process is stopped is dropped, while a checkpoint is written and between two of them."""
    machine = loop()
    machine.run_checkpoints(checkpoints)
    before = machine.tuner.interval
    assert before == 18
    machine.run(3 * before, pauses={machine.saves[-1] + offset: 60.0 for offset in (2, before // 2)})
    assert machine.tuner.interval == before
    machine.run_checkpoints(2)
    assert machine.tuner.interval == before


@pytest.mark.parametrize("checkpoints", [2, 3, 6])
@pytest.mark.parametrize("suspended", [("pause_s", "durable_s"), ("durable_s",)])
def test_a_process_suspended_in_a_checkpoint_changes_no_interval(
    suspended: tuple[str, ...], checkpoints: int
) -> None:
    """One checkpoint that takes a minute longer is an accident: it counts for nothing, whatever few were before it."""
    machine = loop()
    machine.run_checkpoints(checkpoints)
    machine.run(10)
    assert machine.tuner.interval == 18
    for name in suspended:
        setattr(machine, name, getattr(machine, name) + 60.0)
    machine.run_checkpoints(1)
    for name in suspended:
        setattr(machine, name, getattr(machine, name) - 60.0)
    machine.run(140)
    assert machine.tuner.interval == 18
    assert machine.saves[-1] - machine.saves[-2] == 18


def test_a_suspended_step_costs_no_checkpoint_anything() -> None:
    """The minute is left out of what the checkpoint in progress costs, also where that would be no accident yet.

    The pause of 4 s is usual here, so a cost of 64 s is less than 20 times the usual one.
    """
    machine = loop(Tuner(BOUND, math.inf), pause_s=4.0, durable_s=10.0)
    machine.run_checkpoints(3)
    before = machine.tuner.interval
    machine.run(40, pauses={machine.saves[-1] + 2: 60.0})
    assert machine.tuner.own_stall_s == pytest.approx(4.0 + 10 * 0.05)
    assert machine.tuner.interval == before


def test_a_disk_that_becomes_a_hundred_times_slower_is_no_accident() -> None:
    """The first checkpoint that takes so long may be chance; the second sets the interval."""
    machine = loop()
    machine.run_checkpoints(6)
    machine.durable_s *= 100
    machine.run_checkpoints(3)
    machine.run(600)
    assert machine.tuner.interval is not None
    assert machine.tuner.interval * machine.step_s >= machine.durable_s


def test_a_checkpoint_in_progress_puts_the_next_one_off() -> None:
    """Checkpoints never overlap, even if the disk is far slower than the interval."""
    machine = loop(durable_s=30.0)
    machine.run_checkpoints(8)
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(machine.saves))


def test_failures_double_the_interval_until_a_checkpoint_succeeds() -> None:
    """A full disk is not hammered; the first success restores the interval."""
    machine = loop()
    machine.run_checkpoints(4)
    interval = machine.tuner.interval
    assert interval is not None
    machine.fails = True
    machine.run_checkpoints(5)
    gaps = [later - earlier for earlier, later in itertools.pairwise(machine.saves)]
    assert gaps[-4:] == [2**failures * interval for failures in (2, 3, 4, 5)]
    machine.fails = False
    machine.run_checkpoints(2)
    assert machine.saves[-1] - machine.saves[-2] == interval


def test_the_slowest_rank_sets_the_interval() -> None:
    """The stall of another rank counts if it is greater than this rank's own."""
    tuners = [Tuner(BOUND), Tuner(BOUND)]
    for tuner, stall_s in zip(tuners, (0.0, 1.0), strict=True):
        tuner.begin(0, 0.0)
        for step in range(1, 31):
            tuner.step_done(step, 0.5 * step)
        tuner.save_begins(15.0)
        tuner.save_ends(30, 15.1)
        tuner.durable(15.2, stall_s)
    assert [tuner.interval for tuner in tuners] == [6, 58]
    assert [round(tuner.own_stall_s, 6) for tuner in tuners] == [0.1, 0.1]


def test_a_known_rate_of_failures_lengthens_the_interval_up_to_the_wish() -> None:
    """Where little fails, checkpoints are rarer, but a crash loses no more than the user wishes."""
    for wish_s, steps in ((math.inf, round(young_s(0.3, 1e6) / 0.5)), (60.0, 120)):
        machine = loop(Tuner(BOUND, wish_s, mtbf_s=1e6))
        machine.run_checkpoints(4)
        assert machine.tuner.interval == pytest.approx(steps, rel=0.05), wish_s


def test_the_next_lease_on_the_same_type_begins_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is kept in the checkpoint; on GPUs of another type it is measured anew."""
    machine = loop()
    machine.run_checkpoints(6)
    state = machine.tuner.state_dict()
    again = Tuner(BOUND)
    again.load_state_dict(state)
    second = loop(again)
    second.run_checkpoints(1)
    assert second.saves == [machine.tuner.interval]
    monkeypatch.setenv("GAVEL_WORKER_TYPE", "k80")
    other = Tuner(BOUND)
    other.load_state_dict(state)
    assert other.interval is None


def test_the_first_checkpoint_of_a_tuned_process_does_not_count() -> None:
    """It allocates memory, too, and the earlier process has measured better ones."""
    machine = loop()
    machine.run_checkpoints(6)
    again = Tuner(BOUND)
    again.load_state_dict(machine.tuner.state_dict())
    second = loop(again, pause_s=1.0)
    second.run_checkpoints(1)
    second.run(10)
    assert again.interval == machine.tuner.interval


def test_a_wish_that_the_bound_forbids_is_reported_once(
    caplog: pytest.LogCaptureFixture, wording: Wording
) -> None:
    """The message has the overhead that the wish would cost, or says that the disk is too slow for it."""
    for changes in ({"pause_s": 1.0}, {"durable_s": 30.0, "slower": 1.0}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "gavel.training"):
            loop(Tuner(BOUND, 10.0), **changes).run_checkpoints(5)
        assert len(caplog.messages) == 1
        wording(caplog.messages[0])


# ----------------------------------------------------------------------------------------- wrong words


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"overhead": 0}, "overhead is 0"),
        ({"overhead": 1}, "overhead is 1"),
        ({"overhead": math.nan}, "overhead is nan"),
        ({"overhead": "3 %"}, "overhead is '3 %'"),
        ({"lose_at_most_s": 0}, "lose_at_most_s is 0"),
        ({"lose_at_most_s": -5.0}, "lose_at_most_s is -5.0"),
    ],
)
def test_wrong_words_are_refused(words: dict[str, Any], value: str, wording: Wording) -> None:
    """A bound or wish that must be a mistake is refused with its value and an example."""
    with pytest.raises(ValueError, match=value) as refused:
        Interval(**words)
    wording(refused.value)
