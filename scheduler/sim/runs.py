"""Turn a `Run` into the options of `simulate`.

Rules: every mistake is refused here, before anything runs, with the field at fault (`InvalidSpec`) or the file and line
(`TraceError`). Runs with the same values, and with files of the same contents, have the same `key`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from policies.errors import PolicyError
from policies.problem import Problem
from policies.registry import resolve
from protos.files.settings import read_settings
from scheduler import plugins
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import COMPARISON, Settings
from scheduler.sim.run import FILES, HOUR_S, JOBS, KNOBS, Run
from scheduler.sim.run_checks import check_cluster, check_cpus, check_numbers, check_tenants
from scheduler.sim.scenario.arrivals import NOWHERE, Places, can_end
from scheduler.sim.scenario.changes import changes_of, horizon_s
from scheduler.sim.simulate import Conditions, SimOptions
from scheduler.sim.tables import prices, rates_for_scheduler, table_of
from scheduler.sim.unknown_pairs import check_unknown_pairs
from traces.costs import read_costs
from traces.errors import TraceError, UnreadableFile
from traces.formats import read_trace
from traces.named import PUBLISHED, WORKLOADS, workload
from traces.throughputs import Throughputs
from traces.trace import TraceJob

# The version of the meaning of a run. It is part of every key, so results of another version do not count.
VERSION = 3


def key(run: Run) -> str:
    """Return a hash of the run's values and of the contents of its files, independent of the names of the files."""
    data = run.data
    for field in FILES:
        if field in data:
            data[field] = _digest(data[field])
    if run.policy_files:
        data["policy_files"] = sorted(map(_digest, run.policy_files))
    text = json.dumps([VERSION, data], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
        raise UnreadableFile(why, file=path, hint="check the path") from None


@dataclass(frozen=True)
class Prepared:
    """A run that has been checked, and can start."""

    options: SimOptions
    # The number of jobs that will end in the run, if known.
    jobs: int | None
    # Notes on repairs of the trace, and on gaps in other files.
    notes: tuple[str, ...] = ()


def prepare(run: Run) -> Prepared:
    """Check the run, and read its files."""
    for fault in plugins.load(run.policy_files).values():
        raise InvalidSpec("policy_files", fault)
    settings = settings_of(run)
    check_numbers(run)
    check_unknown_pairs(run)
    if run.workload in PUBLISHED and not run.throughputs:
        problem = (
            f"is missing: {run.workload!r} needs the published throughput table, which Gavel does not ship"
        )
        raise InvalidSpec("throughputs", f"{problem}; give it, or choose a workload such as mixed-day")
    table = table_of(run.throughputs, run.measured, run.pairs, run.plans)
    check_cluster(run, table)
    check_cpus(run, table)
    check_tenants(run, settings, table)
    jobs, count, notes = jobs_of(run, table)
    if run.measure is not None and count is not None and run.measure[1] > count:
        raise InvalidSpec("measure", f"ends at job {run.measure[1]}, but there are only {count}")
    costs = read_costs(run.costs_file, table.job_types) if run.costs_file else {}
    shared = {name: run.effective(name) for name in Conditions.__struct_fields__ if name in KNOBS}
    conditions = Conditions(**shared, costs=costs)
    until_s, more_notes = horizon_s(_last_arrival_s(run, jobs)), list[str]()
    events = changes_of(run, until_s=until_s, checkpoints_s=conditions.checkpoints_s, note=more_notes.append)
    options = SimOptions(
        **conditions.conditions,
        cluster=run.cluster,
        gpus_per_node=run.effective("gpus_per_node"),
        cpus_per_node=run.cpus_per_node,
        jobs=jobs,
        throughputs=table,
        believed=rates_for_scheduler(run, table),
        settings=settings,
        prices=prices(run, table),
        measure=run.measure,
        ideal=run.ideal,
        events=events,
    )
    return Prepared(options, run.measure[1] if run.measure else count, (*notes, *more_notes))


def _last_arrival_s(run: Run, jobs: Iterable[TraceJob]) -> float:
    if isinstance(jobs, list):
        return jobs[-1].arrival_s if jobs else 0.0
    assert run.measure is not None, "a workload without end needs a range of measured jobs"
    return HOUR_S * run.measure[1] / (run.rate_per_h or 1.0)


def settings_of(run: Run) -> Settings:
    """Return the scheduler's settings: those of a file or of the published figures, overridden by the run's own."""
    base = _base(run)
    policy = run.policy or (base.policy if run.config else "las")
    _try_policy(policy, run)
    changes: dict[str, Any] = {"policy": policy, "seed": run.seed}
    for field in ("round_s", "min_reallocation_s"):
        if getattr(run, field) is not None:
            changes[field] = getattr(run, field)
    # A short round needs shorter leads than the usual ones.
    if run.round_s is not None and 0 < run.round_s <= Settings().solve_lead_s and not run.comparison:
        changes |= {"solve_lead_s": run.round_s / 4, "plan_lead_s": run.round_s / 8}
    return msgspec.structs.replace(base, **changes).checked()


def _base(run: Run) -> Settings:
    if not run.config:
        return COMPARISON if run.comparison else Settings()
    if run.comparison:
        raise InvalidSpec("config", "cannot be combined with --comparison, which has its own settings")
    return read_settings(Settings, run.config)


def _try_policy(policy: str, run: Run) -> None:
    """Refuse a policy that does not exist or cannot work. Its parameters are checked only when it solves a problem."""
    types = tuple(run.cluster) or ("gpu",)
    ones = [1.0] * len(types)
    one_job = Problem.from_rates(
        [ones], 1, ones, worker_types=types, price_per_gpu_hour=ones, steps_left=1.0, deadline_s=math.inf
    )
    try:
        resolve(policy)(one_job)
    except PolicyError as error:
        raise InvalidSpec("policy", str(error)) from None
    # Python's parser raises MemoryError if parentheses are nested too deeply.
    except (RecursionError, MemoryError):
        raise InvalidSpec("policy", "too long or too deeply nested") from None


class Jobs(NamedTuple):
    """Jobs in order of arrival, each of which can run somewhere. `total` is None if they are endless."""

    jobs: Iterable[TraceJob]
    total: int | None
    notes: tuple[str, ...] = ()


def jobs_of(run: Run, table: Throughputs) -> Jobs:
    """Return the jobs of the run's trace or workload."""
    if bool(run.trace) == bool(run.workload):
        raise InvalidSpec("workload", "give either a trace or --workload, one of " + ", ".join(WORKLOADS))
    return _traced(run, table) if run.trace else _generated(run, table)


def _traced(run: Run, table: Throughputs) -> Jobs:
    for field in ("rate_per_h", "hours"):
        if getattr(run, field) is not None:
            raise InvalidSpec(field, "belongs to --workload; a trace has arrival times of its own")
    trace = read_trace(run.trace, repair=run.repair, throughputs=table, subtrace=run.subtrace)
    notes = tuple(f"{run.trace}: {note}" for note in trace.notes)
    return _counted(run, table, islice(trace, run.jobs), (run.trace, trace.lines))._replace(notes=notes)


def _generated(run: Run, table: Throughputs) -> Jobs:
    if run.rate_per_h is None:
        raise InvalidSpec("rate_per_h", "is missing: jobs per hour")
    try:
        jobs = workload(run.workload, table, rate_per_h=run.rate_per_h, seed=run.seed)
    except TraceError as error:
        fields = {"name": "workload", "throughputs": "throughputs", "rate_per_h": "rate_per_h"}
        hint = f"; {error.hint}" if error.hint else ""
        raise InvalidSpec(fields.get(error.field, "workload"), error.message + hint) from None
    if run.hours is not None:
        end_s = _last_arrival_limit_s(run.hours, run.rate_per_h, run.jobs)
        jobs = takewhile(lambda job: job.arrival_s < end_s, jobs)
    elif run.jobs is None:
        if run.measure is None:
            problem = "is missing: a workload has no end of its own; give --jobs, --hours or --measure"
            raise InvalidSpec("jobs", problem)
        if run.rate_per_h == math.inf:
            problem = "is missing: at an infinite rate, --measure does not end the run; give --jobs"
            raise InvalidSpec("jobs", problem)
        return Jobs(can_end(run.cluster, run.effective("gpus_per_node"), table, jobs), None)
    return _counted(run, table, islice(jobs, run.jobs))


def _last_arrival_limit_s(hours: float, rate_per_h: float, jobs: int | None) -> float:
    """Return when the last job may arrive. Refuse hours that do not bound the number of jobs."""
    if rate_per_h == math.inf:
        raise InvalidSpec("hours", "cannot bound an infinite rate: give --jobs")
    if jobs is None and hours * rate_per_h > JOBS.most:
        problem = f"is {hours:g}: some {hours * rate_per_h:,.0f} jobs; at most {JOBS.most:,} can be simulated"
        raise InvalidSpec("hours", problem)
    return hours * HOUR_S


def _counted(run: Run, table: Throughputs, jobs: Iterator[TraceJob], places: Places = NOWHERE) -> Jobs:
    checked = list(can_end(run.cluster, run.effective("gpus_per_node"), table, jobs, places))
    return Jobs(checked, len(checked))
