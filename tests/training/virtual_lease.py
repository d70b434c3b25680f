"""A lease in virtual time: no thread watches it, and steps and saves last as long as the test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from gavel.training import auto, hook, progress, session
from gavel.training.environment import run_of
from tests.training.leases import RunDirectory

STEP_S, SAVE_S = 0.5, 0.2


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now_s

    def take(self, duration_s: float) -> None:
        """Let some time pass."""
        self.now_s += duration_s


class VirtualLease:
    """One lease of a trainer, with its clock and the steps at which the trainer has written."""

    def __init__(self, run: RunDirectory, own_session: session.Session, clock: Clock) -> None:
        self.run, self.session, self.clock = run, own_session, clock
        self.step_s, self.save_s = STEP_S, SAVE_S
        self.saves: list[int] = []

    def step(self) -> None:
        """Take the time of a step."""
        self.clock.take(self.step_s)

    def write(self, step: int) -> None:
        """Take the time in which the trainer writes a checkpoint."""
        self.saves.append(step)
        self.clock.take(self.save_s)

    def measured(self, steps: int) -> dict[str, Any]:
        """Return what the agent would read now."""
        self.session.progress.write(self.clock.now_s, steps)
        values: dict[str, Any] = self.run.progress().get("measured", {})
        return values


@contextmanager
def virtual_lease(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, **more: object
) -> Iterator[VirtualLease]:
    """Make this process the only rank under a lease within the block."""
    environ, clock = run.environ(**more), Clock()
    with monkeypatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        for module in (auto, hook, progress):
            patch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
        own_run = run_of(environ)
        assert own_run is not None
        own_session = session.Session(own_run)
        patch.setattr(session, "_session", own_session)
        try:
            yield VirtualLease(run, own_session, clock)
        finally:
            own_session.close()
