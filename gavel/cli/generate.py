"""`gavel generate`: a workload as a trace file."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import msgspec

from gavel.cli import Fault
from gavel.cli.document import BadFile, read_document
from gavel.cli.outputs import check_file, say, unwritable
from gavel.cli.simulate import faults
from gavel.cli.wording import count_of, nearest, printable, shown
from traces.errors import TraceError
from traces.formats import write_trace
from traces.generator import WorkloadSpec
from traces.generator import generate as generate_jobs
from traces.named import WORKLOADS, workload
from traces.roofline import default_throughputs
from traces.throughputs import Throughputs, load_throughputs
from traces.trace import TraceJob

HOUR_S = 3600.0
SUFFIXES = (".csv", ".trace")


def generate(
    output: str,
    workload: str,
    spec: str | None,
    rate_per_h: float | None,
    jobs: int | None,
    hours: float | None,
    throughputs: str,
    seed: int,
) -> None:
    """The command's body."""
    if not output.endswith(SUFFIXES):
        raise Fault(f"OUTPUT: {printable(output)}: must end in {' or '.join(SUFFIXES)}")
    if jobs is None and hours is None:
        raise Fault("--jobs: is missing: a workload goes on for ever; give --jobs or --hours")
    if jobs is None and rate_per_h == math.inf:
        raise Fault("--hours: cannot bound an infinite rate: give --jobs")
    with faults():
        table = load_throughputs(throughputs) if throughputs else default_throughputs()
        endless = _own(spec, table, rate_per_h, seed) if spec else _named(workload, table, rate_per_h, seed)
        check_file("OUTPUT", output)
        if hours is not None:
            endless = takewhile(lambda job: job.arrival_s < hours * HOUR_S, endless)
        written = _Counted(islice(endless, jobs))
        place = Path(output)
        aside = place.with_name(f".{place.stem}.{os.getpid()}{place.suffix}")  # whole, or not at all
        try:
            write_trace(aside, written)
            aside.replace(place)
        except OSError as error:
            raise unwritable("OUTPUT", output, error) from None
        finally:
            aside.unlink(missing_ok=True)
    say(f"written: {printable(output)}, {count_of(written.count, 'job')} in {written.last_s / HOUR_S:,.1f} h")


class _Counted:
    """Jobs on their way, counted as they pass."""

    def __init__(self, jobs: Iterator[TraceJob]) -> None:
        self.jobs, self.count, self.last_s = jobs, 0, 0.0

    def __iter__(self) -> Iterator[TraceJob]:
        for job in self.jobs:
            self.count += 1
            self.last_s = job.arrival_s
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


def _own(path: str, table: Throughputs, rate_per_h: float | None, seed: int) -> Iterator[TraceJob]:
    name = "standard input" if path == "-" else printable(path)
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
        return generate_jobs(msgspec.convert(data, WorkloadSpec, strict=False), table, seed)
    except (BadFile, msgspec.ValidationError) as error:
        raise Fault(f"{name}: {printable(_readable(str(error)))}") from None
    except TraceError as error:
        raise Fault(f"{name}: {printable(str(error))}") from None


def _readable(message: str) -> str:
    return message[:1].lower() + message[1:].replace("`$.", "`")
