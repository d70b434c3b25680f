"""How much of the scheduler one person may take up: token buckets, and the settings of all that concerns people."""

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

# How many names a set of buckets keeps; the least recently used is forgotten first.
BUCKETS_MAX = 10_000

# How many callers without a token may send their requests at the same time: each may send 16 MiB before it is refused.
STRANGERS_READ_MAX = 4


class PeopleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of what users may do."""

    submissions_per_s: Annotated[float, "Jobs that one user may submit per second, on average."] = 1000.0
    submissions_burst: Annotated[int, "Jobs that one user may submit at once."] = 100_000
    jobs_unfinished_max: Annotated[int, "Unfinished jobs of one user."] = 100_000
    submission_jobs_max: Annotated[
        int,
        "Jobs in one submission, each member of an array counted: 10,000 keep other calls waiting for 0.5 s.",
    ] = 10_000
    calls_max: Annotated[int, "Calls in progress, of all users together; further ones are told to retry."] = (
        1000
    )
    calls_per_user_max: Annotated[int, "Calls in progress of one user."] = 100
    calls_without_token_max: Annotated[int, "Calls without a token in progress, per address."] = 16
    watchers_max: Annotated[int, "Calls in progress that watch jobs or rounds, or follow logs."] = 1000
    package_bytes_max: Annotated[int, "Size of a packed work directory; agents take at most 1 GiB."] = (
        PACKAGE_BYTES_MAX
    )
    packages_bytes_max: Annotated[int, "Size of all packages together."] = 50 * 1024**3
    package_keep_s: Annotated[float, "How long a package is kept that no unfinished job needs."] = 86_400.0
    token_valid_s: Annotated[float, "How long a token is valid where its maker does not say."] = 90 * 86_400.0
    token_valid_s_max: Annotated[float, "The longest time for which a token can be made."] = (
        2 * 365 * 86_400.0
    )
    audit_bytes_max: Annotated[int, "Size of one file of the audit log."] = 64 * 1024**2
    audit_files: Annotated[int, "How many files of the audit log are kept."] = 10

    def checked(self) -> PeopleConfig:
        """Return these settings. InvalidSpec names the field that cannot be right."""
        bounds.check_all(self, bounds.PEOPLE)
        if self.token_valid_s > self.token_valid_s_max:
            raise InvalidSpec("token_valid_s", f"is above token_valid_s_max, {self.token_valid_s_max:g}")
        return self


class Buckets:
    """A token bucket for each name: `per_s` in the long run, `burst` at once."""

    def __init__(self, per_s: float, burst: float, now_s: Callable[[], float]) -> None:
        self._per_s, self._burst, self._now_s = per_s, burst, now_s
        # Name → what is left, and as of when.
        self._level: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, name: str, count: float = 1.0) -> float:
        """Return how long until `count` may be taken. More than a full bucket may be taken from a full one."""
        return max(min(count, self._burst) - self._left(name), 0.0) / self._per_s

    def take(self, name: str, count: float = 1.0) -> None:
        """Take `count`, even below zero."""
        self._level[name] = (self._left(name) - count, self._now_s())
        self._level.move_to_end(name)
        if len(self._level) > BUCKETS_MAX:
            self._level.popitem(last=False)

    def _left(self, name: str) -> float:
        left, at_s = self._level.get(name, (self._burst, self._now_s()))
        return min(left + (self._now_s() - at_s) * self._per_s, self._burst)


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


class Places:
    """A limit of how many calls of a kind run at once."""

    def __init__(self, most: int, kind: str) -> None:
        self._most, self._kind, self.taken = most, kind, 0

    def __enter__(self) -> None:
        if self.taken >= self._most:
            raise CallFailed(TOO_MANY, f"there are already {self._most:,} {self._kind}", retry_s=10.0)
        self.taken += 1

    def __exit__(self, *error: object) -> None:
        self.taken -= 1


class CallPlaces:
    """The limits of calls in flight: of users, and of callers without a token by their address."""

    def __init__(self, config: PeopleConfig) -> None:
        self.users = Crowd(config.calls_max, config.calls_per_user_max)
        self.strangers = Crowd(config.calls_max, config.calls_without_token_max)
        self.reading_strangers = asyncio.Semaphore(STRANGERS_READ_MAX)


class Crowd:
    """A limit of calls in flight, in all and of each user or address."""

    def __init__(self, most: int, most_each: int) -> None:
        self._most, self._most_each = most, most_each
        self.taken, self._each = 0, Counter[str]()

    def enter(self, name: str) -> None:
        """Take a place for one call of this user or address until `leave`; raise CallFailed if none is free."""
        if self.taken >= self._most:
            text = f"the scheduler is busy with {self._most:,} calls; try again in a second"
            raise CallFailed(TOO_MANY, text, retry_s=1.0)
        if self._each[name] >= self._most_each:
            text = f"{name or 'you'} already has {self._most_each:,} calls in flight; wait for some of them to end"
            raise CallFailed(TOO_MANY, text, retry_s=0.5)
        self.taken += 1
        self._each[name] += 1

    def leave(self, name: str) -> None:
        """Give back the place of a call that has ended."""
        self.taken -= 1
        self._each[name] -= 1
        if not self._each[name]:
            del self._each[name]


def host_of(peer: str) -> str:
    """Return the address without its port, which differs for every connection."""
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer
