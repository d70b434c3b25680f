"""The pulse: ask for an allocation, plan the next round, give out GPUs that become idle in between.

    tick   solve_lead_s before the boundary: ask the solver, if anything changed and enough time has passed
    plan   plan_lead_s before the boundary: plan the round with the newest allocation
    fill   in mid-round: give idle GPUs to jobs that may fill them; if the policy lets none, ask the solver early

A cluster with nothing to do has no pulse; the next job starts the pulse again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress

from scheduler.core import on_budgets
from scheduler.core.effects import Solve
from scheduler.core.facts import (
    AllocationAdopted,
    AllocationAsked,
    AllocationFailed,
    GpusFilled,
    RoundPlanned,
)
from scheduler.core.messages import Solved
from scheduler.core.outcome import Outcome
from scheduler.core.planning import problem, round_inputs
from scheduler.core.planning.answers import fault_of, quantised
from scheduler.core.planning.budget_limits import Beyond, beyond_budgets, beyond_renewal, spent_budgets
from scheduler.core.planning.kinds import Kinds
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import WAITING
from scheduler.model.lease import STOPPING, Bundle, GpuId, Lease, Phase, node_of
from scheduler.rounds.diff import LeaseChanges, diff
from scheduler.rounds.plan import plan_round

# Times closer than this count as equal.
SOON_S = 1e-6
# The least time between two questions to the solver in mid-round.
EARLY_S = 5.0
# An answer that has not arrived after this many rounds counts as lost.
LOST_ROUNDS = 5


def kick(out: Outcome) -> None:
    """React to a change: start the pulse if no round is running, otherwise fill idle GPUs soon."""
    if out.now_s >= out.state.round.ends_s - SOON_S:
        out.wake(out.now_s, "tick")
    else:
        fill_soon(out)


def fill_soon(out: Outcome) -> None:
    """Set a timer to give out idle GPUs, if the settings allow this in mid-round and the round is not nearly over."""
    state = out.state
    if state.settings.fill_mid_round and out.now_s < state.round.ends_s - state.settings.plan_lead_s - SOON_S:
        out.wake(out.now_s, "fill")


def tick(out: Outcome, kinds: Kinds) -> None:
    """Before a boundary, ask for an allocation if a question is due, and make sure that a plan is made."""
    state, settings, now_s = out.state, out.state.settings, out.now_s
    boundary_s = state.round.ends_s
    if now_s < boundary_s - settings.solve_lead_s - SOON_S:
        out.wake(boundary_s - settings.solve_lead_s, "tick")  # too early
        return
    beyond = _beyond_budgets(state, now_s)
    on_budgets.note_reached(out, beyond)
    if not _anything_to_do(state, now_s, beyond):
        plan_s = boundary_s - settings.plan_lead_s
        # A job may still arrive in this round, so look again.
        if now_s < boundary_s - SOON_S:
            out.wake(plan_s if now_s < plan_s - SOON_S else boundary_s, "tick")
        elif beyond.wait:
            out.wake(min(period.ends_s for _, period in beyond.wait.values()), "tick")
        return
    awaiting = not state.asked.answered and now_s < state.asked.at_s + LOST_ROUNDS * settings.round_s
    asking = not awaiting and _is_question_due(state, now_s, beyond)
    if asking:
        ask(out, kinds, beyond)
    lead_s = settings.solve_lead_s - settings.plan_lead_s
    if now_s < boundary_s - SOON_S:
        # A round is running: plan shortly before its end.
        plan_s = boundary_s - settings.plan_lead_s
    elif awaiting:
        # No round is running, and an answer is on its way: wait, because another question would make that answer void.
        plan_s = state.asked.at_s + lead_s
    elif asking and state.allocation is None:
        # No round is running, and there are no shares yet: wait for the first answer.
        plan_s = now_s + lead_s
    else:
        # No round is running, and there are shares to plan with.
        plan_s = now_s
    if plan_s <= now_s + SOON_S and state.asked.answered:
        plan(out, kinds)
    else:
        out.wake(max(plan_s, now_s), "plan")


def _beyond_budgets(state: SchedulerState, now_s: float) -> Beyond:
    """Return the jobs that are beyond their budgets for the next round."""
    return beyond_budgets(state, now_s, _next_start_s(state, now_s) + state.settings.round_s)


def _anything_to_do(state: SchedulerState, now_s: float, beyond: Beyond) -> bool:
    if any(h.phase is not STOPPING for h in state.leases.values()):
        return True
    waiting = (job for name, job in state.active.items() if name not in beyond.wait)
    return any(state.eligible(job, now_s) for job in waiting) and bool(state.usable_nodes())


def _is_question_due(state: SchedulerState, now_s: float, beyond: Beyond) -> bool:
    """Whether the last question is old enough, and there is a reason to ask again: a change, or no answer."""
    if now_s < state.asked.at_s + max(state.settings.min_reallocation_s, 0.0) - SOON_S:
        return False
    if state.stale or not state.asked.answered or _wait_is_over(state, now_s):
        return True
    return beyond.jobs != tuple([name for name in state.asked.beyond if name in state.active])


def _wait_is_over(state: SchedulerState, now_s: float) -> bool:
    """Whether an earliest start or a pause that kept a job from running ended since the solver was last asked."""
    asked_s = state.asked.at_s
    return any(
        (job.spec.earliest_start_s > 0 and asked_s < job.submitted_s + job.spec.earliest_start_s <= now_s)
        or asked_s < job.again_s <= now_s
        for job in state.to_review.values()
    )


def ask(out: Outcome, kinds: Kinds, beyond: Beyond) -> None:
    """Ask the solver for an allocation. The answer arrives as a message."""
    state = out.state
    out.fact(AllocationAsked(number=state.asked.number + 1, beyond=beyond.jobs))
    ask_again(out, kinds)


def ask_again(out: Outcome, kinds: Kinds) -> None:
    """Send the unanswered question, also after a crash. A problem that cannot be built counts as a failed answer."""
    number = out.state.asked.number
    try:
        built, pairs = problem.build(out.state, kinds, out.now_s)
    except ValueError as error:
        out.fact(AllocationFailed(number=number, why=f"the problem cannot be right: {error}"))
        return
    worker_types = problem.current_types(out.state, built)
    out.effect(Solve(number, out.state.settings.policy, built, pairs, worker_types))


def on_solved(out: Outcome, message: Solved, kinds: Kinds) -> None:
    """Adopt the solver's answer, unless it is faulty or answers an older question."""
    state = out.state
    if message.number != state.asked.number or state.asked.answered:
        return
    fault = fault_of(state, message)
    if fault:
        out.fact(AllocationFailed(number=message.number, why=f"{message.policy}: {fault}"))
        return
    if (
        message.failed
        and state.allocation is not None
        and not (state.allocation.failed or _leaves_jobs_out(state))
    ):
        out.fact(AllocationFailed(number=message.number, why=message.failed))
        return
    out.fact(
        AllocationAdopted(
            number=message.number,
            policy=message.policy,
            shares=quantised(message),
            failed=message.failed,
            value=message.value,
            optimal=message.optimal,
            notes=message.notes,
        )
    )
    if out.now_s >= state.round.ends_s - SOON_S:  # no round is running
        plan(out, kinds)
    else:
        fill_soon(out)


