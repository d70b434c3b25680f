"""`gavel replay`: simulate the jobs and nodes of a journal under another policy, and compare with what really
happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import options
from gavel.cli.io.outputs import say
from gavel.cli.policies.plugins import load_policies
from gavel.cli.simulation.options import run_option
from gavel.cli.simulation.outputs import OUTPUTS, Outputs

if TYPE_CHECKING:
    from scheduler.sim.replay.history import History

OF_JOURNAL = "  [default: the journal's]"


@click.command()
@click.argument("journal_in", metavar="JOURNAL", type=click.Path())
@options(
    run_option("policy", f"The policy.{OF_JOURNAL}"),
    run_option("policy_files"),
    run_option("throughputs", "The true rates.  [default: those given to the journal's scheduler]"),
    run_option("measured"),
    run_option("pairs"),
    run_option("restart_s", f"Time from the start of a job's processes to its first step.{OF_JOURNAL}"),
    run_option("checkpoint_s", f"Time that a job takes to save once it is asked to stop.{OF_JOURNAL}"),
)
@OUTPUTS
def replay(
    journal_in: str,
    policy: str,
    policy_files: tuple[str, ...],
    throughputs: str,
    measured: str,
    pairs: str,
    restart_s: float | None,
    checkpoint_s: float | None,
    **files: str | None,
) -> None:
    """Simulate the history in JOURNAL again, under another policy.

    Requests, nodes, prices and users' commands arrive at the times in the journal; the figures are compared with what
    really happened. Notes list what could not be reproduced.
    """
    from gavel.cli.io.tables import print_all
    from gavel.cli.simulation.refusals import refusals_as_faults
    from gavel.cli.simulation.run_table import comparison_table
    from gavel.cli.simulation.running import carry_out, report_oddities
    from policies.errors import UnknownPolicy
    from policies.registry import resolve
    from scheduler.sim.figures.summary import summarise
    from scheduler.sim.tables import table_of

    outputs = Outputs(**files)
    load_policies(policy_files)
    if policy:
        with refusing(UnknownPolicy, subject="--policy"):
            resolve(policy)
    with refusals_as_faults():
        table = table_of(throughputs, measured, pairs) if throughputs or measured or pairs else None
        history = read_history(journal_in)
        simulation = history.options(
            policy=policy or None, throughputs=table, restart_s=restart_s, checkpoint_s=checkpoint_s
        )
    with refusing(
        UnknownPolicy, subject=f"{journal_in}: give its policy with --policy-file, or another with --policy"
    ):
        resolve(simulation.settings.policy)
    outputs.check(journal_in, throughputs, *policy_files)
    jobs = sum(len(arrival.truths) for arrival in simulation.arrivals)
    result = carry_out(simulation, outputs.journal, jobs)
    original = summarise(history.metrics)
    figures = summarise(result.metrics, wall_s=result.wall_s, interrupted=result.interrupted)
    if not outputs.take_stdout:
        print_all(comparison_table(original, figures, ("A: what happened", f"B: {figures['policy']}")))
    outputs.write(result.metrics, figures)
    for change, count in history.notes.items():
        say(f"note: {change}: {count:,}")
    report_oddities(result, jobs)


def read_history(path: str) -> History:
    """Read all facts of a journal; refuse one without jobs or nodes."""
    from gavel.cli.simulation.journals import compacted_count, empty_journal_fault, open_journal
    from scheduler.sim.replay.history import History

    with open_journal(path) as journal:
        history = History(journal.meta)
        for now_s, fact in journal.read():
            history.add(now_s, fact)
        if not history.metrics.submitted:
            raise empty_journal_fault(journal, path, "jobs")
        if not history.metrics.cluster:
            raise Fault(f"{path}: holds no nodes; was its beginning compacted away?")
        if count := compacted_count(journal):
            gap = f"its first {count:,} records are compacted away: history begins after them"
            say(f"note: {path}: {gap}")
    return history
