"""Random rounds: columns, gangs, pairs, needs, pins and limits, in states that earlier rounds may lead to."""

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.rounds.audit_order import parts_given, sort_key
from scheduler.rounds.check import check_plan
from scheduler.rounds.diff import LeaseChanges, diff
from scheduler.rounds.inputs import NO_ROW, Candidates, Columns, Held, RoundInputs, Terms
from scheduler.rounds.lookup import Board
from scheduler.rounds.plan import plan_round
from scheduler.rounds.rank import rank
from tests.support.rounds import random_round

rounds = st.randoms(use_true_random=False).map(random_round)


def shuffled(inputs: RoundInputs, chance: Random) -> RoundInputs:
    """Return the round with candidates, jobs and leases in another order."""
    rows = list(range(len(inputs.candidates)))
    chance.shuffle(rows)
    jobs = list(inputs.jobs)
    chance.shuffle(jobs)
    to = np.array([jobs.index(job) for job in inputs.jobs] + [NO_ROW])
    old = inputs.candidates.columns
    columns = Columns(
        bundles=tuple(old.bundles[row] for row in rows),
        row_of={old.bundles[row]: at for at, row in enumerate(rows)},
        first=to[old.first[rows]],
        second=to[old.second[rows]],
        **{name: getattr(old, name)[rows] for name in ("worker_type", "gpus", "restart_s", "tie")},
        granules={at: old.granules[row] for at, row in enumerate(rows) if row in old.granules},
    )
    old_candidates = inputs.candidates
    terms = Terms(old_candidates.share[rows], old_candidates.backfill[rows])
    history = {
        name: getattr(old_candidates, name)[rows]
        for name in ("entitled_s", "received_s", "skipped", "explore")
    }
    candidates = Candidates(columns, terms, **history)
    held = list(inputs.held.items())
    chance.shuffle(held)
    return replace(inputs, jobs=tuple(jobs), candidates=candidates, held=dict(held))


@settings(max_examples=500)
@given(rounds)
def test_every_plan_passes_the_audit(inputs: RoundInputs) -> None:
    """No plan breaks a rule, whatever the round."""
    assert check_plan(inputs, plan_round(inputs)) == []


@given(rounds, st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(inputs: RoundInputs, chance: Random) -> None:
    """A round has one plan, in whatever order candidates, jobs and leases are listed."""
    plan, other = plan_round(inputs), plan_round(shuffled(inputs, chance))
    assert dict(plan.placements) == dict(other.placements)
    assert (plan.reserved, plan.skipped) == (other.reserved, other.skipped)
    assert list(plan.placements) == list(plan_round(inputs).placements)


@settings(max_examples=1000)
@given(rounds)
def test_a_second_look_changes_nothing(inputs: RoundInputs) -> None:
    """A round planned from its own result, with free restarts and nothing received meanwhile, keeps all leases.

    Rounds that hold GPUs back for a gang are left out: only incumbents stay on those, and the incumbents have changed.
    """
    free = replace(inputs.candidates.columns, restart_s=np.zeros(len(inputs.candidates)))
    inputs = replace(
        inputs, candidates=replace(inputs.candidates, columns=free), needs={}, preemptions_max=None
    )
    plan = plan_round(inputs)
    assume(not plan.reserved)
    held = {
        job: Held(bundle, gpus, pinned=job in inputs.held and inputs.held[job].pinned)
        for bundle, gpus in plan.placements.items()
        for job in bundle.jobs
    }
    changed = diff(held, plan_round(replace(inputs, held=held)))
    assert changed == LeaseChanges((), (), ())


@given(rounds)
def test_the_audit_and_the_ranking_agree_on_the_order(inputs: RoundInputs) -> None:
    """The order of keys in the audit, written independently, is that of the ranking."""
    parts = parts_given(inputs)
    keys = [sort_key(inputs, row, parts) for row in rank(Board.of(inputs)).tolist()]
    assert keys == sorted(keys)


@given(rounds)
def test_the_difference_leads_to_the_plan(inputs: RoundInputs) -> None:
    """The leases held, with the changes applied, are exactly those planned."""
    plan = plan_round(inputs)
    changes = diff(inputs.held, plan)
    after = {job: (now.bundle, now.gpus) for job, now in inputs.held.items() if job not in changes.ended}
    after |= {job: (bundle, inputs.held[job].gpus) for job, bundle in changes.rebundled}
    after |= {job: (bundle, gpus) for job, bundle, gpus in changes.granted}
    assert {job: (bundle, gpus) for bundle, gpus in plan.placements.items() for job in bundle.jobs} == after
