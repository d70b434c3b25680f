"""`gavel simulate`: check everything, run, write what was asked for, show the figures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gavel.cli.faults import INTERRUPTED, Fault
from gavel.cli.installation import require
from gavel.cli.io.outputs import (
    STDOUT,
    check_apart,
    check_directory,
    check_file,
    check_one_stdout,
    say,
    unwritable,
    write_csv,
    write_json,
)
from gavel.cli.io.progress import Bar, interruptible
from gavel.cli.io.tables import print_all
from gavel.cli.io.wording import count_of, printable
from gavel.cli.simulation.run_table import figures_table, headline
from policies.errors import PolicyError
from scheduler.config import ConfigError
from scheduler.journal.errors import JournalError
from scheduler.journal.store import SqliteJournal
from scheduler.model.errors import InvalidSpec
from scheduler.sim.figures.job_table import FIELDS
from scheduler.sim.figures.metrics import Metrics
from scheduler.sim.figures.summary import summarise
from scheduler.sim.replay.made_by import KEY as MADE_BY
from scheduler.sim.replay.made_by import made_by
from scheduler.sim.run import Run
from scheduler.sim.runs import FILES, prepare
from scheduler.sim.scenario.arrivals import YEAR_S
from scheduler.sim.simulate import STARVED_S, Progress, SimOptions, SimResult
from scheduler.sim.simulate import simulate as run_simulation
from traces.errors import TraceError
from traces.importers import SUBTRACE
from traces.intake import REPAIR
from traces.throughput_csv import MEASURED

DAY_S = 86_400.0
OPTION_OF = {
    "rate_per_h": "--rate",
    "prices_file": "--prices-file",
    "capacity_file": "--capacity-file",
    "failures_file": "--failures",
    "mtbf_h": "--mtbf",
    "repair_h": "--repair-time",
    "rate_noise": "--noise",
    "trace": "TRACE",
}


IN_PYTHON = {REPAIR: "--repair", SUBTRACE: "--subtrace NAME", MEASURED: "--measured NAME"}


@dataclass(frozen=True)
class Outputs:
    """What is to be written."""

    json_file: str | None
    jobs_csv: str | None
    journal: str | None
    plots: str | None

    def check(self, *inputs: str) -> None:
        """Refuse now what could not be written later, and what would overwrite what is read or written besides."""
        files = {"--json": self.json_file, "--jobs-csv": self.jobs_csv, "--journal": self.journal}
        check_one_stdout({**files, "--plots": self.plots}, never=("--journal", "--plots"))
        check_apart({name: path for name, path in files.items() if path not in (None, STDOUT)}, inputs)
        check_file("--json", self.json_file)
        check_file("--jobs-csv", self.jobs_csv)
        check_file("--journal", self.journal, new=True)
        if self.plots is not None:
            require("plots", "--plots")
        check_directory("--plots", self.plots)

    @property
    def take_stdout(self) -> bool:
        """Whether standard output is one of the files, so that nothing else may be printed there."""
        return STDOUT in (self.json_file, self.jobs_csv)

    def write(self, metrics: Metrics, figures: dict[str, Any]) -> None:
        """Everything but the journal, which was written on the way; and say where it is."""
        written = []
        if self.json_file is not None:
            write_json("--json", self.json_file, figures)
            written.append(self.json_file)
        if self.jobs_csv is not None:
            write_jobs(self.jobs_csv, metrics)
            written.append(self.jobs_csv)
        if self.journal is not None:
            written.append(self.journal)
        if self.plots is not None:
            from gavel.cli.simulation.run_plots import draw_run

            try:
                written += draw_run(metrics, Path(self.plots), str(figures["policy"]))
            except OSError as error:
                raise unwritable("--plots", self.plots, error) from None
        if files := [path for path in written if path != STDOUT]:
            say("written: " + ", ".join(map(printable, files)))


def simulate(
    json_file: str | None, jobs_csv: str | None, journal: str | None, plots: str | None, **options: Any
) -> None:
    """The command's body."""
    outputs = Outputs(json_file, jobs_csv, journal, plots)
    if journal is not None and options.get("ideal"):
        raise Fault(
            "--journal: an ideal run has no rounds, so there is no journal of it; leave one of them out"
        )
    with faults():
        prepared = prepare(run_of_options(options))
    outputs.check(*(str(getattr(prepared.run, field)) for field in FILES))
    for note in prepared.notes:
        say(f"note: {printable(note)}")
    result = carry_out(prepared.options, outputs.journal, prepared.jobs)
    run = prepared.run
    figures = summarise(
        result.metrics,
        wall_s=result.wall_s,
        policy=prepared.options.settings.policy,
        cluster=dict(run.cluster),
        seed=run.seed,
        interrupted=result.interrupted,
    )
    if not outputs.take_stdout:
        print_all(headline(figures, result.metrics.now_s / 3600.0), figures_table(figures))
    outputs.write(result.metrics, figures)
    say_what_was_odd(result, prepared.jobs)


