"""Fixtures for tests of the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """End every process of an agent or a run that a test has left behind."""
    from tests.worker_agent.live_agents import end_all

    yield
    end_all(tmp_path)
