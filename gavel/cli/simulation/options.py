"""Options that `gavel simulate` and its relatives share: workloads, worlds, policies, outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from gavel.cli.io.options import ABOVE_0, FROM_0, SEED_MAX, JobRange, Prices, Seed, not_empty
from gavel.cli.policies.list import complete_policy

Command = Callable[..., Any]
COMPARISON_HELP = (
    "As the published figures were made: answers at once, everything at the boundary of a round, one GPU per "
    "node, restarts free, rates known."
)


def options(*wanted: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(wanted):
            command = option(command)
        return command

    return decorate


def seconds(name: str, field: str, text: str, kind: click.ParamType = FROM_0) -> Callable[[Command], Command]:
    """An option that takes a time."""
    return click.option(name, field, type=kind, metavar="SECONDS", help=text)


def file(name: str, field: str, text: str) -> Callable[[Command], Command]:
    """An option that takes a file."""
    return click.option(
        name, field, type=click.Path(), default="", callback=not_empty, metavar="FILE", help=text
    )


def whose(name: str, text: str) -> Callable[[Command], Command]:
    """An option that chooses among the sources that a file holds."""
    return click.option(name, default="", callback=not_empty, metavar="NAME", help=text)


THROUGHPUTS = options(
    whose("--measured", "Whose measurements, of a throughput table that holds several."),
    file("--pairs", "pairs", "Rates of pairs, for throughput tables that keep them in a second file."),
)
WORKLOAD = options(
    click.option(
        "--workload",
        default="",
        callback=not_empty,
        metavar="NAME",
        help="A workload by name instead of a trace, such as mixed-day.",
    ),
    click.option("--jobs", type=click.IntRange(1), metavar="N", help="Only the first N jobs."),
    click.option(
        "--hours", type=ABOVE_0, metavar="H", help="Only the jobs of the first H hours of a workload."
    ),
    click.option(
        "--subtrace", metavar="NAME", help="Which of several traces in one file; * for all together."
    ),
    click.option("--repair", is_flag=True, help="Mend a sloppy trace instead of refusing it."),
    file(
        "--throughputs",
        "throughputs",
        "Steps per second by job type, GPUs and worker type; else our own table.",
    ),
    THROUGHPUTS,
)
WORLD = options(
    click.option(
        "--gpus-per-node", type=click.IntRange(1, 1024), metavar="N", help="4, or 1 with --comparison."
    ),
    click.option(
        "--measure",
        type=JobRange(),
        metavar="FIRST:END",
        help="Measure only these jobs; a workload goes on until the last of them has ended.",
    ),
    click.option("--ideal", is_flag=True, help="Give every job exactly its shares, without rounds."),
    click.option("--comparison", is_flag=True, help=COMPARISON_HELP),
    seconds("--round", "round_s", "Length of a round.  [default: 360]", ABOVE_0),
    seconds("--min-reallocation", "min_reallocation_s", "Shortest time between two allocations."),
    seconds(
        "--restart", "restart_s", "From the start of a job's processes to its first step.  [default: 30]"
    ),
    seconds("--checkpoint", "checkpoint_s", "From being asked to stop to having saved.  [default: 10]"),
    file("--costs", "costs_file", "Restart and checkpoint by job type: job_type, restart_s, checkpoint_s."),
    seconds(
        "--save-every", "save_every_s", "Of steps between two checkpoints of a job.  [default: 3600]", ABOVE_0
    ),
    click.option(
        "--renewal-restarts",
        is_flag=True,
        help="A job that goes on in the next round saves and starts again; else it just goes on.",
    ),
    file("--config", "config", "The scheduler's settings, a TOML or YAML file; options here go before it."),
    seconds("--solver-latency", "solver_latency_s", "Until the solver's answer arrives.  [default: 0]"),
    seconds(
        "--report-interval",
        "report_interval_s",
        "Between two reports of a node.  [default: 3600, or 86400 with --comparison]",
        ABOVE_0,
    ),
    click.option(
        "--noise",
        "rate_noise",
        type=FROM_0,
        metavar="SIGMA",
        help="Spread of the luck of each attempt (lognormal).",
    ),
    click.option(
        "--rate-error",
        type=FROM_0,
        metavar="SIGMA",
        help="How wrong the rates are that the scheduler is told.",
    ),
    file(
        "--believed",
        "believed",
        "The throughput table that the scheduler is told, if it is not the true one.",
    ),
    click.option(
        "--mtbf", "mtbf_h", type=ABOVE_0, metavar="HOURS", help="Mean time between failures of a node."
    ),
    click.option(
        "--repair-time",
        "repair_h",
        type=ABOVE_0,
        metavar="HOURS",
        help="Mean time until it is repaired.  [default: 1]",
    ),
    file("--failures", "failures_file", "Failures as a list: t_s, node, event."),
    click.option(
        "--prices", type=Prices(), metavar="TYPE=USD,…", help="Per GPU and hour, instead of the table's."
    ),
    file("--prices-file", "prices_file", "Prices over time: t_s, worker_type, price_per_gpu_hour."),
    whose("--cloud", "Whose prices, of a file that holds several clouds'; else the cheapest."),
    file("--capacity-file", "capacity_file", "GPUs over time: t_s, worker_type, gpus."),
    seconds(
        "--notice", "notice_s", "How long before nodes of the capacity file leave it is known.  [default: 0]"
    ),
)
POLICY = click.option(
    "--policy",
    callback=not_empty,
    metavar="SPEC",
    shell_complete=complete_policy,
    help="Which policy: 'las', 'las+packing', 'min_cost(premium=0.2)'. `gavel policies` lists them."
    "  [default: that of --config, else las]",
)
SEED = click.option(
    "--seed",
    type=Seed(0, SEED_MAX),
    default=0,
    show_default=True,
    metavar="N",
    help="Of everything that chance decides.",
)
OUTPUTS = options(
    click.option(
        "--json",
        "json_file",
        type=click.Path(allow_dash=True),
        is_flag=False,
        flag_value="-",
        metavar="[FILE]",
        help="Write the figures as JSON; without a FILE, or as -, print them instead of the table.",
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
        help="Draw completion times, who was where, shares and utilisation.",
    ),
)
