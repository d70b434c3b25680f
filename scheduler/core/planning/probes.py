"""Probes: pairs of running jobs that share GPUs for one round, so that the rates of such pairs are known.

While jobs wait, each round may spend a part of its GPUs on probes (the setting `explore`). The pair whose rates are
least certain, and would gain most, comes first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations_with_replacement

from scheduler.core.planning.kinds import Kinds
from scheduler.core.planning.pair_estimates import Estimate, PairEstimates, estimates_of
from scheduler.core.planning.pairing import fit_together
from scheduler.core.state import SchedulerState
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle
from scheduler.model.throughput import RateKey
from scheduler.rounds.inputs import Held

# Without references, every pair is expected to be like the mean of the pairs that were measured for the research
# prototype of Gavel: 26 job types on three types of GPU.
ORDINARY = Estimate(0.6, 0.6, 0.18, 0.18)
# Only so many kinds of jobs are compared, those of the jobs that were submitted first.
KINDS_MAX = 32
# Values of probes are rounded, and ties are broken by names.
DIGITS = 6


def probes(
    state: SchedulerState, kinds: Kinds, held: Mapping[str, Held], eligible: Mapping[str, Job]
) -> tuple[Bundle, ...]:
    """Return the pairs to probe in the next round; `held`: by job, what it holds before that round."""
    settings = state.settings
    if not (settings.explore and settings.learn_rates and "packing" in settings.policy):
        return ()
    gpus_left = gpus_for_probes(state, kinds)
    if not gpus_left or not any(name not in held for name in eligible):
        return ()
    chosen: list[Bundle] = []
    disturbed: set[str] = set()
    for _, bundle in sorted(_options(state, kinds, held, eligible)):
        if bundle.gpus <= gpus_left and disturbed.isdisjoint(bundle.jobs):
            gpus_left -= bundle.gpus
            disturbed.update(bundle.jobs)
            chosen.append(bundle)
    return tuple(sorted(chosen))


def gpus_for_probes(state: SchedulerState, kinds: Kinds) -> int:
    """Return how many GPUs the next round may spend. Parts of a GPU add up over the rounds."""
    per_round = state.settings.explore * float(kinds.capacity.sum())
    number = state.round.number
    return math.floor(per_round * (number + 1)) - math.floor(per_round * number)


def _options(
    state: SchedulerState, kinds: Kinds, held: Mapping[str, Held], eligible: Mapping[str, Job]
) -> list[tuple[float, Bundle]]:
    """Return the pairs that can be probed, each with its value; the smallest number is best."""
    by_kind: dict[int, list[str]] = {}
    for name, holding in held.items():
        if name in eligible and _may_probe(state, eligible[name], holding):
            members = by_kind.setdefault(kinds.of(eligible[name]), [])
            if len(members) < 2:
                members.append(name)
            if len(by_kind) == KINDS_MAX:
                break
    options = []
    for a, b in combinations_with_replacement(by_kind, 2):
        pair = (by_kind[a][0], by_kind[b][0]) if a != b else tuple(by_kind[a])
        if len(pair) == 2:
            options += _options_of(state, kinds, [eligible[name] for name in pair], held)
    return options


def _may_probe(state: SchedulerState, job: Job, held: Held) -> bool:
    """Whether the job may share its GPUs for a round: it runs alone, reports steps, and can be preempted."""
    spec, holding = job.spec, state.leases.get(job.lease or "")
    return (
        bool(spec.job_type)
        and (spec.packable and spec.preemptible and spec.reports_steps and not spec.plans)
        and not held.pinned
        and len(held.bundle.jobs) == 1
        and held.bundle.gpus == spec.gpus
        and holding is not None
        and holding.stepping_s > 0
    )


def _options_of(
    state: SchedulerState, kinds: Kinds, pair: list[Job], held: Mapping[str, Held]
) -> list[tuple[float, Bundle]]:
    """Return the ways in which two jobs can be probed: on the GPUs that one of them has."""
    first, second = sorted(pair, key=lambda job: job.id)
    a, b = first.spec, second.spec
    if a.gpus != b.gpus or state.confined_to(first) != state.confined_to(second):
        return []
    estimates = estimates_of(state.rates, state.settings, a.gpus)
    options = []
    for worker_type in sorted({held[job.id].bundle.worker_type for job in pair}):
        bundle = Bundle((first.id, second.id), worker_type, a.gpus)
        if (
            a.may_use(worker_type)
            and b.may_use(worker_type)
            and not _is_seen(state, bundle, a.job_type, b.job_type)
            and math.lcm(a.granule(a.gpus, worker_type), b.granule(b.gpus, worker_type)) == 1
            and fit_together(state, worker_type, a, b)
        ):
            options.append((-_value(estimates, worker_type, a.job_type, b.job_type), bundle))
    return options


def _is_seen(state: SchedulerState, bundle: Bundle, first: str, second: str) -> bool:
    """Whether the table has the pair, or the rate of one of its jobs was measured. The other may have failed."""
    book, (_, worker_type, gpus, _) = state.rates, bundle
    keys = (RateKey(first, gpus, worker_type, second), RateKey(second, gpus, worker_type, first))
    return (worker_type, first, second, gpus) in book.pairs or any(key in book.measured for key in keys)


def _value(estimates: PairEstimates, worker_type: str, first: str, second: str) -> float:
    """Return the uncertainty of a pair times what it gains over taking turns, if it does as well as it may."""
    estimate = estimates.of(worker_type, first, second, unseen=True) or ORDINARY
    sd = estimate.first_sd + estimate.second_sd
    return round(sd * max(estimate.first + estimate.second + sd - 1.0, 0.0), DIGITS)
