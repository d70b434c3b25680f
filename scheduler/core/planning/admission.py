"""Check whether a job would be accepted: its tenant, needs, quotas on GPUs and on running jobs, and dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from scheduler.core.planning.feasibility import listed, must_be_runnable, runnable_widths
from scheduler.core.state import SchedulerState
from scheduler.model.errors import InvalidSpec
from scheduler.model.gpu_quotas import NO_TENANT, GpuQuota
from scheduler.model.jobs import TERMINAL, JobSpec, JobState
from scheduler.model.quota import ALL_TYPES

# How many declared tenants an error names.
TENANTS_SHOWN = 8
NO_PAST: Mapping[str, JobState] = MappingProxyType({})


def tightest(state: SchedulerState, spec: JobSpec, worker_type: str) -> GpuQuota | None:
    """Return the quota that admits the fewest GPUs of this type to a job; None if it has no quota there."""
    quotas = [quota for quota in state.gpu_quotas.of(spec) if quota.counts(worker_type)]
    return min(quotas, key=lambda quota: quota.gpus, default=None)


def must_be_admitted(state: SchedulerState, spec: JobSpec) -> None:
    """Raise InvalidSpec for a job whose quotas admit it on no worker type on which it could run."""
    none = [quota for quota in state.running_quotas.of(spec) if not quota.jobs]
    if none:
        raise InvalidSpec("tenant", f"{none[0].level} may run no jobs (jobs_running = 0)")
    if not state.gpu_quotas.of(spec):
        return
    quotas = {}
    for kind in sorted(state.size_of_type):
        quota = tightest(state, spec, kind)
        widths = runnable_widths(state, spec, kind)
        if any(quota is None or gpus <= quota.gpus for gpus in widths):
            return
        if widths and quota is not None:
            quotas[kind] = quota
    if quotas:
        raise InvalidSpec("gpus", f"asks for {spec.narrowest}; {limits_of(quotas.values())}")


def must_be_declared(state: SchedulerState, tenant: str) -> None:
    """Raise InvalidSpec for a tenant that is not declared, if the settings demand a declaration."""
    declared = [spec.name for spec in state.settings.tenants]
    if not state.settings.tenants_declared or (tenant or NO_TENANT) in declared:
        return
    if not declared:
        raise InvalidSpec("tenant", "no tenant is declared, and jobs need one (tenants_declared)")
    if not tenant:
        raise InvalidSpec("tenant", f"is missing; declared are {listed(declared[:TENANTS_SHOWN], 'and')}")
    (nearest,) = get_close_matches(tenant, declared, n=1, cutoff=0.0)
    raise InvalidSpec("tenant", f"there is no declared tenant '{tenant}'; did you mean '{nearest}'?")


def limits_of(quotas: Iterable[GpuQuota]) -> str:
    """Describe quotas: "tenant org/a may hold at most 4 h100 and 0 a100"."""
    by_level: dict[str, dict[str, None]] = {}
    for quota in quotas:
        kind = quota.worker_type
        if kind == ALL_TYPES:
            kind = "GPU" if quota.gpus == 1 else "GPUs"
        by_level.setdefault(str(quota.level), {})[f"{quota.gpus} {kind}"] = None
    return "; ".join(f"{level} may hold at most {listed([*gpus], 'and')}" for level, gpus in by_level.items())


def would_wait_for(
    state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState] = NO_PAST
) -> tuple[str, ...]:
    """Return the jobs that this job would wait for if it were submitted now; raise if it would be refused."""
    return waits_for(state, spec.checked(), past)


def waits_for(state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState]) -> tuple[str, ...]:
    """Return the same for a job whose description has been checked. `past`: the final states of forgotten jobs."""
    must_be_declared(state, spec.tenant)
    must_be_runnable(state, spec)
    must_be_admitted(state, spec)
    return _blocked_by(state, spec, past)


def _blocked_by(state: SchedulerState, spec: JobSpec, past: Mapping[str, JobState]) -> tuple[str, ...]:
    blocked: dict[str, None] = {}
    for dependency in spec.after:
        # The final state, if the job or some jobs of the array have been forgotten.
        forgotten = past.get(dependency.job)
        members = state.arrays.get(dependency.job) or ([] if forgotten else [dependency.job])
        states = {name: job.state for name in members if (job := state.jobs.get(name)) is not None}
        if len(states) < len(members):
            name = next(name for name in members if name not in states)
            rest = "" if name.replace("_", "").isdigit() else "; it takes ids of jobs"
            raise InvalidSpec("after", f"there is no job '{name}'{rest}")
        if forgotten:
            states[dependency.job] = forgotten
        for name, job_state in states.items():
            if job_state not in TERMINAL:
                blocked[name] = None
            elif dependency.when == "succeeded" and job_state != JobState.COMPLETED:
                raise InvalidSpec("after", f"job '{name}' is {job_state} and can no longer succeed")
    return tuple(blocked)
