"""An answer as tables: where each job runs and how fast, which types are scarce, what the value means."""

from __future__ import annotations

import math

import numpy as np
from rich.table import Table
from rich.text import Text

from gavel.cli.io.tables import name_cell, new_table, print_all
from gavel.cli.io.wording import count_of, printable
from gavel.cli.policies.answer import Answer
from gavel.client.views.units import duration
from policies.engine.cpus import has_fair_cpus
from policies.errors import UnknownPolicy
from policies.problem import Allocation, Bools, Floats, Ints
from policies.registry import entry

JOBS_SHOWN = 40
WAYS_SHOWN = 20
# A rate below this fraction of the isolated rate is a rounding error of the solver.
RATE_LEAST = 1e-6
# A share below this is a rounding error if the job has another share a thousand times greater.
SHARE_SHOWN = 5e-4

WORST_OFF = "the rate of the worst-off job relative to its average-GPU rate, per weight and GPU asked for"
WORK = "the cluster's work, in GPUs of each job's fastest type"
# What the value of an allocation means. A policy that is not listed shows its objective instead.
VALUE_WORDS = {
    "max_min_fairness": WORST_OFF,
    "water_filling": WORST_OFF,
    "isolated": "the rate of the worst-off job relative to its average-GPU rate, per GPU asked for",
    "finish_time_fairness": "times as long from arrival to end as in an equal slice, for the worst-off job",
    "makespan": "seconds until all jobs are done ({duration})",
    "max_throughput": WORK,
    "min_cost": WORK,
}


def print_answer(answer: Answer, all_jobs: bool = False) -> None:
    """Print an answer for people."""
    total = len(answer.problem.jobs)
    count = total if all_jobs else min(total, JOBS_SHOWN)
    parts: list[Table | Text] = [_headline(answer), job_table(answer, count)]
    if count < total:
        rest = f"… and {count_of(total - count, 'more job')}; --all-jobs shows them, --json has them all"
        parts.append(Text(rest + "\n", style="dim"))
    if len(special := _special_ways(answer)):
        parts.append(way_table(answer, special[:WAYS_SHOWN]))
        if len(special) > WAYS_SHOWN:
            rest = f"… and {len(special) - WAYS_SHOWN:,} more such ways; --json has them all"
            parts.append(Text(rest + "\n", style="dim"))
    parts += [type_table(answer), Text.assemble(("value  ", "bold"), _value_in_words(answer.allocation))]
    parts += [Text.assemble(("note   ", "bold yellow"), printable(note)) for note in answer.allocation.notes]
    print_all(*parts)


def _headline(answer: Answer) -> Text:
    allocation, problem = answer.allocation, answer.problem
    gpus = count_of(round(float(problem.capacity.sum())), "GPU")
    kinds = count_of(len(problem.worker_types), "type")
    solved = f"solved in {duration(allocation.solve_s)}" + (
        "" if allocation.optimal else ", not proven optimal"
    )
    return Text.assemble(
        (printable(allocation.policy), "bold"),
        f" · {count_of(len(problem.jobs), 'job')} on {gpus} of {kinds} · {solved}",
    )


def _value_in_words(allocation: Allocation) -> str:
    value = f"{allocation.value:.4g}"
    name, _, parameters = allocation.policy.partition("+")[0].strip().partition("(")
    try:
        policy = entry(name.strip())
    except UnknownPolicy:
        return value
    if policy.name not in VALUE_WORDS or "raw" in parameters or not math.isfinite(allocation.value):
        return f"{value}: {policy.objective}"
    return f"{value}: " + VALUE_WORDS[policy.name].format(duration=duration(allocation.value))


def job_table(answer: Answer, count: int) -> Table:
    """Return a row per job: its share of time on each type, its rate, and the ratio of that to its isolated rate."""
    problem = answer.problem
    table = new_table()
    table.add_column("job", no_wrap=True)
    table.add_column("GPUs", justify="right")
    for name in problem.worker_types:
        table.add_column(name_cell(name), justify="right", no_wrap=True)
    table.add_column("steps/s", justify="right")
    table.add_column("× isolated", justify="right")
    special = _special_shares(answer)
    for row in range(count):
        rate, times = answer.effective_rate[row], answer.times_isolated[row]
        table.add_row(
            name_cell(problem.jobs.ids[row]),
            str(problem.jobs.gpus[row]),
            *_share_cells(answer.share_by_type[row], special[row]),
            Text(f"{rate:.4g}") if times > RATE_LEAST else Text("0", style="red"),
            Text(
                "–" if math.isnan(times) else f"{times:.2f}",
                style="green" if times >= 1.0 - RATE_LEAST else "yellow",
            ),
        )
    return table


