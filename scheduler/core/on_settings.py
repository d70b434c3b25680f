"""What operators set: behaviour, policy, rates, prices."""

from __future__ import annotations

import math

import msgspec

from scheduler.core.facts import Configured, PricesSet, RatesGiven
from scheduler.core.messages import Configure, GiveRates, SetPolicy, SetPrices
from scheduler.core.outcome import Outcome
from scheduler.model.errors import InvalidSpec


def on_configure(out: Outcome, message: Configure) -> None:
    """New settings."""
    try:
        settings = message.settings.checked()
    except InvalidSpec as error:
        out.refuse(message.call, error)
        return
    out.fact(Configured(settings=settings, by=message.user))
    out.wake(out.now_s, "tick")  # a round may have become shorter, or its leads
    out.reply(message.call)


def on_set_policy(out: Outcome, message: SetPolicy) -> None:
    """The name was checked where it came in: the core knows no policies."""
    settings = msgspec.structs.replace(out.state.settings, policy=message.policy)
    out.fact(Configured(settings=settings, by=message.user))
    out.reply(message.call, policy=message.policy)


def on_rates(out: Outcome, message: GiveRates) -> None:
    """Rows of the throughput table; 0 means that the job does not fit there."""
    rates: list[tuple[object, float]] = [
        (row[:3], row[3]) for row in (*message.solo, *message.unconsolidated)
    ]
    rates += [(row[:4], rate) for row in message.pairs for rate in row[4:]]
    for what, rate in rates:
        if not (math.isfinite(rate) and rate >= 0):
            out.refuse(message.call, InvalidSpec(f"rate of {what}", f"is {rate}, must be a number from 0 up"))
            return
    fact = RatesGiven(
        solo=message.solo, unconsolidated=message.unconsolidated, pairs=message.pairs, by=message.user
    )
    out.fact(fact)
    out.reply(message.call)


def on_set_prices(out: Outcome, message: SetPrices) -> None:
    """Prices per GPU-hour, by worker type."""
    for kind, price in message.price_per_gpu_hour.items():
        if not (math.isfinite(price) and price >= 0):
            out.refuse(
                message.call, InvalidSpec(f"price_per_gpu_hour.{kind}", f"is {price}, must be a price")
            )
            return
    out.fact(PricesSet(price_per_gpu_hour=message.price_per_gpu_hour, by=message.user))
    out.wants_review = True  # who may cost only so much reaches that sooner, or later
    out.reply(message.call)
