"""Explain why a job waits. The first of these questions that has an answer gives the dominant reason.

may it run at all?          dependency, earliest_start, retry_pause
can it run anywhere?        no_nodes, no_fitting_node, too_wide_now, no_rate
do its quotas admit it?     too_wide_for_quota, quota_jobs, quota_gpus, quota_budget
are GPUs held back for it?  gang_reserved
is there room for it now?   fragmented, reserved_for_other, waiting_for_round
does it have a share?       waiting_for_allocation, no_share
what is in the way?         minimum_run_of_others, preemption_limit, turn_of_others
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from scheduler.core.planning.kinds import rate_of
from scheduler.core.planning.round_inputs import kept_until_s
from scheduler.explain import remedies
from scheduler.explain.answer import Change, Reason
from scheduler.explain.budgets import within_budgets
from scheduler.explain.claims import Claims, higher_claims
from scheduler.explain.finding import NAMED_MAX, Finding, due_and_received
from scheduler.explain.forecast import boundary_s
from scheduler.explain.job_quotas import within_job_quotas
from scheduler.explain.not_before import may_not_run_yet
from scheduler.explain.quotas import within_quotas
from scheduler.explain.scene import Column, Pool, Scene
from scheduler.explain.start import (
    UNKNOWN,
    Start,
    after_ends,
    after_minimum_runs,
    of_turn,
    open_on,
)
from scheduler.explain.wording import jobs, listed, span, when
from scheduler.model.cluster import OWN_DISK, NodeState, in_groups
from scheduler.model.lease import Bundle, Phase

# At most this many widths of an elastic job are tried to find a rate.
WIDTHS_TRIED_MAX = 64


def why_it_waits(scene: Scene) -> Finding:
    """Return the dominant reason why a queued or preempted job waits."""
    not_before = may_not_run_yet(scene)
    if not_before is not None:
        return not_before
    possible = [column for column in scene.columns if scene.possible(column)]
    if not possible:
        return _nowhere(scene)
    full = within_job_quotas(scene, possible)
    if full is not None:
        return full
    possible, stopped = within_quotas(scene, possible)
    if stopped is not None:
        return stopped
    possible, stopped = within_budgets(scene, possible)
    if stopped is not None:
        return stopped
    return (
        _with_reservation(scene)
        or _with_room(scene, possible)
        or _without_share(scene, possible)
        or _behind_others(scene, next(c for c in possible if c.share > 0))
    )


def _nowhere(scene: Scene) -> Finding:
    """Explain why the job could not run even if there were no other jobs."""
    spec = scene.job.spec
    allowed = [pool for kind, pool in sorted(scene.pools.items()) if spec.may_use(kind)]
    rated = [pool for pool in allowed if _has_rate(scene, pool.worker_type)]
    candidates = rated or allowed
    back = remedies.about_nodes(scene)
    wider = remedies.wider_choice(scene)
    names = listed([pool.worker_type for pool in candidates]) if candidates else listed(spec.worker_types)
    width = f"{spec.narrowest} GPU{'s' if spec.narrowest > 1 else ''}"
    largest = max(candidates, key=lambda pool: pool.fitting, default=None)
    if largest is not None and not rated:
        name = f"jobs of type {spec.job_type}" if spec.job_type else "it"
        text = f"No rate is known of {name} with {width} on {names}, so it is not started there."
        if any(
            scene.state.rates.from_table(spec.job_type, spec.gpus, pool.worker_type) == 0 for pool in allowed
        ):
            text = f"The rates say that {name} cannot run with {width} on {names}: they are 0."
        return Finding(Reason.NO_RATE, text, (), (*remedies.rates(scene), *wider))
    if largest is None or not any(pool.total for pool in candidates):
        which = f" of a type that it may use ({names})" if candidates or spec.worker_types else ""
        return Finding(Reason.NO_NODES, f"There is no usable node{which}.", (), (*back, *wider))
    if any(pool.fitting + pool.out_of_reach >= spec.narrowest for pool in candidates if pool.out_of_reach):
        return _checkpoint(scene, candidates, (*back, *wider))
    if largest.fitting == 0:
        needs = listed([change.what for change in remedies.fewer_needs(scene)])
        text = f"There are nodes of {names}, but none has what it asks for ({needs})."
        return Finding(Reason.NO_FITTING_NODE, text, (), (*back, *remedies.fewer_needs(scene), *wider))
    could = f"only {largest.fitting} {largest.worker_type} could be used now"
    text = f"It needs {width} of one type{scene.together(largest.worker_type, spec.narrowest)}, and {could}."
    lacking = spec.narrowest - largest.fitting
    more = Change(what="more_gpus", text=f"{lacking} more {largest.worker_type}")
    return Finding(Reason.TOO_WIDE_NOW, text, (), (more, *back, *wider))


def _checkpoint(
    scene: Scene, pools: Sequence[Pool], changes: tuple[Change, ...], start: Start = UNKNOWN
) -> Finding:
    """Explain that the job could run, but not on nodes that can read its last checkpoint."""
    state, stores = scene.state, scene.stores
    in_reach = [name for name, node in sorted(state.nodes.items()) if node.spec.store in stores]
    location = listed(
        [
            f"on the disk of node {store.removeprefix(OWN_DISK)}"
            if store.startswith(OWN_DISK)
            else f"in the store {store}"
            for store in stores
        ]
    )
    text = f"Its last checkpoint is {location}, and it can only continue on nodes that can read it: "
    away = [name for name in in_reach if state.nodes[name].state != NodeState.UP]
    parts = []
    if len(away) < len(in_reach):
        free = [f"{pool.room} of {pool.fitting} {pool.worker_type}" for pool in pools if pool.fitting]
        parts.append(f"on {listed(in_reach[:NAMED_MAX])}, where {listed(free)} are free")
    if away:
        verb = "is" if len(away) == 1 else "are"
        parts.append(f"node {listed(away[:NAMED_MAX])} {verb} {state.nodes[away[0]].state}")
    text += f"{'; '.join(parts) or 'there is no such node left'}."
    return Finding(Reason.CHECKPOINT_ELSEWHERE, text, (), (*changes, remedies.shared_storage(scene)), start)


def _has_rate(scene: Scene, worker_type: str) -> bool:
    spec = scene.job.spec
    widths = spec.widths_on(worker_type, spec.narrowest + WIDTHS_TRIED_MAX if not spec.plans else spec.widest)
    return any(rate_of(scene.state, spec, worker_type, gpus)[0] > 0 for gpus in (spec.gpus, *widths))


def _with_reservation(scene: Scene) -> Finding | None:
    """Explain that GPUs are held back for the job until there are enough; return None if no GPUs are held back."""
    for kind, pool in sorted(scene.pools.items()):
        bundle = scene.reserved(kind)
        if bundle is not None and scene.job.id in bundle.jobs:
            held, holders = _holders(scene, [pool])
            room = scene.room(bundle)
            text = (
                f"GPUs are being held back for it: {room} of the {bundle.gpus} {kind} that it needs"
                f"{scene.together(kind, bundle.gpus)} are free, the others are held by {holders}."
            )
            start = after_minimum_runs(scene, pool, bundle.gpus)
            if start.at_s is None:
                start = after_ends(scene, pool, bundle.gpus)
            lacking = bundle.gpus - room
            more = (Change(what="more_gpus", text=f"{lacking} more {kind}"),) if lacking > 0 else ()
            return Finding(Reason.GANG_RESERVED, text, held, (*more, *remedies.ends(scene, pool)), start)
    return None


def _with_room(scene: Scene, possible: list[Column]) -> Finding | None:
    """Explain why the job waits although enough GPUs of a type are free; return None if not enough are free."""
    allowed = [column for column in possible if column.share > 0 or column.backfill]
    with_room = [c for c in allowed if scene.room(c.bundle) >= c.bundle.gpus]
    reservations = [scene.reserved(column.bundle.worker_type) for column in with_room]
    for column, reserved in zip(with_room, reservations, strict=True):
        if reserved is None:
            return _next_round(scene, column)
    if with_room and reservations[0] is not None:
        return _held_back(scene, with_room[0], reservations[0])
    for column in allowed:
        pool = scene.pools[column.bundle.worker_type]
        if pool.free >= column.bundle.gpus:
            return _fragmented(scene, column, pool)
    return None


def _next_round(scene: Scene, column: Column) -> Finding:
    state, now_s, bundle = scene.state, scene.now_s, column.bundle
    at_s = boundary_s(state, now_s)
    if not state.asked.answered and at_s <= now_s:
        return _allocation(scene)
    free = f"{scene.room(bundle)} {bundle.worker_type} are free and it needs {bundle.gpus}"
    text = f"It waits for the next round, {when(at_s, now_s)}: {free}."
    change = remedies.expected("round_begins", "the next round begins", at_s, now_s)
    return Finding(Reason.WAITING_FOR_ROUND, text, (), (change,), Start(at_s, "next_round", "likely"))


def _held_back(scene: Scene, column: Column, reserved: Bundle) -> Finding:
    kind = column.bundle.worker_type
    pool = scene.pools[kind]
    text = (
        f"{pool.free} {kind} are free, but they are held back for {jobs(reserved.jobs)}, which needs "
        f"{reserved.gpus} at once and has been passed over before."
    )
    start = Change(what="other_starts", text=f"{jobs(reserved.jobs)} starts")
    wider = remedies.wider_choice(scene)
    return Finding(Reason.RESERVED_FOR_OTHER, text, reserved.jobs, (start, *wider), _turn(scene, column))


def _fragmented(scene: Scene, column: Column, pool: Pool) -> Finding:
    if pool.out_of_reach:
        start = after_ends(scene, pool, column.bundle.gpus)
        return _checkpoint(scene, [pool], remedies.ends(scene, pool), start)
    if scene.granule(pool.worker_type, column.bundle.gpus) > 1:
        return _scattered(scene, column, pool)
    needs = remedies.fewer_needs(scene)
    needs_listed = listed([change.what for change in needs])
    text = (
        f"{pool.free} {pool.worker_type} are free and it needs {column.bundle.gpus}, but only {pool.room} of "
        f"them are on nodes that have what it asks for ({needs_listed})."
    )
    changes = (*needs, *remedies.ends(scene, pool))
    return Finding(Reason.FRAGMENTED, text, (), changes, after_ends(scene, pool, column.bundle.gpus))


def _scattered(scene: Scene, column: Column, pool: Pool) -> Finding:
    """Explain that enough GPUs are free, but not together on one node."""
    state, now_s, gpus = scene.state, scene.now_s, column.bundle.gpus
    text = f"It needs {gpus} {pool.worker_type}{scene.together(pool.worker_type, gpus)}; {pool.free} are free, but "
    granule = scene.granule(pool.worker_type, gpus)
    if granule == gpus:
        text += f"the node with the most free ones has {max(pool.room_on.values())}."
    else:
        text += f"only {scene.room(column.bundle)} of them in such groups."
    boundary = boundary_s(state, now_s)
    start = after_ends(scene, pool, gpus)
    changes = (*remedies.ends(scene, pool), *remedies.wider_choice(scene))
    if in_groups(open_on(scene, pool, boundary).values(), granule) >= gpus:
        start = Start(boundary, "next_round", "rough")
        move = "jobs that are in the way can move when the next round begins"
        changes = (remedies.expected("round_begins", move, boundary, now_s), *changes)
    return Finding(Reason.FRAGMENTED, text, (), changes, start)


def _turn(scene: Scene, column: Column) -> Start:
    if column.row is None or column.share <= 0:
        return after_ends(scene, scene.pools[column.bundle.worker_type], column.bundle.gpus)
    return of_turn(scene, column, higher_claims(scene, column))


def _without_share(scene: Scene, possible: list[Column]) -> Finding | None:
    """Explain that the job has no share, or is not in the allocation yet; return None if the job has a share."""
    if any(column.share > 0 for column in possible):
        return None
    in_table = [column for column in possible if column.row is not None]
    if not in_table or scene.is_newcomer:
        return _allocation(scene)
    state = scene.state
    best = in_table[0]
    kinds = list(dict.fromkeys(column.bundle.worker_type for column in in_table))
    pools = [scene.pools[kind] for kind in kinds]
    allocation = state.allocation
    policy = state.settings.policy if allocation is None else allocation.policy
    held, holders = _holders(scene, pools)
    idle = any(scene.room(c.bundle) >= c.bundle.gpus for c in in_table)
    text = f"The policy ({policy}) gives it no share now"
    if allocation is not None and allocation.failed:
        text = "The policy could not be solved, so it is first come, first served; it has no share now"
    text += (
        ", and it may not fill idle GPUs either." if idle else f"; the {listed(kinds)} are held by {holders}."
    )
    notes = () if allocation is None else tuple(n for n in allocation.notes if scene.job.id in n.split())
    changes = (
        *(Change(what="note", text=note) for note in notes[: remedies.CHANGES_MAX]),
        *remedies.more_gpus(scene, in_table),
        *remedies.ends(scene, scene.pools[best.bundle.worker_type]),
        *remedies.wider_choice(scene),
    )
    pool = scene.pools[best.bundle.worker_type]
    start = UNKNOWN if idle else after_ends(scene, pool, best.bundle.gpus, _gpus_of_earlier_jobs(scene))
    return Finding(Reason.NO_SHARE, text, held, changes, start)


def _gpus_of_earlier_jobs(scene: Scene) -> int:
    """Count the GPUs for which earlier jobs wait."""
    state, own_job = scene.state, scene.job
    earlier = takewhile(lambda job: job.id != own_job.id, state.active.values())
    return sum(job.spec.gpus for job in earlier if job.lease is None and state.eligible(job, scene.now_s))


def _allocation(scene: Scene) -> Finding:
    """Explain that the job's share has not been computed yet."""
    state, now_s, settings = scene.state, scene.now_s, scene.state.settings
    if not state.asked.answered:
        at_s = boundary_s(state, now_s)
        text = f"Its share is being computed: the solver was asked {span(now_s - state.asked.at_s)} ago."
    else:
        at_s = boundary_s(state, now_s, state.asked.at_s + settings.min_reallocation_s)
        event = "Its GPUs or worker types changed" if scene.job.id in state.reshaped else "It came"
        text = f"{event} after the last allocation; the next one is for the round that begins {when(at_s, now_s)}."
    change = remedies.expected("allocation", "the next allocation", at_s, now_s)
    wider = remedies.wider_choice(scene)
    return Finding(
        Reason.WAITING_FOR_ALLOCATION, text, (), (change, *wider), Start(at_s, "next_allocation", "rough")
    )


