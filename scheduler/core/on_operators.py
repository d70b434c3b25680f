"""Handlers of operators' messages: settings, policy, tenants, rates, prices, and commands about nodes."""

from __future__ import annotations

import msgspec

from scheduler.core import on_rounds
from scheduler.core.facts import Configured, NodeMoved, NodeRemoved, PricesSet, RatesGiven
from scheduler.core.failed_starts import named_jobs
from scheduler.core.messages import Configure, GiveRates, NodeCommand, SetPolicy, SetPrices, SetTenants
from scheduler.core.outcome import Outcome
from scheduler.core.planning.feasibility import check_types
from scheduler.core.state import SchedulerState
from scheduler.model import bounds
from scheduler.model.cluster import FAULTY, UP, Node, NodeState, why_commanded
from scheduler.model.errors import InvalidSpec, NotFound, Outdated, Refused
from scheduler.model.settings import UNDECLARED, TenantSpec


def on_configure(out: Outcome, message: Configure) -> None:
    """Put new settings into force."""
    try:
        settings = message.settings.checked()
        bounds.check_text("user", message.user)
    except InvalidSpec as error:
        out.refuse(message.call, error)
        return
    out.fact(Configured(settings=settings, by=message.user))
    # The round or its leads may have become shorter, so the timers must be set anew.
    out.wake(out.now_s, "tick")
    out.reply(message.call)


def on_set_policy(out: Outcome, message: SetPolicy) -> None:
    """Change the policy."""
    # The caller has checked that this policy exists, because the core does not import the policies.
    try:
        bounds.check_name("policy", message.policy, bounds.POLICY_CHARS_MAX)
        bounds.check_text("user", message.user)
    except InvalidSpec as error:
        out.refuse(message.call, error)
        return
    settings = msgspec.structs.replace(out.state.settings, policy=message.policy)
    out.fact(Configured(settings=settings, by=message.user))
    out.reply(message.call, policy=message.policy)


def on_set_tenants(out: Outcome, message: SetTenants) -> None:
    """Declare tenants, with their weights and quotas, or forget declarations."""
    state = out.state
    try:
        bounds.check_text("user", message.user)
        declared = {tenant.name: tenant for tenant in state.settings.tenants}
        for name in message.removed:
            if declared.pop(name, None) is None:
                raise NotFound(f"there is no declared tenant '{name}'")
        for tenant in message.tenants:
            _must_be_current(declared.get(tenant.name), tenant, message.versions.get(tenant.name, ""))
        declared.update((tenant.name, tenant) for tenant in message.tenants)
        settings = msgspec.structs.replace(state.settings, tenants=tuple(declared.values())).checked()
        types = {*state.size_of_type, *[worker_type for _, _, worker_type in state.rates.solo]}
        for tenant in message.tenants:
            check_types(tenant, types)
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    if settings != state.settings:
        out.fact(Configured(settings=settings, by=message.user))
        # A quota may have been raised while GPUs are idle.
        on_rounds.kick(out)
    out.reply(message.call)


def _must_be_current(before: TenantSpec | None, after: TenantSpec, version: str) -> None:
    """Raise Outdated if the declaration that would be replaced is not the one with this version."""
    # A repeated request finds its own declaration.
    if version and before != after and version != (UNDECLARED if before is None else before.version):
        fault = "is declared already" if version == UNDECLARED else "has changed since it was read"
        raise Outdated(f"tenant '{after.name}' {fault}: read it again, then change it")


def on_rates(out: Outcome, message: GiveRates) -> None:
    """Add rows of the throughput table. A rate of 0 means that the job does not fit there."""
    try:
        bounds.check_text("user", message.user)
        for field in ("solo", "unconsolidated", "pairs"):
            bounds.check_count(field, getattr(message, field), bounds.RATE_ROWS_MAX)
        for row in (*message.solo, *message.unconsolidated):
            _check_rates(row[:3], row[3:])
        for pair in message.pairs:
            _check_rates(pair[:4], pair[4:])
    except InvalidSpec as error:
        out.refuse(message.call, error)
        return
    fact = RatesGiven(
        solo=message.solo, unconsolidated=message.unconsolidated, pairs=message.pairs, by=message.user
    )
    out.fact(fact)
    out.reply(message.call)


def _check_rates(way: tuple[str | int, ...], rates: tuple[float, ...]) -> None:
    """Check one row: names and a number of GPUs in `way`, then its rates."""
    for part in way:
        if isinstance(part, str):
            bounds.check_name("rates", part)
        elif not bounds.GPUS.admits(part):
            bounds.check(f"gpus of {way}", part, bounds.GPUS)
    for rate in rates:
        if not bounds.TABLE_RATE.admits(rate):
            bounds.check(f"rate of {way}", rate, bounds.TABLE_RATE)


def on_set_prices(out: Outcome, message: SetPrices) -> None:
    """Set prices per GPU-hour, by worker type."""
    try:
        bounds.check_text("user", message.user)
        bounds.check_each("price_per_gpu_hour", message.price_per_gpu_hour, bounds.PRICE)
    except InvalidSpec as error:
        out.refuse(message.call, error)
        return
    out.fact(PricesSet(price_per_gpu_hour=message.price_per_gpu_hour, by=message.user))
    # Jobs with a cost limit will now reach their limit at another time.
    out.wants_review = True
    out.reply(message.call)


def on_node_command(out: Outcome, message: NodeCommand) -> None:
    """Drain, resume or remove a node."""
    state = out.state
    try:
        if message.action not in ("drain", "resume", "remove"):
            raise InvalidSpec(
                "action", f"is {bounds.readable(message.action)}, must be drain, resume or remove"
            )
        bounds.check_text("user", message.user)
        bounds.check_text("reason", message.reason)
        if message.reason and message.action == "remove":
            raise InvalidSpec("reason", "is kept of nodes that are drained or resumed, not of removed ones")
        node = state.node(message.node)
        in_use = any(gpu in state.holders or gpu in state.claims for gpu in node.every_gpu)
        if message.action == "remove" and (in_use or node.state == NodeState.UP):
            raise Refused(_why_not_removed(state, node))
        if message.action != "remove" and node.state in (NodeState.SILENT, NodeState.LOST):
            raise Refused(f"node '{message.node}' is {node.state}")
    except (InvalidSpec, Refused) as error:
        out.refuse(message.call, error)
        return
    if message.action == "remove":
        out.fact(NodeRemoved(node=message.node, by=message.user))
    else:
        new_state = NodeState.DRAINING if message.action == "drain" else NodeState.UP
        why = why_commanded(message.action, message.user, message.reason)
        left = message.by_agent and message.action == "drain"
        faults = bool(node.broken or node.withheld or node.failed_starts)
        mended = faults and message.action == "resume" and not message.by_agent
        out.fact(NodeMoved(node=message.node, state=new_state, why=why, left=left, mended=mended))
    out.reply(message.call, node=message.node)
    on_rounds.kick(out)


def _why_not_removed(state: SchedulerState, node: Node) -> str:
    """Return why a node cannot be removed, and what to do first."""
    name = node.spec.name
    if node.state in (UP, FAULTY):
        return f"node '{name}' is {node.state}: drain it first, and wait until it is empty"
    jobs = list(dict.fromkeys(holding.lease.job for holding in state.on_node(name)))
    if not jobs:
        return f"node '{name}' is {node.state} and some of its GPUs are promised to a job: wait until it is empty"
    return f"node '{name}' is {node.state} and still has {named_jobs(jobs)}: wait until it is empty"
