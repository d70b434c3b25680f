"""A job of a trace, and a trace.

Rules: what is here can be right. A job or trace that cannot be is refused when it is made, so nobody behind
this module checks again. Times are seconds from the start of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from traces.errors import BadRow, show
from traces.limits import LENGTH_S, STEPS, TIME_S, WEIGHT

GPUS_MAX = 1 << 20  # more than any cluster has: beyond it a number has slipped into the wrong column


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it arrives.

    `steps` is its work; None when nobody knows, and then it runs until it says that it is done.
    `duration_s` is what the work takes on the reference type (information only), `deadline_s` counts from
    arrival. `gpus_min` and `gpus_max` allow other widths than `gpus`; `worker_types` are the types that it
    may use, all when empty.
    """

    id: str
    arrival_s: float
    job_type: str
    gpus: int = 1
    steps: float | None = None
    duration_s: float | None = None
    weight: float = 1.0
    tenant: str = ""
    deadline_s: float | None = None
    gpus_min: int | None = None
    gpus_max: int | None = None
    worker_types: tuple[str, ...] = ()
    name: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be right."""
        for field, text in (("id", self.id), ("job_type", self.job_type)):
            if not text:
                raise BadRow("is empty", field=field, hint="every job needs one")
            _check_text(field, text)
        for field, text in (("tenant", self.tenant), ("name", self.name), ("user", self.user)):
            if text:
                _check_text(field, text)
        for kind in self.worker_types:
            _check_text("worker_types", kind)
            if not kind or "|" in kind:
                raise BadRow(f"{show(kind)} is no worker type", field="worker_types", hint="name a type")
        for field, value, limits in (
            ("arrival_s", self.arrival_s, TIME_S),
            ("weight", self.weight, WEIGHT),
            ("steps", self.steps, STEPS),
            ("duration_s", self.duration_s, LENGTH_S),
            ("deadline_s", self.deadline_s, LENGTH_S),
        ):
            if value is not None and not limits.least <= value <= limits.most:
                raise BadRow(f"is {value}", field=field, hint=f"give {_MEANT[field]}{limits}")
        self._check_widths()

    def _check_widths(self) -> None:
        """1 ≤ gpus_min ≤ gpus ≤ gpus_max."""
        for field, gpus in (("gpus", self.gpus), ("gpus_min", self.gpus_min), ("gpus_max", self.gpus_max)):
            if gpus is not None and not (isinstance(gpus, int) and 1 <= gpus <= GPUS_MAX):
                raise BadRow(
                    f"is {show(gpus)}", field=field, hint=f"give a whole number from 1 to {GPUS_MAX}"
                )
        if self.gpus_min is not None and self.gpus_min > self.gpus:
            raise BadRow(f"is {self.gpus_min}, above gpus = {self.gpus}", field="gpus_min", hint="lower it")
        if self.gpus_max is not None and self.gpus_max < self.gpus:
            raise BadRow(f"is {self.gpus_max}, below gpus = {self.gpus}", field="gpus_max", hint="raise it")


_MEANT = {
    "arrival_s": "seconds, ",
    "weight": "a number, 1 as usual or ",
    "steps": "a number, or leave it empty: ",
    "duration_s": "seconds, or leave it empty: ",
    "deadline_s": "seconds, or leave it empty: ",
}


def _check_text(field: str, text: str) -> None:
    if not text.isprintable() or text[:1].isspace() or text[-1:].isspace():
        raise BadRow(
            f"{show(text)} has control characters or spaces around it",
            field=field,
            hint="use visible characters only",
        )


class Trace(msgspec.Struct, frozen=True):
    """Jobs in order of arrival, each id once; where they came from, and what was done to them on the way."""

    jobs: tuple[TraceJob, ...]
    source: str = ""
    notes: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()  # of the source, where each job stood

    def __post_init__(self) -> None:
        """Refuse jobs out of order and ids that come twice."""
        seen: set[str] = set()
        last_s = 0.0
        for job in self.jobs:
            if job.id in seen:
                raise BadRow(f"{show(job.id)} comes twice", field="id", hint="give every job its own")
            if job.arrival_s < last_s:
                raise BadRow(
                    f"job {show(job.id)} arrives before the one in front of it",
                    field="arrival_s",
                    hint="sort jobs by arrival",
                )
            seen.add(job.id)
            last_s = job.arrival_s

    def __len__(self) -> int:
        """How many jobs."""
        return len(self.jobs)

    def __iter__(self) -> Iterator[TraceJob]:
        """The jobs, as they arrive."""
        return iter(self.jobs)
