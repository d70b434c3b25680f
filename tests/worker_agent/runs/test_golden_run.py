"""Run directories outlive releases: what an older agent wrote is read by this one, and no key of it has gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_agent.live_agents import LiveAgent, end_all, live, until
from tests.worker_agent.runs.golden_run import LIVING, PATH, put, start_shim, written


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever happens, no process of a test outlives it."""
    yield
    end_all(tmp_path)


def golden() -> dict[str, Any]:
    """What was written."""
    text: dict[str, Any] = json.loads(PATH.read_text())
    return text


@live
async def test_a_living_job_of_an_older_agent_goes_on(tmp_path: Path) -> None:
    """P6: its shim starts from the old files, a new agent adopts it by them, and it ends by its lease."""
    run = put(golden(), tmp_path, "start.json", "lease.json", "agent.json")
    with start_shim(golden(), run) as shim:
        await until((run / "progress-0.json").exists)
        async with LiveAgent(tmp_path) as node:
            (held,) = node.link.hellos[0]
            assert held.lease == "17"
            await until(lambda: node.agent.core.runs["17"].steps > 0)
            node.desire()
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("yielded", 0)
        assert shim.wait() == 0


@live
async def test_an_exit_that_an_older_shim_left_is_reported(tmp_path: Path) -> None:
    """P7: with the outcome, the steps and the running time of then."""
    put(golden(), tmp_path, *LIVING, "exit.json", "agent.json")
    async with LiveAgent(tmp_path) as node:
        exit = await node.exit()
        assert exit.outcome in ("yielded", "finished")
        assert exit.steps >= exit.saved > 0
        assert exit.ran_s > 0


@live
async def test_no_key_of_a_run_directory_has_gone(tmp_path: Path) -> None:
    """Keys may come; one that goes, or changes its kind, would be missed by shims and agents of before."""
    now = await written(tmp_path)
    assert now["shim_words"] == golden()["shim_words"]
    assert _shape(golden()["files"]) - _shape(now["files"]) == set()


def _shape(value: Any, at: str = "") -> set[str]:
    """Where which kind of value stands; a whole number is a number."""
    if isinstance(value, dict):
        return {line for name, part in value.items() for line in _shape(part, f"{at}.{name}")}
    if isinstance(value, list):
        return {line for part in value for line in _shape(part, f"{at}[]")} | {f"{at} list"}
    if value is None:  # says nothing of its kind
        return set()
    kind = (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )
    return {f"{at} {kind}"}
