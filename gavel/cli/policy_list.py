"""`gavel policies`: every registered policy, what it maximises and what it needs to know."""

from __future__ import annotations

import json
from typing import Any

import click

from policies.registry import Entry, entry, names

# Facts as the registry calls them, in the words of someone who has to provide them. ("id" says only that
# jobs are told apart one by one.)
FACTS = {
    "steps_left": "steps left",
    "waited_s": "time waited",
    "isolated_s": "isolated time",
    "deadline_s": "deadlines and their steps left, if any",
    "tenant": "tenants",
    "price_per_gpu_hour": "prices",
}
# What grouping need not ask about, and `Entry.reads` therefore may not say.
ALSO = {
    "allox": ("steps_left", "waited_s"),
    "fifo": ("waited_s",),
    "min_cost": ("price_per_gpu_hour",),
    "throughput_per_cost": ("price_per_gpu_hour",),
}
MODIFIERS = {
    "packing": "two jobs may share GPUs, where the problem's `pairs` say that this gains anything",
    "blind": "all types count as equally fast, as if rates were unknown; for comparison",
}


def completions(incomplete: str) -> list[str]:
    """Specs that begin like this: names and aliases, and modifiers after a plus sign."""
    base, plus, begun = incomplete.rpartition("+")
    known = MODIFIERS if plus else [name for full in names() for name in (full, *entry(full).aliases)]
    return [f"{base}{plus}{name}" for name in known if name.startswith(begun)]


def facts_needed(policy: Entry) -> list[str]:
    """Fields of a problem, beside rates, widths and weights, that bear on the policy's answer."""
    told = [*policy.reads, *ALSO.get(policy.name, ())]
    return [fact for fact in dict.fromkeys(told) if fact != "id"]


def show(as_json: bool) -> None:
    """The list, as a table or as data."""
    entries = [entry(name) for name in names()]
    if as_json:
        click.echo(json.dumps([_as_data(e) for e in entries], indent=2, ensure_ascii=False))
        return
    from gavel.cli.policy_table import print_policies

    print_policies(entries)


def _as_data(policy: Entry) -> dict[str, Any]:
    return {
        "name": policy.name,
        "aliases": list(policy.aliases),
        "objective": policy.objective,
        "needs": facts_needed(policy),
        "parameters": dict(policy.parameters),
        "pairs": policy.pairs,
    }
