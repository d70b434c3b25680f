"""A state directory that cannot be written: the agent notices and reports it once, and does not flood its log."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from protos.log import EVERY_S, RepeatedLines
from tests.support.wording import Wording
from tests.worker_agent.agents import order
from tests.worker_agent.live_agents import LiveAgent, job, live, until
from worker_agent.core.messages import Limits
from worker_agent.node.state_check import StateCheck, trouble_with
from worker_agent.runs.supervisor import Processes


def test_a_writable_directory_is_no_trouble(tmp_path: Path) -> None:
    """The check finds no trouble, and leaves nothing in the directory."""
    assert trouble_with(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_trouble_names_the_directory_and_the_reason(tmp_path: Path) -> None:
    """The directory may be missing or a file; a full disk gives the same error."""
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path / "gone", "No such file"), (tmp_path / "file", "Not a directory")):
        trouble = trouble_with(path)
        assert str(path) in trouble
        assert reason in trouble


def test_only_changes_are_reported(tmp_path: Path) -> None:
    """Each change from good to bad or back is reported once, however often the directory is checked."""
    folder, reports = tmp_path / "runs", []

    async def story() -> None:
        check = StateCheck(folder, reports.append, interval_s=3600.0)
        task = asyncio.create_task(check.run())
        await until(lambda: len(reports) == 1)
        folder.mkdir()
        check.check_now()
        await until(lambda: len(reports) == 2)
        check.check_now()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
    assert ["cannot be written" in reports[0], *reports[1:]] == [True, ""]


@live
async def test_a_start_that_fails_has_the_directory_checked(tmp_path: Path) -> None:
    """If the run's files cannot be written, the exit is the node's failure, and the check runs at once."""
    checks: list[str] = []
    async with LiveAgent(tmp_path, on_failed_start=lambda: checks.append("check")) as node:
        runs = node.agent.processes.runs_path
        runs.rename(tmp_path / "away")
        runs.touch()
        node.desire(job("print('never')"))
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s, checks) == ("node_failed", 0.0, ["check"])
        runs.unlink()
        runs.mkdir()


@live
async def test_the_log_of_a_job_gives_the_reason_of_its_end(tmp_path: Path, wording: Wording) -> None:
    """The log names the user who ended the lease: the scheduler sends the reason with the set without the lease."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import time; print('here', flush=True); time.sleep(600)"))
        await node.says("here")
        node.desire(why_ended={"17": "cancelled by ann"})
        await node.exit()
        line = next(line for line in node.log().splitlines() if "SIGTERM" in line)
        assert "(cancelled by ann)" in line
        wording(line)


def test_the_same_failure_is_logged_in_full_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After the first line, one line a minute counts the others; another failure is logged in full again."""
    now_s = 0.0
    processes = Processes(tmp_path, Limits(), print)
    processes.repeated = RepeatedLines(lambda: now_s)
    error = OSError(28, "No space left on device")
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            now_s += 0.1
            processes.log_failed_start(order("a", 0), error)
        processes.log_failed_start(order("a", 0), OSError(5, "Input/output error"))
    full = [record for record in caplog.records if record.exc_info]
    assert len(full) == 2
    assert len(caplog.records) - len(full) == int(100.0 // EVERY_S)
    assert "No space left on device" in caplog.records[1].getMessage()
