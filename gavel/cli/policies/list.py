"""`gavel policies`: every registered policy, what it optimises and which facts it needs.

Also shell completion for options that take a policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

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


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def policies(as_json: bool) -> None:
    """List the policies: what each optimises and which facts it needs."""
    from policies.registry import entry, names

    entries = [entry(name) for name in names()]
    if as_json:
        from gavel.cli.io.outputs import print_data

        print_data([_as_data(policy) for policy in entries])
        return
    from rich.text import Text

    from gavel.cli.io.tables import print_all

    parts = [part for policy in entries for part in _described(policy)]
    modifiers = [Text.assemble((f"+{name:9}", "bold"), words) for name, words in MODIFIERS.items()]
    print_all(*parts, Text(), *modifiers, Text(f"\nfor example: {EXAMPLES}"))


def _as_data(policy: Entry) -> dict[str, Any]:
    return {
        "name": policy.name,
        "aliases": list(policy.aliases),
        "objective": policy.objective,
        "needs": list(policy.facts),
        "parameters": dict(policy.parameters),
        "pairs": policy.pairs,
    }


def _described(policy: Entry) -> Iterator[Text | Padding]:
    from rich.text import Text

    aliases = "".join(f" or {alias}" for alias in policy.aliases)
    yield Text.assemble((policy.name, "bold"), (aliases, "dim"))
    yield _indented(policy.objective)
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
