"""The schedules of pipelines: the versions that microbatches use, in what order, and schedules that cannot be run."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from gavel.training.errors import PlanError
from gavel.training.parallel.actions import (
    CONTINUOUS,
    FLUSHING,
    SCHEDULES,
    Actions,
    Kind,
    Schedule,
    actions_of,
    actions_of_drain,
    actions_of_step,
    computations_of,
)
from gavel.training.parallel.check import check_actions
from tests.support.public_data import public_data
from tests.support.wording import Wording

MESSAGES = {
    Kind.SEND_ACTIVATION,
    Kind.SEND_GRADIENT,
    Kind.RECEIVE_ACTIVATION,
    Kind.RECEIVE_GRADIENT,
}


@cache
def reference() -> dict[str, list[dict[str, Any]]]:
    """Return the published answers; skip the test where the file is missing."""
    return json.loads(public_data("reference/planner.json").read_text(encoding="utf-8"))["dev"]


def versions(actions: Actions, kind: Kind) -> list[int]:
    """Return the versions that actions of this kind use, by microbatch."""
    used = sorted((action.microbatch, action.version) for action in actions if action.kind is kind)
    return [version for _, version in used]


def letters(actions: Actions) -> str:
    """Return a rank's computations as text: F2 is the forward of microbatch 2, U1 the update to version 1."""
    return " ".join(
        f"U{action.version}" if action.kind is Kind.UPDATE else f"{action.kind.name[0]}{action.microbatch}"
        for action in actions
        if action.kind not in MESSAGES
    )


def test_makespans_and_what_is_in_flight_are_those_of_the_literature() -> None:
    """Every schedule of the reference takes the published time and keeps the published number of microbatches."""
    for case in reference()["schedules"]:
        chunks = case["chunks"]
        actions = actions_of(case["schedule"], case["stages"], case["microbatches"], chunks)
        outcome = check_actions(actions, case["forward"] / chunks, case["backward"] / chunks)
        assert case["makespan"] == pytest.approx(outcome.makespan, rel=1e-9), case
        assert case["in_flight_chunks_per_rank"] == list(outcome.in_flight), case


def test_2bw_uses_the_versions_of_its_formula_on_all_ranks() -> None:
    """With 2BW every rank uses the published version for a microbatch, forward and backward."""
    for case in reference()["two_bw_versions"]:
        per_update, expected = case["microbatches_per_update"], case["version_of_microbatch"]
        for actions in actions_of("2bw", per_update, per_update, updates=len(expected) // per_update):
            assert expected == versions(actions, Kind.FORWARD) == versions(actions, Kind.BACKWARD)


def test_stashing_uses_the_versions_of_its_formula_on_each_rank() -> None:
    """With stashing each stage uses its published versions, and has as many microbatches in flight as published."""
    for case in reference()["stash_versions"]:
        expected = case["version_of_microbatch_per_stage"]
        ranks = actions_of("stash", case["stages"], 1, updates=len(expected[0]))
        assert expected == [versions(actions, Kind.FORWARD) for actions in ranks]
        assert expected == [versions(actions, Kind.BACKWARD) for actions in ranks]
        assert case["in_flight_per_stage"] == list(check_actions(ranks).in_flight)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("gpipe", "F0 F1 F2 B0 B1 B2 U1", "F0 F1 F2 B0 B1 B2 U1"),
        ("1f1b", "F0 F1 B0 F2 B1 B2 U1", "F0 B0 F1 B1 F2 B2 U1"),
        ("2bw", "F0 F1 B0 F2 B1 F3 B2 U1 F4 B3 F5 B4 B5 U2", "F0 B0 F1 B1 F2 B2 U1 F3 B3 F4 B4 F5 B5 U2"),
    ],
)
def test_the_order_of_two_ranks(name: str, first: str, last: str) -> None:
    """Two ranks, three microbatches an update: GPipe and 1F1B flush; 2BW begins the next batch before the update."""
    updates = 2 if name == "2bw" else 1
    assert [first, last] == [letters(actions) for actions in actions_of(name, 2, 3, updates=updates)]