def _leaves_jobs_out(state: SchedulerState) -> bool:
    """Whether jobs have waited for LOST_ROUNDS rounds because they came after the allocation in force."""
    long_ago_s = state.now_s - LOST_ROUNDS * state.settings.round_s
    return any(
        job.submitted_s < long_ago_s and name not in state.shares.job_row and name not in state.asked.beyond
        for name, job in state.eligible_jobs(state.now_s).items()
    )


def plan(out: Outcome, kinds: Kinds) -> None:
    """Plan the next round, and send the leases that change."""
    state, settings, now_s = out.state, out.state.settings, out.now_s
    old = state.round
    if now_s < old.ends_s - settings.plan_lead_s - SOON_S:
        out.wake(max(now_s, old.ends_s - settings.solve_lead_s), "tick")  # too early
        return
    starts_s = _next_start_s(state, now_s)
    ends_s = starts_s + settings.round_s
    inputs = round_inputs.at_boundary(state, kinds, now_s, starts_s)
    planned = plan_round(inputs)
    changes = diff(inputs.held, planned)
    ended = tuple([state.jobs[job].lease or "" for job in changes.ended])
    granted = _leases(state, changes, old.number + 1, ends_s)
    rebundled = _rebundled(state, changes)
    out.fact(
        RoundPlanned(
            number=old.number + 1,
            starts_s=starts_s,
            ends_s=ends_s,
            ended=ended,
            granted=granted,
            rebundled=rebundled,
            reserved=dict(planned.reserved),
            skipped=planned.skipped,
            spent=spent_budgets(state, now_s, ends_s, ended),
        )
    )
    _send(out, granted, rebundled, ended)
    out.renew()
    out.wake(ends_s - settings.solve_lead_s, "tick")
    if ended:
        out.leases_stop = True