def _behind_others(scene: Scene, column: Column) -> Finding:
    """Explain that other jobs hold the GPUs of a column with a share."""
    state, bundle = scene.state, column.bundle
    pool = scene.pools[bundle.worker_type]
    boundary = boundary_s(state, scene.now_s)
    by_age, holders = _holders(scene, [pool])
    changes = (
        *remedies.more_gpus(scene, [column]),
        *remedies.ends(scene, pool),
        *remedies.wider_choice(scene),
    )
    granule = scene.granule(bundle.worker_type, bundle.gpus)
    if in_groups(open_on(scene, pool, boundary).values(), granule) < bundle.gpus:
        return _kept_by_others(scene, column, pool, changes)
    due = due_and_received(column)
    if state.settings.preemptions_max == 0:
        text = f"It waits for another job to end: {due}; the settings allow no preemption (preemptions_max is 0)."
        start = after_ends(scene, pool, bundle.gpus)
        more = Change(what="preemptions_max", text="raise preemptions_max")
        return Finding(Reason.PREEMPTION_LIMIT, text, by_age, (*changes, more), start)
    claims = higher_claims(scene, column)
    text = f"It waits for its turn: {due}; {_busy(pool)} held by {holders}"
    text += _compare_claims(claims, len(pool.holders.keys() - {scene.job.id})) + _idle_elsewhere(scene)
    return Finding(Reason.TURN_OF_OTHERS, text, by_age, changes, of_turn(scene, column, claims))


