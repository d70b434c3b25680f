"""P9: under a workload that invites thrash, preemption is rate-limited, and a running job has its minimum run time.

Many endless jobs of alternating weight want a few GPUs, and heavy ones keep coming. Each promise is measured on the
facts of the journal, once with the limit and once without: a check that cannot fail proves nothing.
"""

from __future__ import annotations

from collections import Counter

from scheduler.core.facts import LeaseClosed, RoundPlanned
from scheduler.model.jobs import JobSpec
from scheduler.model.settings import Settings
from scheduler.sim.engine.physics import JobTruth
from tests.support.core_world import Stage
from tests.support.desk import node

ROUND_S = 100.0
GPUS = 6
MIN_RUN_S = 450.0
END_S = 6000.0


def crowd(preemptions_max: int | None = None, min_run_s: float = 0.0) -> Stage:
    """Submit eighteen jobs, then a heavy or a light one in every round; no job ever finishes."""
    settings = Settings(
        policy="las",
        round_s=ROUND_S,
        stay_rounds=1.0,
        half_life_rounds=2.0,
        restart_cost_s=0.0,
        preemptions_max=preemptions_max,
    )
    stage = Stage([node("n1", GPUS)], settings)
    for number in range(18 + int(END_S / ROUND_S)):
        spec = JobSpec(name=f"j{number}", job_type="cnn", weight=(1.0, 8.0)[number % 2], min_run_s=min_run_s)
        at_s = max(0.0, (number - 18) * ROUND_S + 10.0)
        stage.world.submit(at_s, [spec], JobTruth(job_type="cnn"))
    stage.until(END_S)
    return stage


def preemptions(stage: Stage) -> Counter[int]:
    """Return how many running jobs lost their GPUs in each round."""
    planned = [fact for _, facts in stage.journal.records for fact in facts if isinstance(fact, RoundPlanned)]
    return Counter({fact.number: len(fact.ended) for fact in planned})


def turns_s(stage: Stage) -> list[float]:
    """Return the length of each turn that ended in a preemption."""
    ended = {
        lease
        for _, facts in stage.journal.records
        for fact in facts
        if isinstance(fact, RoundPlanned)
        for lease in fact.ended
    }
    closed = [fact for _, facts in stage.journal.records for fact in facts if isinstance(fact, LeaseClosed)]
    return [fact.exit.ran_s for fact in closed if fact.exit.lease in ended]


def test_at_most_so_many_are_preempted_in_a_round() -> None:
    """With preemptions_max = 1 a round preempts one job, and turns still rotate; without it some preempt four."""
    free, limited = preemptions(crowd()), preemptions(crowd(preemptions_max=1))
    assert max(free.values()) >= 4
    assert max(limited.values()) == 1
    assert sum(limited.values()) >= 0.8 * (END_S / ROUND_S - 3)


def test_no_job_is_preempted_before_its_minimum_run() -> None:
    """With min_run_s = 450 each turn lasts 450 s, and turns still rotate; without it most turns are shorter."""
    free, kept = turns_s(crowd()), turns_s(crowd(min_run_s=MIN_RUN_S))
    assert sum(ran_s < MIN_RUN_S for ran_s in free) > 0.5 * len(free)
    assert min(kept) >= MIN_RUN_S
    assert len(kept) >= 0.8 * GPUS * (END_S / (MIN_RUN_S + 2 * ROUND_S) - 1)


def test_both_limits_hold_at_once() -> None:
    """Set together, as an operator would, neither limit weakens the other."""
    stage = crowd(preemptions_max=1, min_run_s=MIN_RUN_S)
    assert max(preemptions(stage).values()) == 1
    assert min(turns_s(stage)) >= MIN_RUN_S
