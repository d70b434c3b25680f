"""A simulation as it is asked for: plain values that survive JSON, and what `simulate` is given for them.

Rules: everything that can be refused is refused here, before anything runs, with the field at fault
(`InvalidSpec`) or the file and line (`TraceError`). The same values and files mean the same run, and have the
same `key`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec

from policies.errors import PolicyError
from policies.problem import Problem
from policies.registry import resolve
from scheduler.config import load_settings
from scheduler.model.errors import InvalidSpec
from scheduler.model.settings import COMPARISON, Settings
from scheduler.sim.run import Run
from scheduler.sim.run_checks import JOBS_MAX, check_cluster, check_numbers
from scheduler.sim.scenario.arrivals import NOWHERE, Places, can_end
from scheduler.sim.scenario.changes import changes_of, horizon_s
from scheduler.sim.simulate import SimOptions
from traces.costs import read_costs
from traces.errors import BadTable, TraceError, UnreadableFile, nearest
from traces.formats import read_trace
from traces.named import PUBLISHED, WORKLOADS, workload
from traces.roofline import default_throughputs
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs
from traces.trace import TraceJob

VERSION = 3  # of what a run means; results of another version are not taken for it
GPUS_PER_NODE = 4
RESTART_S, CHECKPOINT_S = 30.0, 10.0
REPORTS_S, RARE_REPORTS_S = 3600.0, 86_400.0  # between two reports of a node
FILES = (
    "trace",
    "throughputs",
    "pairs",
    "believed",
    "prices_file",
    "capacity_file",
    "failures_file",
    "costs_file",
    "config",
)


def key(run: Run) -> str:
    """The same for the same values and contents of files, whatever the files are called."""
    data = run.data
    for field in FILES:
        if field in data:
            data[field] = _digest(data[field])
    text = json.dumps([VERSION, data], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True)
class Prepared:
    """A run that can start."""

    run: Run
    options: SimOptions
    jobs: int | None  # that will be seen to their end; None: who knows
    notes: tuple[str, ...] = ()  # what was mended in the trace, and what other files do not say


def prepare(run: Run) -> Prepared:
    """Check everything and read every file."""
    settings = settings_of(run)
    check_numbers(run, gpus_per_node(run))
    if run.workload in PUBLISHED and not run.throughputs:
        said = (
            f"is missing: the jobs of {run.workload!r} are measured in the published table, which is not ours"
        )
        raise InvalidSpec("throughputs", f"{said}; give that one, or take a workload such as mixed-day")
    table = table_of(run.throughputs, run.measured, run.pairs)
    check_cluster(run, table, gpus_per_node(run))
    jobs, count, notes = jobs_of(run, table)
    if run.measure is not None and count is not None and run.measure[1] > count:
        raise InvalidSpec("measure", f"ends at job {run.measure[1]}, but there are only {count}")
    restart_s = 0.0 if run.comparison else RESTART_S
    checkpoint_s = 0.0 if run.comparison else CHECKPOINT_S
    checkpoint_s = checkpoint_s if run.checkpoint_s is None else run.checkpoint_s
    heard = list(notes)
    costs = read_costs(run.costs_file, table.job_types) if run.costs_file else {}
    options = SimOptions(
        cluster=run.cluster,
        jobs=jobs,
        throughputs=table,
        believed=_believed(run, table),
        settings=settings,
        gpus_per_node=gpus_per_node(run),
        prices=_prices(run, table),
        measure=run.measure,
        seed=run.seed,
        restart_s=restart_s if run.restart_s is None else run.restart_s,
        checkpoint_s=checkpoint_s,
        costs=costs,
        rate_noise=run.rate_noise,
        solver_latency_s=run.solver_latency_s,
        report_interval_s=_reports_s(run),
        save_every_s=run.save_every_s,
        renewal_restarts=run.renewal_restarts,
        ideal=run.ideal,
        events=changes_of(
            run.cluster,
            gpus_per_node(run),
            seed=run.seed,
            until_s=horizon_s(_last_arrival_s(run, jobs)),
            mtbf_h=run.mtbf_h,
            repair_h=run.repair_h,
            failures_file=run.failures_file,
            notice_s=run.notice_s,
            checkpoints_s=(checkpoint_s, *(cost.checkpoint_s for cost in costs.values())),
            prices_file=run.prices_file,
            cloud=run.cloud or None,
            note=heard.append,
            capacity_file=run.capacity_file,
        ),
    )
    return Prepared(run, options, run.measure[1] if run.measure else count, tuple(heard))


def _reports_s(run: Run) -> float:
    """How often nodes report. Where rates are known and restarts free, what they say of steps changes nothing."""
    if run.report_interval_s is not None:
        return run.report_interval_s
    return RARE_REPORTS_S if run.comparison else REPORTS_S


def table_of(throughputs: str, measured: str = "", pairs: str = "") -> Throughputs:
    """The throughput table of these files, or our own."""
    for field, value in (("measured", measured), ("pairs", pairs)):
        if value and not throughputs:
            raise InvalidSpec(field, "belongs to --throughputs, which is missing")
    if not throughputs:
        return default_throughputs()
    return load_throughputs(throughputs, measured=measured or None, pairs=pairs or None)


def settings_of(run: Run) -> Settings:
    """How the scheduler is to behave."""
    base = _base(run)
    policy = run.policy or (base.policy if run.config else "las")
    try:
        resolve(policy)(
            _smallest(run)
        )  # its parameters, too, are looked at now, not in the middle of the run
    except PolicyError as error:
        raise InvalidSpec("policy", str(error)) from None
    except (RecursionError, MemoryError):  # the latter is what Python's parser raises
        raise InvalidSpec("policy", "too long or too deeply nested") from None
    given: dict[str, Any] = {"policy": policy, "seed": run.seed}
    for field in ("round_s", "min_reallocation_s"):
        if getattr(run, field) is not None:
            given[field] = getattr(run, field)
    if run.round_s is not None and 0 < run.round_s <= Settings().solve_lead_s and not run.comparison:
        given |= {"solve_lead_s": run.round_s / 4, "plan_lead_s": run.round_s / 8}
    return msgspec.structs.replace(base, **given).checked()


def _smallest(run: Run) -> Problem:
    """One job that runs on every type of the cluster."""
    types = tuple(run.cluster) or ("gpu",)
    ones = [1.0] * len(types)
    return Problem.from_rates(
        [ones], 1, ones, worker_types=types, price_per_gpu_hour=ones, steps_left=1.0, deadline_s=math.inf
    )


def _base(run: Run) -> Settings:
    """What the run's own values are set upon."""
    if not run.config:
        return COMPARISON if run.comparison else Settings()
    if run.comparison:
        raise InvalidSpec(
            "config", "cannot be had with comparison, which says itself how the scheduler behaves"
        )
    return load_settings(run.config)


def gpus_per_node(run: Run) -> int:
    """As asked for; else four, or one where published figures are compared with."""
    if run.gpus_per_node is not None:
        return run.gpus_per_node
    return 1 if run.comparison else GPUS_PER_NODE


class Jobs(NamedTuple):
    """What arrives: jobs each of which can run somewhere."""

    jobs: Iterable[TraceJob]
    total: int | None  # None: without end
    notes: tuple[str, ...] = ()


def jobs_of(run: Run, table: Throughputs) -> Jobs:
    """The jobs of a trace or a workload."""
    if bool(run.trace) == bool(run.workload):
        raise InvalidSpec("workload", "give either a trace or --workload, one of " + ", ".join(WORKLOADS))
    if run.trace:
        for field in ("rate_per_h", "hours"):
            if getattr(run, field) is not None:
                raise InvalidSpec(field, "belongs to --workload; a trace says itself when its jobs arrive")
        trace = read_trace(run.trace, repair=run.repair, throughputs=table, subtrace=run.subtrace)
        places = (run.trace, trace.lines)
        return _all(run, table, islice(trace, run.jobs), places)._replace(
            notes=tuple(f"{run.trace}: {note}" for note in trace.notes)
        )
    if run.rate_per_h is None:
        raise InvalidSpec("rate_per_h", "is missing: jobs per hour")
    if not run.rate_per_h > 0:
        raise InvalidSpec("rate_per_h", f"is {run.rate_per_h:g}, must be jobs per hour, above 0")
    try:
        jobs = workload(run.workload, table, rate_per_h=run.rate_per_h, seed=run.seed)
    except TraceError as error:
        fields = {"name": "workload", "throughputs": "throughputs", "rate_per_h": "rate_per_h"}
        hint = f"; {error.hint}" if error.hint else ""
        raise InvalidSpec(fields.get(error.field, "workload"), error.message + hint) from None
    if run.hours is not None:
        if run.rate_per_h == math.inf:
            raise InvalidSpec("hours", "cannot bound an infinite rate: give --jobs")
        if run.hours * run.rate_per_h > JOBS_MAX and run.jobs is None:
            said = f"is {run.hours:g}: some {run.hours * run.rate_per_h:,.0f} jobs, of at most {JOBS_MAX:,}"
            raise InvalidSpec("hours", said)
        end_s = run.hours * 3600.0
        return _all(run, table, islice(takewhile(lambda job: job.arrival_s < end_s, jobs), run.jobs))
    if run.jobs is not None:
        return _all(run, table, islice(jobs, run.jobs))
    if run.measure is None:
        raise InvalidSpec(
            "jobs", "is missing: a workload goes on for ever; give --jobs, --hours or --measure"
        )
    if run.rate_per_h == math.inf:
        raise InvalidSpec("jobs", "is missing: at an infinite rate --measure never ends; give --jobs")
    return Jobs(can_end(run.cluster, table, jobs), None)


