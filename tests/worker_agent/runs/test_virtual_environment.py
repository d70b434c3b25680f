"""A job does not start without its virtual environment."""

from __future__ import annotations

from pathlib import Path

from tests.worker_agent.shim_runs import ShimRun, python
from worker_agent.shim.run_directory import START


def test_a_missing_virtual_environment_fails_the_start(tmp_path: Path) -> None:
    """The agent's own Python is not used instead; an environment that the setup creates is accepted."""
    setup = ["/bin/sh", "-c", f"mkdir -p {tmp_path}/made/bin"]
    for name, word in (("none", f"{tmp_path}/none/bin"), ("made", "")):
        (tmp_path / f"run-{name}").mkdir()
        run = ShimRun(tmp_path / f"run-{name}", python("pass"), setup=setup)
        try:
            start = run.run.read(START)
            assert start is not None
            start["ranks"][0]["env"]["VIRTUAL_ENV"] = str(tmp_path / name)
            run.run.write(START, start)
            exit = run.start().ended()
            assert word in exit["error"]
            assert bool(word) == bool(exit["error"])
        finally:
            run.close()
