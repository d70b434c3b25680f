"""A daemon for tests of the client, and no settings of the machine's user."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_thread import LiveThread


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the addresses, tokens and contexts of the user who runs the tests."""
    for name in ("GAVEL_ADDRESS", "GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveThread]:
    """A daemon with one node of two V100."""
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon") as live:
        live.do(live.daemon.node("n1", gpus=2))
        yield live
