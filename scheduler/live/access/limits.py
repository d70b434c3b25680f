"""Limits on how much of the scheduler one user may occupy: token buckets, and slots for calls."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from scheduler.live.access.people import PeopleConfig
from scheduler.live.access.status import TOO_MANY, CallFailed

R = TypeVar("R")
# How many names `Buckets` keeps; the least recently used one is dropped first.
BUCKETS_MAX = 10_000

# How many callers without a token may send their requests at the same time. gRPC reads up to 16 MiB of each request
# before we can refuse it.
STRANGERS_READ_MAX = 4


class Buckets:
    """A token bucket for each name: `per_s` in the long run, `burst` at once."""

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float]) -> None:
        self._per_s, self._burst, self._now_s = per_s, burst, now_s
        # Name → the tokens left in its bucket, and the time of that count.
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, name: str, count: float = 1.0) -> float:
        """Return the time until `count` may be taken. A count larger than the bucket needs a full bucket."""
        return max(min(count, self._burst) - self._tokens_left(name), 0.0) / self._per_s

    def take(self, name: str, count: float = 1.0) -> None:
        """Take `count`; the bucket may go below zero."""
        self._level[name] = (self._tokens_left(name) - count, self._now_s())
        self._level.move_to_end(name)
        if len(self._level) > BUCKETS_MAX:
            self._level.popitem(last=False)

    def _tokens_left(self, name: str) -> float:
        tokens, at_s = self._level.get(name, (self._burst, self._now_s()))
        return min(tokens + (self._now_s() - at_s) * self._per_s, self._burst)


class Submissions:
    """The limits of each user's submissions and unfinished jobs."""

    def __init__(self, config: PeopleConfig, now_s: Callable[[], float]) -> None:
        self._buckets = Buckets(config.submissions_per_s, config.submissions_burst, now_s)
        self._unfinished_max = config.jobs_unfinished_max

    def admit(self, user: str, jobs: int, unfinished: int) -> None:
        """Count a submission; raise CallFailed if it exceeds a limit."""
        if unfinished + jobs > self._unfinished_max:
            raise CallFailed(
                TOO_MANY,
                f"{user} would have {unfinished + jobs:,} unfinished jobs; the limit is {self._unfinished_max:,}",
                retry_s=60.0,
            )
        wait_s = self._buckets.wait_s(user, jobs)
        if wait_s > 0:
            raise CallFailed(
                TOO_MANY, f"{user} submits too fast; try again in {wait_s:.1f} s", retry_s=wait_s
            )
        self._buckets.take(user, jobs)


class Slots:
    """A limit on the calls of one kind that run at once."""

    def __init__(self, limit: int, kind: str) -> None:
        self._limit, self._kind, self.used = limit, kind, 0

    def __enter__(self) -> None:
        if self.used >= self._limit:
            raise CallFailed(TOO_MANY, f"there are already {self._limit:,} {self._kind}", retry_s=10.0)
        self.used += 1

    def __exit__(self, *error: object) -> None:
        self.used -= 1

    async def during(self, parts: AsyncIterator[R]) -> AsyncGenerator[R, None]:
        """Yield the parts, and count as a call meanwhile. At the end, or when the caller leaves, close their source."""
        with self:
            async with aclosing(parts) as open_parts:  # type: ignore[type-var]
                async for part in open_parts:
                    yield part


class CallSlots:
    """The limits on calls in flight: by user, and by address for callers without a token ("strangers")."""

    def __init__(self, config: PeopleConfig) -> None:
        self.users = NamedSlots(config.calls_max, config.calls_per_user_max)
        self.strangers = NamedSlots(config.calls_max, config.calls_without_token_max)
        self.reading_strangers = asyncio.Semaphore(STRANGERS_READ_MAX)


class NamedSlots:
    """A limit on the calls in flight: on all together, and on those of each user or address."""

    def __init__(self, limit: int, limit_each: int) -> None:
        self._limit, self._limit_each = limit, limit_each
        self.used, self._used_by = 0, Counter[str]()

    def take(self, name: str) -> None:
        """Take a slot for a call of this user or address until `release`; raise CallFailed if none is free."""
        if self.used >= self._limit:
            text = f"the scheduler is busy with {self._limit:,} calls; try again in a second"
            raise CallFailed(TOO_MANY, text, retry_s=1.0)
        if self._used_by[name] >= self._limit_each:
            owner = name or "this caller"
            text = f"{owner} already has {self._limit_each:,} calls in flight; wait for some of them to end"
            raise CallFailed(TOO_MANY, text, retry_s=0.5)
        self.used += 1
        self._used_by[name] += 1

    def release(self, name: str) -> None:
        """Release the slot of a call that has ended."""
        self.used -= 1
        self._used_by[name] -= 1
        if not self._used_by[name]:
            del self._used_by[name]


def host_of(peer: str) -> str:
    """Return the address of a peer without its port, which differs for every connection."""
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer
