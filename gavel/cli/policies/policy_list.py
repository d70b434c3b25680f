"""`gavel policies`: every registered policy, what it maximises and what it needs to know."""

from __future__ import annotations

import json
from typing import Any

import click

from gavel.cli.policies.policy_words import MODIFIERS
from policies.registry import Entry, entry, names


def completions(incomplete: str) -> list[str]:
    """Specs that begin like this: names and aliases, and modifiers after a plus sign."""
    base, plus, begun = incomplete.rpartition("+")
    known = MODIFIERS if plus else [name for full in names() for name in (full, *entry(full).aliases)]
    return [f"{base}{plus}{name}" for name in known if name.startswith(begun)]


def show(as_json: bool) -> None:
    """The list, as a table or as data."""
    entries = [entry(name) for name in names()]
    if as_json:
        click.echo(json.dumps([_as_data(e) for e in entries], indent=2, ensure_ascii=False))
        return
    from gavel.cli.policies.policy_table import print_policies

    print_policies(entries)


def _as_data(policy: Entry) -> dict[str, Any]:
    return {
        "name": policy.name,
        "aliases": list(policy.aliases),
        "objective": policy.objective,
        "needs": list(policy.facts),
        "parameters": dict(policy.parameters),
        "pairs": policy.pairs,
    }