def renew_on_start(out: Outcome) -> None:
    """Renew every lease when a new process takes over late in a round, or shortly after its end.

    Leases are otherwise renewed only at a boundary. A daemon in a restart loop may miss every boundary, and then all
    leases would lapse. So the next round begins without a plan, and every job keeps its GPUs for that round.
    """
    state, old, settings = out.state, out.state.round, out.state.settings
    left_s = old.ends_s - out.now_s
    if state.held_leases and -settings.lease_margin_s < left_s < settings.round_s / 3:
        _begin_unplanned(out, max(old.ends_s, out.now_s))


def carry_on(out: Outcome) -> None:
    """Begin another round without a plan, because none can be made: every lease is renewed, none is granted."""
    state, old = out.state, out.state.round
    if out.now_s >= old.ends_s - state.settings.plan_lead_s - SOON_S:
        _begin_unplanned(out, _next_start_s(state, out.now_s))
        out.renew()
    out.wake(max(out.now_s, state.round.ends_s - state.settings.solve_lead_s), "tick")


def _begin_unplanned(out: Outcome, starts_s: float) -> None:
    state, old, table = out.state, out.state.round, out.state.shares
    skipped = tuple(compress(table.bundles, table.skipped.tolist()))
    ends_s = starts_s + state.settings.round_s
    ended = beyond_renewal(state, out.now_s, ends_s)
    out.fact(
        RoundPlanned(
            number=old.number + 1,
            starts_s=starts_s,
            ends_s=ends_s,
            ended=ended,
            reserved=old.reserved,
            skipped=skipped,
            spent=spent_budgets(state, out.now_s, ends_s, ended),
        )
    )
    if ended:
        _send(out, (), (), ended)
        out.leases_stop = True


def _next_start_s(state: SchedulerState, now_s: float) -> float:
    """Return when the next round starts if it is planned now."""
    old = state.round
    return old.ends_s if now_s < old.ends_s + SOON_S and old.number else now_s


def give_up_on_answer(out: Outcome, number: int, why: str) -> None:
    """Record that the answer to a question cannot be used. The current allocation stays in force."""
    state = out.state
    if number == state.asked.number and not state.asked.answered:
        out.fact(AllocationFailed(number=number, why=why))
        if out.now_s >= state.round.ends_s - SOON_S:  # no round is running
            out.wake(out.now_s, "plan")


def _leases(state: SchedulerState, changes: LeaseChanges, number: int, ends_s: float) -> tuple[Lease, ...]:
    granted = []
    for lease_id, (name, bundle, gpus) in enumerate(changes.granted, state.next_lease):
        job, gpus = state.jobs[name], _by_rank(state, bundle, gpus)
        attempt, steps = job.attempt + 1, job.spec.steps
        granted.append(Lease(str(lease_id), name, bundle, attempt, state.epoch, gpus, number, ends_s, steps))
    return tuple(granted)


