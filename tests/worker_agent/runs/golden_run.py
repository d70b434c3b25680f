"""A run directory of today's agent, kept as text, since a newer agent must read those of older releases.

    # Rewrite golden_run.json from a running job.
    python -m tests.worker_agent.runs.golden_run

Values that differ between machines are names in braces; times count from the moment of writing.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.worker_agent.live_agents import WORKER, LiveAgent, job, until
from worker_agent.runs.run import SHIM_WORDS
from worker_agent.shim.process_tree import boot_id

PATH = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).resolve().parents[3]
LIVING = ("start.json", "lease.json", "shim.json", "progress-0.json")
# Of the environment, only Gavel's variables are kept; the others belong to this machine.
_OURS = re.compile(r"GAVEL_.*|RANK|.*_RANK|.*WORLD_SIZE|MASTER_.*|PYTHON.*|CUDA_.*|HOME|USER")
_MOMENTS = {"ask_s", "signal_s", "kill_s", "ends_s", "started_s", "ended_s"}


async def written(folder: Path) -> dict[str, Any]:
    """Return the files of a running job, and those that its shim leaves at the end."""
    async with LiveAgent(folder) as node:
        about: dict[str, Any] = {"name": "golden", "user": "ada", "array_index": 3, "steps_max": 1e6}
        launch = {"env": {"GREETING": "hello"}, "setup": "true"}
        node.desire(job(WORKER, ends_in_s=60.0, launch=launch, **about))
        await node.runs()
        await until(lambda: node.agent.core.runs["17"].steps > 0)
        run = node.agent.processes.path("17")
        now_s = time.monotonic()
        files = {name: json.loads((run / name).read_text()) for name in LIVING}
        files["agent.json"] = json.loads((node.state / "agent.json").read_text())
        node.desire()
        await node.exit()
        files["exit.json"] = json.loads((run / "exit.json").read_text())
    return {
        "shim_words": list(SHIM_WORDS),
        "files": {name: _portable(content, folder, now_s) for name, content in files.items()},
    }


def _portable(value: Any, folder: Path, now_s: float, key: str = "") -> Any:
    """Replace values of this machine or this moment by names in braces."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if key != "env" or _OURS.fullmatch(name)}
        return {name: _portable(part, folder, now_s, name) for name, part in kept.items()}
    if isinstance(value, list):
        return [_portable(part, folder, now_s, key) for part in value]
    # A control group exists for one run on one machine.
    if key == "group":
        return None
    if key in _MOMENTS:
        return round(value - now_s, 1)
    if isinstance(value, str):
        for text, word in _words(folder).items():
            value = value.replace(text, word)
    return value


def _words(folder: Path) -> dict[str, str]:
    return {
        str(folder): "{FOLDER}",
        sys.executable: "{PYTHON}",
        boot_id(): "{BOOT}",
        str(Path.home()): "{HOME}",
    }


def put(golden: Mapping[str, Any], folder: Path, *names: str) -> Path:
    """Write files of the golden run below a folder, with values of this machine and moment; return the directory."""
    run = folder / "state" / "runs" / "17"
    (run / "logs").mkdir(parents=True, mode=0o700)
    run.chmod(0o700)
    now_s = time.monotonic()
    for name in names:
        place = run.parents[1] if name == "agent.json" else run
        text = json.dumps(_here(golden["files"][name], folder, now_s))
        (place / name).write_text(text)
        (place / name).chmod(0o600)
    return run


def _here(value: Any, folder: Path, now_s: float, key: str = "") -> Any:
    """The inverse of `_portable`."""
    if isinstance(value, dict):
        return {name: _here(part, folder, now_s, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_here(part, folder, now_s, key) for part in value]
    if key in _MOMENTS:
        return now_s + value
    if isinstance(value, str):
        for text, word in _words(folder).items():
            value = value.replace(word, text)
    return value


def start_shim(golden: Mapping[str, Any], run: Path) -> subprocess.Popen[bytes]:
    """Start the shim of that run with the command line of its release."""
    return subprocess.Popen(
        [sys.executable, "-S", *golden["shim_words"], str(run)],
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def main() -> None:
    """Write golden_run.json."""
    with tempfile.TemporaryDirectory() as folder:
        golden = asyncio.run(written(Path(folder)))
    PATH.write_text(json.dumps(golden, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
