"""The description of a simulation: plain values that can be written as JSON and read back.

Every field of `Run` states its meaning, its command-line option and its bounds. The options of `gavel simulate` and
related commands, their help and the checks before a run are derived from these statements. A sweep finds its finished
runs by a hash of the names and values of fields, so a field never changes its name or its default.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec

from scheduler.model.bounds import GPUS, PART, PRICE, SEED, Bound

HOUR_S = 3600.0
# The longest time for a round, a restart, a checkpoint or an answer of the solver. With longer times, nothing would
# happen in a run.
WEEK_S = 7 * 86_400.0
# How rarely nodes report with --comparison: rates are known and restarts free, so reports change nothing.
RARE_REPORTS_S = 86_400.0
JOBS = Bound(1, 5_000_000)
NODE_GPUS = Bound(1, 1024)
NODE_CPUS = Bound(1e-3, 1e6)
# With an infinite rate, all jobs arrive at once.
ARRIVALS = Bound(1e-9, math.inf, "jobs per hour")
COUNT = Bound(0, 10_000)
HOURS = Bound(1e-9, 1e9, "h")
TIME_S = Bound(0, WEEK_S, "s")
LENGTH_S = Bound(1e-3, WEEK_S, "s")
ROUND_S = Bound(1, WEEK_S, "s")
# For lognormal factors: with 3, a third of them are above 20 or below 1/20.
SIGMA = Bound(0, 3)


class Knob(NamedTuple):
    """The description of a field: its help, its option on a command line, and the numbers it admits."""

    help: str
    # The name of the option's value in the help.
    metavar: str = ""
    # The option's name, if it is not the field's name without its unit.
    option: str = ""
    # The bounds of the number, or of each value of a table.
    bound: Bound | None = None
    # The default, and the default with --comparison.
    usual: float | None = None
    published: float | None = None
    # The default in words, if it is not a number.
    default: str = ""
    is_file: bool = False


def file(help: str, option: str = "", default: str = "") -> Knob:
    """Return the description of a field that names a file."""
    return Knob(help, "FILE", option, default=default, is_file=True)


def seconds(help: str, bound: Bound = TIME_S, **more: Any) -> Knob:
    """Return the description of a field that is a time."""
    return Knob(help, "SECONDS", bound=bound, **more)


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulation. Empty texts and None count as not given."""

    trace: Annotated[str, file("A file of jobs.", "TRACE")] = ""
    workload: Annotated[str, Knob("A workload by name instead of a trace, such as mixed-day.", "NAME")] = ""
    rate_per_h: Annotated[
        float | None,
        Knob("How many jobs of a workload arrive per hour; inf: all at once.", "JOBS/H", "--rate", ARRIVALS),
    ] = None
    jobs: Annotated[int | None, Knob("Simulate only the first N jobs.", "N", bound=JOBS)] = None
    hours: Annotated[
        float | None, Knob("Simulate only the jobs of the first H hours of a workload.", "H", bound=HOURS)
    ] = None
    subtrace: Annotated[
        str | None, Knob("The trace to read if the file holds several; * for all together.", "NAME")
    ] = None
    repair: Annotated[bool, Knob("Repair a faulty trace instead of refusing it.")] = False
    throughputs: Annotated[
        str, file("Steps per second by job type, GPUs and worker type.", default="Gavel's own table")
    ] = ""
    measured: Annotated[
        str, Knob("The measurements to take from a throughput table that holds several sets.", "NAME")
    ] = ""
    pairs: Annotated[
        str, file("Rates of pairs, for a throughput table that keeps them in a second file.")
    ] = ""
    plans: Annotated[
        str, file("Plans by job type: worker_type, gpus, plan, steps_per_s. Jobs of these types run by them.")
    ] = ""

    cluster: Annotated[
        dict[str, int], Knob("GPUs by worker type, such as v100=36,k80=36.", "TYPE=N,…", bound=GPUS)
    ]
    gpus_per_node: Annotated[
        int | None, Knob("GPUs of each node.", "N", bound=NODE_GPUS, usual=4, published=1)
    ] = None

    cpus_per_node: Annotated[
        float | None,
        Knob(
            "CPUs of each node, for a throughput table with rates by CPUs; a node with fewer GPUs than the others "
            "has them in proportion.",
            "N",
            bound=NODE_CPUS,
            default="CPUs play no part",
        ),
    ] = None
    fixed_cpus: Annotated[
        bool,
        Knob(
            "Give each job its fair share of the CPUs of its nodes (less, in proportion, if the shares exceed "
            "them), and leave the rest idle."
        ),
    ] = False

    policy: Annotated[
        str,
        Knob(
            "A policy: 'las', 'las+packing', 'min_cost(premium=0.2)'. `gavel policies` lists them.",
            "SPEC",
            default="that of --config, or else las",
        ),
    ] = ""
    policy_files: Annotated[
        tuple[str, ...],
        file("A Python file with policies of your own; may be repeated.", "--policy-file"),
    ] = ()
    seed: Annotated[int, Knob("Seed of all random numbers.", "N", bound=SEED)] = 0
    measure: Annotated[
        tuple[int, int] | None,
        Knob("Measure only these jobs; a workload continues until the last of them has ended.", "FIRST:END"),
    ] = None
    ideal: Annotated[bool, Knob("Give every job exactly its shares, without rounds.")] = False
    comparison: Annotated[
        bool,
        Knob(
            "Simulate under the conditions of the published figures: the solver answers at once, GPUs change "
            "hands only at the boundary of a round, one GPU per node, free restarts, known rates."
        ),
    ] = False

    config: Annotated[
        str, file("The scheduler's settings, a TOML or YAML file; options given here take precedence.")
    ] = ""
    round_s: Annotated[
        float | None, seconds("Length of a round.", ROUND_S, default="that of --config, or else 360")
    ] = None
    min_reallocation_s: Annotated[float | None, seconds("Shortest time between two allocations.")] = None
    solver_latency_s: Annotated[float, seconds("Time until the solver's answer arrives.")] = 0.0

    restart_s: Annotated[
        float | None,
        seconds("Time from the start of a job's processes to its first step.", usual=30, published=0),
    ] = None
    checkpoint_s: Annotated[
        float | None,
        seconds("Time that a job takes to save once it is asked to stop.", usual=10, published=0),
    ] = None
    costs_file: Annotated[
        str,
        file("A table of restart and checkpoint times: job_type, restart_s, checkpoint_s.", "--costs"),
    ] = ""
    save_every_s: Annotated[
        float, seconds("Time spent on steps between two checkpoints of a job.", LENGTH_S)
    ] = HOUR_S
    renewal_restarts: Annotated[
        bool, Knob("Let a job that continues in the next round save and restart, instead of running on.")
    ] = False
    report_interval_s: Annotated[
        float | None,
        seconds("Time between two reports of a node.", ROUND_S, usual=HOUR_S, published=RARE_REPORTS_S),
    ] = None

    rate_noise: Annotated[
        float,
        Knob(
            "Spread of the random factor on the rate of each attempt (lognormal).", "SIGMA", "--noise", SIGMA
        ),
    ] = 0.0
    rate_error: Annotated[
        float,
        Knob("Spread of the errors in the rates given to the scheduler (lognormal).", "SIGMA", bound=SIGMA),
    ] = 0.0
    believed: Annotated[
        str, file("The throughput table given to the scheduler, if it is not the true one.")
    ] = ""

    pair_rates: Annotated[
        str,
        Knob(
            "What the scheduler knows of pairs of jobs that share GPUs: 'oracle' all rates; 'estimated' those of "
            "references and of probes, and it estimates the others; 'none' those of references only.",
            "KNOWLEDGE",
        ),
    ] = "oracle"
    references: Annotated[
        int,
        Knob("How many job types have known rates in pairs; they are drawn with the seed.", "N", bound=COUNT),
    ] = 16
    pairs_probed: Annotated[
        float,
        Knob("The part of the pairs of other types with references that was probed.", "PART", bound=PART),
    ] = 0.2

    mtbf_h: Annotated[
        float | None,
        Knob("Mean time between failures of a node.", "HOURS", "--mtbf", HOURS, default="none fails"),
    ] = None
    repair_h: Annotated[
        float, Knob("Mean time until a node is repaired.", "HOURS", "--repair-time", HOURS)
    ] = 1.0
    failures_file: Annotated[str, file("A list of failures: t_s, node, event.", "--failures")] = ""
    prices: Annotated[
        dict[str, float], Knob("Prices per GPU and hour, instead of the table's.", "TYPE=USD,…", bound=PRICE)
    ] = {}
    prices_file: Annotated[str, file("Prices over time: t_s, worker_type, price_per_gpu_hour.")] = ""
    cloud: Annotated[
        str,
        Knob("The cloud to use if the price file has several. Default: always the cheapest.", "NAME"),
    ] = ""
    capacity_file: Annotated[str, file("GPUs over time: t_s, worker_type, gpus.")] = ""
    notice_s: Annotated[
        float, seconds("How much notice the scheduler gets before a node of the capacity file leaves.")
    ] = 0.0

    @property
    def data(self) -> dict[str, Any]:
        """Plain data for JSON, without defaults; an infinite rate is the text "inf"."""
        plain = msgspec.to_builtins(self)
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        empty: tuple[Any, ...] = {}, []
        kept = {
            name: value for name, value in plain.items() if value != defaults[name] and value not in empty
        }
        return {name: "inf" if value == math.inf else value for name, value in kept.items()}

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files of the run."""
        return *(getattr(self, field) for field in FILES), *self.policy_files

    def effective(self, field: str) -> Any:
        """Return the value of a field, or its default if it is not given."""
        value, knob = getattr(self, field), KNOBS[field]
        if value is not None:
            return value
        return knob.published if self.comparison else knob.usual


HINTS: dict[str, Any] = get_type_hints(Run, include_extras=True)
KNOBS: dict[str, Knob] = {name: HINTS[name].__metadata__[0] for name in Run.__struct_fields__}
# The fields that name a file, and those that list files.
FILES = tuple(name for name, knob in KNOBS.items() if knob.is_file and name != "policy_files")
