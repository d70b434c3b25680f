"""What is cached from one question to the next equals a new computation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler.core.messages import GiveRates, NodeCommand, Progress
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.problem import build, estimate
from tests.support.desk import Desk, exited, job, node

DeskOf = Callable[..., Desk]


def assert_nothing_is_stale(desk: Desk, kept: Kinds) -> None:
    """Check that problem, pairs and progress are the same with the cache and without it."""
    desk.settle()
    state, later_s = desk.core.state, desk.now_s + 30.0
    (problem, pairs), (fresh, anew) = build(state, kept, later_s), build(state, Kinds(), later_s)
    assert pairs is not None
    assert anew is not None
    for actual, fresh_part in ((problem.columns, fresh.columns), (problem.jobs, fresh.jobs), (pairs, anew)):
        for field in type(actual).__slots__:
            assert np.array_equal(getattr(actual, field), getattr(fresh_part, field)), field
    for name, steps in zip(problem.jobs.ids, problem.jobs.steps_left.tolist(), strict=True):
        entry = state.jobs[name]
        assert steps == max((entry.spec.steps or 0.0) - estimate(state, entry, later_s)[0], 1.0)


def test_caches_follow_rates_nodes_and_jobs(desk_of: DeskOf) -> None:
    """Caches follow new rates, pair rates, a measurement, a drained node, and jobs that come and go."""
    desk, kept = desk_of(node("n1", 1), node("n2", 1, "k80"), policy="las+packing", learn_rates=True), Kinds()
    first, *_ = desk.run(job(steps=1e6), job(steps=1e6, job_type="lm"))
    assert_nothing_is_stale(desk, kept)
    desk.tell(desk.now_s, GiveRates(pairs=[("v100", "cnn", "lm", 1, 3.0, 2.0)]))
    assert_nothing_is_stale(desk, kept)
    desk.tell(desk.now_s, GiveRates(solo=[("lm", 1, "v100", 17.0)]))
    assert_nothing_is_stale(desk, kept)
    desk.report(progress=(Progress(first, 400.0, 0.0, 60.0),))
    assert_nothing_is_stale(desk, kept)
    desk.submit(job(steps=1e5), job(steps=1e5, job_type="lm", packable=False))
    assert_nothing_is_stale(desk, kept)
    desk.tell(desk.now_s, NodeCommand(node="n2", action="drain"))
    assert_nothing_is_stale(desk, kept)
    desk.report(exits=(exited(first, "finished", 1e6),))
    assert_nothing_is_stale(desk, kept)
