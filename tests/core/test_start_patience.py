"""A job that needs longer to start than a turn lasts: once it was too slow, it keeps its GPU until its first step."""

from __future__ import annotations

from itertools import pairwise

from scheduler.core.messages import JobCommand, NodeReport, Progress
from tests.support.desk import Desk, exited, job, node

ROUND_S = 60.0


def short_rounds(**settings: float) -> Desk:
    """Return a desk with one GPU, two jobs, rounds of a minute, and a stay of one round."""
    desk = Desk(node(gpus=1), round_s=ROUND_S, solve_lead_s=2.0, plan_lead_s=1.0, stay_rounds=1.0, **settings)
    desk.submit(job(), job())
    return desk


def leases_of(desk: Desk, rounds: int, step_after_s: float) -> list[int]:
    """Return which job holds the GPU in each round; a job does its first step `step_after_s` after its start."""
    held: list[int] = []
    n1 = desk.core.state.nodes["n1"]
    for number in range(1, rounds + 1):
        desk.until(number * ROUND_S)
        for holding in list(desk.core.state.leases.values()):
            name, gone = holding.lease.id, holding.phase == "stopping"
            ran_s = desk.now_s - holding.granted_s
            stepping_s = max(ran_s - step_after_s, 0.0)
            if gone:
                end = exited(name, steps=stepping_s, saved=stepping_s, stepping_s=stepping_s, ran_s=ran_s)
                report = NodeReport(node="n1", generation=n1.generation, exits=(end,))
            else:
                progress = (Progress(name, stepping_s, 0.0, stepping_s),) if stepping_s else ()
                report = NodeReport(node="n1", generation=n1.generation, started=(name,), progress=progress)
            desk.tell(desk.now_s, report)
            desk.settle()
        desk.until(desk.now_s + 1)
        (now,) = [h for h in desk.core.state.leases.values() if h.phase != "stopping"]
        desk.tell(desk.now_s, NodeReport(node="n1", generation=n1.generation, started=(now.lease.id,)))
        desk.settle()
        held.append(int(now.lease.job))
    return held


def turns(held: list[int]) -> list[int]:
    """Return the length of each finished turn, in rounds."""
    lengths = [1]
    for before, now in pairwise(held):
        if now == before:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths[:-1]


def test_jobs_that_start_in_time_have_turns_as_before():
    """Jobs that do a step within their turn have turns as usual."""
    assert max(turns(leases_of(short_rounds(), 12, step_after_s=5.0))) <= 3


def test_a_slow_starter_keeps_its_gpu_until_it_steps():
    """Its second turn lasts until its first step, although that takes longer than a turn."""
    held = leases_of(short_rounds(), 24, step_after_s=230.0)
    # 230 s, and the rest of the round, are five rounds.
    assert all(length >= 5 for length in turns(held)[3:])


def test_without_patience_slow_starters_only_start():
    """Without patience, the same jobs spend all their turns on starting."""
    assert max(turns(leases_of(short_rounds(start_patience_s=0.0), 24, step_after_s=230.0))) <= 3


def test_patience_has_an_end():
    """A job that never steps loses its GPU in the end."""
    held = leases_of(short_rounds(start_patience_s=180.0), 24, step_after_s=1e9)
    assert set(held) == {1, 2}
    assert max(turns(held)) <= 5


def test_a_turn_ended_by_a_user_does_not_count():
    """A hold before the first step is no sign of a slow start."""
    desk = short_rounds()
    leases_of(desk, 1, step_after_s=1e9)
    (holding,) = desk.core.state.leases.values()
    desk.tell(desk.now_s, JobCommand(job=holding.lease.job, action="hold"))
    desk.settle()
    end = exited(holding.lease.id, steps=0.0, saved=0.0, stepping_s=0.0)
    desk.report(exits=(end,))
    desk.settle()
    assert desk.core.state.jobs[holding.lease.job].fruitless == 0