def _by_rank(state: SchedulerState, bundle: Bundle, gpus: tuple[GpuId, ...]) -> tuple[GpuId, ...]:
    """Order the GPUs of a gang so that its ranks find their checkpoints, rank 0 first."""
    if len(gpus) < 2 or len(bundle.jobs) > 1:
        return gpus
    stores = state.confined_to(state.jobs[bundle.jobs[0]])
    if len(stores) < 2:
        return gpus
    return tuple(sorted(gpus, key=lambda gpu: stores.index(state.nodes[node_of(gpu)].spec.store)))


def _rebundled(state: SchedulerState, changes: LeaseChanges) -> tuple[tuple[str, Bundle], ...]:
    return tuple((state.jobs[job].lease or "", bundle) for job, bundle in changes.rebundled)


def _send(
    out: Outcome, granted: Iterable[Lease], rebundled: Iterable[tuple[str, Bundle]], ended: Iterable[str]
) -> None:
    """Resend sets of leases to the nodes of every lease that changed."""
    leases = out.state.leases
    new = [lease.id for lease in granted]
    out.untold.update(new)
    for name in (*ended, *new, *[name for name, _ in rebundled]):
        # `holding` is None if the lease ended before it was sent.
        holding = leases.get(name)
        if holding is not None and holding.phase is not Phase.WAITING:
            out.resend_for(holding)


def fill(out: Outcome, kinds: Kinds) -> None:
    """Give out idle GPUs for the rest of the round, without disturbing running jobs."""
    state, now_s = out.state, out.now_s
    if not state.settings.fill_mid_round or now_s >= state.round.ends_s - state.settings.plan_lead_s - SOON_S:
        return
    if not any(job.lease is None and job.state in WAITING for job in state.active.values()):
        return
    if not _any_idle(state, kinds) and not (state.shares.second >= 0).any():
        # No GPU is idle, and the allocation packs no jobs.
        return
    inputs = round_inputs.in_mid_round(state, kinds, now_s)
    if not inputs.nodes or not any(state.eligible(state.jobs[name], now_s) for name in inputs.jobs):
        # No eligible job has a way to run.
        return
    changes = diff(inputs.held, plan_round(inputs))
    if changes.granted:
        granted = _leases(state, changes, state.round.number, state.round.ends_s)
        rebundled = _rebundled(state, changes)
        out.fact(GpusFilled(granted=granted, rebundled=rebundled))
        _send(out, granted, rebundled, ())
    elif state.stale and len(state.shares) and not state.shares.backfill.any():
        _ask_early(out, kinds)


def _ask_early(out: Outcome, kinds: Kinds) -> None:
    """Ask the solver in mid-round, under a policy that lets no job fill idle GPUs (first come, first served)."""
    state, last = out.state, out.state.allocation
    if last is None or last.failed or last.number != state.asked.number or not state.asked.answered:
        # An answer is missing, or the last one failed: ask at the boundary instead.
        return
    again_s = state.asked.at_s + max(state.settings.min_reallocation_s, EARLY_S)
    if out.now_s >= again_s - SOON_S:
        ask(out, kinds, _beyond_budgets(state, out.now_s))
    elif again_s < state.round.ends_s - state.settings.solve_lead_s:
        out.wake(again_s, "fill")


def _any_idle(state: SchedulerState, kinds: Kinds) -> bool:
    """Whether any usable GPU is neither held nor promised."""
    kinds.refresh(state)
    return any(
        gpu not in state.holders and gpu not in state.claims for _, gpus in kinds.nodes for gpu in gpus
    )


def watch_lapses(out: Outcome) -> None:
    """Set a timer for the time at which the first of the ending leases lapses."""
    state = out.state
    if len(state.leases) == len(state.held_leases):
        return  # no lease is ending
    stops = [h.stop_by_s for h in state.leases.values() if h.stop_by_s is not None]
    if stops:
        out.wake(min(stops), "lapse")
