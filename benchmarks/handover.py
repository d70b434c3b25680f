"""From the boundary of a round to the first step of the next job on that GPU: how long, and what takes how long.

    python -m benchmarks.handover [--rounds 24] [--round-s 4] [--folder DIR]

Two jobs take turns on one GPU, so that every round hands it over. Moments come from the journal, from the times of the
files that agent, shim and job exchange (docs/job-directory.md), and from the job itself. The start-up of a job is its
own time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import live
from worker_agent.shim.run_directory import EXIT, LEASE, START, directory_name

STEP_S = 0.05
GOAL_S = 1.0
PARTS = {
    "asked_s": "boundary → the one before is asked to stop",
    "over_s": "→ it has ended its step",
    "saved_s": "→ it has saved",
    "last_line_s": "→ its last line",
    "exit_s": "→ its processes are gone, and exit.json says so",
    "closed_s": "→ the scheduler has that in its journal",
    "start_s": "→ the agent has the next order, and start.json is written",
    "ranks_s": "→ the shim is up and has started the process",
    "first_line_s": "→ the job's first line",
    "ready_s": "→ imported, and its checkpoint loaded",
    "first_step_s": "→ its first step is done",
}
# The parts that are the job's own time.
OWN = ("first_line_s", "ready_s", "first_step_s")


def moments(run: Path, stamps: Path, turn: live.Turn, before: live.Turn, offset_s: float) -> dict[str, float]:
    """Return the moments of one handover, in the order of PARTS; LookupError or OSError where one is missing."""
    old, new = (run / directory_name(each.lease.id) for each in (before, turn))
    end, start = (json.loads((stamps / f"{each.lease.id}.json").read_text()) for each in (before, turn))
    ranks_s = json.loads((new / EXIT).read_text())["started_s"] + offset_s
    return {
        "asked_s": (old / LEASE).stat().st_mtime,
        **{name: end[name] for name in ("over_s", "saved_s", "last_line_s")},
        "exit_s": (old / EXIT).stat().st_mtime,
        "closed_s": before.closed_s,
        "start_s": (new / START).stat().st_mtime,
        "ranks_s": ranks_s,
        **{name: start[name] for name in OWN},
    }


def handovers(folder: Path, stamps: Path) -> list[dict[str, float]]:
    """Return the seconds of each part, for every turn that began when another one ended."""
    turns, measured = live.story(folder).turns, []
    offset_s = time.time() - time.monotonic()
    for turn in turns.values():
        before = [turns[name] for name in turn.after if turns[name].lease.gpus == turn.lease.gpus]
        if len(before) != 1 or not before[0].asked_s or turn.exit is None:
            continue
        run = folder / turn.lease.gpus[0].rpartition(":")[0] / "runs"
        try:
            at = moments(run, stamps, turn, before[0], offset_s)
        except (OSError, LookupError):
            # The turn was over before its first step.
            continue
        last_s, parts = before[0].asked_s, {}
        for name, at_s in at.items():
            parts[name], last_s = at_s - last_s, at_s
        measured.append(parts)
    return measured


def table(measured: Sequence[Mapping[str, float]]) -> str:
    """Return the median and the worst of each part, and the sums."""
    lines = [f"{len(measured)} handovers; milliseconds{'':36}median    worst"]
    for name, words in PARTS.items():
        part_ms = [1000 * handover[name] for handover in measured]
        own = " (its own)" if name in OWN else ""
        lines.append(f"  {words + own:62}{statistics.median(part_ms):6.0f}   {max(part_ms):6.0f}")
    gavel_s = [sum(handover[name] for name in PARTS if name not in OWN) for handover in measured]
    whole_s = [sum(handover.values()) for handover in measured]
    lines.append(
        f"boundary → first step: median {statistics.median(whole_s):.2f} s, worst {max(whole_s):.2f} s; without the "
        f"job's own start-up: median {statistics.median(gavel_s):.2f} s, worst {max(gavel_s):.2f} s (goal {GOAL_S:g} s)"
    )
    return "\n".join(lines)


def main() -> None:
    """Run, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--round-s", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="keep everything there")
    options = parser.parse_args()
    settings = (
        *("scheduler.policy=las", f"scheduler.round_s={options.round_s}", "scheduler.stay_rounds=1"),
        *("scheduler.solve_lead_s=2", "scheduler.plan_lead_s=1", "scheduler.restart_cost_s=0"),
    )
    steps = int(options.rounds * options.round_s / 2 / STEP_S)
    jobs = [live.Paced(f"turns-{number}", "turns", STEP_S, steps) for number in range(2)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        stamps = folder / "stamps"
        stamps.mkdir(parents=True)
        with live.cluster(folder, ["v100"], settings) as (_, client):
            ids = live.submitted(client, jobs, 0.0, stamps)
            done = live.ended(client, ids, 60 + 4 * options.rounds * options.round_s)
            wrong = [
                text
                for job, result in zip(jobs, done, strict=True)
                if (text := live.inexact(client, job, result))
            ]
        measured = handovers(folder, stamps)
    print(table(measured) if measured else "no job took over from another: raise --rounds")
    print("; ".join(wrong) or f"{len(jobs)} jobs did their exact steps")


if __name__ == "__main__":
    main()
