"""A daemon for tests of the command line, and nothing of the machine's own settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.messages import Exit
from tests.support.live_thread import LiveThread


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveThread]:
    """With one node of two V100, found by GAVEL_ADDRESS."""
    for name in ("GAVEL_TOKEN", "GAVEL_CA", "GAVEL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "daemon").mkdir()
    with LiveThread(tmp_path / "daemon") as live:
        monkeypatch.setenv("GAVEL_ADDRESS", live.address)
        live.do(live.daemon.node("n1", gpus=2, cpus=32.0, memory_gb=128.0))
        yield live


def finish(
    live: LiveThread, job: str, outcome: str = "finished", code: int = 0, last_lines: str = ""
) -> None:
    """The job runs on n1, and ends."""
    lease = live.do(live.daemon.run_job(job))
    live.do(live.daemon.report("n1", exits=(Exit(lease, outcome, 100.0, 100.0, 5.0, 6.0, code, last_lines),)))
