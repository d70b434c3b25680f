"""Limits on how much of the scheduler one user may occupy: token buckets, slots for calls, and their settings."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Annotated

import msgspec

from protos.gavel.v1.limits import PACKAGE_BYTES_MAX
from scheduler.live.access.status import TOO_MANY, CallFailed
from scheduler.model import bounds
from scheduler.model.errors import InvalidSpec

# How many names `Buckets` keeps; the least recently used one is dropped first.
BUCKETS_MAX = 10_000

# How many callers without a token may send their requests at the same time. gRPC reads up to 16 MiB of each request
# before we can refuse it.
STRANGERS_READ_MAX = 4


class PeopleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits for users."""

    submissions_per_s: Annotated[float, "Jobs that one user may submit per second, on average."] = 1000.0
    submissions_burst: Annotated[int, "Jobs that one user may submit at once."] = 100_000
    jobs_unfinished_max: Annotated[int, "Unfinished jobs of one user."] = 100_000
    submission_jobs_max: Annotated[
        int,
        "Jobs in one submission, counting every member of an array; 10,000 delay other calls by 0.5 s.",
    ] = 10_000
    calls_max: Annotated[int, "Calls in progress of all users together; further ones must retry later."] = (
        1000
    )
    calls_per_user_max: Annotated[int, "Calls in progress of one user."] = 100
    calls_without_token_max: Annotated[int, "Calls in progress without a token, per address."] = 16
    watchers_max: Annotated[int, "Calls in progress that watch jobs or rounds, or follow logs."] = 1000
    terminals: Annotated[bool, "Whether users may run interactive jobs and open terminals of their jobs."] = (
        True
    )
    package_bytes_max: Annotated[int, "Size of a packed work directory; agents take at most 1 GiB."] = (
        PACKAGE_BYTES_MAX
    )
    packages_bytes_max: Annotated[int, "Size of all packages together."] = 50 * 1024**3
    package_keep_s: Annotated[float, "How long a package is kept if no unfinished job needs it."] = 86_400.0
    token_valid_s: Annotated[float, "How long a token is valid by default."] = 90 * 86_400.0
    token_valid_s_max: Annotated[float, "The longest validity of a token."] = 2 * 365 * 86_400.0
    audit_bytes_max: Annotated[int, "Size of one file of the audit log."] = 64 * 1024**2
    audit_files: Annotated[int, "How many files of the audit log are kept."] = 10

    def checked(self) -> PeopleConfig:
        """Return these settings, or raise InvalidSpec with the field that is wrong."""
        bounds.check_all(self, bounds.PEOPLE)
        if self.token_valid_s > self.token_valid_s_max:
            raise InvalidSpec("token_valid_s", f"is above token_valid_s_max, {self.token_valid_s_max:g}")
        return self


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
