"""`gavel generate`: writes a workload as a trace file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import click
import msgspec

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import JSON, options
from gavel.cli.io.outputs import check_file, print_data, say
from gavel.cli.io.wording import count_of, file_name
from gavel.cli.simulation.options import run_option
from protos.files.errors import BadInput, literal, suggest
from scheduler.sim.run import HOUR_S, JOBS
from scheduler.sim.scenario.arrivals import YEAR_S, YEARS_MAX
from scheduler.sim.tables import table_of
from traces.errors import TraceError
from traces.formats import write_trace
from traces.generator import WorkloadSpec
from traces.generator import generate as jobs_of_spec
from traces.named import WORKLOADS, workload
from traces.throughputs import Throughputs
from traces.trace import TraceJob

DEFAULT_WORKLOAD = "mixed-day"
SUFFIXES = (".csv", ".trace")
# The bar moves once per this many jobs.
SHOW_EVERY = 5000


@click.command()
@click.argument("output", type=click.Path())
@options(
    run_option("workload", f"A workload by name.  [default: {DEFAULT_WORKLOAD}]"),
    click.option(
        "--spec",
        type=click.Path(allow_dash=True),
        metavar="FILE",
        help="A workload of your own: a YAML or JSON file; docs/simulation.md.",
    ),
    run_option("rate_per_h", "How many jobs arrive per hour; inf: all at once. A spec may set it, too."),
    run_option("jobs", "How many jobs."),
    run_option("hours", "The jobs of the first H hours."),
    run_option("throughputs"),
    run_option("measured"),
    run_option("pairs"),
    run_option("plans"),
    run_option("seed"),
    JSON,
)
def generate(
    output: str,
    workload: str,
    spec: str | None,
    rate_per_h: float | None,
    jobs: int | None,
    hours: float | None,
    throughputs: str,
    measured: str,
    pairs: str,
    plans: str,
    seed: int | None,
    as_json: bool,
) -> None:
    """Write a trace to OUTPUT: a .csv in our format, or a .trace in the format of the original Gavel."""
    from gavel.cli.simulation.refusals import refusals_as_faults

    if not output.endswith(SUFFIXES):
        raise Fault(f"OUTPUT: {output}: must end in {' or '.join(SUFFIXES)}")
    if jobs is None and hours is None:
        raise Fault("--jobs: is missing: a workload has no end of its own; give --jobs or --hours")
    if workload and spec is not None:
        raise Fault("--spec: cannot be combined with --workload; leave one of them out")
    with refusals_as_faults():
        table = table_of(throughputs, measured, pairs, plans)
        if spec:
            with refusing(BadInput, TraceError, subject=file_name(spec)):
                workload_spec = _read_spec(spec, rate_per_h)
                rate_per_h, endless = workload_spec.rate_per_h, jobs_of_spec(workload_spec, table, seed or 0)
        else:
            endless = _jobs_by_name(workload or DEFAULT_WORKLOAD, table, rate_per_h, seed or 0)
        expected = _expected(jobs, hours, rate_per_h or 0.0)
        check_file("OUTPUT", output)
        if hours is not None:
            end_s = hours * HOUR_S
            endless = takewhile(lambda job: job.arrival_s < end_s, endless)
        count, last_s = _write(output, islice(endless, jobs), expected, spec or "")
    if not count:
        raise Fault(f"--hours: is {hours:g}: no job arrives in that time; give more hours")
    if as_json:
        print_data({"file": output, "jobs": count, "last_arrival_s": last_s})
        return
    say(f"written: {output}, {count_of(count, 'job')} in {last_s / HOUR_S:,.1f} h")


def _write(output: str, jobs: Iterator[TraceJob], expected: float, spec: str) -> tuple[int, float]:
    """Write the whole trace, or nothing if it has no jobs; return their number and the last arrival."""
    from gavel.cli.io.progress import bar

    target = Path(output)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    with bar("generating") as show:
        counting_jobs = _CountingJobs(jobs, lambda count: show(f"{count:,} jobs", min(count / expected, 1.0)))
        try:
            with refusing(OSError, subject=f"OUTPUT: {output}"):
                write_trace(temporary, counting_jobs)
                if counting_jobs.count:
                    temporary.replace(target)
        except TraceError as error:
            raise Fault(f"{file_name(spec or output)}: job {counting_jobs.count}: {error}") from None
        finally:
            temporary.unlink(missing_ok=True)
    return counting_jobs.count, counting_jobs.last_s


def _expected(jobs: int | None, hours: float | None, rate_per_h: float) -> float:
    """Estimate the number of jobs; refuse too many of them, and too many years."""
    if jobs is None and rate_per_h == math.inf:
        raise Fault("--hours: cannot bound an infinite rate: give --jobs")
    arrivals = math.inf if hours is None else hours * rate_per_h
    if jobs is None and arrivals > JOBS.most:
        problem = f"is {hours:g}: about {arrivals:.3g} jobs; the limit is {JOBS.most:,}"
        raise Fault(f"--hours: {problem}; give fewer, or --jobs")
    expected = min(arrivals, jobs or math.inf)
    years = expected / rate_per_h * HOUR_S / YEAR_S
    if years > YEARS_MAX:
        problem = f"the last job would arrive after {years:.3g} years; the limit is {YEARS_MAX}"
        raise Fault(f"--rate: is {rate_per_h:g}: {problem}")
    return max(expected, 1.0)


class _CountingJobs:
    """An iterable of jobs that counts them as they are read; it calls `show` with the count every SHOW_EVERY jobs."""

    def __init__(self, jobs: Iterator[TraceJob], show: Callable[[int], None]) -> None:
        self.jobs, self.count, self.last_s, self._show = jobs, 0, 0.0, show

    def __iter__(self) -> Iterator[TraceJob]:
        for job in self.jobs:
            if job.arrival_s > YEARS_MAX * YEAR_S:
                problem = f"job {self.count} would arrive after more than {YEARS_MAX} years"
                raise Fault(f"--rate: {problem}; give a higher one")
            self.count += 1
            self.last_s = job.arrival_s
            if self.count % SHOW_EVERY == 0:
                self._show(self.count)
            yield job


def _jobs_by_name(name: str, table: Throughputs, rate_per_h: float | None, seed: int) -> Iterator[TraceJob]:
    if name not in WORKLOADS:
        raise Fault(f"--workload: there is no {literal(name)}; {suggest(name, WORKLOADS)}")
    if rate_per_h is None:
        raise Fault("--rate: is missing: jobs per hour")
    with refusing(TraceError, subject="--workload"):
        return workload(name, table, rate_per_h=rate_per_h, seed=seed)


def _read_spec(path: str, rate_per_h: float | None) -> WorkloadSpec:
    from gavel.cli.io.document import read_document

    data: Any = read_document(path).data
    if type(data) is not dict:
        raise BadInput("must be a mapping with the fields of a workload")
    fields = [field.name for field in dataclasses.fields(WorkloadSpec)]
    for field in data:
        if field not in fields:
            raise BadInput("is not a field of a workload", suggest(field, fields), place=(field,))
    if rate_per_h is not None:
        data = {**data, "rate_per_h": rate_per_h}
    if "rate_per_h" not in data:
        raise BadInput("rate_per_h is missing; it can be given as --rate, too")
    try:
        return msgspec.convert(data, WorkloadSpec, strict=False)
    except msgspec.ValidationError as error:
        # Our messages begin without a capital, and fields have no `$.` before them.
        message = str(error).replace("`$.", "`")
        raise BadInput(message[:1].lower() + message[1:]) from None
