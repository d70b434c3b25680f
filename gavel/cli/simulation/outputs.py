"""Writes the files of `gavel simulate` and `gavel replay`: figures, a line per job, a journal, pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gavel.cli.faults import refusing
from gavel.cli.io.options import STDOUT, options

if TYPE_CHECKING:
    from scheduler.sim.figures.metrics import Metrics

OUTPUTS = options(
    click.option(
        "--json",
        "json_file",
        type=click.Path(allow_dash=True),
        is_flag=False,
        flag_value="-",
        metavar="[FILE]",
        help="Write the figures as JSON; without a FILE, or if FILE is -, print them instead of the table.",
    ),
    click.option(
        "--jobs-csv",
        type=click.Path(allow_dash=True),
        metavar="FILE",
        help="Write one line per job; - prints them instead of the table.",
    ),
    click.option(
        "--journal",
        type=click.Path(),
        metavar="FILE",
        help="Write the journal that a live scheduler would have written.",
    ),
    click.option(
        "--plots",
        type=click.Path(),
        metavar="DIR",
        help="Draw completion times, the jobs on each GPU, shares and utilisation, as PNG and SVG.",
    ),
)


class Outputs(NamedTuple):
    """The output files that the options name."""

    json_file: str | None
    jobs_csv: str | None
    journal: str | None
    plots: str | None

    def check(self, *inputs: str) -> None:
        """Refuse, before the run, an output that cannot be written or would overwrite an input or another output."""
        from gavel.cli.installation import require
        from gavel.cli.io.outputs import check_apart, check_directory, check_file, check_one_stdout

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
        """Return whether standard output is one of the files, so that nothing else may be printed there."""
        return STDOUT in (self.json_file, self.jobs_csv)

    def write(self, metrics: Metrics, figures: dict[str, Any]) -> None:
        """Write all files except the journal, which the run has written; report their names."""
        from gavel.cli.io.outputs import say, write_json

        written = []
        if self.json_file is not None:
            write_json("--json", self.json_file, figures)
            written.append(self.json_file)
        if self.jobs_csv is not None:
            _write_jobs(self.jobs_csv, metrics)
            written.append(self.jobs_csv)
        if self.journal is not None:
            written.append(self.journal)
        if self.plots is not None:
            from gavel.cli.simulation.run_plots import draw_run

            with refusing(OSError, subject=f"--plots: {self.plots}"):
                written += draw_run(metrics, self.plots, str(figures["policy"]))
        if files := [path for path in written if path != STDOUT]:
            say(f"written: {', '.join(files)}")


def _write_jobs(path: str, metrics: Metrics) -> None:
    """Write one line per job, with columns for the time on each worker type."""
    from gavel.cli.io.outputs import write_csv
    from scheduler.sim.figures.job_table import FIELDS

    kinds = metrics.jobs.worker_types
    by_type = [(figure, kind) for figure in ("received_h", "allocated_h") for kind in kinds]
    header = [*FIELDS, *(f"{figure}:{kind}" for figure, kind in by_type)]
    rows = metrics.jobs.rows(metrics.now_s)
    lines = (
        [*(row[field] for field in FIELDS), *(row[figure][kind] for figure, kind in by_type)] for row in rows
    )
    write_csv("--jobs-csv", path, header, lines)
