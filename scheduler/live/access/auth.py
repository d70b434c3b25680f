"""Identify callers: by token, by certificate, or, in single-user mode on loopback, by the name they give."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from scheduler.live.access.limits import Buckets, NamedSlots, host_of
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import TOO_MANY, UNAUTHENTICATED, CallFailed
from scheduler.live.access.tokens import Access, BadToken, id_of

USER_HEADER = "x-gavel-user"
# How many wrong tokens with the same id are tolerated from one address, at once and per second.
FAILURES_BURST, FAILURES_PER_S = 10.0, 0.1
# How many calls with wrong tokens may wait for their answer, in all and from one address.
WAITING_MAX, WAITING_EACH_MAX = 1000, 32
_NAME_CHARS_MAX = 64


# Identifies the caller by the metadata of a call and its address, or raises CallFailed.
Recognise = Callable[[dict[str, str], str], Awaitable[Caller]]


async def single_user(metadata: dict[str, str], peer: str) -> Caller:
    """Return an admin with the user name from the metadata: in single-user mode every caller is an admin."""
    user = metadata.get(USER_HEADER, "local")
    if not user or len(user) > _NAME_CHARS_MAX or not user.isprintable() or ":" in user:
        raise CallFailed(UNAUTHENTICATED, f"{USER_HEADER} does not hold a user name")
    return Caller(user, Role.ADMIN, peer=peer)


class ByToken:
    """Identify a caller by its token."""

    def __init__(self, access: Access, now_s: Callable[[], float]) -> None:
        self._access = access
        self._failures = Buckets(FAILURES_PER_S, FAILURES_BURST, now_s)
        self._waiting = NamedSlots(WAITING_MAX, WAITING_EACH_MAX)

    async def recognise(self, metadata: dict[str, str], peer: str) -> Caller:
        """Return the owner of the token. After several wrong tokens, further wrong ones are answered late or refused.

        The right one is always admitted: other callers at its address, such as users of one gateway, may send wrong
        ones, and secrets are too long to be guessed.
        """
        scheme, _, secret = metadata.get("authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise CallFailed(
                UNAUTHENTICATED,
                "a token is needed: ask an admin for one (`gavel token create`) and put it into GAVEL_TOKEN",
            )
        try:
            token = self._access.recognise(secret)
        except BadToken as error:
            await self._slow_down(host_of(peer), id_of(secret))
            raise CallFailed(UNAUTHENTICATED, str(error)) from None
        return Caller(token.user, token.role, token.id, peer, token.expires_s)

    async def _slow_down(self, host: str, id_: str) -> None:
        """Count a wrong token, and wait; raise CallFailed if there were too many with this id from this address."""
        source = f"{host} {id_}"
        wait_s = self._failures.wait_s(source)
        if wait_s > 0:
            raise CallFailed(TOO_MANY, "too many wrong tokens; try again later", retry_s=wait_s)
        self._failures.take(source)
        self._failures.take(f"{host} *")
        delay_s = self._failures.wait_s(f"{host} *")
        self._waiting.take(host)
        try:
            await asyncio.sleep(min(delay_s, 1.0))
        finally:
            self._waiting.release(host)


async def by_certificate(metadata: dict[str, str], peer: str) -> Caller:
    """Return a caller with the role of an agent, because mutual TLS admits only certificates of our authority.

    The service itself checks which node the certificate is for and whether it was revoked.
    """
    return Caller("", Role.AGENT, peer=peer)
