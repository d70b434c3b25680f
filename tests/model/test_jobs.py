"""The table of moves between the states of a job, and specifications of jobs that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scheduler.model.errors import InvalidSpec, Refused
from scheduler.model.jobs import TERMINAL, TRANSITIONS, WAITING, Dependency, JobSpec, JobState, Move, after
from scheduler.model.launch import Launch, Terminal
from tests.support.wording import Wording

# A second table, independent of TRANSITIONS: MOVES has a row for each move and a column for each of these states.
STATES = ("queued", "running", "preempted", "held", "completed", "failed", "cancelled")
MOVES = {
    "start": "running - running - - - -",
    "preempt": "- preempted - - - - -",
    "retry": "- queued - - - - -",
    "hold": "held held held - - - -",
    "release": "- - - queued - - -",
    "requeue": "- queued - - - - -",
    "complete": "completed completed completed completed - - -",
    "fail": "failed failed failed failed - - -",
    "cancel": "cancelled cancelled cancelled cancelled - - -",
}


def test_the_table_of_this_test_is_complete() -> None:
    """The table of this test has every state and every move."""
    assert set(STATES) == set(JobState)
    assert set(MOVES) == set(Move)


@pytest.mark.parametrize("move", MOVES)
def test_every_move_from_every_state(move: str) -> None:
    """A move leads to the state that the table gives, and is refused where the table has a dash."""
    for state, to in zip(STATES, MOVES[move].split(), strict=True):
        if to == "-":
            with pytest.raises(Refused, match=rf"\b{state}\b.*\b{move}\b"):
                after(JobState(state), Move(move))
        else:
            assert after(JobState(state), Move(move)) == to


def test_every_row_has_an_actor_and_a_reason() -> None:
    """Every row of TRANSITIONS has an actor and a reason, and users can make four moves."""
    assert all(rule.why and rule.who for rule in TRANSITIONS.values())
    moves_of_users = {move for (_, move), rule in TRANSITIONS.items() if rule.who == "user"}
    assert moves_of_users == {Move.HOLD, Move.RELEASE, Move.REQUEUE, Move.CANCEL}


def test_every_state_leads_to_an_end() -> None:
    """From every state that is not terminal a job can fail or be cancelled; no move leads out of a terminal state."""
    for state in JobState:
        onward = {rule.to for (of, _), rule in TRANSITIONS.items() if of == state}
        assert (onward == set()) == (state in TERMINAL)
        if state not in TERMINAL:
            assert onward >= {JobState.CANCELLED, JobState.FAILED}
    assert {JobState.QUEUED, JobState.PREEMPTED} == WAITING


@pytest.mark.parametrize(
    ("spec", "field", "named"),
    [
        ({"gpus": 0}, "gpus", "1 and 1,000,000"),
        ({"gpus_min": 0}, "gpus_min", "1 and 1,000,000"),
        ({"gpus": 3, "gpus_max": 2}, "gpus", "3 to 2"),
        ({"gpus": 1, "gpus_min": 2, "gpus_max": 4}, "gpus", "2 to 4"),
        ({"steps": 0.0}, "steps", "0.001 and 1e15"),
        ({"steps": math.inf}, "steps", "is inf"),
        ({"weight": 0.0}, "weight", "1e-6 and 1,000,000"),
        ({"weight": math.nan}, "weight", "is nan"),
        ({"time_limit_s": 0.0}, "time_limit_s", "0.001 and 10,000,000,000 s"),
        ({"max_cost": -1.0}, "max_cost", "is -1"),
        ({"deadline_s": -1.0}, "deadline_s", "0 and 10,000,000,000 s"),
        ({"earliest_start_s": math.nan}, "earliest_start_s", "is nan"),
        ({"min_run_s": -1.0}, "min_run_s", "is -1"),
        ({"cpus": -1.0}, "cpus", "is -1,"),
        ({"cpus": 1e-308}, "cpus", "is 1e-308,"),
        ({"memory_gb": 1.7e308}, "memory_gb", "0.001 and 10,000,000 GB"),
        ({"rates": {"v100": 0.0}}, "rates.v100", "1e-9 and 1,000,000,000 steps/s"),
        ({"rates": {"v100": math.nan}}, "rates.v100", "is nan"),
        ({"rates": {"v" * 257: 1.0}}, "rates", "257 characters"),
        ({"worker_types": ("a", "b"), "excluded_worker_types": ("b",)}, "excluded_worker_types", "'b'"),
        ({"worker_types": ("a", "")}, "worker_types[1]", "empty"),
        ({"nodes": ("a",) * 10_001}, "nodes", "10,001 entries"),
        ({"labels": {"zone": "a\0"}}, "labels.zone", "control"),
        ({"after": (Dependency(""),)}, "after[0].job", "empty"),
        ({"retries": -1}, "retries", "0 and 1,000,000,000"),
        ({"retries_node": 2**63}, "retries_node", "is 9,223,372,036,854,775,808"),
        ({"array": (1, 1)}, "array", "different numbers"),
        ({"array": (-1,)}, "array", "is -1"),
        ({"array": (2**63,)}, "array", "is 9,223,372,036,854,775,808"),
        ({"array": tuple(range(100_001))}, "array", "100,001 entries"),
        ({"name": "a\nb"}, "name", "control"),
        ({"name": "a" * 257}, "name", "256"),
        ({"tenant": "\ud800"}, "tenant", "control"),
        ({"gpus": 2, "gpus_together": 0}, "gpus_together", "1 and 1,000,000"),
        ({"gpus": 6, "gpus_together": 4}, "gpus", "4 or 8"),
        ({"gpus": 2, "gpus_together": 4}, "gpus", "ask for 4"),
        ({"gpus": 8, "gpus_min": 3, "gpus_together": 4}, "gpus_min", "ask for 4"),
        ({"gpus": 8, "gpus_max": 10, "gpus_together": 4}, "gpus_max", "8 or 12"),
    ],
)
def test_the_error_for_an_impossible_specification_names_the_field(
    spec: dict[str, Any], field: str, named: str, wording: Wording
) -> None:
    """The error has the field at fault, the value, and the rule that the value breaks."""
    with pytest.raises(InvalidSpec, match=named) as caught:
        JobSpec(**spec).checked()
    assert caught.value.field == field
    wording(caught.value)


def test_worker_types_that_a_job_may_use() -> None:
    """A job may use the types that it names (all types if it names none), except those that it excludes."""
    assert JobSpec().may_use("v100")
    assert not JobSpec(excluded_worker_types=("v100",)).may_use("v100")
    assert not JobSpec(worker_types=("k80",)).may_use("v100")
    assert JobSpec(worker_types=("k80", "v100")).may_use("v100")


def test_the_range_of_an_elastic_job() -> None:
    """Without `gpus_min` or `gpus_max`, the narrowest or widest width is `gpus`."""
    assert (JobSpec(gpus=2).narrowest, JobSpec(gpus=2).widest) == (2, 2)
    elastic = JobSpec(gpus=2, gpus_min=1, gpus_max=4)
    assert (elastic.narrowest, elastic.widest) == (1, 4)
    assert elastic.checked() is elastic
    assert list(elastic.widths(3)) == [1, 2, 3]


def test_gpus_in_groups() -> None:
    """Only whole groups make a width; an interactive job is one group, on one node, whatever its width."""
    grouped = JobSpec(gpus=4, gpus_min=2, gpus_max=8, gpus_together=2)
    assert (list(grouped.widths(7)), grouped.granule(6, "v100"), grouped.is_grouped) == ([2, 4, 6], 2, True)
    interactive = JobSpec(gpus=2, gpus_max=3, launch=Launch(terminal=Terminal()))
    assert (list(interactive.widths(9)), interactive.granule(3, "v100")) == ([2, 3], 3)
    assert interactive.is_grouped
    assert not JobSpec(gpus=4).is_grouped
