"""Calls to the scheduler: with the caller's token, or with the gateway's own where one answer serves all callers."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from gavel.client.calls import Call, Method
from gavel.client.errors import UNAVAILABLE, GavelError, NotAllowed, NotAuthenticated, NotReachable, Refused
from gavel.client.settings import Connection
from gavel.client.transport.channels import AsyncTransport
from protos.gavel.v1 import cluster_pb2 as c

T = TypeVar("T")
# How long one call may take. Nothing is retried: browsers and programs decide that for themselves.
CALL_S = 30.0
# For how long the answer to "who am I" counts. A revoked token may see the views that all viewers see for so long.
IDENTITY_S = 10.0
# For how long a known caller goes on seeing views while the scheduler does not answer.
IDENTITY_AWAY_S = 3600.0
# How many callers are remembered.
IDENTITIES_MAX = 1000
WRONG_ROLE = (
    "the gateway's own token must have the role viewer, so that it shows to everyone what viewers may see"
)

who_am_i: Method[Any] = Method("Access/WhoAmI", lambda reply: reply)


class Upstream:
    """The channel to the scheduler, shared by all callers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._own = AsyncTransport(connection, CALL_S, 0.0, None)
        self._identities: Recent[str, Any] = Recent(IDENTITIES_MAX, IDENTITY_AWAY_S)

    async def call(self, call: Call[T], token: str) -> T:
        """Make a call with a caller's token; empty: with the gateway's own."""
        return await self._as(token).call(call)

    async def shared(self, call: Call[T]) -> T:
        """Make a call with the gateway's own token, whose answer is for all callers."""
        await self.check_own()
        with self.as_itself():
            return await self.call(call, "")

    async def check_own(self) -> None:
        """Raise Refused unless the scheduler admits the gateway itself: with its own token, as a viewer and no more.

        A scheduler without tokens would take any text for a token of an admin, so this comes before every call.
        """
        with self.as_itself():
            identity = await self.identity("")
        if self.connection.token and identity.role != c.ROLE_VIEWER:
            raise Refused(WRONG_ROLE, reason=UNAVAILABLE)

    def stream(self, call: Call[T], token: str) -> AsyncGenerator[T, None]:
        """Make a call that returns a stream."""
        return self._as(token).stream(call)

    @contextmanager
    def as_itself(self) -> Iterator[None]:
        """Make calls with the gateway's own token: if it is refused, raise Refused, for it is no error of a caller."""
        try:
            yield
        except (NotAuthenticated, NotAllowed) as error:
            self.forget("")
            detail = f"the scheduler refuses the gateway itself: {error.message}"
            raise Refused(detail, reason=UNAVAILABLE) from None

    async def identity(self, token: str, valid_s: float = IDENTITY_S) -> Any:
        """Return the user and role of a token, as the scheduler returned them at most `valid_s` ago.

        While the scheduler does not answer, a caller that it knew remains known for IDENTITY_AWAY_S.
        """
        return await self._identities.get(token, lambda: self.call(who_am_i(), token), valid_s)

    def forget(self, token: str) -> None:
        """Forget who a token belongs to, because the scheduler has refused it."""
        self._identities.drop(token)

    def _as(self, token: str) -> AsyncTransport:
        return self._own.with_token(token) if token else self._own

    async def close(self) -> None:
        """Close the channel."""
        await self._own.close()


K = TypeVar("K")


class _Kept(NamedTuple, Generic[T]):
    value: T
    at_s: float


class Recent(Generic[K, T]):
    """Values that count for a while: callers that ask for the same one at once share one question."""

    def __init__(self, values_max: int, away_s: float = 0.0) -> None:
        """`away_s`: for how long an old value counts while the scheduler does not answer."""
        self._values_max, self._away_s = values_max, away_s
        self._kept: OrderedDict[K, _Kept[T]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[T]] = {}

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, T]], valid_s: float) -> T:
        """Return the value of this key, asking for it unless the last answer is at most `valid_s` old."""
        kept, now_s = self._kept.get(key), time.monotonic()
        if kept is not None and now_s - kept.at_s < valid_s:
            return kept.value
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(self._ask(key, ask))
        try:
            # A caller that leaves must not take the answer away from the others.
            return await asyncio.shield(asking)
        except NotReachable:
            if kept is not None and now_s - kept.at_s < self._away_s:
                return kept.value
            raise

    async def _ask(self, key: K, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            value = await ask()
        except GavelError as error:
            # An answer, such as that a token is revoked, ends what was true before.
            if not isinstance(error, NotReachable):
                self.drop(key)
            raise
        finally:
            del self._asking[key]
        self._kept[key] = _Kept(value, time.monotonic())
        self._kept.move_to_end(key)
        while len(self._kept) > self._values_max:
            self._kept.popitem(last=False)
        return value

    def drop(self, key: K) -> None:
        """Forget a value."""
        self._kept.pop(key, None)
