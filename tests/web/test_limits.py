"""What one caller may use of the gateway: so much that no page notices, and not all of it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gavel.web import callers
from gavel.web.callers import Limits
from gavel.web.problems import Problem
from scheduler.live.access.roles import Role
from tests.e2e.cluster import eventually
from tests.web.conftest import Site


class Clock:
    """A clock that tests set."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def admitted(limits: Limits, caller: str, most: int = 10_000) -> int:
    """Return how many requests a caller may make at once."""
    for count in range(most):
        refused = refusal(limits, caller)
        if refused is not None:
            assert (refused.status, refused.reason) == (429, "too_many")
            assert 0 < refused.more["retry_s"] <= 1 / 100
            return count
    return most


def refusal(limits: Limits, caller: str) -> Problem | None:
    """Count a request, and return why it is refused, if it is."""
    try:
        limits.count_request(caller)
    except Problem as problem:
        return problem
    return None


def test_a_caller_has_a_burst_and_then_a_rate() -> None:
    """Refused requests cost nothing, time brings requests back up to the burst, and each caller has its own."""
    clock = Clock()
    limited = Limits(clock)
    assert (admitted(limited, "ann"), admitted(limited, "ann"), admitted(limited, "bob")) == (2000, 0, 2000)
    clock.now_s = 2.5
    assert admitted(limited, "ann") == 250
    clock.now_s = 1e6
    assert admitted(limited, "ann") == 2000


def test_the_callers_that_were_silent_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of tokens occupies a bounded memory."""
    monkeypatch.setattr(callers, "CALLERS_MAX", 2)
    limited = Limits(Clock())
    for caller in ("ann", "bob", "ann", "eve", "ann"):
        limited.count_request(caller)
    assert (admitted(limited, "ann"), admitted(limited, "bob")) == (1997, 2000)


def test_a_program_in_a_loop_is_slowed_and_others_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says when to try again; a request with a wrong token counts for nobody."""
    monkeypatch.setattr(callers, "REQUESTS_BURST", 5.0)
    monkeypatch.setattr(callers, "REQUESTS_PER_S", 1e-3)
    _, secret = site.new_token()
    wrong = site.gateway.browser(secret[:-1] + ("b" if secret.endswith("a") else "a"))
    assert [wrong.get("/v1/status").status for _ in range(7)] == [401] * 7
    program = site.gateway.browser(secret)
    replies = [program.get(path) for path in ("/v1/status", "/session", "/v1/queue") * 2]
    assert [reply.status for reply in replies] == [200] * 5 + [429]
    assert replies[-1].problem == (429, "too_many", "")
    assert float(replies[-1].headers["retry-after"]) >= replies[-1].json["retry_s"] > 0
    assert site.program(Role.VIEWER).get("/v1/status").status == 200


def test_streams_are_counted_while_they_are_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused, and admitted once another has ended."""
    monkeypatch.setattr(callers, "STREAMS_MAX", 2)
    program = site.gateway.browser(site.new_token()[1])
    with ExitStack() as stack:
        for _ in range(2):
            next(stack.enter_context(program.events("/v1/events")))
        assert program.get("/v1/events").problem == (429, "too_many", "")
        with site.program(Role.VIEWER).events("/v1/events") as events:
            assert next(events).kind == "open"
    eventually(lambda: opens(site, program.token), "a stream may be opened again")


def opens(site: Site, token: str) -> bool:
    """Whether a stream is opened for this token. It is closed at once."""
    try:
        with site.gateway.browser(token).events("/v1/events") as events:
            return next(events).kind == "open"
    except AssertionError:
        return False
