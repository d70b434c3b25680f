"""The next report of an agent, while news for it come in."""

from __future__ import annotations

from collections.abc import Iterable

from worker_agent.core.measured import news_of
from worker_agent.core.messages import Measured, ProcessExited, Progressed, Report, Run


class ReportDraft:
    """The news since the last report, without the exits, which are kept until the scheduler has them."""

    def __init__(self) -> None:
        # The number of the last report.
        self.number = 0
        # The leases whose processes have started.
        self.started: list[str] = []
        self._progress: list[Progressed] = []
        self._measured: list[Measured] = []

    def add_progress(self, run: Run) -> None:
        """Add the progress of a run."""
        run.changed = False
        self._progress.append(Progressed(run.order.lease, run.steps, run.saved, run.stepping_s))

    def add_measured(self, run: Run) -> bool:
        """Add what the job of a run has measured about itself, if that is new; return whether it is."""
        news = news_of(run)
        if news is not None:
            self._measured.append(news)
        return news is not None

    def begin_link(self, runs: Iterable[Run]) -> None:
        """Begin anew on a new link: its hello reports the starts, and the last reports may not have arrived."""
        self.started.clear()
        for run in runs:
            run.reported = {}

    def take(self, generation: int, exits: tuple[ProcessExited, ...]) -> Report:
        """Return the report with these exits, and begin the next one. `number` is the report's number already."""
        news = tuple(self.started), tuple(self._progress), exits, tuple(self._measured)
        for reported in (self.started, self._progress, self._measured):
            reported.clear()
        return Report(self.number, generation, *news)
