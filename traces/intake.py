"""Make a trace from the lines of a file: the only place that checks jobs, and repairs them on request.

Rules: a wrong line is always refused, with file and line. A line with a small fault is refused unless `repair` is on.
With `repair`, each kind of small fault is repaired in one fixed way, and the trace's notes count the repairs. If there
is a throughput table, the trace has to fit it: job types must be known, some worker type must run them on that number
of GPUs, and every job with a duration must have steps.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any
from zlib import crc32

from traces.errors import BadRow, nearest, show
from traces.throughputs import Throughputs
from traces.trace import Trace, TraceJob

# How to request repairs in Python; commands show their option instead.
REPAIR = "repair=True"


class Intake:
    """Collects the jobs of one file, line by line, and makes a trace from them."""

    def __init__(self, file: str, *, repair: bool = False, throughputs: Throughputs | None = None) -> None:
        self.file, self.repair, self.throughputs = file, repair, throughputs
        self.jobs: list[TraceJob] = []
        self._lines: list[int] = []
        self.repair_counts: Counter[str] = Counter()
        self._line_of_id: dict[str, int] = {}
        self._last_s = 0.0
        self._in_order = True
        table = throughputs or Throughputs({})
        # Cached, because a trace has many jobs of few types.
        self._widths_of = cache(table.widths)
        self._reference_rate = cache(table.reference_rate)

    def add(self, line: int, facts: dict[str, Any], deadline_factor: float | None = None) -> None:
        """Add one job. `gpus` may be a float; `deadline_factor` is a deadline as a multiple of the job's duration."""
        if type(facts["gpus"]) is not int:
            self._make_whole(line, facts)
        if self.throughputs is not None:
            self._fit(line, facts, self.throughputs)
        if deadline_factor is not None:
            self._set_deadline(line, facts, deadline_factor)
        if facts["id"] in self._line_of_id:
            self._rename(line, facts)
        try:
            job = TraceJob(**facts)
        except BadRow as fault:
            if fault.field == "job_type" and not facts["job_type"]:
                fault = BadRow(
                    fault.message,
                    field="job_type",
                    hint=f"name it, or read with {REPAIR} and a throughput table",
                )
            raise fault.at(self.file, line) from None
        if job.arrival_s < self._last_s:
            self._require_repair(
                line, "arrival_s", f"{job.arrival_s:g} is before the line above", "sort the lines"
            )
            self.repair_counts["jobs sorted by arrival"] += 1
            self._in_order = False
        self._last_s = job.arrival_s
        self._line_of_id[job.id] = line
        self.jobs.append(job)
        self._lines.append(line)

    def next_part(self) -> None:
        """Begin a part that has times of its own. At the end, all parts are sorted by arrival; this is not a repair."""
        self._last_s, self._in_order = 0.0, False

    def cut_off(self, line: int) -> None:
        """Refuse the last line, which is incomplete, or leave it out."""
        self._require_repair(line, "", "the last line was cut off", "complete or delete it")
        self.repair_counts["last line left out: it was cut off"] += 1

    def trace(self, *remarks: str) -> Trace:
        """Return the jobs in order of arrival, with notes on the repairs and with further remarks."""
        order = list(range(len(self.jobs)))
        if not self._in_order:
            order.sort(key=lambda number: self.jobs[number].arrival_s)
        notes = tuple(f"{text}: {count}" for text, count in sorted(self.repair_counts.items()))
        jobs, lines = tuple(self.jobs[n] for n in order), tuple(self._lines[n] for n in order)
        return Trace(jobs, self.file, (*notes, *remarks), lines)

    def _require_repair(self, line: int, field: str, message: str, hint: str) -> None:
        """Refuse the line, unless repairs are on."""
        if not self.repair:
            raise BadRow(
                message, field=field, hint=f"{hint}, or read it with {REPAIR}", file=self.file, line=line
            )

    def _make_whole(self, line: int, facts: dict[str, Any]) -> None:
        gpus = float(facts["gpus"])
        self._require_repair(line, "gpus", f"{gpus} is not written as a whole number", "write it as one")
        facts["gpus"] = math.ceil(gpus)
        self.repair_counts["gpus rounded up to whole ones"] += 1

    def _rename(self, line: int, facts: dict[str, Any]) -> None:
        name = facts["id"]
        first = self._line_of_id[name]
        self._require_repair(
            line, "id", f"{show(name)} is already the id of line {first}", "give every job its own"
        )
        count = 2
        while f"{name}#{count}" in self._line_of_id:
            count += 1
        facts["id"] = f"{name}#{count}"
        self.repair_counts["repeated ids given a number"] += 1

    def _set_deadline(self, line: int, facts: dict[str, Any], factor: float) -> None:
        rate = self._reference_rate(facts["job_type"], facts["gpus"])
        if facts.get("duration_s") is None and facts.get("steps") is not None and rate > 0:
            facts["duration_s"] = facts["steps"] / rate
        if facts.get("duration_s") is None:
            raise BadRow(
                "the deadline is a multiple of an unknown duration",
                field="deadline_s",
                hint="give a throughput table",
                file=self.file,
                line=line,
            )
        facts["deadline_s"] = factor * facts["duration_s"]

    def _fit(self, line: int, facts: dict[str, Any], table: Throughputs) -> None:
        """Check type and width by the table, and derive missing steps; refuse or repair values that do not fit."""
        job_type, gpus = facts["job_type"], facts["gpus"]
        has_no_rate = not self._widths_of(job_type)
        if has_no_rate:
            if job_type in table.job_types:
                fault, hint = "has no rate above 0 in the throughput table", "give one"
            else:
                fault = "is not in the throughput table"
                hint = nearest(job_type, table.job_types) if job_type else "name it"
            self._require_repair(line, "job_type", f"{show(job_type)} {fault}", hint)
            facts["job_type"] = self._substitute(job_type or facts["id"], gpus, table)
            self.repair_counts["unknown job types replaced by types of the table"] += 1
        widths = self._widths_of(facts["job_type"])
        if gpus not in widths and gpus > 0:
            listed = f"{', '.join(map(str, widths))} GPU{'s' if widths != (1,) else ''}"
            self._require_repair(
                line, "gpus", f"{show(facts['job_type'])} runs on {listed}, not {gpus}", "change it"
            )
            facts["gpus"] = gpus = max((w for w in widths if w <= gpus), default=widths[0])
            self._move_limits(facts)
            self.repair_counts["widths changed to widths of the table"] += 1
        if facts.get("duration_s") is not None and (has_no_rate or facts.get("steps") is None):
            self._require_repair(line, "steps", "are missing", "give them")
            facts["steps"] = facts["duration_s"] * self._reference_rate(facts["job_type"], gpus)
            self.repair_counts["steps set to duration times the rate on the reference type"] += 1

    def _substitute(self, name: str, gpus: int, table: Throughputs) -> str:
        """Return a type of the table to replace an unknown one. The same name always gives the same type.

        If any type runs on that number of GPUs, the answer is such a type.
        """
        usable = [job_type for job_type in table.job_types if self._widths_of(job_type)]
        choices = [job_type for job_type in usable if gpus in self._widths_of(job_type)] or usable
        if not choices:
            raise BadRow(
                "the throughput table is empty", field="job_type", hint="give another", file=self.file
            )
        return choices[crc32(name.encode()) % len(choices)]

    @staticmethod
    def _move_limits(facts: dict[str, Any]) -> None:
        """Widen the range of an elastic job so that it includes the job's new number of GPUs."""
        gpus = facts["gpus"]
        if facts.get("gpus_min") is not None:
            facts["gpus_min"] = min(facts["gpus_min"], gpus)
        if facts.get("gpus_max") is not None:
            facts["gpus_max"] = max(facts["gpus_max"], gpus)
