"""Budgets of tenants on the command line: options that change them, and how they read in tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault

if TYPE_CHECKING:
    from gavel.client.results import Limit, Quota

PERIODS = ("day", "week", "month")
# What budgets limit, by field, as tables name it.
RESOURCES = {"gpu_hours": "GPU-hours", "cost": "cost"}
EACH_USER = "each_user_"
# Lifts a limit, in place of its number.
NONE = "none"
# A number without a sign, as in YAML and TOML: 12, 0.5 or 1e3.
_NUMBER = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for budgets; their values are read by `with_budgets`."""
    for option in reversed(
        [
            _amounts(
                "--gpu-hours", "Its jobs spend at most N GPU-hours in a PERIOD (day, week or month, in UTC)"
            ),
            _amounts("--cost", "The GPUs of its jobs cost at most N in a PERIOD, by their prices"),
            _beyond("--beyond", "What its jobs do beyond these: wait, or fill GPUs that are due to no job."),
            _amounts("--each-user-gpu-hours", "As --gpu-hours, for the jobs of each of its users"),
            _amounts("--each-user-cost", "As --cost, for the jobs of each of its users"),
            _beyond("--each-user-beyond", "As --beyond, for the jobs of each of its users."),
        ]
    ):
        command = option(command)
    return command


def _amounts(name: str, text: str) -> Callable[..., Any]:
    return click.option(
        name, multiple=True, metavar="PERIOD=N", help=f"{text}; N none: no limit. May be repeated."
    )


def _beyond(name: str, text: str) -> Callable[..., Any]:
    return click.option(name, type=click.Choice(["wait", "backfill"]), help=text)


def with_budgets(options: Mapping[str, Any]) -> tuple[Callable[[Quota], Quota], Callable[[Quota], Quota]]:
    """Read the values of these options. Return how they change the quota of a tenant, and that of each user."""
    return _changes(options, ""), _changes(options, EACH_USER)


def _changes(options: Mapping[str, Any], prefix: str) -> Callable[[Quota], Quota]:
    entries = {field: _entries(f"{prefix}{field}", options[f"{prefix}{field}"]) for field in RESOURCES}
    beyond = options[f"{prefix}beyond"]

    def change(quota: Quota) -> Quota:
        after: dict[str, Any] = {}
        for field, changed in entries.items():
            limits = {**getattr(quota, field), **changed}
            after[field] = {period: limit for period, limit in limits.items() if limit is not None}
        return replace(quota, **after, beyond=beyond or quota.beyond)

    return change


def _entries(field: str, texts: Sequence[str]) -> dict[str, float | None]:
    """Read budgets by period; None lifts one."""
    option = f"--{field.replace('_', '-')}"
    entries: dict[str, float | None] = {}
    for text in texts:
        period, _, amount = text.partition("=")
        if period not in PERIODS or not (amount == NONE or _NUMBER.fullmatch(amount)):
            raise Fault(f"{option}: '{text[:60]}' is not PERIOD=N, such as day=10, week=500 or month=none")
        if period in entries:
            raise Fault(f"{option}: names {period} twice")
        entries[period] = None if amount == NONE else float(amount)
    return entries


def budgets_of(quota: Quota) -> list[str]:
    """Describe the budgets of a quota: "500 GPU-hours a week"."""
    described = [
        f"{amount:g} {name} a {period}"
        for field, name in RESOURCES.items()
        for period, amount in sorted(getattr(quota, field).items(), key=lambda item: PERIODS.index(item[0]))
    ]
    if described and quota.beyond != "wait":
        described[-1] += f" (beyond: {quota.beyond})"
    return described


def budget_used(limit: Limit) -> str:
    """Describe what was spent of a budget: "12.5/500 GPU-hours a week"."""
    return f"{limit.used:.4g}/{limit.limit:g} {RESOURCES[limit.resource]} a {limit.of}"


def budget_row(limit: Limit) -> Sequence[str]:
    """Return the cells of a budget in the table of limits: what, spent, set aside, limit, and when it is renewed."""
    renews = "" if limit.renews_at is None else f"{limit.renews_at:%Y-%m-%d} UTC"
    name = f"{RESOURCES[limit.resource]} a {limit.of}"
    return name, f"{limit.used:.2f}", f"{limit.committed:.2f}", f"{limit.limit:g}", renews