def run_of_options(options: dict[str, Any]) -> Run:
    """What was not given keeps its default."""
    given = {name: value for name, value in options.items() if value is not None}
    if given.get("trace") == STDOUT:
        raise Fault("TRACE: cannot be standard input; write it into a file first")
    return Run(**given)


@contextmanager
def faults() -> Iterator[None]:
    """What the user gave and cannot be right ends as one line, with the option or the file and line."""
    try:
        yield
    except InvalidSpec as error:
        raise Fault(f"{option_of(error.field)}: {printable(error.problem)}") from None
    except TraceError as error:
        raise Fault(printable(_on_the_command_line(str(error)))) from None
    except (PolicyError, JournalError, ConfigError) as error:
        raise Fault(printable(str(error))) from None


def _on_the_command_line(text: str) -> str:
    """What is to be done, with an option where Python has an argument."""
    for argument, option in IN_PYTHON.items():
        text = text.replace(argument, option)
    return text


def option_of(field: str) -> str:
    """The option that sets a field."""
    return OPTION_OF.get(field) or "--" + field.removesuffix("_s").replace("_", "-")


def carry_out(options: SimOptions, journal: str | None, jobs: int | None) -> SimResult:
    """Run it, with a bar on a terminal and a journal if wanted; Ctrl-C leaves what there is."""
    with faults(), interruptible() as wish, Bar("simulating") as bar:

        def progress(now: Progress) -> bool:
            part = min(now.ended / jobs, 1.0) if jobs else None
            bar.show(f"day {now.now_s / DAY_S:,.1f}, {now.ended:,} jobs", part)
            return not wish.stop

        if journal is None:
            return run_simulation(options, progress=progress)
        with SqliteJournal(journal, durable=False) as store:
            store.set_meta(MADE_BY, made_by(options))
            return run_simulation(replace(options, journal=store), progress=progress)


def write_jobs(path: str, metrics: Metrics) -> None:
    """One line per job; time by type in columns of its own."""
    kinds = metrics.jobs.worker_types
    by_type = [(what, kind) for what in ("received_h", "allocated_h") for kind in kinds]
    header = [*FIELDS, *(f"{what}:{kind}" for what, kind in by_type)]
    rows = metrics.jobs.rows(metrics.now_s)
    write_csv(
        "--jobs-csv",
        path,
        header,
        ([*(row[field] for field in FIELDS), *(row[what][kind] for what, kind in by_type)] for row in rows),
    )


def say_what_was_odd(result: SimResult, jobs: int | None) -> None:
    """What makes the figures less than they seem; exit 130 after Ctrl-C."""
    metrics = result.metrics
    if result.refused:
        (name, why), count = result.refused[0], count_of(len(result.refused), "job")
        say(f"note: {count} refused by the scheduler; {printable(name)}: {printable(why)}")
    if metrics.fallbacks:
        times = (
            f"{metrics.fallbacks:,} of its allocations" if metrics.fallbacks > 1 else "one of its allocations"
        )
        say(f"note: the policy had no answer for {times}: {printable(metrics.fallback_why)}")
    if result.interrupted:
        total = f" of {jobs:,}" if jobs else ""
        say(
            f"interrupted on day {metrics.now_s / DAY_S:,.1f}, with {metrics.ended:,}{total} jobs ended: "
            "these are the figures until then"
        )
        _leave(INTERRUPTED)
    left = [
        name
        for name, end_s in zip(metrics.jobs.names, metrics.jobs.numbers("end_s"), strict=True)
        if math.isnan(end_s)
    ]
    if left:
        when = "nothing could happen any more"
        if metrics.now_s > 0.99 * STARVED_S:
            when = f"the run was stopped after {STARVED_S / YEAR_S:.0f} simulated years"
        say(
            f"note: {count_of(len(left), 'job')} had not ended when {when}; the first is {printable(left[0])}"
        )


def _leave(code: int) -> None:
    sys.stdout.flush()
    click.get_current_context().exit(code)
