"""state → RoundInputs: the inputs of the next round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scheduler.core.planning import problem
from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.round_cache import Frame, frame_of, key_of
from scheduler.core.state import Places, SchedulerState
from scheduler.model.cluster import Node
from scheduler.model.jobs import Job
from scheduler.model.lease import STOPPING, Bundle, Holding, Phase
from scheduler.rounds.inputs import Candidates, Held, Need, NodeView, RoundInputs, Terms

SLACK_S = 1e-6
# The share of a column whose rate is a guess: enough for a trial, whatever the guess.
TRIAL_SHARE = 1e-6


def at_boundary(state: SchedulerState, kinds: Kinds, now_s: float, starts_s: float) -> RoundInputs:
    """Make the inputs at a boundary. Jobs may lose their GPUs unless they cannot be preempted yet, or at all."""
    held = state.held.copy()
    for name in state.clinging.intersection(held):
        holding = state.leases[state.jobs[name].lease or ""]
        if starts_s < kept_until_s(state, holding) - SLACK_S:
            held[name] = _pinned(held[name])
    # GPUs that should be free by now are left out until they are.
    stuck: set[str] = set()
    if len(state.leases) > len(held):
        for holding in state.leases.values():
            ends_s = holding.ends_s
            if holding.phase is STOPPING and ends_s is not None and ends_s < now_s - SLACK_S:
                stuck.update(holding.lease.gpus)
    return _inputs(state, kinds, now_s, held, stuck, ahead=True)


def in_mid_round(state: SchedulerState, kinds: Kinds, now_s: float) -> RoundInputs:
    """Make the inputs in mid-round: every job keeps its GPUs, and idle ones can be given out."""
    held = {name: _pinned(now) for name, now in state.held.items()}
    stopping = {
        gpu
        for gpu, names in state.holders.items()
        if any(state.leases[name].phase is STOPPING for name in names)
    }
    return _inputs(state, kinds, now_s, held, stopping, ahead=False)


def _pinned(now: Held) -> Held:
    return Held(now.bundle, now.gpus, True)


def kept_until_s(state: SchedulerState, holding: Holding) -> float:
    """Return until when a lease is safe from preemption; inf for a job that cannot be preempted.

    A job has its minimum run time, and after a turn that ended before its first step also time to start.
    """
    job = state.jobs[holding.lease.job]
    spec = job.spec
    if not spec.preemptible:
        return math.inf
    since_s = holding.granted_s if holding.started_s is None else holding.started_s
    patience_s = spec.min_run_s
    if job.fruitless and not holding.ran_s:
        patience_s = max(patience_s, state.settings.start_patience_s)
    return since_s + patience_s


def _inputs(
    state: SchedulerState, kinds: Kinds, now_s: float, held: dict[str, Held], stuck: set[str], *, ahead: bool
) -> RoundInputs:
    settings = state.settings
    types = _known_types(state, kinds)
    candidates, jobs = _candidates(state, kinds, now_s, types, held, ahead=ahead)
    return RoundInputs(
        number=state.round.number + 1,
        round_s=settings.round_s,
        jobs=jobs,
        worker_types=tuple(types),
        candidates=candidates,
        nodes=_views(kinds, types, stuck),
        held=held,
        needs=_needs(state, jobs),
        stay_s=settings.stay_s,
        full_s=settings.full_s,
        reserve_after=settings.reserve_after,
        preemptions_max=settings.preemptions_max,
    )


def _views(kinds: Kinds, types: dict[str, int], stuck: set[str]) -> tuple[NodeView, ...]:
    """Return the usable nodes; nearly always the same tuple as in the last round."""
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
    """Return the row of each worker type. Those of the share table come first, so that its rows are valid here."""
    kinds.refresh(state)
    names = dict.fromkeys((*state.shares.types, *kinds.worker_types))
    return {name: i for i, name in enumerate(names)}


def _candidates(
    state: SchedulerState,
    kinds: Kinds,
    now_s: float,
    types: dict[str, int],
    held: dict[str, Held],
    *,
    ahead: bool,
) -> tuple[Candidates, tuple[str, ...]]:
    """Return the candidates: rows of the share table, then rows for later jobs. A job that may not run has no share."""
    table, settings = state.shares, state.settings
    eligible = state.eligible_jobs(now_s)
    new = [job for name, job in eligible.items() if name not in table.job_row]
    frame = _frame(state, kinds, types, tuple(problem.newcomers(state, kinds, new)))
    terms = frame.terms_without([name for name in frame.jobs if name not in eligible])
    explore = _explore(state, kinds, frame, held, eligible)
    if explore is not frame.nothing:
        terms = Terms(np.where(explore, np.maximum(terms.share, TRIAL_SHARE), terms.share), terms.backfill)
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


def _frame(state: SchedulerState, kinds: Kinds, types: dict[str, int], new: tuple[Bundle, ...]) -> Frame:
    """Return the frame of this round, which usually is that of the last one."""
    if kinds.frame is None or kinds.frame.key != key_of(state, types, new):
        kinds.frame = frame_of(state, types, new, kinds.of)
    return kinds.frame


def _explore(
    state: SchedulerState,
    kinds: Kinds,
    frame: Frame,
    held: dict[str, Held],
    eligible: Mapping[str, Job],
) -> np.ndarray:
    """Mark one column for each (kind, worker type, width) whose rate is a guess, so that a job tries it.

    That is a job that just started there, or one that can be moved. A job that has run there for a round is enough.
    """
    if frame.guessing[0] != kinds.for_versions:
        guessed = frozenset([kind for kind in frame.kinds if kinds.ways_of(state, kind).any_guessed])
        frame.guessing = kinds.for_versions, guessed
    guessing = frame.guessing[1]
    if not guessing:
        return frame.nothing
    out = frame.nothing.copy()
    # The job that started there in this round; empty: a job did so before.
    trials: dict[tuple[int, str, int], str] = {}
    for holding in state.leases.values():
        if holding.phase is not STOPPING:
            name, (_, worker_type, gpus, _) = holding.lease.job, holding.bundle
            way = kinds.of(state.jobs[name]), worker_type, gpus
            began = holding.lease.round_number == state.round.number
            trials[way] = name if began and trials.get(way, name) else ""
    for row, bundle in enumerate(frame.columns.bundles):
        if len(bundle.jobs) > 1 or bundle.jobs[0] not in eligible:
            continue
        job, now = state.jobs[bundle.jobs[0]], held.get(bundle.jobs[0])
        way = kinds.of(job), bundle.worker_type, bundle.gpus
        if way[0] not in guessing or trials.get(way, job.id) != job.id:
            continue
        if way not in trials and (_is_mute(state, job) or (now is not None and now.pinned)):
            continue
        ways = kinds.ways_for(state, job)
        at = kinds.worker_types.index(bundle.worker_type) if bundle.worker_type in kinds.worker_types else -1
        way_rows = np.flatnonzero((ways.worker_type == at) & (ways.gpus == bundle.gpus))
        if way_rows.size and ways.guessed[way_rows[0]]:
            out[row] = True
            trials[way] = ""
    return out


def _is_mute(state: SchedulerState, job: Job) -> bool:
    """Whether a job has run without reporting steps. Moving it would measure nothing, and might lose its work."""
    holding = state.leases.get(job.lease or "")
    if holding is not None and holding.phase is not Phase.WAITING:
        return not holding.ran_s
    return job.run_s > 0 and not job.steps_done


def _needs(state: SchedulerState, jobs: Sequence[str]) -> dict[str, Need]:
    """Return the needs of jobs on their nodes; most have none."""
    confined = state.saved if len(state.places) > 1 else set()
    asking = (state.picky | confined).intersection(jobs)
    if not asking:
        return {}
    nodes = state.usable_nodes()
    # By stores of a checkpoint. Without a checkpoint, any node will do.
    seeing: dict[Places, list[Node]] = {(): nodes}
    plain: dict[Places, Need] = {}
    needs: dict[str, Need] = {}
    for name in sorted(asking):
        job = state.jobs[name]
        spec, places = job.spec, state.confined_to(job)
        if places not in seeing:
            seeing[places] = [node for node in nodes if node.spec.place in places]
        if name not in state.picky:
            if places and places not in plain:
                plain[places] = Need(nodes=frozenset(node.spec.name for node in seeing[places]))
            if places:
                needs[name] = plain[places]
            continue
        allowed = None
        if places or spec.nodes or spec.labels or spec.gpu_memory_gb:
            allowed = frozenset(node.spec.name for node in seeing[places] if node.fits(spec))
        needs[name] = Need(spec.cpus / spec.gpus, spec.memory_gb / spec.gpus, allowed)
    return needs
