"""state → Problem: every job that may run, and every way to run it, as arrays for the policies.

Jobs with equal needs are one *kind*. The ways of a kind (worker type, width, rate) change only with the cluster and the
rates, so they are computed once and copied into the arrays for each job.
"""

from __future__ import annotations

import math
from itertools import chain

import numpy as np

from policies.problem import ANY_TYPE, JOBS, Columns, Floats, Ints, Jobs, Problem, Quotas, Tenant
from scheduler.core.effects import Pairs
from scheduler.core.planning.failures import discounted
from scheduler.core.planning.kinds import Kinds, rate_of
from scheduler.core.planning.pairing import pair_rates, pairs_of
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.gpu_quotas import NO_TENANT, GpuQuota
from scheduler.model.job_quotas import JobQuota
from scheduler.model.jobs import Job
from scheduler.model.lease import Bundle
from scheduler.model.quota import ALL_TYPES

# The limits of `Jobs.isolated_s`.
ISOLATED_S = bounds.Bound(0.0, bounds.SUM_MAX, "s")


def estimate(
    state: SchedulerState, job: Job, now_s: float, kinds: Kinds | None = None
) -> tuple[float, float]:
    """Return a job's steps and isolated time (`Job.isolated_s`) by now: the last report, extrapolated at its rate.

    `kinds`: a refreshed cache of rates, which makes estimates for many jobs faster.
    """
    steps, isolated_s = job.steps_done, job.isolated_s
    holding = state.leases.get(job.lease or job.leaving or "")
    if holding is None or holding.started_s is None:
        return steps, isolated_s
    until_s = min(now_s, state.lease_end_s(holding))
    if until_s <= holding.reported_s:
        return steps, isolated_s
    bundle = holding.bundle
    if kinds is not None:
        rate = kinds.rate(state, job, bundle)
    else:
        rate = rate_of(state, job.spec, bundle.worker_type, bundle.gpus)[0]
    if len(bundle.jobs) > 1:
        a, b = (state.jobs[name].spec.job_type for name in bundle.jobs)
        pair = pair_rates(state, bundle.worker_type, a, b, bundle.gpus)
        if pair is not None:
            rate = pair[bundle.jobs[0] != job.id]
    more = rate * (until_s - holding.reported_s)
    if job.spec.steps is not None:
        more = min(more, max(job.spec.steps - steps, 0.0))
    isolated = state.isolated_rate.get(job.id, 0.0)
    return steps + more, isolated_s + (more / isolated if isolated > 0 else 0.0)


def build(state: SchedulerState, kinds: Kinds, now_s: float) -> tuple[Problem, Pairs | None]:
    """Build the current problem, with jobs sorted by id, and the pair rates if the policy packs jobs.

    Jobs that are beyond their budgets are left out, as recorded when the question was asked.
    """
    kinds.refresh(state)
    jobs, confined, all_ways = [], [], []
    eligible = state.eligible_jobs(now_s)
    for name in sorted(eligible.keys() - set(state.asked.beyond) if state.asked.beyond else eligible):
        job = eligible[name]
        kind = (kinds.of(job), state.confined_to(job))
        ways = kinds.ways.get(kind) or kinds.ways_of(state, *kind)
        if ways.rate.size:
            jobs.append(job)
            confined.append(kind)
            all_ways.append(ways)
    first = np.repeat(np.arange(len(jobs)), [ways.rate.size for ways in all_ways])
    worker_type = _joined([ways.worker_type for ways in all_ways], np.int64)
    gpus = _joined([ways.gpus for ways in all_ways], np.int64)
    rate = _joined([ways.rate for ways in all_ways], np.float64)
    columns = Columns(
        first=first,
        worker_type=worker_type,
        gpus=gpus,
        first_rate=discounted(
            state, jobs, first, [kinds.worker_types[row] for row in worker_type], gpus, rate
        ),
        label=tuple(chain.from_iterable([ways.label for ways in all_ways])),
    )
    settings = state.settings
    price = np.array([_price(state, name) for name in kinds.worker_types], float)
    problem = Problem(
        jobs=_jobs(state, kinds, jobs, now_s),
        columns=columns,
        worker_types=kinds.worker_types,
        capacity=kinds.capacity,
        price_per_gpu_hour=price,
        tenants=_tenants(state, jobs),
        quotas=_quotas(state, kinds, jobs),
        now_s=now_s,
        seed=settings.seed,
    )
    pairs = None
    if "packing" in settings.policy or "gandiva" in settings.policy:
        pairs = pairs_of(state, kinds, jobs, confined)
    return problem, pairs


def _price(state: SchedulerState, worker_type: str) -> float:
    price = state.prices.get(worker_type)
    return math.nan if price is None else bounds.PRICE.nearest(price)


