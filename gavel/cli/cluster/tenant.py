"""`gavel tenant`: list, show, set and remove tenants, with their weights and quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.cluster.budgets import (
    RESOURCES,
    budget_options,
    budget_row,
    budget_used,
    budgets_of,
    with_budgets,
)
from gavel.cli.cluster.job_counts import JOBS, count_options, counts_of, with_counts
from gavel.cli.faults import Fault
from gavel.cli.io.outputs import echo
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.wording import count_of

if TYPE_CHECKING:
    from gavel.client import Client
    from gavel.client.results import Limit, Quota, Tenant

COLUMNS = (
    Column("tenant", width_max=24),
    *(Column(head, right=True) for head in ("weight", "running", "unfinished")),
    Column("used/limit", width_max=60),
    Column("spent/budget", width_max=60),
    Column("each user", width_max=40),
)
LIMITS = (
    Column("whose", width_max=24),
    Column("of", width_max=20),
    *(Column(head, right=True) for head in ("used", "set aside", "limit")),
    Column("renewed on"),
)
# How often a change is tried again because another operator changed the tenant meanwhile.
TRIES = 5
# Lifts a limit, in place of its number.
NONE = "none"


@click.group()
def tenant() -> None:
    """List, show, set and remove tenants, with their weights and quotas."""


@tenant.command("list")
@LIVE
def list_(session: Session) -> None:
    """List the tenants that are declared or have unfinished jobs, with what they use of their quotas."""
    with session.client() as client:
        tenants = client.tenants()
    rows = [
        (
            tenant.name,
            f"{tenant.weight:g}",
            str(tenant.jobs_running),
            str(tenant.jobs_unfinished),
            _used([limit for limit in tenant.limits if not limit.user and limit.resource not in RESOURCES]),
            _spent([limit for limit in tenant.limits if not limit.user]),
            _limits(tenant.each_user),
        )
        for tenant in tenants
    ]
    session.show(tenants, COLUMNS, rows, "no tenants: none is declared, and there are no unfinished jobs")


def _used(limits: Sequence[Limit]) -> str:
    return ", ".join(f"{_of(limit)} {limit.used:g}/{limit.limit:g}" for limit in limits)


def _of(limit: Limit) -> str:
    """Return the worker type of a limit on GPUs, or the name of a limit on jobs."""
    return JOBS.get(limit.resource, limit.of)


def _spent(limits: Sequence[Limit]) -> str:
    return ", ".join(budget_used(limit) for limit in limits if limit.resource in RESOURCES)


def _limits(quota: Quota) -> str:
    gpus = [f"{kind} {gpus}" for kind, gpus in sorted(quota.gpus.items())]
    return ", ".join([*gpus, *counts_of(quota), *budgets_of(quota)])


@tenant.command()
@click.argument("names", nargs=-1, required=True, metavar="TENANT…")
@LIVE
def show(names: tuple[str, ...], session: Session) -> None:
    """Show tenants, and what they and their users use of their quotas."""
    with session.client() as client:
        tenants = client.tenants(names)
    if session.as_json:
        print_json(tenants)
        return
    for tenant in tenants:
        jobs = f"{count_of(tenant.jobs_unfinished, 'unfinished job')}, {tenant.jobs_running} running"
        declared = f"weight {tenant.weight:g}, {tenant.policy}" if tenant.declared else "not declared"
        echo(f"{tenant.name}: {declared}; {jobs}")
        if _limits(tenant.each_user):
            echo(f"  each user at most: {_limits(tenant.each_user)}")
        if tenant.limits:
            show_table(LIMITS, [_row(limit) for limit in tenant.limits])


def _row(limit: Limit) -> Sequence[str]:
    owner = f"user {limit.user}" if limit.user else "all jobs"
    if limit.resource in RESOURCES:
        return owner, *budget_row(limit)
    return owner, _of(limit), f"{limit.used:g}", "", f"{limit.limit:g}", ""


@tenant.command("set")
@click.argument("name", metavar="TENANT")
@click.option("--weight", type=float, metavar="W", help="2 gets twice the share of 1.")
@click.option(
    "--policy", type=click.Choice(["fairness", "fifo"]), help="How tenants and jobs below it share."
)
@click.option(
    "--gpus",
    multiple=True,
    metavar="TYPE=N",
    help="Its jobs hold at most N GPUs of TYPE at once; '*': of all types together; N none: no limit. May be repeated.",
)
@click.option(
    "--each-user-gpus",
    multiple=True,
    metavar="TYPE=N",
    help="As --gpus, for the jobs of each of its users. May be repeated.",
)
@count_options
@budget_options
@LIVE
def set_(
    name: str,
    weight: float | None,
    policy: str | None,
    gpus: tuple[str, ...],
    each_user_gpus: tuple[str, ...],
    session: Session,
    **limits: Any,
) -> None:
    """Declare a tenant, or change what is given of a declared one.

    A quota holds for the jobs of the tenant and of all tenants below it. Jobs beyond a lowered quota or a spent budget
    run to the end of their round. Tenants in the scheduler's settings file replace these when that file changes.
    """
    own, of_users = _entries("--gpus", gpus), _entries("--each-user-gpus", each_user_gpus)
    budgets, counts = with_budgets(limits), with_counts(limits)

    def changed(before: Tenant) -> Tenant:
        quota = replace(before.quota, gpus=_changed(before.quota.gpus, own))
        each_user = replace(before.each_user, gpus=_changed(before.each_user.gpus, of_users))
        return replace(
            before,
            weight=before.weight if weight is None else weight,
            policy=policy or before.policy,
            quota=counts[0](budgets[0](quota)),
            each_user=counts[1](budgets[1](each_user)),
        )

    with session.client(changes=True) as client:
        after = _change(client, name, changed)
    if session.as_json:
        print_json(after)
        return
    of_all, of_each = _limits(after.quota), _limits(after.each_user)
    of_all = f"at most {of_all}" if of_all else "no limits"
    echo(f"{name}: weight {after.weight:g}, {of_all}" + (f"; each user at most {of_each}" if of_each else ""))


def _change(client: Client, name: str, changed: Callable[[Tenant], Tenant]) -> Tenant:
    """Change a tenant, and return it. If another operator changes it at the same time, apply both changes."""
    from gavel.client.errors import Conflict, NotFound
    from gavel.client.results import Tenant

    for tries_left in reversed(range(TRIES)):
        try:
            (before,) = client.tenants([name])
        except NotFound:
            before = Tenant(name=name, version="undeclared")
        try:
            client.set_tenants(changed(before))
            break
        except Conflict:
            if not tries_left:
                raise
    (after,) = client.tenants([name])
    return after


def _entries(option: str, texts: Sequence[str]) -> dict[str, int | None]:
    """Read limits by worker type; None lifts one."""
    entries: dict[str, int | None] = {}
    for text in texts:
        kind, equals, limit = text.rpartition("=")
        if not (equals and kind and (limit == NONE or (limit.isascii() and limit.isdigit()))):
            raise Fault(f"{option}: '{text[:60]}' is not TYPE=N, such as h100=16, '*=64' or h100=none")
        if kind in entries:
            raise Fault(f"{option}: names {kind} twice")
        entries[kind] = None if limit == NONE else int(limit)
    return entries


def _changed(before: Mapping[str, int], entries: Mapping[str, int | None]) -> dict[str, int]:
    after = {**before, **entries}
    return {kind: limit for kind, limit in after.items() if limit is not None}


@tenant.command()
@click.argument("names", nargs=-1, required=True, metavar="TENANT…")
@LIVE
def remove(names: tuple[str, ...], session: Session) -> None:
    """Forget the declarations of tenants: their weights and quotas. Their jobs stay."""
    with session.client(changes=True) as client:
        client.set_tenants(removed=names)
    if session.as_json:
        print_json({"removed": names})
        return
    for name in names:
        echo(f"{name}: no longer declared")
