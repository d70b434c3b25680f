"""This agent reads run directories of older releases, and no key of their files has been removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker_agent.live_agents import PATIENT, LiveAgent, live, until
from tests.worker_agent.runs.golden_run import LIVING, PATH, put, start_shim, written

pytestmark = pytest.mark.usefixtures("nothing_left")


def golden() -> dict[str, Any]:
    """The files of the golden run."""
    text: dict[str, Any] = json.loads(PATH.read_text())
    return text


@live
async def test_a_running_job_of_an_older_agent_continues(tmp_path: Path) -> None:
    """P6: a shim starts from the old files, a new agent adopts the job from them, and the job ends by its lease."""
    run = put(golden(), tmp_path, "start.json", "lease.json", "agent.json")
    with start_shim(golden(), run) as shim:
        await until((run / "progress-0.json").exists)
        async with LiveAgent(tmp_path, limits=PATIENT) as node:
            (held,) = node.link.hellos[0]
            assert held.lease == "17"
            await until(lambda: node.agent.core.runs["17"].steps > 0)
            node.desire()
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("yielded", 0)
        assert shim.wait() == 0


@live
async def test_an_exit_that_an_older_shim_left_is_reported(tmp_path: Path) -> None:
    """P7: the report has the outcome, the steps and the running time of the exit."""
    put(golden(), tmp_path, *LIVING, "exit.json", "agent.json")
    async with LiveAgent(tmp_path) as node:
        exit = await node.exit()
        assert exit.outcome in ("yielded", "finished")
        assert exit.steps >= exit.saved > 0
        assert exit.ran_s > 0


@live
async def test_no_key_of_a_run_directory_was_removed(tmp_path: Path) -> None:
    """Keys may be added; a key that is removed or changes its type would break older shims and agents."""
    current = await written(tmp_path)
    assert current["shim_words"] == golden()["shim_words"]
    assert _shape(golden()["files"]) - _shape(current["files"]) == set()


def _shape(value: Any, at: str = "") -> set[str]:
    """Return each path with the kind of its value; a whole number is a number."""
    if isinstance(value, dict):
        return {line for name, part in value.items() for line in _shape(part, f"{at}.{name}")}
    if isinstance(value, list):
        return {line for part in value for line in _shape(part, f"{at}[]")} | {f"{at} list"}
    # An empty value has no kind.
    if value is None:
        return set()
    kind = (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )
    return {f"{at} {kind}"}
