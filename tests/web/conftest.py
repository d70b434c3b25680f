"""A scheduler with a token of every role, and a gateway for it: one of each for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gavel.web import mirror
from scheduler.live.access.roles import Role
from scheduler.live.access.tokens import Access
from tests.support.live_thread import LiveThread
from tests.support.web import Browser, Gateway, empty_pages, running_gateway

ROLES = (Role.VIEWER, Role.USER, Role.OPERATOR, Role.ADMIN, Role.AGENT)
VALID_S = 86_400.0


class Site(NamedTuple):
    """The scheduler, its gateway, and a token of each role, whose user has the role's name."""

    live: LiveThread
    gateway: Gateway
    tokens: dict[Role, str]

    def program(self, role: Role) -> Browser:
        """Return a program that sends the token of a role."""
        return self.gateway.browser(self.tokens[role])

    def browser(self, role: Role) -> Browser:
        """Return a browser that is signed in with the token of a role."""
        return self.gateway.signed_in(self.tokens[role])

    def new_token(self, role: Role = Role.USER) -> tuple[str, str]:
        """Make another token; return its id and its secret."""
        token, secret = self._access.create("guest", role, VALID_S)
        return token.id, secret

    def revoke(self, token: str) -> None:
        """Revoke a token by its id."""
        self._access.revoke(token)

    @property
    def _access(self) -> Access:
        assert self.live.daemon.people.access is not None
        return self.live.daemon.people.access


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A scheduler with one node of two V100, and a gateway."""
    folder = tmp_path_factory.mktemp("site")
    with LiveThread(folder, auth="tokens") as live, pytest.MonkeyPatch.context() as patch:
        access = live.daemon.people.access
        assert access is not None
        tokens = {role: access.create(role.word, role, VALID_S)[1] for role in ROLES}
        live.do(live.daemon.node("n1", gpus=2))
        pages = empty_pages(tmp_path_factory.mktemp("pages"))
        # Tests look at many changes; users do not.
        patch.setattr(mirror, "BATCH_S", 0.02)
        with running_gateway(live.address, tokens[Role.VIEWER], pages=pages) as gateway:
            yield Site(live, gateway, tokens)
