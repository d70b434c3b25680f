"""How long a handover takes, from the boundary of a round to the next job's first step on the GPU, part by part.

    python -m benchmarks.handover [--rounds 24] [--round-s 4] [--folder DIR]

Two jobs take turns on one GPU, so that every round hands it over. The times come from the journal, from the files that
agent, shim and job exchange (docs/job-directory.md), and from the job itself. The start-up of a job is counted
separately, because Gavel cannot shorten it.
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
    "asked_s": "boundary → the old job is asked to stop",
    "over_s": "→ it has ended its step",
    "saved_s": "→ it has saved",
    "last_line_s": "→ its last line",
    "exit_s": "→ its processes are gone, and exit.json is written",
    "closed_s": "→ the scheduler has its end in the journal",
    "start_s": "→ the agent has the next order, and start.json is written",
    "ranks_s": "→ the shim is up and has started the process",
    "first_line_s": "→ the job's first line",
    "ready_s": "→ imported, and its checkpoint loaded",
    "first_step_s": "→ its first step is done",
}
# The parts that make up the start-up of the job itself.
JOB_PARTS = ("first_line_s", "ready_s", "first_step_s")


def moments(
    run: Path, stamps: Path, turn: live.Turn, previous: live.Turn, offset_s: float
) -> dict[str, float]:
    """Return the times of one handover, in the order of PARTS; raise LookupError or OSError if one is missing."""
    old, new = (run / directory_name(each.lease.id) for each in (previous, turn))
    end, start = (json.loads((stamps / f"{each.lease.id}.json").read_text()) for each in (previous, turn))
    ranks_s = json.loads((new / EXIT).read_text())["started_s"] + offset_s
    return {
        "asked_s": (old / LEASE).stat().st_mtime,
        **{name: end[name] for name in ("over_s", "saved_s", "last_line_s")},
        "exit_s": (old / EXIT).stat().st_mtime,
        "closed_s": previous.closed_s,
        "start_s": (new / START).stat().st_mtime,
        "ranks_s": ranks_s,
        **{name: start[name] for name in JOB_PARTS},
    }


def handovers(folder: Path, stamps: Path) -> list[dict[str, float]]:
    """Return the seconds of each part, for every turn that began when another one ended."""
    turns, measurements = live.read_events(folder).turns, []
    offset_s = time.time() - time.monotonic()
    for turn in turns.values():
        previous = [turns[name] for name in turn.waits_for if turns[name].lease.gpus == turn.lease.gpus]
        if len(previous) != 1 or not previous[0].asked_s or turn.exit is None:
            continue
        run = folder / turn.lease.gpus[0].rpartition(":")[0] / "runs"
        try:
            times = moments(run, stamps, turn, previous[0], offset_s)
        except (OSError, LookupError):
            # The turn was over before its first step.
            continue
        last_s, parts = previous[0].asked_s, {}
        for name, at_s in times.items():
            parts[name], last_s = at_s - last_s, at_s
        measurements.append(parts)
    return measurements


def table(measurements: Sequence[Mapping[str, float]]) -> str:
    """Return the median and the worst of each part, and the sums."""
    lines = [f"{len(measurements)} handovers; milliseconds{'':36}median    worst"]
    for name, title in PARTS.items():
        part_ms = [1000 * handover[name] for handover in measurements]
        own = " (its own)" if name in JOB_PARTS else ""
        lines.append(f"  {title + own:62}{statistics.median(part_ms):6.0f}   {max(part_ms):6.0f}")
    gavel_s = [sum(handover[name] for name in PARTS if name not in JOB_PARTS) for handover in measurements]
    whole_s = [sum(handover.values()) for handover in measurements]
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
    parser.add_argument("--folder", type=Path, help="keep all files there")
    options = parser.parse_args()
    settings = (
        *("scheduler.policy=las", f"scheduler.round_s={options.round_s}", "scheduler.stay_rounds=1"),
        *("scheduler.solve_lead_s=2", "scheduler.plan_lead_s=1", "scheduler.restart_cost_s=0"),
    )
    steps = int(options.rounds * options.round_s / 2 / STEP_S)
    jobs = [live.PacedJob(f"turns-{number}", "turns", STEP_S, steps) for number in range(2)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        stamps = folder / "stamps"
        stamps.mkdir(parents=True)
        with live.cluster(folder, ["v100"], settings) as (_, client):
            ids = live.submit_all(client, jobs, 0.0, stamps)
            done = live.wait_for_end(client, ids, 60 + 4 * options.rounds * options.round_s)
            faults = [
                text
                for job, result in zip(jobs, done, strict=True)
                if (text := live.step_fault(client, job, result))
            ]
        measurements = handovers(folder, stamps)
    print(table(measurements) if measurements else "no job took over from another: raise --rounds")
    print("; ".join(faults) or f"{len(jobs)} jobs did exactly their steps")


if __name__ == "__main__":
    main()