def test_interleaved_ranks_take_their_chunks_in_groups() -> None:
    """Two ranks with two chunks take as many microbatches as there are ranks through a chunk, then the next chunk."""
    forwards = [a for a in actions_of("interleaved", 2, 4, 2)[0] if a.kind is Kind.FORWARD]
    expected = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    assert expected == [(action.microbatch, action.chunk) for action in forwards]


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_deadlocks(name: str) -> None:
    """All shapes up to 6 ranks exchange their messages even if every send waits for its receiver."""
    for stages in range(1, 7):
        for microbatches in range(1, 13):
            for chunks in (1, 2, 3):
                try:
                    ranks = actions_of(name, stages, microbatches, chunks, updates=2)
                except PlanError:
                    continue
                outcome = check_actions(ranks)
                work = 2 * 3.0 * microbatches * chunks
                assert work <= outcome.makespan <= 2 * 3.0 * chunks * (microbatches + stages - 1)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_drained_pipeline_uses_the_versions_of_an_undrained_one(name: str) -> None:
    """A pipeline that is emptied after every step and after none uses the same versions for every microbatch."""
    schedule = Schedule(name, 3, 4).check()
    steps = range(5)
    drained = [
        part
        for step in steps
        for part in (actions_of_step(schedule, step, 0), actions_of_drain(schedule, step + 1, 1))
    ]
    for rank, undrained in enumerate(actions_of(name, 3, 4, updates=len(steps))):
        actions = tuple(action for part in drained for action in part[rank])
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE):
            assert versions(undrained, kind) == versions(actions, kind)
    check_actions(tuple(tuple(action for part in drained for action in part[rank]) for rank in range(3)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_versions_are_kept_as_long_as_they_are_used(name: str) -> None:
    """`versions_kept` is exactly the greatest distance between a version in use and the newest one, plus one."""
    for stages, microbatches in ((2, 2), (4, 4), (4, 8), (3, 1), (4, 1), (5, 3)):
        if name == "2bw" and microbatches < stages:
            continue
        chunks = 2 if name == "interleaved" else 1
        if name == "interleaved" and microbatches % stages:
            continue
        schedule = Schedule(name, stages, microbatches, chunks).check()
        for rank, actions in enumerate(computations_of(name, stages, microbatches, chunks, updates=8)):
            newest, distance = 0, 0
            for action in actions:
                distance = max(distance, newest - action.version)
                newest = max(newest, action.version)
            assert schedule.versions_kept(rank) == distance + 1


@pytest.mark.parametrize("name", FLUSHING)
def test_flushing_schedules_use_one_version_a_batch(name: str) -> None:
    """Every microbatch of a batch uses the version before the batch's update."""
    for actions in actions_of(name, 2, 4, 2 if name == "interleaved" else 1, updates=3):
        assert {step * 4 + i: step for step in range(3) for i in range(4)} == {
            action.microbatch: action.version for action in actions if action.kind is Kind.FORWARD
        }


def test_computations_are_the_actions_without_messages() -> None:
    """The planner's view is the runner's, less the messages."""
    for name, chunks in (("1f1b", 1), ("interleaved", 2), ("stash", 1)):
        ranks = actions_of(name, 4, 8, chunks, updates=2)
        expected = [tuple(action for action in actions if action.kind not in MESSAGES) for actions in ranks]
        assert expected == list(computations_of(name, 4, 8, chunks, updates=2))


@pytest.mark.parametrize(
    "plan",
    [
        ("dualpipe", 2, 4, 1),
        ("1f1b", 0, 4, 1),
        ("1f1b", 2, True, 1),
        ("gpipe", 2, 4, 2),
        ("interleaved", 4, 8, 1),
        ("interleaved", 4, 10, 2),
        ("interleaved", 4, 1, 2),
        ("2bw", 4, 3, 1),
    ],
)
def test_a_schedule_that_cannot_be_run_is_refused(plan: tuple[str, int, int, int], wording: Wording) -> None:
    """The error names the rule, the value and a legal one."""
    with pytest.raises(PlanError) as refused:
        actions_of(*plan)
    wording(str(refused.value))
