"""`python -m examples.allocate_demo`: one mixed cluster under four policies, as tables and as a picture.

What to look for: policies that know how fast each job is on each type give the fast GPUs to the jobs that gain most.
With the same fairness, each job then gets more done than under a scheduler that treats all GPUs as equal.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from gavel.cli.io.tables import name_cell, new_table, print_all
from gavel.cli.policies.answer import Answer
from gavel.cli.policies.plot import draw_shares, draw_times_isolated, draw_utilisation
from gavel.cli.policies.problem_file import read_problem
from gavel.client.views.units import duration
from policies.problem import Problem
from policies.registry import resolve

PROBLEM = Path(__file__).with_name("mixed_cluster.yaml")
PICTURE = Path(__file__).parents[1] / "out" / "allocate_demo.png"
BLIND, AWARE = "las+blind", "las"
POLICIES = (BLIND, AWARE, "las+packing", "makespan")
# Smaller shares are shown as a dot.
SHARE_SHOWN = 0.005
SHARES_TITLE = "\nPer cent of its time that each job runs on each type (+ with a second job on the same GPUs)"


def main() -> None:
    """Solve the problem under every policy, print the tables, save the picture."""
    problem = read_problem(str(PROBLEM))
    answers = {spec: Answer(problem, resolve(spec)(problem)) for spec in POLICIES}
    print_all(
        Text(f"{len(problem.jobs)} jobs on {problem.capacity.sum():g} GPUs: {_types(problem)}", "bold"),
        Text("Rates and prices are made up, for illustration: examples/mixed_cluster.yaml"),
        Text(
            SHARES_TITLE,
            "bold",
        ),
        share_table(answers),
        Text("What each policy achieves with the same GPUs", "bold"),
        comparison_table(answers),
        Text(speed_up_words(answers[AWARE], answers[BLIND])),
    )
    PICTURE.parent.mkdir(exist_ok=True)
    picture(answers).savefig(PICTURE)
    print_all(Text(f"picture: {PICTURE.relative_to(PICTURE.parents[1])}"))


def share_table(answers: dict[str, Answer]) -> Table:
    """Return a table with a row per job and a column per policy; each cell has a figure per worker type."""
    problem = next(iter(answers.values())).problem
    kinds = range(len(problem.worker_types))
    table = new_table()
    table.add_column("\njob", no_wrap=True)
    table.add_column("\nGPUs", justify="right")
    for spec in answers:
        table.add_column(f"{spec}\n" + "".join(f"{name:>5}" for name in problem.worker_types), no_wrap=True)
    for row, name in enumerate(problem.jobs.ids):
        cells = [
            Text.assemble(*(share_cell(answer, row, kind) for kind in kinds)) for answer in answers.values()
        ]
        table.add_row(name_cell(name), str(problem.jobs.gpus[row]), *cells)
    return table


def share_cell(answer: Answer, row: int, kind: int) -> tuple[str, str]:
    """Return the share of a job's time on a type, in per cent, and the style of the figure."""
    share = answer.share_by_type[row, kind]
    if share < SHARE_SHOWN:
        return f"{'·':>5}", "dim"
    packed = "+" if answer.packed_by_type[row, kind] >= SHARE_SHOWN else ""
    return f"{f'{100 * share:.0f}{packed}':>5}", "bold" if share >= 0.5 else ""


def comparison_table(answers: dict[str, Answer]) -> Table:
    """Return a table with a row of figures for each policy."""
    table = new_table()
    table.add_column("policy", no_wrap=True)
    for title in (
        "worst job\n× isolated",
        "average job\n× isolated",
        "average job\n× blind",
        "all done, if the\nshares stay, after",
        "solved\nin",
    ):
        table.add_column(title, justify="right")
    for spec, answer in answers.items():
        times = answer.times_isolated
        table.add_row(
            Text(spec, "bold"),
            f"{times.min():.2f}",
            f"{_mean(times):.2f}",
            f"{_mean(answer.effective_rate / answers[BLIND].effective_rate):.2f}",
            duration(float((answer.problem.jobs.steps_left / answer.effective_rate).max())),
            duration(answer.allocation.solve_s),
        )
    return table


def speed_up_words(aware: Answer, blind: Answer) -> str:
    """Return a sentence about how much faster jobs are when the policy knows their rates."""
    gain = aware.effective_rate / blind.effective_rate
    names = aware.problem.jobs.ids
    smallest, largest = int(gain.argmin()), int(gain.argmax())
    return (
        f"Knowing the rates, the same fairness gives every job {_mean(gain):.2f} × the speed on average: "
        f"from {gain[smallest]:.2f} × ({names[smallest]}) to {gain[largest]:.2f} × ({names[largest]}).\n"
    )


def picture(answers: dict[str, Answer]) -> Figure:
    """Draw the policies side by side: shares and the speed of each job; below them, the use of each type."""
    figure = Figure(figsize=(17, 7), dpi=130, layout="constrained")
    panels = figure.subplots(2, 2 * len(answers), height_ratios=(5, 1), width_ratios=(3, 1.3) * len(answers))
    for i, (spec, answer) in enumerate(answers.items()):
        (shares, times), (use, empty) = panels[:, 2 * i : 2 * i + 2]
        draw_shares(shares, answer, names=i == 0)
        shares.set_title(spec, loc="left", fontsize=12, fontweight="bold")
        draw_times_isolated(times, answer)
        times.set_title("× isolated", loc="left", fontsize=9.5)
        times.set_xscale("log")
        times.set_xlim(0.08, 14)
        times.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
        times.set_xticks([], minor=True)
        draw_utilisation(use, answer, slots=0)
        empty.set_axis_off()
    return figure


def _types(problem: Problem) -> str:
    return ", ".join(
        f"{gpus:g} {name}" for name, gpus in zip(problem.worker_types, problem.capacity, strict=True)
    )


def _mean(ratios: np.ndarray) -> float:
    return float(np.exp(np.log(ratios).mean()))


if __name__ == "__main__":
    main()
