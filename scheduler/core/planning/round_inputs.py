"""state → RoundInputs: the inputs of the next round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from scheduler.core.planning import problem
from scheduler.core.planning.budget_limits import beyond_backfills, limits_for
from scheduler.core.planning.job_leases import JobLeases
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.probes import probes
from scheduler.core.planning.quota_leases import QuotaLeases
from scheduler.core.planning.round_cache import Frame, frame_of, key_of
from scheduler.core.state import SchedulerState, Stores
from scheduler.model.cluster import Node
from scheduler.model.gpu_quotas import GpuQuota
from scheduler.model.job_quotas import JobQuota
from scheduler.model.jobs import Job
from scheduler.model.lease import STOPPING, Bundle, Holding, Phase
from scheduler.model.quota import ALL_TYPES
from scheduler.rounds.inputs import (
    NO_ROW,
    Candidates,
    GpuLimit,
    Held,
    Need,
    NodeView,
    RoundInputs,
    Terms,
)

# Times closer than this count as equal.
SLACK_S = 1e-6
# A column that is tried, so that its rate is measured, counts as having at least this share.
TRIAL_SHARE = 1e-6


def at_boundary(state: SchedulerState, kinds: Kinds, now_s: float, starts_s: float) -> RoundInputs:
    """Return the inputs of a round that starts at `starts_s`. Leases that are protected from preemption are pinned."""
    held = state.held_leases.copy()
    round_ends_s = starts_s + state.settings.round_s
    # Budgets that are spent end protected leases, too.
    purse = limits_for(state, now_s, round_ends_s, held).purse(held) if state.budgets else None
    paid: set[Bundle] = set()
    protected = state.protectable.intersection(held)
    for name in held if purse is not None else protected:
        holding = state.leases[state.jobs[name].lease or ""]
        if name not in protected or starts_s >= kept_until_s(state, holding) - SLACK_S:
            continue
        if purse is not None and holding.bundle not in paid:
            bundle = holding.bundle
            if not purse.fits(bundle.jobs, bundle):
                continue
            purse.take(bundle.jobs, bundle)
            paid.add(bundle)
        held[name] = _pinned(held[name])
    # GPUs whose lease should have ended are left out until the exit of that lease is confirmed.
    stuck: set[str] = set()
    stopping: frozenset[str] = frozenset()
    if len(state.leases) > len(held):
        stopping = _stopping(state)
        for holding in state.leases.values():
            ends_s = holding.ends_s
            if holding.phase is STOPPING and ends_s is not None and ends_s < now_s - SLACK_S:
                stuck.update(holding.lease.gpus)
    return _inputs(state, kinds, now_s, held, stuck, stopping, ends_s=round_ends_s, ahead=True)


def in_mid_round(state: SchedulerState, kinds: Kinds, now_s: float) -> RoundInputs:
    """Return the inputs in mid-round: every job is pinned, so that only idle GPUs can be given out.

    Budgets have to admit the next round, too: a job that had to stop at its beginning is not started.
    """
    next_ends_s = state.round.ends_s + state.settings.round_s
    held = {name: _pinned(holding) for name, holding in state.held_leases.items()}
    stopping = _stopping(state)
    return _inputs(state, kinds, now_s, held, stopping, stopping, ends_s=next_ends_s, ahead=False)


def _stopping(state: SchedulerState) -> frozenset[str]:
    """Return the GPUs of leases whose processes have been asked to stop and may still be saving."""
    return frozenset(
        gpu
        for gpu, names in state.holders.items()
        if any(state.leases[name].phase is STOPPING for name in names)
    )


def _pinned(held: Held) -> Held:
    return Held(held.bundle, held.gpus, True)


def kept_until_s(state: SchedulerState, holding: Holding) -> float:
    """Return until when a lease is protected from preemption; inf if its job cannot be preempted.

    A job is protected for its minimum run time. If an earlier turn ended before its first step, the job is also
    protected for `start_patience_s`, or until it takes its first step.
    """
    job = state.jobs[holding.lease.job]
    spec = job.spec
    if not spec.preemptible:
        return math.inf
    since_s = holding.granted_s if holding.started_s is None else holding.started_s
    patience_s = spec.min_run_s
    if job.fruitless and not holding.stepping_s:
        patience_s = max(patience_s, state.settings.start_patience_s)
    return since_s + patience_s


def _inputs(
    state: SchedulerState,
    kinds: Kinds,
    now_s: float,
    held: dict[str, Held],
    stuck: Set[str],
    stopping: frozenset[str],
    *,
    ends_s: float,
    ahead: bool,
) -> RoundInputs:
    """Return the inputs of a round. `stuck`: GPUs to leave out. `ahead`: for the next round, not the current one.

    `ends_s`: until when budgets have to last.
    """
    settings = state.settings
    types = _known_types(state, kinds)
    only_fill = beyond_backfills(state, now_s, ends_s)
    candidates, jobs = _candidates(state, kinds, now_s, types, held, only_fill, ahead=ahead)
    limits, limits_of = _limits(state, types, {*jobs, *held}, ahead=ahead)
    # The order of the rows does not depend on a set.
    budgets = limits_for(state, now_s, ends_s, dict.fromkeys((*jobs, *held)))
    job_limits, job_limits_of = _job_limits(state, {*jobs, *held}, ahead=ahead)
    return RoundInputs(
        number=state.round.number + 1,
        round_s=settings.round_s,
        jobs=jobs,
        worker_types=tuple(types),
        candidates=candidates,
        nodes=_views(kinds, types, stuck),
        held=held,
        needs=_needs(state, kinds, jobs),
        limits=limits,
        limits_of=limits_of,
        budgets=budgets.limits,
        budgets_of=budgets.of,
        job_limits=job_limits,
        job_limits_of=job_limits_of,
        cached_bytes=state.cached.bytes_of([state.jobs[name] for name in jobs if name not in held])
        if state.cached.nodes
        else {},
        stopping=stopping,
        stay_s=settings.stay_s,
        full_s=settings.full_s,
        reserve_after=settings.reserve_after,
        preemptions_max=settings.preemptions_max,
    )


def _limits(
    state: SchedulerState, types: dict[str, int], jobs: Iterable[str], *, ahead: bool
) -> tuple[tuple[GpuLimit, ...], dict[str, tuple[int, ...]]]:
    """Return the quotas on GPUs that count any of these jobs, and the rows of those that count each job.

    In mid-round, GPUs of leases that are still ending count as held. Leases of the next round wait for their ends.
    """
    if not state.gpu_quotas:
        return (), {}
    rows: dict[GpuQuota, int] = {}
    of = {
        job: tuple([rows.setdefault(quota, len(rows)) for quota in state.gpu_quotas.of(state.jobs[job].spec)])
        for job in jobs
    }
    limits, counted = [], QuotaLeases.of_state(state)
    for quota in rows:
        leases = counted.of(quota)
        active = {gpu for holding in leases if holding.phase is not STOPPING for gpu in holding.lease.gpus}
        ending = {gpu for holding in leases if holding.phase is STOPPING for gpu in holding.lease.gpus}
        worker_type = NO_ROW if quota.worker_type == ALL_TYPES else types.get(quota.worker_type, len(types))
        limits.append(GpuLimit(worker_type, quota.gpus - (0 if ahead else len(ending - active))))
    return tuple(limits), of


def _job_limits(
    state: SchedulerState, jobs: Iterable[str], *, ahead: bool
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]]]:
    """Return the same for quotas on running jobs. In mid-round, jobs whose leases are still ending count as running."""
    if not state.running_quotas:
        return (), {}
    rows: dict[JobQuota, int] = {}
    of = {
        job: tuple(
            [rows.setdefault(quota, len(rows)) for quota in state.running_quotas.of(state.jobs[job].spec)]
        )
        for job in jobs
    }
    counted = JobLeases.of_state(state)
    return tuple([quota.jobs - (0 if ahead else len(counted.ending(quota))) for quota in rows]), of


def _views(kinds: Kinds, types: dict[str, int], stuck: Set[str]) -> tuple[NodeView, ...]:
    """Return the usable nodes, without the GPUs in `stuck`."""
    # This is nearly always the same tuple as in the last round, so the planner can use what it cached for that tuple.
    names = tuple(types)
    if kinds.views[0] != names:
        views = [
            NodeView(
                spec.name,
                types[spec.worker_type],
                gpus,
                np.inf if spec.cpus is None else spec.cpus,
                np.inf if spec.memory_gb is None else spec.memory_gb,
            )
            for spec, gpus in kinds.nodes
        ]
        kinds.views = (names, tuple(views))
    if not stuck:
        return kinds.views[1]
    return tuple(
        view
        if stuck.isdisjoint(view.gpus)
        else replace(view, gpus=tuple(gpu for gpu in view.gpus if gpu not in stuck))
        for view in kinds.views[1]
    )


def _known_types(state: SchedulerState, kinds: Kinds) -> dict[str, int]:
    """Return the row of each worker type. The types of the share table come first, so that its rows stay valid."""
    kinds.refresh(state)
    names = dict.fromkeys((*state.shares.types, *kinds.worker_types))
    return {name: i for i, name in enumerate(names)}


def _candidates(
    state: SchedulerState,
    kinds: Kinds,
    now_s: float,
    types: dict[str, int],
    held: dict[str, Held],
    only_fill: Iterable[str],
    *,
    ahead: bool,
) -> tuple[Candidates, tuple[str, ...]]:
    """Return the candidates (the rows of the share table, then rows of later jobs), and the jobs of these rows.

    `only_fill`: jobs that get only GPUs that are due to no job.
    """
    table, settings = state.shares, state.settings
    eligible = state.eligible_jobs(now_s)
    new = [job for name, job in eligible.items() if name not in table.job_row]
    probed = probes(state, kinds, held, eligible) if ahead else ()
    added = tuple(bundle for bundle in probed if bundle not in table.row_of)
    frame = _frame(state, kinds, types, (*problem.newcomers(state, kinds, new), *added))
    barred = [name for name in frame.jobs if name not in eligible]
    barred += [name for name in state.reshaped if name in table.job_row and name in eligible]
    terms = frame.terms_without(barred, _in_place(state, frame, held))
    explore = _explore(state, kinds, frame, held, eligible)
    if probed:
        explore = explore.copy()
        explore[[frame.columns.row_of[bundle] for bundle in probed]] = True
    if explore is not frame.no_columns:
        terms = Terms(np.where(explore, np.maximum(terms.share, TRIAL_SHARE), terms.share), terms.backfill)
    only_fill = [name for name in only_fill if name in frame.row_of_job]
    if only_fill:
        terms = Terms(terms.share * frame.columns_without(only_fill), terms.backfill)
    decay, due_s = (settings.decay, settings.round_s) if ahead else (1.0, 0.0)
    return (
        Candidates(
            columns=frame.columns,
            terms=terms,
            entitled_s=frame.padded(table.entitled_s) * decay + terms.share * due_s,
            received_s=frame.padded(table.received_s) * decay,
            skipped=frame.padded(table.skipped),
            explore=explore,
        ),
        frame.jobs,
    )


def _in_place(state: SchedulerState, frame: Frame, held: Mapping[str, Held]) -> list[int]:
    """Return the columns by which jobs run whose plans have changed meanwhile: there they may stay."""
    rows = [frame.columns.row_of.get(held[name].bundle) for name in state.reshaped if name in held]
    return [row for row in rows if row is not None]


def _frame(state: SchedulerState, kinds: Kinds, types: dict[str, int], new: tuple[Bundle, ...]) -> Frame:
    """Return the frame of the last round, or a new one if it is out of date."""
    if kinds.frame is None or kinds.frame.key != key_of(state, types, new):
        kinds.frame = frame_of(state, types, new, kinds.of, kinds.specs)
    return kinds.frame


def _explore(
    state: SchedulerState,
    kinds: Kinds,
    frame: Frame,
    held: dict[str, Held],
    eligible: Mapping[str, Job],
) -> np.ndarray:
    """Return a mask of columns to try, because their rates are guesses: one for each (kind, worker type, width).

    The column belongs to a job that started to run in this way in this round; if there is none, to a job that can be
    moved. No column is marked if a job has run in this way for a round.
    """
    if frame.guessed_kinds[0] != kinds.for_versions:
        guessed = frozenset([kind for kind in frame.kinds if kinds.ways_of(state, kind).any_guessed])
        frame.guessed_kinds = kinds.for_versions, guessed
    guessed_kinds = frame.guessed_kinds[1]
    if not guessed_kinds:
        return frame.no_columns
    explore = frame.no_columns.copy()
    # By way: the job that started in this way in this round; empty if one started earlier, or a column is marked.
    trials: dict[tuple[int, str, int], str] = {}
    for holding in state.leases.values():
        if holding.phase is not STOPPING:
            name, (_, worker_type, gpus, _) = holding.lease.job, holding.bundle
            way = kinds.of(state.jobs[name]), worker_type, gpus
            is_new = holding.lease.round_number == state.round.number
            trials[way] = name if is_new and trials.get(way, name) else ""
    for row, bundle in enumerate(frame.columns.bundles):
        if len(bundle.jobs) > 1 or bundle.jobs[0] not in eligible:
            continue
        job, current = state.jobs[bundle.jobs[0]], held.get(bundle.jobs[0])
        way = kinds.of(job), bundle.worker_type, bundle.gpus
        if way[0] not in guessed_kinds or trials.get(way, job.id) != job.id:
            continue
        is_pinned = current is not None and current.pinned
        # Moving a job that reports no steps would measure nothing, and might lose its work.
        if way not in trials and (is_pinned or _ran_without_steps(state, job)):
            continue
        ways = kinds.ways_for(state, job)
        type_row = (
            kinds.worker_types.index(bundle.worker_type) if bundle.worker_type in kinds.worker_types else -1
        )
        way_rows = np.flatnonzero((ways.worker_type == type_row) & (ways.gpus == bundle.gpus))
        if way_rows.size and ways.guessed[way_rows[0]]:
            explore[row] = True
            trials[way] = ""
    return explore


def _ran_without_steps(state: SchedulerState, job: Job) -> bool:
    """Whether a job has run without reporting steps."""
    holding = state.leases.get(job.lease or "")
    if holding is not None and holding.phase is not Phase.WAITING:
        return not holding.stepping_s
    return job.run_s > 0 and not job.steps_done


def _needs(state: SchedulerState, kinds: Kinds, jobs: Sequence[str]) -> dict[str, Need]:
    """Return the needs of these jobs beyond GPUs. Jobs without such needs, which are the majority, are absent."""
    confined = state.may_have_saved if len(state.stores) > 1 else set()
    planned = {name for name in jobs if state.jobs[name].spec.plans} if kinds.any_ignores_plans else set()
    picky = state.picky | planned
    with_needs = (picky | confined).intersection(jobs)
    if not with_needs:
        return {}
    nodes = state.usable_nodes()
    # The nodes that reach a checkpoint, by its stores. A job without a checkpoint can use every node.
    reaching: dict[Stores, list[Node]] = {(): nodes}
    # The needs of jobs that only have to reach their checkpoint.
    need_to_reach: dict[Stores, Need] = {}
    needs: dict[str, Need] = {}
    for name in sorted(with_needs):
        job = state.jobs[name]
        spec, stores = job.spec, state.confined_to(job)
        if stores not in reaching:
            reaching[stores] = [node for node in nodes if node.spec.store in stores]
        if name not in picky:
            if stores and stores not in need_to_reach:
                need_to_reach[stores] = Need(nodes=frozenset(node.spec.name for node in reaching[stores]))
            if stores:
                needs[name] = need_to_reach[stores]
            continue
        allowed = None
        if stores or spec.nodes or spec.labels or spec.gpu_memory_gb or name in planned:
            allowed = frozenset(node.spec.name for node in reaching[stores] if node.fits(spec))
        needs[name] = Need(spec.cpus / spec.gpus, spec.memory_gb / spec.gpus, allowed)
    return needs
