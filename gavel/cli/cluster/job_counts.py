"""Limits on numbers of jobs of tenants on the command line: options that change them, and how they read in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault

if TYPE_CHECKING:
    from gavel.client.results import Quota

# The limits, by field, as tables name them.
JOBS = {"jobs_running": "running jobs", "jobs_unfinished": "unfinished jobs"}
EACH_USER = "each_user_"
# Lifts a limit, in place of its number.
NONE = "none"


def count_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for numbers of jobs; their values are read by `with_counts`."""
    for name, text in (
        ("--each-user-jobs-unfinished", "As --jobs-unfinished, for each of its users."),
        ("--each-user-jobs-running", "As --jobs-running, for each of its users."),
        ("--jobs-unfinished", "At most N of its jobs wait, are held or run; none: no limit."),
        ("--jobs-running", "At most N of its jobs hold GPUs at once; none: no limit."),
    ):
        command = click.option(name, metavar="N", help=text)(command)
    return command


def with_counts(options: Mapping[str, Any]) -> tuple[Callable[[Quota], Quota], Callable[[Quota], Quota]]:
    """Read the values of these options. Return how they change the quota of a tenant, and that of each user."""
    return _changes(options, ""), _changes(options, EACH_USER)


def _changes(options: Mapping[str, Any], prefix: str) -> Callable[[Quota], Quota]:
    texts = {field: options[prefix + field] for field in JOBS}
    limits: dict[str, Any] = {
        field: _count(prefix + field, text) for field, text in texts.items() if text is not None
    }

    def change(quota: Quota) -> Quota:
        return replace(quota, **limits)

    return change


def _count(field: str, text: str) -> int | None:
    """Read a limit; None lifts it."""
    if text != NONE and not (text.isascii() and text.isdigit()):
        option = f"--{field.replace('_', '-')}"
        raise Fault(f"{option}: '{text[:60]}' is no number of jobs, such as 10, or {NONE} for no limit")
    return None if text == NONE else int(text)


def counts_of(quota: Quota) -> list[str]:
    """Describe the limits on numbers of jobs of a quota: "running jobs 20"."""
    limits = [(name, getattr(quota, field)) for field, name in JOBS.items()]
    return [f"{name} {limit}" for name, limit in limits if limit is not None]
