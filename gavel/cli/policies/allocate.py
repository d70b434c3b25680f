"""`gavel allocate`: read a problem, ask a policy, show the answer."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import click

from gavel.cli.faults import Fault
from gavel.cli.io.document import BadFile
from gavel.cli.io.wording import printable
from gavel.cli.policies.answer import Answer
from gavel.cli.policies.problem_file import read_problem
from policies.errors import PolicyError, UnknownPolicy
from policies.registry import resolve


def allocate(
    problem: str,
    spec: str,
    seed: int | None,
    as_json: bool,
    all_jobs: bool,
    plot: str | None,
    time_limit_s: float | None,
) -> None:
    """The command's body; everything that can be refused is refused before the solver starts."""
    try:
        policy = resolve(spec, time_limit_s)
    except UnknownPolicy as error:
        raise Fault(f"--policy: {printable(str(error))}") from None
    except (RecursionError, MemoryError):  # the latter is what Python's parser raises
        raise Fault("--policy: too long or too deeply nested") from None
    if plot is not None:
        _check_writable(plot)
    name = "standard input" if problem == "-" else printable(problem)
    try:
        table = read_problem(problem, seed)
        answer = Answer(table, policy(table))
    except (BadFile, PolicyError) as error:
        raise Fault(f"{name}: {printable(str(error))}") from None

    if plot is not None:
        _draw(answer, plot)
    if as_json:
        click.echo(json.dumps(answer.as_data(), indent=2, allow_nan=False))
    else:
        from gavel.cli.policies.answer_table import print_answer

        print_answer(answer, all_jobs)
    if not answer.allocation.optimal:
        limit = f" within {time_limit_s:g} s" if time_limit_s else ""
        click.echo(
            f"gavel allocate: note: not proven optimal{limit}; this is the best answer found", err=True
        )


def _check_writable(path: str) -> None:
    from gavel.cli.policies.plot import FORMATS

    if Path(path).suffix.lower() not in FORMATS:
        raise Fault(f"--plot: {printable(path)}: must end in one of {', '.join(FORMATS)}")
    try:
        existed = Path(path).exists()
        with open(path, "ab"):
            pass
        if not existed:
            Path(path).unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def _draw(answer: Answer, path: str) -> None:
    from gavel.cli.policies.plot import draw_answer

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Glyph"
            )  # a name in a script that the font lacks: boxes will do
            draw_answer(answer).savefig(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    click.echo(f"plot: {printable(path)}", err=True)


def _unwritable(path: str, error: OSError) -> Fault:
    return Fault(f"--plot: {printable(path)}: {(error.strerror or str(error)).lower()}")