def _holders(scene: Scene, pools: Sequence[Pool]) -> tuple[tuple[str, ...], str]:
    """Return some of the other jobs that hold GPUs of these types, in order of arrival, and a phrase for all."""
    count, names = 0, []
    for pool in pools:
        pool_names, pool_count = pool.others(scene, NAMED_MAX)
        names += pool_names
        count += pool_count
    first = sorted(set(names), key=lambda name: scene.state.jobs[name].order)[:NAMED_MAX]
    return tuple(first), jobs(first, count) if first else "its own last run, which is being stopped"


def _busy(pool: Pool) -> str:
    kind = pool.worker_type
    if not pool.room:
        return f"the {pool.total} {kind} are"
    return f"{pool.room} of the {pool.total} {kind} {'is' if pool.room == 1 else 'are'} free, the others are"


def _idle_elsewhere(scene: Scene) -> str:
    """Explain why the job does not fill idle GPUs of other worker types; "." if there are none."""
    kinds = dict.fromkeys(
        column.bundle.worker_type
        for column in scene.columns
        if not (column.share > 0 or column.backfill)
        and scene.possible(column)
        and scene.room(column.bundle) >= column.bundle.gpus
    )
    if not kinds:
        return "."
    idle = listed([f"{scene.pools[kind].room} {kind}" for kind in kinds])
    return f" ({idle} are idle, which the policy, {scene.state.settings.policy}, does not let it fill)."


