"""The parts of a fact that survive the loss of earlier records.

There are two rules. First, parts about a lost job, lease or node are left out, so that one lost grant does not
invalidate all later rounds. Second, events that must have come before a fact are added: if
GPUs are granted to a lease, they were free, so the lease that had them is closed, although its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

from msgspec.structs import replace

from scheduler.core import facts as f
from scheduler.core.messages import Exit, Shares
from scheduler.core.state import SchedulerState
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import Move
from scheduler.model.lease import Bundle, Holding, Lease, Phase, nodes_of


def surviving_facts(state: SchedulerState, now_s: float, fact: f.Fact) -> Sequence[f.Fact]:
    """Return the facts to apply instead of this one: usually the fact itself."""
    match fact:
        case f.ProgressMade():
            known = tuple(progress for progress in fact.progress if progress.lease in state.leases)
            return _with_parts(fact, known == fact.progress, not known, progress=known)
        case f.LeasesStarted():
            return _fit_starts(state, now_s, fact)
        case f.LeasesResumed():
            leases = tuple(name for name in fact.leases if name in state.leases)
            return _with_parts(fact, leases == fact.leases, not leases, leases=leases)
        case f.LeaseClosed() | f.RanksExited():
            return (fact,) if fact.exit.lease in state.leases else ()
        case f.LeaseRecalled() | f.GpusIdled():
            return (fact,) if fact.lease in state.leases else ()
        case f.JobsForgotten():
            return _fit_forgetting(state, now_s, fact)
        case f.JobMoved() | f.JobUpdated() | f.CheckpointSaved() | f.PlanStruckOut() | f.JobMeasured():
            return (fact,) if fact.job in state.jobs else ()
        case f.DataNamed():
            return (fact,) if fact.job in state.jobs else ()
        case f.NodeMoved() | f.NodeRemoved() | f.GpusBroken() | f.GpusWithheld():
            return (fact,) if fact.node in state.nodes else ()
        case f.DataCached():
            node = state.nodes.get(fact.node)
            return () if node is None or node.state is NodeState.LOST else (fact,)
        case f.JobSubmitted():
            return _fit_submission(state, fact)
        case f.AllocationAdopted():
            shares = _of_known_jobs(state, fact.shares)
            return (fact,) if shares is fact.shares else (replace(fact, shares=shares),)
        case f.RoundPlanned():
            return _fit_plan(state, now_s, fact)
        case f.GpusFilled():
            return _fit_fill(state, now_s, fact)
    return (fact,)


def _with_parts(fact: f.Fact, is_whole: bool, is_empty: bool, **parts: object) -> Sequence[f.Fact]:
    """Return the fact reduced to these parts: unchanged if they are the whole fact, no fact if all are empty."""
    if is_whole:
        return (fact,)
    return () if is_empty else (replace(fact, **parts),)


def _fit_submission(state: SchedulerState, fact: f.JobSubmitted) -> Sequence[f.Fact]:
    """Hold a job that depends on a lost job. Nobody knows whether the lost job succeeded, so the user must decide."""
    known = tuple(other for other in fact.blocked_by if other in state.jobs)
    if known == fact.blocked_by:
        return (fact,)
    lost = sorted(set(fact.blocked_by) - set(known))
    why = f"the records of job {', '.join(lost)}, which it depends on, are lost"
    return replace(fact, blocked_by=known), f.JobMoved(job=fact.job, move=Move.HOLD, why=why)


def _fit_forgetting(state: SchedulerState, now_s: float, fact: f.JobsForgotten) -> Sequence[f.Fact]:
    """Cancel forgotten jobs that have not ended in the state, and close their leases: the record of the end is lost."""
    known = tuple(name for name in fact.jobs if name in state.jobs)
    keys = tuple(key for key in fact.keys if key in state.requests)
    jobs = [state.jobs[name] for name in known]
    leases = {lease for job in jobs for lease in (job.lease, job.leaving) if lease}
    closed = _close_leases(state, now_s, leases)
    why = "the job ended, and the record of its end is lost"
    ended = [f.JobMoved(job=job.id, move=Move.CANCEL, why=why) for job in jobs if not job.is_terminal]
    is_whole = known == fact.jobs and keys == fact.keys
    return *closed, *ended, *_with_parts(fact, is_whole, not (known or keys), jobs=known, keys=keys)


def _fit_starts(state: SchedulerState, now_s: float, fact: f.LeasesStarted) -> Sequence[f.Fact]:
    """Before leases start, close the leases whose end they waited for: those must have ended."""
    leases = tuple(name for name in fact.leases if name in state.leases)
    closed = {other for name in leases for other in state.leases[name].waits_for}
    starts = _with_parts(fact, leases == fact.leases, not leases, leases=leases)
    return *_close_leases(state, now_s, closed), *starts


def _fit_plan(state: SchedulerState, now_s: float, fact: f.RoundPlanned) -> Sequence[f.Fact]:
    ended = tuple(name for name in fact.ended if _continues(state, name))
    granted = _known_grants(state, fact.granted)
    rebundled = _known_changes(state, fact.rebundled)
    closed = _close_leases(state, now_s, _leases_in_the_way(state, granted, dict(rebundled)) - set(ended))
    reserved = {gpu: bundle for gpu, bundle in fact.reserved.items() if _is_known(state, bundle)}
    skipped = tuple(bundle for bundle in fact.skipped if _is_known(state, bundle))
    parts = {
        "ended": ended,
        "granted": granted,
        "rebundled": rebundled,
        "reserved": reserved,
        "skipped": skipped,
    }
    is_whole = all(getattr(fact, name) == part for name, part in parts.items())
    return *closed, fact if is_whole else replace(fact, **parts)


def _fit_fill(state: SchedulerState, now_s: float, fact: f.GpusFilled) -> Sequence[f.Fact]:
    granted, rebundled = _known_grants(state, fact.granted), _known_changes(state, fact.rebundled)
    closed = _close_leases(state, now_s, _leases_in_the_way(state, granted, dict(rebundled)))
    is_whole = granted == fact.granted and rebundled == fact.rebundled
    is_empty = not (granted or rebundled)
    return *closed, *_with_parts(fact, is_whole, is_empty, granted=granted, rebundled=rebundled)


def _continues(state: SchedulerState, name: str) -> bool:
    holding = state.leases.get(name)
    return holding is not None and holding.phase != Phase.STOPPING


def _is_known(state: SchedulerState, bundle: Bundle) -> bool:
    return all(job in state.jobs for job in bundle.jobs)


def _known_grants(state: SchedulerState, leases: tuple[Lease, ...]) -> tuple[Lease, ...]:
    return tuple(
        lease
        for lease in leases
        if _is_known(state, lease.bundle) and all(node in state.nodes for node in nodes_of(lease.gpus))
    )


def _known_changes(
    state: SchedulerState, changes: tuple[tuple[str, Bundle], ...]
) -> tuple[tuple[str, Bundle], ...]:
    return tuple(
        (name, bundle) for name, bundle in changes if name in state.leases and _is_known(state, bundle)
    )


def _leases_in_the_way(
    state: SchedulerState, granted: Iterable[Lease], bundles: dict[str, Bundle]
) -> set[str]:
    """Return the leases that must have ended before the leases in `granted` could be granted."""
    ended: set[str] = set()
    for lease in granted:
        previous = state.jobs[lease.job].lease
        if previous is not None:
            ended.add(previous)
        for gpu in lease.gpus:
            for name in (*state.holders.get(gpu, ()), *state.claims.get(gpu, ())):
                continues = state.leases[name].phase != Phase.STOPPING
                if continues and bundles.get(name, state.leases[name].bundle) != lease.bundle:
                    ended.add(name)
    return ended


def _close_leases(state: SchedulerState, now_s: float, leases: set[str]) -> list[f.Fact]:
    """Return the facts that close these leases, with their last known progress."""
    return [
        f.LeaseClosed(exit=_last_exit(state, now_s, state.leases[name]), lapsed=True)
        for name in sorted(leases, key=int)
    ]


def _last_exit(state: SchedulerState, now_s: float, holding: Holding) -> Exit:
    job = state.jobs[holding.lease.job]
    ran_s = 0.0 if holding.started_s is None else max(now_s - holding.started_s, 0.0)
    return Exit(holding.lease.id, "yielded", job.steps_done, job.steps_saved, holding.stepping_s, ran_s)


def _of_known_jobs(state: SchedulerState, shares: Shares) -> Shares:
    """Return shares without the columns of lost jobs."""
    known = [job in state.jobs for job in shares.jobs]
    if all(known):
        return shares
    keep = [known[a] and (b < 0 or known[b]) for a, b in zip(shares.first, shares.second, strict=True)]
    new_column = {old: new for new, old in enumerate(compress(range(len(keep)), keep))}
    return replace(
        shares,
        first=list(compress(shares.first, keep)),
        second=list(compress(shares.second, keep)),
        worker_type=list(compress(shares.worker_type, keep)),
        gpus=list(compress(shares.gpus, keep)),
        label=tuple(compress(shares.label, keep)),
        share=list(compress(shares.share, keep)),
        no_backfill=[new_column[column] for column in shares.no_backfill if column in new_column],
    )