def _share_cells(shares: Floats, special: Bools) -> list[Text]:
    rounding_error = min(SHARE_SHOWN, 1e-3 * shares.max())
    cells = []
    for share, is_special in zip(shares, special, strict=True):
        if share <= max(rounding_error, 0.0):
            cells.append(Text("· ", style="dim"))
        else:
            cells.append(Text(percent(share) + ("+" if is_special else " "), "bold" if share >= 0.5 else ""))
    return cells


def _special_shares(answer: Answer) -> Bools:
    """Return, as [n × t], whether each job runs on each type in one of the special ways."""
    columns, ways = answer.problem.columns, _special_ways(answer)
    special = np.zeros(answer.share_by_type.shape, dtype=bool)
    for member in (columns.first[ways], columns.second[ways]):
        special[member[member >= 0], columns.worker_type[ways][member >= 0]] = True
    return special


def _special_ways(answer: Answer) -> Ints:
    """Return the columns in use with more to show than job and type: pairs, labels, other widths, other CPUs."""
    columns, problem = answer.problem.columns, answer.problem
    used = answer.used[answer.allocation.time_share[answer.used] >= SHARE_SHOWN]
    labelled = np.array([bool(columns.label[k]) for k in used], dtype=bool)
    other_width = columns.gpus[used] != answer.problem.jobs.gpus[columns.first[used]]
    other_cpus = ~has_fair_cpus(problem)[used]
    return used[columns.is_pair[used] | other_width | labelled | other_cpus]


def way_table(answer: Answer, ways: Ints) -> Table:
    """Return a row for each of these columns, which the shares in the table of jobs mark with a plus."""
    columns, ids = answer.problem.columns, answer.problem.jobs.ids
    table = new_table()
    cpus = [f"{columns.cpus[k]:g}" for k in ways] if answer.has_cpus.any() else None
    titles = ("+ of which", "type", "GPUs", *(["CPUs"] if cpus else []), "label", "share")
    for title in titles:
        table.add_column(
            title, justify="right" if title in ("GPUs", "CPUs", "share") else "left", no_wrap=True
        )
    for index, k in enumerate(ways):
        jobs = name_cell(ids[columns.first[k]])
        if columns.second[k] >= 0:
            jobs = Text.assemble(jobs, " with ", name_cell(ids[columns.second[k]]))
        table.add_row(
            jobs,
            name_cell(answer.problem.worker_types[columns.worker_type[k]]),
            str(columns.gpus[k]),
            *([cpus[index]] if cpus else []),
            name_cell(columns.label[k]),
            percent(answer.allocation.time_share[k]),
        )
    return table


def type_table(answer: Answer) -> Table:
    """Return a row per worker type: the fractions in use, and the change of the value by one more GPU."""
    problem, price = answer.problem, answer.allocation.price
    table = new_table()
    table.add_column("type", no_wrap=True)
    table.add_column("GPUs", justify="right")
    table.add_column("in use", justify="right")
    if answer.has_cpus.any():
        table.add_column("CPUs", justify="right")
        table.add_column("in use", justify="right")
    table.add_column("one more GPU changes the value by", justify="right")
    for kind, name in enumerate(problem.worker_types):
        binding = bool(answer.binding[kind])
        worth = f"{price[kind]:+.4g} (binding)" if binding else "–" if math.isnan(price[kind]) else "nothing"
        table.add_row(
            name_cell(name, "bold" if binding else ""),
            f"{problem.capacity[kind]:g}",
            percent(answer.utilisation[kind]),
            *_cpu_cells(answer, kind),
            Text(worth, style="bold magenta" if binding else "dim"),
        )
    return table


def _cpu_cells(answer: Answer, kind: int) -> list[str]:
    """Return the CPUs of a type and the fraction in use; nothing if no type states its CPUs."""
    if not answer.has_cpus.any():
        return []
    cpus = f"{answer.problem.cpus[kind]:g}" if answer.has_cpus[kind] else "–"
    return [cpus, percent(answer.cpu_utilisation[kind])]


def percent(fraction: float) -> str:
    """Format a fraction as a percentage."""
    if math.isnan(fraction):
        return "–"
    return f"{fraction:.1%}" if fraction >= 0.0005 else "<0.1%" if fraction > 0 else "0.0%"
