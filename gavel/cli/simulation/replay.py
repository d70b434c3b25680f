"""`gavel replay`: the jobs and nodes of a journal under another policy, beside what really happened."""

from __future__ import annotations

from gavel.cli.faults import Fault
from gavel.cli.io.outputs import say
from gavel.cli.io.tables import print_all
from gavel.cli.io.wording import printable
from gavel.cli.simulation.journals import compacted, nothing_in, opened
from gavel.cli.simulation.run_table import comparison_table
from gavel.cli.simulation.simulate import Outputs, carry_out, faults, say_what_was_odd
from policies.errors import UnknownPolicy
from policies.registry import resolve
from scheduler.sim.figures.summary import summarise
from scheduler.sim.replay.history import History
from scheduler.sim.run_checks import TIME_S_MAX
from scheduler.sim.runs import table_of


def replay(
    journal_in: str,
    policy: str | None,
    throughputs: str,
    measured: str,
    pairs: str,
    restart_s: float | None,
    checkpoint_s: float | None,
    **outputs: str | None,
) -> None:
    """The command's body."""
    wanted = Outputs(**outputs)
    if policy is not None:
        try:
            resolve(policy)
        except UnknownPolicy as error:
            raise Fault(f"--policy: {printable(str(error))}") from None
    for option, time_s in (("--restart", restart_s), ("--checkpoint", checkpoint_s)):
        if time_s is not None and time_s > TIME_S_MAX:
            raise Fault(f"{option}: is {time_s:g}, must be at most {TIME_S_MAX:,.0f}, a week")
    with faults():
        table = table_of(throughputs, measured, pairs) if throughputs or measured or pairs else None
        history = read_history(journal_in)
        options = history.options(
            policy=policy, throughputs=table, restart_s=restart_s, checkpoint_s=checkpoint_s
        )
    wanted.check(journal_in, throughputs)
    jobs = sum(len(arrival.truths) for arrival in options.arrivals)
    result = carry_out(options, wanted.journal, jobs)
    happened = summarise(history.metrics)
    figures = summarise(result.metrics, wall_s=result.wall_s, interrupted=result.interrupted)
    if not wanted.take_stdout:
        print_all(comparison_table(happened, figures, ("A: what happened", f"B: {figures['policy']}")))
    wanted.write(result.metrics, figures)
    for what, count in history.notes.items():
        say(f"note: {what}: {count:,}")
    say_what_was_odd(result, jobs)


def read_history(path: str) -> History:
    """All facts of a journal."""
    with opened(path) as journal:
        history = History(journal.meta)
        for now_s, fact in journal.read():
            history.take(now_s, fact)
        if not history.metrics.submitted:
            raise nothing_in(journal, path, "jobs")
        if not history.metrics.cluster:
            raise Fault(f"{printable(path)}: holds no nodes; was its beginning compacted away?")
        if away := compacted(journal):
            say(
                f"note: {printable(path)}: its first {away:,} records are compacted away: history begins after them"
            )
    return history
