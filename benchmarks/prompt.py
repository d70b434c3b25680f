"""How much processor time a command takes at the prompt, compared with the imports that no command can do without.

    python -m benchmarks.prompt [--runs 21] [--before DIR]

Commands ask a real scheduler with 200 jobs. The floor is the interpreter with click, gRPC and the stubs of the
protocol; it is timed in turn with the commands. `--before` also times the commands of another checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.service import Daemon, submit_many

ROOT = Path(__file__).resolve().parents[1]
JOBS = 200
# The goals: processor time, and its ratio to the floor.
GOAL_S, GOAL_RATIO = 0.22, 1.35
FLOOR = ("-c", "import click, grpc, protos.gavel.v1.cluster_pb2, protos.gavel.v1.jobs_pb2")
FLOOR_NAME = "floor"
# The commands, and whether the goals apply to them.
COMMANDS: dict[tuple[str, ...], bool] = {
    ("queue", "-a"): True,
    ("status",): True,
    ("show", "7"): True,
    ("submit", "--", "true"): True,
    ("--help",): False,
    ("config", "--check", "{settings}"): False,
    ("doctor",): False,
    ("simulate", "--help"): False,
}


def cpu_s(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Run Python with these arguments in a checkout; return the processor time that the process has used."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime


def measure(runs: int, checkouts: Mapping[str, Path], environ: Mapping[str, str], settings: str) -> str:
    """Time the floor and each command in turn, `runs` times; return a table."""
    programs: dict[str, tuple[tuple[str, ...], Path]] = {FLOOR_NAME: (FLOOR, ROOT)}
    for label, folder in checkouts.items():
        for command in COMMANDS:
            words = [word.format(settings=settings) for word in command]
            programs[f"{label}gavel {' '.join(command)}"] = (("-m", "gavel", *words), folder)
    times_s: dict[str, list[float]] = {name: [] for name in programs}
    # The first run fills the caches of bytecode and files.
    for run in range(runs + 1):
        for name, (arguments, folder) in programs.items():
            took_s = cpu_s(arguments, folder, environ)
            if run:
                times_s[name].append(took_s)
    return table(times_s)


def table(times_s: Mapping[str, Sequence[float]]) -> str:
    """Return a line for each program: least and median processor time, and the ratio of the medians to the floor's."""
    floor_s = statistics.median(times_s[FLOOR_NAME])
    lines = [f"{'processor time, seconds':<44}{'least':>8}{'median':>8}{'ratio':>8}"]
    for name, samples in times_s.items():
        median_s = statistics.median(samples)
        lines.append(f"{name:<44}{min(samples):>8.3f}{median_s:>8.3f}{median_s / floor_s:>8.2f}")
    lines.append(f"goals of queue, status, show and submit: {GOAL_S:g} s, {GOAL_RATIO:g} times the floor")
    return "\n".join(lines)


def main() -> None:
    """Start a scheduler, submit jobs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout to compare with")
    options = parser.parse_args()
    checkouts = {"before: ": options.before} if options.before else {}
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder, "data"))
        try:
            asyncio.run(submit_many(daemon.address, JOBS))
            settings = Path(folder, "gavel.toml")
            settings.write_text('[scheduler]\npolicy = "water_filling"\n')
            environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            # As in an installation, every module has its bytecode.
            environ |= {"PYTHONPYCACHEPREFIX": str(Path(folder, "bytecode"))}
            environ |= {"GAVEL_ADDRESS": daemon.address, "XDG_CONFIG_HOME": folder}
            print(measure(options.runs, {**checkouts, "": ROOT}, environ, str(settings)))
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
