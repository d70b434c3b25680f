"""A list of jobs as `gavel queue` shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, overload

from gavel.client.calls import JobFilter
from gavel.client.shown import Shown

if TYPE_CHECKING:
    from gavel.client.results import Job


@dataclass(frozen=True, slots=True, repr=False)
class Queue(Shown, Sequence["Job"]):
    """The jobs that a filter selects, newest first."""

    jobs: tuple[Job, ...]
    # The number of jobs that match, which may be more than are listed; None if the scheduler has not counted them.
    total: int | None
    # When the list was made.
    at: datetime
    # The filter with its defaults, as `watch` and `list` take it.
    wanted: JobFilter

    def __len__(self) -> int:
        return len(self.jobs)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Job, ...]: ...
    def __getitem__(self, index: int | slice) -> Job | tuple[Job, ...]:
        return self.jobs[index]
