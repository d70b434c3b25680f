"""A probe of a whole script: one process after another, each with its own `GAVEL_PROBE`, and what their rates say.

    python3 -m gavel.training.data.probing --steps 100 -- python train.py

The last line of the output is the answer, as JSON after `gavel-probe: `. Checkpoints go to a directory that is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gavel.training.data import probe
from gavel.training.data.stalls import (
    IN_TURN,
    Change,
    best,
    changes,
    fractions,
    overlap_of,
    step_of,
)

LINE = "gavel-probe: "
CANNOT = 2
# The time until the throw-away lease ends.
LEASE_S = 1e6
_STDERR = 2
# The variables of a rank that is alone, under that lease.
_ONLY_RANK = {
    "GAVEL_JOB_ID": "0",
    "GAVEL_LEASE": "1",
    "GAVEL_EPOCH": "1",
    "GAVEL_ATTEMPT": "1",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
}


class CannotProbe(Exception):
    """A script that cannot be probed. `code`: the exit code for it."""

    def __init__(self, message: str, code: int = CANNOT) -> None:
        super().__init__(message)
        self.code = code


def probe_script(
    command: Sequence[str],
    steps: int,
    environment: Mapping[str, str],
    directory: str | None = None,
    show: Callable[[str], None] = lambda mode: None,
) -> dict[str, Any]:
    """Run the script once for each mode, and return what it spends its time on, and what would make it faster.

    Its output goes to standard error. `show` is called with each mode before it runs.
    """

    def run(mode: str) -> dict[str, Any]:
        show(mode)
        return _run(mode, command, steps, environment, directory)

    # Real data first: the other modes read it.
    real, cached, synthetic = (run(mode) for mode in ("real", "cached", "synthetic"))
    half = _parallel(cached) // 2
    workers = cached["workers"]
    fewer = run(f"cpus={half}") if half and workers != 0 else None
    return answer(real, cached, synthetic, fewer)


def answer(
    real: Mapping[str, Any],
    cached: Mapping[str, Any],
    synthetic: Mapping[str, Any],
    fewer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what the reports of the modes say. `fewer`: the one with half the CPUs, if there is one."""
    # Only noise makes a loop faster with more to do.
    cached_rate = max(cached["rate"], real["rate"])
    rates = max(synthetic["rate"], cached_rate), cached_rate, real["rate"]
    loading_rate = max(cached["loading_rate"], cached_rate)
    overlap = overlap_of(rates[0], rates[1], loading_rate, cached["workers"])
    step = step_of(*rates, loading_rate, overlap)
    parts = fractions(*rates)
    cpus = cached["cpus"] if overlap == IN_TURN else _parallel(cached)
    scaling = 1.0
    if fewer is not None and overlap != IN_TURN and (ratio := _parallel(cached) / _parallel(fewer)) > 1:
        scaling = min(1.0, max(0.0, (cached["loading_rate"] / fewer["loading_rate"] - 1) / (ratio - 1)))
    options = list(changes(step, cpus, scaling))
    helps_most = best(options)
    return {
        **parts._asdict(),
        "rates": {"synthetic": rates[0], "cached": rates[1], "real": rates[2], "loader": loading_rate},
        "steps": real["steps"],
        "loading": overlap,
        "workers": cached["workers"],
        "cpus": 1 if overlap == IN_TURN else cpus,
        "cpu_scaling": scaling,
        "cache_needed": step.cache_needed,
        "what_if": [_as_json(change) for change in options],
        "best": None if helps_most is None else _as_json(helps_most),
        "cold": {name: real[name] for name in ("dropped", "from_storage", "fetched")},
    }


def _parallel(report: Mapping[str, Any]) -> int:
    """Return how many CPUs prepare data: no more than there are workers."""
    cpus, workers = report["cpus"], report["workers"]
    return int(cpus if workers is None else max(1, min(cpus, workers)))


def _as_json(change: Change) -> dict[str, Any]:
    return {
        "change": change.subject,
        "to": change.to,
        "rate": change.rate,
        "speedup": change.speedup,
    }


def _run(
    mode: str, command: Sequence[str], steps: int, environment: Mapping[str, str], directory: str | None
) -> dict[str, Any]:
    """Run the script in this mode and return its report."""
    with tempfile.TemporaryDirectory(prefix="gavel-probe-") as folder:
        run_dir, report = Path(folder, "run"), Path(folder, "report.json")
        run_dir.mkdir()
        end_s = time.monotonic() + LEASE_S
        lease = {"lease": "1", "epoch": 1, "attempt": 1, "ask_s": end_s, "signal_s": end_s, "kill_s": end_s}
        (run_dir / "lease.json").write_text(json.dumps(lease), encoding="ascii")
        variables = {
            **_ONLY_RANK,
            "GAVEL_RUN_DIR": str(run_dir),
            "GAVEL_CHECKPOINT_DIR": str(Path(folder, "checkpoints")),
            probe.MODE: mode,
            probe.STEPS: str(steps),
            probe.FILE: str(report),
        }
        try:
            done = subprocess.run(
                command, env={**environment, **variables}, cwd=directory, stdout=_STDERR, check=False
            )
        except OSError as fault:
            raise CannotProbe(f"cannot start {command[0]}: {fault.strerror or fault}", 1) from None
        name = " ".join(command)
        if done.returncode:
            raise CannotProbe(f"`{name}` ended with exit code {done.returncode} (GAVEL_PROBE={mode})", 1)
        if not report.exists():
            raise CannotProbe(
                f"`{name}` cannot be probed: it ended without a step of a LeasedIterator; how long it waits for data "
                "is unknown. Let its loop run over gavel.training.LeasedIterator"
            )
        content: dict[str, Any] = json.loads(report.read_text(encoding="ascii"))
        return content


def main() -> int:
    """Probe the script of the command line, and print the answer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=probe.STEPS_DEFAULT, help="the steps of each process")
    parser.add_argument("--data", action="append", default=[], help="files to drop from the page cache first")
    parser.add_argument("command", nargs="+", help="the script, after --")
    options = parser.parse_args()
    try:
        result = probe_script(
            options.command,
            options.steps,
            {**os.environ, probe.DATA: os.pathsep.join(options.data)},
            show=lambda mode: print(f"gavel: GAVEL_PROBE={mode}", file=sys.stderr, flush=True),
        )
        code = 0
    except CannotProbe as fault:
        result, code = {"error": str(fault), "code": fault.code}, fault.code
    print(LINE + json.dumps(result), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
