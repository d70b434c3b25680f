"""A daemon to talk to, and nothing of the machine's own settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_thread import LiveThread


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have contexts and tokens of their own."""
    for name in ("GAVEL_ADDRESS", "GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveThread]:
    """With one node of two V100."""
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon") as live:
        live.do(live.daemon.node("n1", gpus=2))
        yield live
