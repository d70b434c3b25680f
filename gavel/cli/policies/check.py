"""`gavel policies check`: does a policy keep what every policy promises?"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gavel.cli.faults import Fault, refusing
from gavel.cli.io.options import Number
from gavel.cli.io.outputs import check_directory, print_data
from gavel.cli.io.wording import count_of, printable
from gavel.cli.policies.plugins import POLICY_FILES, load_policies
from scheduler.model.bounds import SEED, Bound

if TYPE_CHECKING:
    from policies.trials.promises import Case

MODIFIERS = ("", "+packing", "+blind", "+packing+blind")
PROBLEMS = Bound(1, 100_000)
# How long the solvers may take for one of the small problems.
TIME_LIMIT_S = 10.0
# Without an answer that keeps these promises, the others cannot be checked.
ENOUGH = {"answers", "feasible"}
# Marks and their colours: for a promise that is kept, broken, or could not be checked.
MARKS: dict[bool | None, tuple[str, str]] = {True: ("✓", "green"), False: ("✗", "red"), None: ("-", "dim")}


@dataclass
class Verdict:
    """The result of the checks of one policy."""

    policy: str
    origin: str
    cases: int = 0
    refused: int = 0
    # By promise and modifiers: the first case that breaks the promise, and its fault.
    broken: dict[tuple[str, str], tuple[Case, str]] = field(default_factory=dict)
    # By modifiers: in how many cases there was a feasible answer, so that the other promises could be checked.
    tried: Counter[str] = field(default_factory=Counter)
    # By property: in how many problems the policy lacks it.
    lacking: Counter[str] = field(default_factory=Counter)
    # A small problem for each broken promise.
    examples: list[Example] = field(default_factory=list)

    def keeps(self, promise: str, modifiers: str) -> bool | None:
        """Return whether the policy keeps a promise with these modifiers; None if that could not be checked."""
        if (promise, modifiers) in self.broken:
            return False
        return True if promise in ENOUGH or self.tried[modifiers] else None


class Example(NamedTuple):
    """A small problem that breaks a promise, and the file that holds it."""

    promise: str
    spec: str
    fault: str
    file: str


@click.command()
@click.argument("target", metavar="FILE|POLICY")
@POLICY_FILES
@click.option(
    "--problems",
    type=Number(PROBLEMS, whole=True),
    default=24,
    show_default=True,
    metavar="N",
    help="How many problems are made for each policy.",
)
@click.option(
    "--seed", type=Number(SEED, whole=True), default=0, metavar="N", help="Make other problems.  [default: 0]"
)
@click.option(
    "--out",
    type=click.Path(),
    default=".",
    show_default=True,
    metavar="DIR",
    help="Where the smallest problems that break a promise are written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def check(
    target: str, policy_files: tuple[str, ...], problems: int, seed: int, out: str, as_json: bool
) -> None:
    """Check what every policy promises, for the policies of a FILE or for a POLICY by name.

    Each policy solves small problems with and without +packing and +blind. The problems are the same each time; they
    have several widths, weights, pairs, tenants, deadlines and types without GPUs. For each broken promise, a problem
    that breaks it is made as small as possible and written as a file for `gavel allocate`. The exit code is 1 if a
    promise is broken.
    """
    is_file = target.endswith(".py") or "/" in target
    files = (*policy_files, target) if is_file else policy_files
    load_policies(policy_files)
    load_policies(files, "FILE")
    check_directory("--out", out)
    verdicts = [_check(spec, problems, seed) for spec in (_policies_of(target) if is_file else [target])]
    for verdict in verdicts:
        verdict.examples += [
            _example(case, promise, fault, Path(out)) for promise, case, fault in _once(verdict)
        ]
    if as_json:
        print_data([_as_data(verdict) for verdict in verdicts])
    else:
        for verdict in verdicts:
            _print(verdict, files)
    if any(verdict.broken for verdict in verdicts):
        click.get_current_context().exit(1)


def _policies_of(file: str) -> list[str]:
    from policies.registry import entry, names

    return [name for name in names() if entry(name).origin == file]


def _check(spec: str, problems: int, seed: int) -> Verdict:
    from gavel.cli.io.progress import bar
    from policies.errors import ProblemError, UnknownPolicy
    from policies.registry import entry_of, resolve
    from policies.trials.promises import PROMISES, PROPERTIES, Case, faults, generated

    if "+" in spec:
        raise Fault(f"{spec}: every policy is checked with and without modifiers; leave them out")
    with refusing(UnknownPolicy):
        resolve(spec)
    verdict, why = Verdict(spec, entry_of(spec).origin or "gavel"), ""
    with bar(f"checking {spec}") as show:
        for number in range(problems):
            show(f"checking {spec}", number / problems)
            for modifiers in MODIFIERS:
                case = Case(spec + modifiers, generated(number, seed), TIME_LIMIT_S)
                verdict.cases += 1
                try:
                    broken = faults(case, PROMISES)
                    for promise, fault in broken.items():
                        verdict.broken.setdefault((promise, modifiers), (case, fault))
                    verdict.tried[modifiers] += not broken.keys() & ENOUGH
                    if not modifiers:
                        verdict.lacking.update(list(faults(case, PROPERTIES)))
                except ProblemError as error:
                    verdict.refused, why = verdict.refused + 1, str(error)
    if verdict.refused == verdict.cases:
        raise Fault(f"{spec} refuses all problems, the last one because: {why}")
    return verdict


def _once(verdict: Verdict) -> Iterator[tuple[str, Case, str]]:
    """Yield each broken promise once, with the case that has the fewest modifiers, and its fault."""
    for promise in dict.fromkeys(promise for promise, _ in verdict.broken):
        modifiers = next(m for m in MODIFIERS if (promise, m) in verdict.broken)
        yield promise, *verdict.broken[promise, modifiers]


def _example(case: Case, promise: str, fault: str, folder: Path) -> Example:
    """Write a small problem that breaks the same promise as this case."""
    import yaml

    from gavel.cli.policies.problem_text import problem_as_data
    from policies.registry import entry_of
    from policies.trials.promises import smallest

    small, fault = smallest(case, promise, fault)
    path = folder / f"{entry_of(case.spec).name}.{promise}.yaml"
    text = yaml.safe_dump(problem_as_data(small.problem), sort_keys=False, default_flow_style=None)
    with refusing(OSError, subject=f"--out: {path}"):
        path.write_text(text, encoding="utf-8")
    return Example(promise, case.spec, fault, str(path))


def _as_data(verdict: Verdict) -> dict[str, Any]:
    from policies.trials.promises import PROMISES, PROPERTIES

    return {
        "policy": verdict.policy,
        "origin": verdict.origin,
        "cases": verdict.cases,
        "refused": verdict.refused,
        "promises": {
            promise: {m.removeprefix("+") or "plain": verdict.keeps(promise, m) for m in MODIFIERS}
            for promise in PROMISES
        },
        "properties": {name: not verdict.lacking[name] for name in PROPERTIES},
        "broken": [example._asdict() for example in verdict.examples],
    }


def _print(verdict: Verdict, files: Sequence[str]) -> None:
    from rich.text import Text

    from gavel.cli.io.tables import new_table, print_all
    from policies.trials.promises import PROMISES, PROPERTIES

    table = new_table()
    table.add_column("every policy promises", no_wrap=True)
    for modifiers in MODIFIERS:
        table.add_column(modifiers or "plain", justify="center", no_wrap=True)
    for name, promise in PROMISES.items():
        marks = [MARKS[verdict.keeps(name, m)] for m in MODIFIERS]
        table.add_row(promise.words, *(Text(mark, style) for mark, style in marks))
    refused = f"; it refused {verdict.refused} of them, which it may" if verdict.refused else ""
    headline = f" from {verdict.origin} · {count_of(verdict.cases, 'case')}{refused}"
    print_all(Text.assemble((printable(verdict.policy), "bold"), printable(headline)), table)
    have = [promise.words for name, promise in PROPERTIES.items() if not verdict.lacking[name]]
    if have and not verdict.broken:
        print_all(Text(f"In these cases also true, as for some policies: {'; '.join(have)}.\n", "dim"))
    options = "".join(f" --policy-file {shlex.quote(file)}" for file in files)
    for example in verdict.examples:
        command = f"gavel allocate {shlex.quote(example.file)}{options} --policy {shlex.quote(example.spec)}"
        print_all(
            Text.assemble((f"✗ {PROMISES[example.promise].words}", "red"), f": {printable(example.fault)}"),
            Text(f"  {printable(command)}\n"),
        )
