"""What can be asked of `gavel simulate` and its relatives: arguments and options, and nothing yet of how it is done."""

from __future__ import annotations

from typing import Any

import click

from gavel.cli.io.options import ABOVE_0, JSON, RATE, SEED_MAX, Cluster, Listed, Seed, not_empty
from gavel.cli.policies.list import complete_policy
from gavel.cli.simulation.options import (
    OUTPUTS,
    POLICY,
    SEED,
    THROUGHPUTS,
    WORKLOAD,
    WORLD,
    file,
    options,
    seconds,
)


@click.command()
@click.argument("trace", required=False, type=click.Path(), callback=not_empty)
@options(
    WORKLOAD,
    click.option(
        "--rate", "rate_per_h", type=RATE, metavar="JOBS/H", help="Arrivals of a workload; inf: all at once."
    ),
    click.option(
        "--cluster",
        type=Cluster(),
        required=True,
        metavar="TYPE=N,…",
        help="GPUs by worker type: v100=36,k80=36.",
    ),
    POLICY,
    SEED,
    WORLD,
    OUTPUTS,
)
def simulate(**options: Any) -> None:
    """Run jobs through the scheduler in virtual time, and say how they fared.

    The jobs come from TRACE (our CSV, a .trace file, or an imported table; docs/trace-format.md), or from a
    --workload by name with a --rate and --jobs, --hours or --measure. Only machines and time are simulated:
    the scheduler is the one of a live cluster. docs/simulation.md says what the figures mean.
    """
    from gavel.cli.simulation.simulate import simulate

    simulate(**options)


@click.command()
@click.argument("trace", required=False, type=click.Path(), callback=not_empty)
@options(
    WORKLOAD,
    click.option(
        "--policy",
        "policies",
        type=Listed(click.STRING, "policies"),
        multiple=True,
        required=True,
        metavar="SPEC,…",
        shell_complete=complete_policy,
        help="Policies; may be given several times.",
    ),
    click.option(
        "--rate",
        "rates_per_h",
        type=Listed(RATE, "rates"),
        metavar="JOBS/H,…",
        help="Arrival rates of a workload.",
    ),
    click.option(
        "--seed",
        "seeds",
        type=Listed(Seed(0, SEED_MAX), "seeds"),
        default="0",
        show_default=True,
        metavar="N,…",
        help="Seeds.",
    ),
    click.option(
        "--cluster",
        "clusters",
        type=Cluster(),
        required=True,
        multiple=True,
        metavar="TYPE=N,…",
        help="GPUs by worker type; may be given several times.",
    ),
    WORLD,
    click.option(
        "--results",
        "results",
        type=click.Path(),
        default="sweep",
        show_default=True,
        metavar="DIR",
        help="Where finished runs are kept, the table and the plot too.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["processes", "ray"]),
        default="processes",
        show_default=True,
        help="Processes of this machine, or a Ray cluster.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 4096),
        metavar="N",
        help="How many at once.  [default: one per CPU]",
    ),
    JSON,
)
def sweep(**options: Any) -> None:
    """Simulate every combination of policies, rates, seeds and clusters.

    Runs that are in --results already are not run again, so that an interrupted sweep goes on where it was.
    """
    from gavel.cli.simulation.sweep import sweep

    sweep(**options)


@click.command()
@click.argument("output", type=click.Path())
@options(
    click.option(
        "--workload", metavar="NAME", help="A workload by name.  [default: mixed-day]", callback=not_empty
    ),
    click.option(
        "--spec",
        type=click.Path(allow_dash=True),
        metavar="FILE",
        help="A workload of one's own: a YAML or JSON file; docs/simulation.md.",
    ),
    click.option(
        "--rate",
        "rate_per_h",
        type=RATE,
        metavar="JOBS/H",
        help="Arrivals; inf: all at once. A spec may say it itself.",
    ),
    click.option("--jobs", type=click.IntRange(1), metavar="N", help="How many jobs."),
    click.option("--hours", type=ABOVE_0, metavar="H", help="The jobs of the first H hours."),
    file(
        "--throughputs",
        "throughputs",
        "Steps per second by job type, GPUs and worker type; else our own table.",
    ),
    THROUGHPUTS,
    SEED,
    JSON,
)
def generate(**options: Any) -> None:
    """Write a trace into OUTPUT: a .csv in our format, or a .trace as the original's."""
    from gavel.cli.simulation.generate import generate

    generate(**options)


@click.command()
@click.argument("journal_in", metavar="JOURNAL", type=click.Path())
@options(
    click.option(
        "--policy",
        callback=not_empty,
        metavar="SPEC",
        shell_complete=complete_policy,
        help="Which policy.  [default: the journal's own]",
    ),
    file("--throughputs", "throughputs", "The true rates; else what the journal's scheduler was told."),
    THROUGHPUTS,
    seconds(
        "--restart",
        "restart_s",
        "Start of a job's processes to its first step.  [default: the journal's]",
    ),
    seconds(
        "--checkpoint", "checkpoint_s", "From being asked to stop to having saved.  [default: the journal's]"
    ),
    OUTPUTS,
)
def replay(**options: Any) -> None:
    """What would another policy have done with my history?

    Takes requests, nodes, prices and what people did out of JOURNAL as they came, and simulates them under
    --policy, beside the figures of what really happened. Notes say what could not be carried over.
    """
    from gavel.cli.simulation.replay import replay

    replay(**options)


@click.command()
@click.argument("a", type=click.Path(allow_dash=True))
@click.argument("b", type=click.Path(allow_dash=True))
@JSON
def compare(a: str, b: str, as_json: bool) -> None:
    """Two results of `gavel simulate --json`, side by side, with what B is to A."""
    from gavel.cli.simulation.compare import compare

    compare(a, b, as_json)


COMMANDS = (simulate, sweep, generate, replay, compare)
