"""`gavel simulate`: one run, its figures, and the requested files."""

from __future__ import annotations

from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.options import not_empty
from gavel.cli.simulation.options import run_of_options, run_options
from gavel.cli.simulation.outputs import OUTPUTS, Outputs


@click.command()
@click.argument("trace", required=False, type=click.Path(), callback=not_empty)
@run_options()
@OUTPUTS
def simulate(**values: Any) -> None:
    """Run jobs through the scheduler in virtual time, and print the figures.

    The jobs come from TRACE (our CSV, a .trace file, or an imported table; docs/trace-format.md), or from a
    --workload by name with a --rate and --jobs, --hours or --measure. Only machines and time are simulated:
    the scheduler is the one of a live cluster. docs/simulation.md explains the figures.
    """
    from gavel.cli.io.outputs import say
    from gavel.cli.io.tables import print_all
    from gavel.cli.simulation.refusals import refusals_as_faults
    from gavel.cli.simulation.run_table import figures_table, headline
    from gavel.cli.simulation.running import carry_out, report_oddities
    from scheduler.sim.figures.summary import summarise
    from scheduler.sim.runs import prepare

    outputs = Outputs(*(values.pop(name) for name in Outputs._fields))
    run = run_of_options(values)
    if outputs.journal is not None and run.ideal:
        problem = "an ideal run has no rounds, so there is no journal of it"
        raise Fault(f"--journal: {problem}; leave one of them out")
    with refusals_as_faults():
        prepared = prepare(run)
    outputs.check(*run.files)
    for note in prepared.notes:
        say(f"note: {note}")
    result = carry_out(prepared.options, outputs.journal, prepared.jobs)
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
    report_oddities(result, prepared.jobs)
