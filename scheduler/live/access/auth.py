"""Who is it? By token, or, in single-user mode on loopback, by what they say: then everybody is an admin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scheduler.live.access.limits import Buckets, Crowd, host_of
from scheduler.live.access.roles import Caller, Role
from scheduler.live.access.status import TOO_MANY, UNAUTHENTICATED, CallFailed
from scheduler.live.access.tokens import Access, BadToken, id_of

USER_HEADER = "x-gavel-user"
FAILURES_BURST, FAILURES_PER_S = 10.0, 0.1  # wrong tokens, by address and the token's id
# How many calls with wrong tokens are held up, in all and from one address.
WAITING_MAX, WAITING_EACH_MAX = 1000, 32
_NAME_CHARS_MAX = 64


class SingleUser:
    """Everybody who can reach the socket is the same person, whatever they are called."""

    async def recognise(self, metadata: dict[str, str], peer: str) -> Caller:
        """An admin, under the name that they give."""
        user = metadata.get(USER_HEADER, "local")
        if not user or len(user) > _NAME_CHARS_MAX or not user.isprintable() or ":" in user:
            raise CallFailed(UNAUTHENTICATED, f"the user name in {USER_HEADER} is no user name")
        return Caller(user, Role.ADMIN, peer=peer)


class ByToken:
    """Whoever shows a token that is valid is who it was made for."""

    def __init__(self, access: Access, now_s: Callable[[], float]) -> None:
        self._access = access
        self._failures = Buckets(FAILURES_PER_S, FAILURES_BURST, now_s)
        self._waiting = Crowd(WAITING_MAX, WAITING_EACH_MAX)

    async def recognise(self, metadata: dict[str, str], peer: str) -> Caller:
        """The caller. Who guesses is made to wait; who has a good token is not kept by somebody else's guesses."""
        scheme, _, secret = metadata.get("authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise CallFailed(
                UNAUTHENTICATED,
                "a token is needed: ask an admin for one (`gavel token create`), and put it into GAVEL_TOKEN",
            )
        about = f"{host_of(peer)} {id_of(secret)}"
        wait_s = self._failures.wait_s(about)
        if wait_s > 0:
            raise CallFailed(TOO_MANY, "too many wrong tokens; try again later", retry_s=wait_s)
        try:
            token = self._access.recognise(secret)
        except BadToken as error:
            self._failures.take(about)
            self._failures.take(f"{host_of(peer)} *")
            crowd_s = self._failures.wait_s(f"{host_of(peer)} *")
            self._waiting.enter(host_of(peer))
            try:
                await asyncio.sleep(min(crowd_s, 1.0))
            finally:
                self._waiting.leave(host_of(peer))
            raise CallFailed(UNAUTHENTICATED, str(error)) from None
        return Caller(token.user, token.role, token.id, peer, token.expires_s)


class ByCertificate:
    """Behind mutual TLS: the connection stands only with a certificate of ours. Which node it is for, and whether it
    was revoked, the service itself looks at."""

    async def recognise(self, metadata: dict[str, str], peer: str) -> Caller:
        """An agent."""
        return Caller("", Role.AGENT, peer=peer)
