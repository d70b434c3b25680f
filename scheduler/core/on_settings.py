"""Handlers of operators' settings: configuration, policy, rates, prices."""

from __future__ import annotations

import msgspec

from scheduler.core.facts import Configured, PricesSet, RatesGiven
from scheduler.core.messages import Configure, GiveRates, SetPolicy, SetPrices
from scheduler.core.outcome import Outcome
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec


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
