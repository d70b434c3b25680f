"""`gavel generate`: a workload as a trace file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec

from gavel.cli.faults import Fault
from gavel.cli.io.document import BadFile, read_document
from gavel.cli.io.outputs import STDOUT, check_file, say, unwritable, write_json
from gavel.cli.io.progress import Bar
from gavel.cli.io.wording import count_of, nearest, printable, shown
from gavel.cli.simulation.simulate import faults
from scheduler.sim.run_checks import JOBS_MAX
from scheduler.sim.runs import table_of
from scheduler.sim.scenario.arrivals import YEAR_S, YEARS_MAX
from traces.errors import TraceError
from traces.formats import write_trace
from traces.generator import WorkloadSpec
from traces.generator import generate as generate_jobs
from traces.named import WORKLOADS, workload
from traces.throughputs import Throughputs
from traces.trace import TraceJob

HOUR_S = 3600.0
USUAL = "mixed-day"
SUFFIXES = (".csv", ".trace")
TELL_EVERY = 5000  # jobs between two looks at the bar


def generate(
    output: str,
    workload: str | None,
    spec: str | None,
    rate_per_h: float | None,
    jobs: int | None,
    hours: float | None,
    throughputs: str,
    measured: str,
    pairs: str,
    seed: int,
    as_json: bool,
) -> None:
    """The command's body."""
    if not output.endswith(SUFFIXES):
        raise Fault(f"OUTPUT: {printable(output)}: must end in {' or '.join(SUFFIXES)}")
    if jobs is None and hours is None:
        raise Fault("--jobs: is missing: a workload goes on for ever; give --jobs or --hours")
    if jobs is not None and jobs > JOBS_MAX:
        raise Fault(f"--jobs: is {jobs:,}, must be at most {JOBS_MAX:,}")
    if workload is not None and spec is not None:
        raise Fault("--spec: is a workload of one's own; leave it or --workload out")
    with faults():
        table = table_of(throughputs, measured, pairs)
        if spec:
            own = _own_spec(spec, rate_per_h)
            rate_per_h = own.rate_per_h
            endless = _own(spec, own, table, seed)
        else:
            endless = _named(workload or USUAL, table, rate_per_h, seed)
        expected = _expected(jobs, hours, rate_per_h or 0.0)
        check_file("OUTPUT", output)
        if hours is not None:
            endless = takewhile(lambda job: job.arrival_s < hours * HOUR_S, endless)
    with faults(), Bar("generating") as bar:
        written = _Counted(
            islice(endless, jobs), lambda count: bar.show(f"{count:,} jobs", min(count / expected, 1.0))
        )
        place = Path(output)
        aside = place.with_name(f".{place.stem}.{os.getpid()}{place.suffix}")  # whole, or not at all
        try:
            write_trace(aside, written)
            if not written.count:
                raise Fault(f"--hours: is {hours:g}: no job arrives in so short a time; give more hours")
            aside.replace(place)
        except OSError as error:
            raise unwritable("OUTPUT", output, error) from None
        except TraceError as error:
            raise Fault(
                f"{_called(spec) if spec else output}: job {written.count}: {printable(str(error))}"
            ) from None
        finally:
            aside.unlink(missing_ok=True)
    if as_json:
        written_s = {"file": output, "jobs": written.count, "last_arrival_s": written.last_s}
        write_json("--json", STDOUT, written_s)
        return
    say(f"written: {printable(output)}, {count_of(written.count, 'job')} in {written.last_s / HOUR_S:,.1f} h")


def _expected(jobs: int | None, hours: float | None, rate_per_h: float) -> float:
    """About how many jobs it will be; refused where there are too many, or years go by between them."""
    if jobs is None and rate_per_h == math.inf:
        raise Fault("--hours: cannot bound an infinite rate: give --jobs")
    coming = math.inf if hours is None else hours * rate_per_h
    if jobs is None and coming > JOBS_MAX:
        raise Fault(
            f"--hours: is {hours:g}: some {coming:.3g} jobs, of at most {JOBS_MAX:,}; give fewer, or --jobs"
        )
    expected = min(coming, jobs or math.inf)
    if expected / rate_per_h * HOUR_S > YEARS_MAX * YEAR_S:
        years = expected / rate_per_h * HOUR_S / YEAR_S
        raise Fault(
            f"--rate: is {rate_per_h:g}: the last job would arrive after {years:.3g} years, of at most {YEARS_MAX}"
        )
    return max(expected, 1.0)


class _Counted:
    """Jobs on their way, counted as they pass; somebody is told now and then."""

    def __init__(self, jobs: Iterator[TraceJob], tell: Callable[[int], None]) -> None:
        self.jobs, self.count, self.last_s, self._tell = jobs, 0, 0.0, tell

    def __iter__(self) -> Iterator[TraceJob]:
        for job in self.jobs:
            if job.arrival_s > YEARS_MAX * YEAR_S:
                raise Fault(
                    f"--rate: job {self.count} would arrive after more than {YEARS_MAX} years; give a higher one"
                )
            self.count += 1
            self.last_s = job.arrival_s
            if self.count % TELL_EVERY == 0:
                self._tell(self.count)
            yield job


def _named(name: str, table: Throughputs, rate_per_h: float | None, seed: int) -> Iterator[TraceJob]:
    if name not in WORKLOADS:
        raise Fault(f"--workload: there is no {shown(name)}{nearest(name, WORKLOADS)}")
    if rate_per_h is None:
        raise Fault("--rate: is missing: jobs per hour")
    try:
        return workload(name, table, rate_per_h=rate_per_h, seed=seed)
    except TraceError as error:
        raise Fault(f"--workload: {printable(str(error))}") from None


def _own(path: str, spec: WorkloadSpec, table: Throughputs, seed: int) -> Iterator[TraceJob]:
    try:
        return generate_jobs(spec, table, seed)
    except TraceError as error:
        raise Fault(f"{_called(path)}: {printable(str(error))}") from None


def _own_spec(path: str, rate_per_h: float | None) -> WorkloadSpec:
    try:
        data: Any = read_document(path)
        if type(data) is not dict:
            raise BadFile("must be a mapping of the fields of a workload")
        fields = [field.name for field in dataclasses.fields(WorkloadSpec)]
        for field in data:
            if field not in fields:
                raise BadFile(f"{shown(field)} is no field of a workload{nearest(str(field), fields)}")
        if rate_per_h is not None:
            data = {**data, "rate_per_h": rate_per_h}
        if "rate_per_h" not in data:
            raise BadFile("rate_per_h is missing; it can be given as --rate, too")
        return msgspec.convert(data, WorkloadSpec, strict=False)
    except (BadFile, msgspec.ValidationError) as error:
        raise Fault(f"{_called(path)}: {printable(_readable(str(error)))}") from None
    except TraceError as error:
        raise Fault(f"{_called(path)}: {printable(str(error))}") from None


def _called(path: str) -> str:
    return "standard input" if path == "-" else printable(path)


def _readable(message: str) -> str:
    return message[:1].lower() + message[1:].replace("`$.", "`")
