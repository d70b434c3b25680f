"""A simulation as it is asked for: plain values that survive JSON, each described once.

Every field of `Run` says what it is for, how it is given on a command line, and which numbers it admits. The options of
`gavel simulate` and its relatives, their help and the checks before a run follow from that. A sweep finds its finished
runs by a hash of names and values of fields, so a field keeps its name and its default.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from scheduler.model.bounds import GPUS, PRICE, SEED, Bound

HOUR_S = 3600.0
# The longest round, restart, checkpoint or answer: with longer ones a run would see nothing happen.
WEEK_S = 7 * 86_400.0
# How rarely nodes report where that changes nothing: rates are known, and restarts are free.
RARE_REPORTS_S = 86_400.0
JOBS = Bound(1, 5_000_000)
NODE_GPUS = Bound(1, 1024)
# An infinite rate: all jobs arrive at once.
ARRIVALS = Bound(1e-9, math.inf, "jobs per hour")
HOURS = Bound(1e-9, 1e9, "h")
TIME_S = Bound(0, WEEK_S, "s")
LENGTH_S = Bound(1e-3, WEEK_S, "s")
ROUND_S = Bound(1, WEEK_S, "s")
# Of lognormal factors: 3 is a factor of twenty, up or down, for a third of them.
SIGMA = Bound(0, 3)


class Knob(NamedTuple):
    """The description of a field: its help, its option on a command line, and the numbers it admits."""

    help: str
    # What an option's value is called in the help.
    metavar: str = ""
    # The option's name, where it is not that of the field without its unit.
    option: str = ""
    # The numbers that are possible; of a table, for each of its values.
    bound: Bound | None = None
    # What holds where nothing is given: usually, and in runs as the published figures were made.
    usual: float | None = None
    published: float | None = None
    # The same in words, where it is not a number.
    default: str = ""
    is_file: bool = False


def file(help: str, option: str = "", default: str = "") -> Knob:
    """A knob that takes the name of a file."""
    return Knob(help, "FILE", option, default=default, is_file=True)


def seconds(help: str, bound: Bound = TIME_S, **more: Any) -> Knob:
    """A knob that takes a time."""
    return Knob(help, "SECONDS", bound=bound, **more)


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulation. An empty text and None mean that nothing is given."""

    trace: Annotated[str, file("The jobs, as a file.", "TRACE")] = ""
    workload: Annotated[str, Knob("A workload by name instead of a trace, such as mixed-day.", "NAME")] = ""
    rate_per_h: Annotated[
        float | None,
        Knob("How many jobs of a workload arrive per hour; inf: all at once.", "JOBS/H", "--rate", ARRIVALS),
    ] = None
    jobs: Annotated[int | None, Knob("Only the first N jobs.", "N", bound=JOBS)] = None
    hours: Annotated[
        float | None, Knob("Only the jobs of the first H hours of a workload.", "H", bound=HOURS)
    ] = None
    subtrace: Annotated[
        str | None, Knob("Which of several traces in one file; * for all together.", "NAME")
    ] = None
    repair: Annotated[bool, Knob("Mend a sloppy trace instead of refusing it.")] = False
    throughputs: Annotated[
        str, file("Steps per second by job type, GPUs and worker type.", default="Gavel's own table")
    ] = ""
    measured: Annotated[
        str, Knob("Whose measurements to take from a throughput table that holds several.", "NAME")
    ] = ""
    pairs: Annotated[str, file("Rates of pairs, for throughput tables that keep them in a second file.")] = ""

    cluster: Annotated[
        dict[str, int], Knob("GPUs by worker type, such as v100=36,k80=36.", "TYPE=N,…", bound=GPUS)
    ]
    gpus_per_node: Annotated[
        int | None, Knob("GPUs of each node.", "N", bound=NODE_GPUS, usual=4, published=1)
    ] = None

    policy: Annotated[
        str,
        Knob(
            "A policy: 'las', 'las+packing', 'min_cost(premium=0.2)'. `gavel policies` lists them.",
            "SPEC",
            default="that of --config, else las",
        ),
    ] = ""
    seed: Annotated[int, Knob("Seed of everything that is left to chance.", "N", bound=SEED)] = 0
    measure: Annotated[
        tuple[int, int] | None,
        Knob("Measure only these jobs; a workload goes on until the last of them has ended.", "FIRST:END"),
    ] = None
    ideal: Annotated[bool, Knob("Give every job exactly its shares, without rounds.")] = False
    comparison: Annotated[
        bool,
        Knob(
            "Simulate as the published figures were made: answers at once, everything at the boundary of a "
            "round, one GPU per node, restarts free, rates known."
        ),
    ] = False

    config: Annotated[
        str, file("The scheduler's settings, a TOML or YAML file; options given here take precedence.")
    ] = ""
    round_s: Annotated[
        float | None, seconds("Length of a round.", ROUND_S, default="that of --config, else 360")
    ] = None
    min_reallocation_s: Annotated[float | None, seconds("Shortest time between two allocations.")] = None
    solver_latency_s: Annotated[float, seconds("Time until the solver's answer arrives.")] = 0.0

    restart_s: Annotated[
        float | None,
        seconds("Time from the start of a job's processes to its first step.", usual=30, published=0),
    ] = None
    checkpoint_s: Annotated[
        float | None,
        seconds("Time from the request to stop until the job has saved.", usual=10, published=0),
    ] = None
    costs_file: Annotated[
        str, file("Both of these by job type, a table: job_type, restart_s, checkpoint_s.", "--costs")
    ] = ""
    save_every_s: Annotated[
        float, seconds("Time spent on steps between two checkpoints of a job.", LENGTH_S)
    ] = HOUR_S
    renewal_restarts: Annotated[
        bool, Knob("Let a job that goes on in the next round save and start again; else it just goes on.")
    ] = False
    report_interval_s: Annotated[
        float | None,
        seconds("Time between two reports of a node.", ROUND_S, usual=HOUR_S, published=RARE_REPORTS_S),
    ] = None

    rate_noise: Annotated[
        float, Knob("Spread of the luck of each attempt (lognormal).", "SIGMA", "--noise", SIGMA)
    ] = 0.0
    rate_error: Annotated[
        float, Knob("How wrong the rates are that the scheduler is given (lognormal).", "SIGMA", bound=SIGMA)
    ] = 0.0
    believed: Annotated[
        str, file("The throughput table that the scheduler is given, if it is not the true one.")
    ] = ""

    mtbf_h: Annotated[
        float | None,
        Knob("Mean time between failures of a node.", "HOURS", "--mtbf", HOURS, default="none fails"),
    ] = None
    repair_h: Annotated[
        float, Knob("Mean time until a node is repaired.", "HOURS", "--repair-time", HOURS)
    ] = 1.0
    failures_file: Annotated[str, file("Failures as a list: t_s, node, event.", "--failures")] = ""
    prices: Annotated[
        dict[str, float], Knob("Prices per GPU and hour, instead of the table's.", "TYPE=USD,…", bound=PRICE)
    ] = {}
    prices_file: Annotated[str, file("Prices over time: t_s, worker_type, price_per_gpu_hour.")] = ""
    cloud: Annotated[
        str, Knob("Whose prices to take from a file that holds several clouds'; else the cheapest.", "NAME")
    ] = ""
    capacity_file: Annotated[str, file("GPUs over time: t_s, worker_type, gpus.")] = ""
    notice_s: Annotated[
        float, seconds("How long before nodes of the capacity file leave the scheduler is warned.")
    ] = 0.0

    @property
    def data(self) -> dict[str, Any]:
        """Plain data for JSON: without defaults, and with an infinite rate by its name."""
        plain = msgspec.to_builtins(self)
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        kept = {name: value for name, value in plain.items() if value != defaults[name] and value != {}}
        return {name: "inf" if value == math.inf else value for name, value in kept.items()}

    def effective(self, field: str) -> Any:
        """The value of a field, or what holds where it is not given."""
        value, knob = getattr(self, field), KNOBS[field]
        if value is not None:
            return value
        return knob.published if self.comparison else knob.usual


HINTS: dict[str, Any] = get_type_hints(Run, include_extras=True)
KNOBS: dict[str, Knob] = {name: HINTS[name].__metadata__[0] for name in Run.__struct_fields__}
FILES = tuple(name for name, knob in KNOBS.items() if knob.is_file)
