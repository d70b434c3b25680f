"""`gavel allocate`: read a problem, ask a policy, show the answer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import Number
from gavel.cli.io.outputs import check_file, print_data, say
from gavel.cli.io.wording import file_name
from gavel.cli.policies.list import complete_policy
from gavel.cli.policies.plugins import POLICY_FILES, load_policies
from scheduler.model.bounds import SEED, Bound

if TYPE_CHECKING:
    from gavel.cli.policies.answer import Answer

TIME_LIMIT_S = Bound(1e-9, 1e9, "s")


@click.command()
@click.argument("problem", type=click.Path(allow_dash=True))
@click.option(
    "--policy",
    "spec",
    default="las",
    show_default=True,
    metavar="SPEC",
    shell_complete=complete_policy,
    help="Which policy: 'las', 'las+packing', 'min_cost(premium=0.2)'. `gavel policies` lists them.",
)
@POLICY_FILES
@click.option(
    "--seed",
    type=Number(SEED, whole=True),
    metavar="N",
    help="The seed of policies that use random numbers; overrides the file's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option("--all-jobs", is_flag=True, help="Show every job, however many there are.")
@click.option(
    "--plot", type=click.Path(), metavar="FILE", help="Draw the answer, too: a .png, .svg or .pdf file."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=Number(TIME_LIMIT_S),
    metavar="SECONDS",
    help="Stop solving after this time, with the best answer so far.",
)
def allocate(
    problem: str,
    spec: str,
    policy_files: tuple[str, ...],
    seed: int | None,
    as_json: bool,
    all_jobs: bool,
    plot: str | None,
    time_limit_s: float | None,
) -> None:
    """Divide the cluster in PROBLEM among its jobs.

    PROBLEM is a JSON or YAML file, or - for standard input: the worker types, the jobs, and how fast each job
    runs on each type. docs/problem-format.md has every field.
    """
    # These refuse invalid input before the solver starts.
    load_policies(policy_files)
    answer = _answer(problem, spec, seed, plot, time_limit_s)
    if plot is not None:
        _draw(answer, plot)
    if as_json:
        print_data(answer.as_data())
    else:
        from gavel.cli.policies.answer_table import print_answer

        print_answer(answer, all_jobs)
    if not answer.allocation.optimal:
        limit = f" within {time_limit_s:g} s" if time_limit_s else ""
        say(f"gavel allocate: note: not proven optimal{limit}; this is the best answer found")


def _answer(
    problem: str, spec: str, seed: int | None, plot: str | None, time_limit_s: float | None
) -> Answer:
    from gavel.cli.policies.answer import Answer
    from gavel.cli.policies.problem_file import read_problem
    from policies.errors import BrokenPolicy, OutOfTime, PolicyError, UnknownPolicy
    from policies.registry import resolve
    from protos.files.errors import BadInput

    try:
        with refusing(UnknownPolicy, subject="--policy"):
            policy = resolve(spec, time_limit_s)
    # Python's parser raises MemoryError for deep nesting.
    except (RecursionError, MemoryError):
        raise Fault("--policy: too long or too deeply nested") from None
    if plot is not None:
        _check_plot(plot)
    with refusing(BadInput, PolicyError, subject=file_name(problem)):
        table = read_problem(problem, seed)
        # These are no faults of the problem.
        with refusing(BrokenPolicy, OutOfTime):
            return Answer(table, policy(table))


def _check_plot(path: str) -> None:
    from gavel.cli.policies.plot import FORMATS

    if Path(path).suffix.lower() not in FORMATS:
        raise Fault(f"--plot: {path}: must end in one of {', '.join(FORMATS)}")
    check_file("--plot", path)


def _draw(answer: Answer, path: str) -> None:
    from gavel.cli.policies.plot import draw_answer

    with refusing(OSError, subject=f"--plot: {path}"), warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", "Glyph")
        draw_answer(answer).savefig(path)
    say(f"plot: {path}")
