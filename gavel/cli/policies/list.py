"""`gavel policies`: every registered policy, what it optimises and which facts it needs.

Also shell completion for options that take a policy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.options import options
from gavel.cli.io.outputs import say
from gavel.cli.io.wording import printable
from gavel.cli.policies.check import check
from gavel.cli.policies.plugins import POLICY_FILES, load_policies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.padding import Padding
    from rich.text import Text

    from policies.registry import Entry

# How the output names the facts that policies need.
FACTS = {
    "steps_left": "steps left",
    "waited_s": "time waited",
    "isolated_s": "isolated time",
    "deadline_s": "deadlines and their steps left, if any",
    "tenant": "tenants",
    "price_per_gpu_hour": "prices",
}
MODIFIERS = {
    "packing": "two jobs may share GPUs if the rates in the problem's `pairs` make that worthwhile",
    "blind": "all types count as equally fast, as if rates were unknown; for comparison",
}
EXAMPLES = "las   las+packing   min_cost(premium=0.2)   makespan+blind(reference=v100)"


LIST_OPTIONS = options(
    POLICY_FILES, click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
)


@click.group(invoke_without_command=True)
@LIST_OPTIONS
@click.pass_context
def policies(ctx: click.Context, /, policy_files: tuple[str, ...], as_json: bool) -> None:
    """List the policies: what each optimises and which facts it needs. `check` tries one of your own."""
    if ctx.invoked_subcommand is None:
        _show(policy_files, as_json)
    elif policy_files or as_json:
        raise Fault(f"options go after {ctx.invoked_subcommand}, not before it")


@policies.command("list")
@LIST_OPTIONS
def list_(policy_files: tuple[str, ...], as_json: bool) -> None:
    """List the policies: what each optimises, which facts it needs, and the origin of those that are not Gavel's."""
    _show(policy_files, as_json)


policies.add_command(check)


def _show(policy_files: tuple[str, ...], as_json: bool) -> None:
    from policies.registry import broken, entry, names

    load_policies(policy_files)
    entries = [entry(name) for name in names()]
    if as_json:
        from gavel.cli.io.outputs import print_data

        print_data([_as_data(policy) for policy in entries])
    else:
        from rich.text import Text

        from gavel.cli.io.tables import print_all

        parts = [part for policy in entries for part in _described(policy)]
        modifiers = [Text.assemble((f"+{name:9}", "bold"), words) for name, words in MODIFIERS.items()]
        print_all(*parts, Text(), *modifiers, Text(f"\nfor example: {EXAMPLES}"))
    for fault in broken.values():
        say(f"not listed, because it cannot be loaded: {fault}")


def _as_data(policy: Entry) -> dict[str, Any]:
    return {
        "name": policy.name,
        "aliases": list(policy.aliases),
        "objective": policy.objective,
        "needs": list(policy.facts),
        "parameters": {name: _plain(default) for name, default in policy.parameters.items()},
        "pairs": policy.pairs,
        "origin": policy.origin or "gavel",
    }


def _plain(default: Any) -> Any:
    """Return a default as JSON can hold it: policies of others may have any."""
    is_plain = default is None or isinstance(default, bool | int | str)
    return default if is_plain or (isinstance(default, float) and math.isfinite(default)) else repr(default)


def _described(policy: Entry) -> Iterator[Text | Padding]:
    from rich.text import Text

    aliases = "".join(f" or {alias}" for alias in policy.aliases)
    origin = f"  from {printable(policy.origin)}" if policy.origin else ""
    yield Text.assemble((policy.name, "bold"), (aliases, "dim"), (origin, "yellow"))
    yield _indented(printable(policy.objective))
    if needed := policy.facts:
        yield _indented("needs: " + ", ".join(FACTS.get(fact, fact) for fact in needed), "cyan")
    if policy.parameters:
        defaults = ", ".join(f"{name}={default}" for name, default in policy.parameters.items())
        yield _indented(f"parameters: {defaults}", "cyan")


def _indented(line: str, style: str = "") -> Padding:
    from rich.padding import Padding
    from rich.text import Text

    return Padding(Text(line, style), (0, 0, 0, 4), expand=False)


def complete_policy(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete a spec: names and aliases, and modifiers after a plus sign."""
    try:
        from policies.registry import entry, names
    except ModuleNotFoundError:
        # The extra `server` is missing. An error message would disturb the line that the user is typing.
        return []
    base, plus, prefix = incomplete.rpartition("+")
    candidates = MODIFIERS if plus else [name for full in names() for name in (full, *entry(full).aliases)]
    return [f"{base}{plus}{name}" for name in candidates if name.startswith(prefix)]
