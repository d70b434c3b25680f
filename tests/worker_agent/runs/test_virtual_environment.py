"""A job's virtual environment is there, or the job does not start."""

from __future__ import annotations

from pathlib import Path

from tests.worker_agent.shim_runs import ShimRun, python
from worker_agent.shim.run_directory import START


def test_a_virtual_environment_that_is_not_there(tmp_path: Path) -> None:
    """The agent's own Python does not take its place; what the setup has made is there."""
    setup = ["/bin/sh", "-c", f"mkdir -p {tmp_path}/made/bin"]
    for name, word in (("none", f"there is no {tmp_path}/none/bin on this node"), ("made", "")):
        (tmp_path / f"run-{name}").mkdir()
        run = ShimRun(tmp_path / f"run-{name}", python("pass"), setup=setup)
        try:
            start = run.run.read(START)
            assert start is not None
            start["ranks"][0]["env"]["VIRTUAL_ENV"] = str(tmp_path / name)
            run.run.write(START, start)
            said = run.start().ended()
            assert word in said["error"]
            assert bool(word) == bool(said["error"])
        finally:
            run.close()