def current_types(state: SchedulerState, problem: Problem) -> Ints:
    """Return the row of the worker type whose GPUs each job of a problem holds; -1 if it holds none."""
    row_of = {name: row for row, name in enumerate(problem.worker_types)}
    held = state.held_leases
    types = [held[job].bundle.worker_type if job in held else "" for job in problem.jobs.ids]
    return np.array([row_of.get(name, -1) for name in types], np.int64)


def _jobs(state: SchedulerState, kinds: Kinds, jobs: list[Job], now_s: float) -> Jobs:
    estimates = [estimate(state, job, now_s, kinds) for job in jobs]
    specs = [job.spec for job in jobs]
    return Jobs(
        tuple([job.id for job in jobs]),
        gpus=np.array([spec.gpus for spec in specs], np.int64),
        weight=_within([spec.weight for spec in specs], bounds.WEIGHT),
        tenant=tuple(spec.tenant or NO_TENANT for spec in specs)
        if state.settings.tenants
        else ("",) * len(jobs),
        waited_s=np.maximum(now_s - np.array([job.submitted_s for job in jobs], float), 0.0),
        steps_left=np.array(
            [
                math.inf if spec.steps is None else min(max(spec.steps - steps, 1.0), bounds.STEPS.most)
                for spec, (steps, _) in zip(specs, estimates, strict=True)
            ],
            float,
        ),
        isolated_s=_within([isolated_s for _, isolated_s in estimates], ISOLATED_S),
        deadline_s=np.array(
            [
                math.inf
                # Policies ignore deadlines of jobs without a number of steps.
                if spec.deadline_s is None or spec.steps is None
                else min(job.submitted_s + spec.deadline_s - now_s, bounds.TIME_S.most)
                for job, spec in zip(jobs, specs, strict=True)
            ],
            float,
        ),
    )


def _within(values: list[float], bound: bounds.Bound) -> Floats:
    """Clip values to their limits. An old journal may hold values beyond them, which policies refuse."""
    return np.asarray(np.clip(np.nan_to_num(np.array(values, float)), bound.least, bound.most))


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _tenants(state: SchedulerState, jobs: list[Job]) -> tuple[Tenant, ...]:
    """Return the tenants of the settings, and then the tenants that only jobs name, with weight 1."""
    configured = state.settings.tenants
    if not configured:
        return ()
    names = {tenant.name for tenant in configured}
    others = sorted({job.spec.tenant or NO_TENANT for job in jobs} - names)
    return (
        *(Tenant(tenant.name, bounds.WEIGHT.nearest(tenant.weight), tenant.policy) for tenant in configured),
        *(Tenant(name) for name in others),
    )


def _quotas(state: SchedulerState, kinds: Kinds, jobs: list[Job]) -> Quotas:
    """Return the quotas on GPUs and on running jobs of these jobs, which are the rows of the problem."""
    if not (state.gpu_quotas or state.running_quotas):
        return Quotas()
    row_of = {name: row for row, name in enumerate(kinds.worker_types)} | {ALL_TYPES: ANY_TYPE}
    rows: dict[GpuQuota | JobQuota, int] = {}
    counted = []
    for row, job in enumerate(jobs):
        # A type that no node has needs no row.
        of_gpus = [quota for quota in state.gpu_quotas.of(job.spec) if quota.worker_type in row_of]
        own: list[GpuQuota | JobQuota] = [*of_gpus, *state.running_quotas.of(job.spec)]
        counted += [(rows.setdefault(quota, len(rows)), row) for quota in own]
    quota, members = np.array(counted, np.int64).reshape(-1, 2).T
    return Quotas(
        names=tuple(
            f"{quota.level}, {'jobs' if isinstance(quota, JobQuota) else quota.worker_type}" for quota in rows
        ),
        worker_type=np.array(
            [JOBS if isinstance(quota, JobQuota) else row_of[quota.worker_type] for quota in rows], np.int64
        ),
        gpus=np.array([quota.jobs if isinstance(quota, JobQuota) else quota.gpus for quota in rows], float),
        quota=quota,
        job=members,
    )


def newcomers(state: SchedulerState, kinds: Kinds, jobs: list[Job]) -> list[Bundle]:
    """Return the columns of jobs that came after the allocation, with the width that each job asks for."""
    kinds.refresh(state)
    bundles: list[Bundle] = []
    for job in jobs:
        ways = kinds.ways_for(state, job)
        for row, gpus, label in zip(ways.worker_type.tolist(), ways.gpus.tolist(), ways.label, strict=True):
            if gpus == job.spec.gpus:
                bundles.append(Bundle((job.id,), kinds.worker_types[row], gpus, label))
    return bundles
