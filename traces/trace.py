"""A job of a trace, and a trace.

Rules: a wrong job or trace is refused when it is made, so that no other module has to check it. Times are seconds from
the start of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from traces.errors import BadRow, show
from traces.limits import LENGTH_S, STEPS, TIME_S, WEIGHT

# No cluster has more GPUs; a greater number probably belongs in another column.
GPUS_MAX = 1 << 20


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace.

    `steps` is the work of the job; None means that the work is unknown: the job runs until it reports that it is done.
    `duration_s` is how long the work takes on the reference type (information only); `deadline_s` counts from arrival.
    `gpus_min` and `gpus_max` allow other numbers of GPUs than `gpus`. The GPUs come in groups of `gpus_together`, each
    on one node. `worker_types` are the types that the job may use; empty means all.
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
    gpus_together: int = 1
    worker_types: tuple[str, ...] = ()
    name: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
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
                raise BadRow(f"{show(kind)} is not a worker type", field="worker_types", hint="name a type")
        for field, value, limits in (
            ("arrival_s", self.arrival_s, TIME_S),
            ("weight", self.weight, WEIGHT),
            ("steps", self.steps, STEPS),
            ("duration_s", self.duration_s, LENGTH_S),
            ("deadline_s", self.deadline_s, LENGTH_S),
        ):
            if value is not None and not limits.least <= value <= limits.most:
                raise BadRow(f"is {value}", field=field, hint=f"give {_HINTS[field]}{limits}")
        self._check_widths()

    def _check_widths(self) -> None:
        """Refuse widths unless 1 ≤ gpus_min ≤ gpus ≤ gpus_max, all of them multiples of gpus_together."""
        for field in ("gpus_together", "gpus", "gpus_min", "gpus_max"):
            gpus = getattr(self, field)
            if gpus is not None and not (isinstance(gpus, int) and 1 <= gpus <= GPUS_MAX):
                raise BadRow(
                    f"is {show(gpus)}", field=field, hint=f"give a whole number from 1 to {GPUS_MAX}"
                )
            if gpus is not None and gpus % self.gpus_together and field != "gpus_together":
                together = f"gpus_together = {self.gpus_together}"
                raise BadRow(f"is {gpus}, no multiple of {together}", field=field, hint="change one of them")
        if self.gpus_min is not None and self.gpus_min > self.gpus:
            raise BadRow(f"is {self.gpus_min}, above gpus = {self.gpus}", field="gpus_min", hint="lower it")
        if self.gpus_max is not None and self.gpus_max < self.gpus:
            raise BadRow(f"is {self.gpus_max}, below gpus = {self.gpus}", field="gpus_max", hint="raise it")


_HINTS = {
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
    """Jobs in order of arrival, with different ids."""

    jobs: tuple[TraceJob, ...]
    # The file or the workload from which the jobs come.
    source: str = ""
    # Notes on repairs and oddities.
    notes: tuple[str, ...] = ()
    # The line of each job in its file; empty if there is no file.
    lines: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse jobs out of order and ids that appear twice."""
        ids: set[str] = set()
        last_s = 0.0
        for job in self.jobs:
            if job.id in ids:
                raise BadRow(f"{show(job.id)} appears twice", field="id", hint="give every job its own")
            if job.arrival_s < last_s:
                raise BadRow(
                    f"job {show(job.id)} arrives before the previous job",
                    field="arrival_s",
                    hint="sort jobs by arrival",
                )
            ids.add(job.id)
            last_s = job.arrival_s

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self.jobs)

    def __iter__(self) -> Iterator[TraceJob]:
        """Iterate over the jobs in order of arrival."""
        return iter(self.jobs)
