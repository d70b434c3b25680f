"""Run a simulation in the foreground, with a bar, a journal on request, and notes on what its figures leave out."""

from __future__ import annotations

import math
import sys

import click
from msgspec.structs import replace

from gavel.cli.faults import INTERRUPTED
from gavel.cli.io.outputs import say
from gavel.cli.io.progress import bar, interruptible
from gavel.cli.io.wording import count_of
from gavel.cli.simulation.refusals import refusals_as_faults
from scheduler.journal.store import SqliteJournal
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.replay.made_by import KEY as MADE_BY
from scheduler.sim.replay.made_by import made_by
from scheduler.sim.scenario.arrivals import YEAR_S
from scheduler.sim.simulate import STARVED_S, Progress, SimOptions, SimResult, simulate

DAY_S = 86_400.0


def carry_out(options: SimOptions, journal: str | None, jobs: int | None) -> SimResult:
    """Run a simulation to its end, or until Ctrl-C; the result then covers the time until then.

    `jobs`: how many jobs will end, if that is known.
    """
    with refusals_as_faults(), interruptible() as request, bar("simulating") as show:

        def show_progress(progress: Progress) -> bool:
            fraction = min(progress.ended / jobs, 1.0) if jobs else None
            show(f"day {progress.now_s / DAY_S:,.1f}, {progress.ended:,} jobs", fraction)
            return not request.stop

        if journal is None:
            return simulate(options, progress=show_progress)
        with SqliteJournal(journal, durable=False) as store:
            store.set_meta(MADE_BY, made_by(options))
            return simulate(replace(options, journal=store), progress=show_progress)


def report_oddities(result: SimResult, jobs: int | None) -> None:
    """Report refused jobs, fallbacks and jobs that never ended; exit with 130 if Ctrl-C stopped the run."""
    metrics = result.metrics
    if result.refused:
        (name, why), count = result.refused[0], count_of(len(result.refused), "job")
        say(f"note: {count} refused by the scheduler; {name}: {why}")
    if metrics.fallbacks:
        several = metrics.fallbacks > 1
        times = f"{metrics.fallbacks:,} of its allocations" if several else "one of its allocations"
        say(f"note: the policy had no answer for {times}: {metrics.fallback_why}")
    if result.interrupted:
        total = f" of {jobs:,}" if jobs else ""
        ended = f"{metrics.ended:,}{total} jobs ended"
        say(
            f"interrupted on day {metrics.now_s / DAY_S:,.1f}, with {ended}: these are the figures until then"
        )
        sys.stdout.flush()
        click.get_current_context().exit(INTERRUPTED)
    _report_unended(metrics)


def _report_unended(metrics: Metrics) -> None:
    ends_s = metrics.jobs.numbers("end_s")
    unended = [name for name, end_s in zip(metrics.jobs.names, ends_s, strict=True) if math.isnan(end_s)]
    if not unended:
        return
    when = "no further event was possible"
    if metrics.now_s > 0.99 * STARVED_S:
        when = f"the run was stopped after {STARVED_S / YEAR_S:.0f} simulated years"
    say(f"note: {count_of(len(unended), 'job')} had not ended when {when}; the first is {unended[0]}")
