"""The gate between steps: how a loop that only compares two numbers notices a decision, and what a promise binds."""

from __future__ import annotations

import threading
import time

import pytest

from gavel.training.gate import CONTINUE, NO_LIMIT, Actions, Gate

SAVE, STOP, LAST = Actions(True, False, False), Actions(True, True, False), Actions(True, True, True)


def run(gate: Gate, steps: int) -> list[tuple[int, Actions]]:
    """Run a loop of so many steps as the iterator does; return what was actions at which step."""
    met = []
    gate.looping = True
    for _ in range(steps):
        gate.done += 1
        if gate.done >= gate.limit:
            actions = gate.arrive(gate.done)
            met.append((gate.done, actions))
            if actions.stop:
                break
    gate.looping = False
    return met


def test_a_loop_without_a_limit_is_not_interrupted() -> None:
    """A loop without a total, a period or a lease is never interrupted."""
    gate = Gate()
    assert gate.limit == NO_LIMIT
    assert run(gate, 1000) == []


def test_the_loop_ends_after_all_steps() -> None:
    """After all steps, the loop ends as finished, with a checkpoint; steps of earlier leases count."""
    gate = Gate()
    gate.open(done=90, total=100, every_steps=None)
    assert run(gate, 50) == [(100, LAST)]
    assert gate.finished


def test_the_loop_saves_every_so_many_steps() -> None:
    """Periodic checkpoints are at multiples of the period, wherever the lease began, and at the end."""
    gate = Gate()
    gate.open(done=7, total=33, every_steps=10)
    assert run(gate, 50) == [(10, SAVE), (20, SAVE), (30, SAVE), (33, LAST)]


def test_a_checkpoint_is_not_missed_for_a_promise() -> None:
    """A promise that falls on a periodic checkpoint does not make the loop skip it."""
    gate = Gate()
    gate.open(done=0, total=None, every_steps=10)
    gate.looping = True
    # The step is counted, but the loop has not called the gate yet.
    gate.done = 10
    assert gate.promise(5.0, then_stop=True) == 11
    assert gate.limit <= 10
    gate.decide(11, stop=True)
    assert gate.arrive(10) == SAVE


def test_a_loop_in_a_step_promises_that_step() -> None:
    """A loop within a step promises to end after this step; outside a loop, it promises to do none."""
    gate = Gate()
    gate.done = 5
    assert gate.promise(5.0, then_stop=True) == 5
    gate.looping = True
    assert gate.promise(5.0, then_stop=True) == 6


@pytest.mark.parametrize(("stop", "actions"), [(True, STOP), (False, SAVE)])
def test_a_decision_takes_effect_at_its_step(stop: bool, actions: Actions) -> None:
    """The ranks save or stop at the agreed step, not before; after a save the loop continues."""
    gate = Gate()
    gate.decide(4, stop)
    assert run(gate, 6) == [(4, actions)]
    assert gate.done == (4 if stop else 6)
    assert gate.stopping == stop


def test_a_late_decision_stops_at_once_and_saves_never() -> None:
    """A loop beyond the agreed step stops where it is; a checkpoint of a past step is left out."""
    gate = Gate()
    gate.open(done=9, total=None, every_steps=None)
    gate.decide(4, stop=False)
    assert gate.arrive(9) == CONTINUE
    gate.decide(4, stop=True)
    assert gate.arrive(9) == STOP


def test_the_earlier_of_two_ends_holds() -> None:
    """A second decision cannot delay an end that was decided before."""
    gate = Gate()
    gate.decide(8, stop=True)
    gate.decide(12, stop=True)
    gate.stop_here_unless_decided()
    assert run(gate, 20) == [(8, STOP)]


def test_a_held_loop_continues_with_the_decision() -> None:
    """A loop waits at its promised step, and continues as soon as the decision comes."""
    gate = Gate()
    gate.looping = True
    promised = gate.promise(600.0, then_stop=True)
    gate.done = promised
    threading.Timer(0.02, gate.decide, (3, True)).start()
    began_s = time.monotonic()
    assert gate.arrive(promised) == CONTINUE
    assert time.monotonic() - began_s < 300
    assert gate.limit == 3


@pytest.mark.parametrize(("then_stop", "actions"), [(True, STOP), (False, CONTINUE)])
def test_no_loop_is_held_without_a_limit(then_stop: bool, actions: Actions) -> None:
    """When no decision comes in time, a rank whose lease ends stops at its current step; any other continues."""
    gate = Gate()
    gate.looping = True
    gate.done = gate.promise(0.01, then_stop)
    assert gate.arrive(gate.done) == actions


def test_a_finished_loop_does_not_wait() -> None:
    """After the last step there is nothing to agree on."""
    gate = Gate()
    gate.open(done=0, total=1, every_steps=None)
    gate.looping = True
    gate.promise(30.0, then_stop=True)
    gate.done = 1
    assert gate.arrive(1) == LAST


def test_a_promise_holds_whatever_the_loop_does() -> None:
    """A loop at full speed that is asked at any moment never goes beyond its promise."""
    gate = Gate()
    gate.looping = True
    over = threading.Event()
    furthest: list[int] = []

    def loop() -> None:
        while not over.is_set():
            gate.done += 1
            if gate.done >= gate.limit:
                gate.arrive(gate.done)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        for _ in range(300):
            promised = gate.promise(30.0, then_stop=True)
            time.sleep(0.0005)
            furthest.append(gate.done - promised)
            gate.decide(0, stop=False)
    finally:
        over.set()
        gate.decide(0, stop=False)
        thread.join()
    assert max(furthest) <= 0
    assert gate.done > 300


def test_a_step_to_save_at_leaves_a_promise_in_force() -> None:
    """A loop that decides to save, while another thread holds its promise, still waits for the decision there."""
    gate = Gate()
    gate.open(done=4, total=None, every_steps=None)
    gate.looping = True
    assert gate.promise(60.0, then_stop=True) == 5
    gate.save_at(4)
    assert gate.arrive(4) == SAVE
    assert gate.limit == 5
    gate.decide(5, stop=True)
    assert gate.arrive(5) == STOP


def test_a_called_loop_arrives_once() -> None:
    """After its current step the loop arrives, with nothing to do; then it is free again."""
    gate = Gate()
    gate.open(done=0, total=None, every_steps=None)
    gate.call()
    assert run(gate, 5) == [(1, CONTINUE)]
    assert gate.limit == NO_LIMIT