def _last_arrival_s(run: Run, jobs: Iterable[TraceJob]) -> float:
    if isinstance(jobs, list):
        return jobs[-1].arrival_s if jobs else 0.0
    assert run.measure is not None, "only measured jobs come without end"
    return 3600.0 * run.measure[1] / (run.rate_per_h or 1.0)


def _all(run: Run, table: Throughputs, jobs: Iterator[TraceJob], places: Places = NOWHERE) -> Jobs:
    listed = list(can_end(run.cluster, table, jobs, places))
    return Jobs(listed, len(listed))


def _believed(run: Run, table: Throughputs) -> Throughputs | None:
    """What the scheduler is told, where that is not the truth."""
    told = _told(run) if run.believed else None
    if told is not None:
        for worker_type in run.cluster:
            if worker_type not in told.worker_types:
                hint = nearest(worker_type, told.worker_types)
                raise InvalidSpec("believed", f"{run.believed} has no rates of {worker_type!r}; {hint}")
    return told if run.rate_error == 0 else mistaken(told or table, run.rate_error, run.seed)


def _told(run: Run) -> Throughputs:
    """The table that is believed; `measured` chooses from it too, if there is a choice."""
    try:
        return load_throughputs(run.believed)
    except BadTable as error:
        if error.field != "measured" or not run.measured:
            raise
        return load_throughputs(run.believed, measured=run.measured)


def mistaken(table: Throughputs, sigma: float, seed: int) -> Throughputs:
    """The table with each job type's rate on each worker type wrong by a lognormal factor of its own, median 1."""

    def factor(job_type: str, worker_type: str) -> float:
        return Random(f"{seed}/{job_type}/{worker_type}").lognormvariate(0.0, sigma)

    return Throughputs(
        solo={k: rate * factor(k[0], k[2]) for k, rate in table.solo.items()},
        unconsolidated={k: rate * factor(k[0], k[2]) for k, rate in table.unconsolidated.items()},
        pairs={k: (a * factor(k[1], k[0]), b * factor(k[3], k[0])) for k, (a, b) in table.pairs.items()},
        prices_per_gpu_hour=table.prices_per_gpu_hour,
        memory_gb=table.memory_gb,
        source=f"{table.source}, wrong by sigma {sigma:g}",
    )


def _prices(run: Run, table: Throughputs) -> dict[str, float] | None:
    if not run.prices:
        return None
    known = {kind: price for kind, price in table.prices_per_gpu_hour.items() if kind in run.cluster}
    return known | run.prices


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise UnreadableFile(
            f"cannot be read: {error.strerror or error}", file=path, hint="check the path"
        ) from None