def _compare_claims(claims: Claims, holders: int) -> str:
    """Describe how many jobs have a higher claim. `holders`: how many other jobs hold GPUs."""
    if claims.running >= holders:
        return " with a higher claim"
    higher = [f"{claims.running} of them"] if claims.running else []
    if claims.waiting:
        higher.append(f"{claims.waiting} {'jobs that wait' if claims.waiting > 1 else 'job that waits'}")
    verb = "has" if claims.running + claims.waiting == 1 else "have"
    claim = f"{listed(higher)} {verb} a higher claim" if higher else "its own claim is the highest"
    return f" until their round is over; {claim}"


def _kept_by_others(scene: Scene, column: Column, pool: Pool, changes: tuple[Change, ...]) -> Finding:
    state, now_s, bundle = scene.state, scene.now_s, column.bundle
    boundary = boundary_s(state, now_s)
    kept_until = {
        h.lease.job: kept_until_s(state, h)
        for h in pool.holdings
        if h.phase != Phase.STOPPING and kept_until_s(state, h) > boundary
    }
    by_end = sorted(kept_until, key=lambda name: (kept_until[name], state.jobs[name].order))
    start = after_minimum_runs(scene, pool, bundle.gpus)
    not_preemptible = [name for name in by_end if not state.jobs[name].spec.preemptible]
    why = f"; {jobs(not_preemptible)} cannot be preempted"
    if not not_preemptible:
        why = f" in {'its' if len(by_end) == 1 else 'their'} minimum run time"
    text = (
        f"It waits for its turn: {due_and_received(column)}; the {bundle.worker_type} it needs are held by "
        f"{jobs(by_end)}{why}"
    )
    text += f"; enough of them are available {when(start.at_s, now_s)}." if start.at_s is not None else "."
    return Finding(Reason.MINIMUM_RUN_OF_OTHERS, text, tuple(by_end[:NAMED_MAX]), changes, start)
