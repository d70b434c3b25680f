"""The list of policies for a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.padding import Padding
from rich.text import Text

from gavel.cli.io.terminal import print_all
from gavel.cli.policies.policy_words import FACTS, MODIFIERS
from policies.registry import Entry

EXAMPLES = "las   las+packing   min_cost(premium=0.2)   makespan+blind(reference=v100)"


def print_policies(entries: Iterable[Entry]) -> None:
    """Name and aliases, objective, facts needed and parameters of each; then the modifiers."""
    parts = [part for policy in entries for part in _described(policy)]
    modifiers = [Text.assemble((f"+{name:9}", "bold"), words) for name, words in MODIFIERS.items()]
    print_all(*parts, Text(), *modifiers, Text(f"\nfor example: {EXAMPLES}"))


def _described(policy: Entry) -> Iterator[Text | Padding]:
    aliases = "".join(f" or {alias}" for alias in policy.aliases)
    yield Text.assemble((policy.name, "bold"), (aliases, "dim"))
    yield _indented(Text(policy.objective))
    if needed := policy.facts:
        yield _indented(Text("needs: " + ", ".join(FACTS.get(fact, fact) for fact in needed), "cyan"))
    if policy.parameters:
        defaults = ", ".join(f"{name}={default}" for name, default in policy.parameters.items())
        yield _indented(Text(f"parameters: {defaults}", "cyan"))


def _indented(line: Text) -> Padding:
    return Padding(line, (0, 0, 0, 4), expand=False)
