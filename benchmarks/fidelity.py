"""How true a simulation is: the same jobs live and simulated, and how long each took in either.

    python -m benchmarks.fidelity [--jobs 20] [--arrivals-s 60] [--round-s 10] [--scale 0.8]
                                [--others 20] [--folder DIR]

Paced jobs of three types run on a real scheduler and four real agents, two GPUs of speed 1 and two of speed 0.4. Then
the same arrivals and settings are simulated, with the rates and the time lost per turn from the live run's journal.
Steps wait instead of computing, so that this machine's cores have no influence. `--again DIR` simulates an earlier
live run once more.

Hundredths of seconds decide whose turn it is: no two live runs are alike, nor are two simulations of which one has
its arrivals a little later. So `--others` more are simulated, with arrivals moved by up to `SHIFT_S`: the distance of
their means is the uncertainty of one pair of runs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import live
from scheduler.model.settings import Settings
from scheduler.sim.simulate import SimOptions, simulate
from tests.support.journals import MemoryJournal
from traces.costs import Cost
from traces.throughputs import Throughputs
from traces.trace import TraceJob

# How long a step takes on a GPU of speed 1.
STEP_S = {"small": 0.05, "middle": 0.1, "large": 0.2}
GPUS = ("v100", "v100", "k80", "k80")
# The setting of the scheduler; the real cost is measured.
RESTART_COST_S = 0.5
REPORT_S = 2.0
GOAL = 0.05
WARM_UP = "warm-up"
# Rounds until the other jobs arrive: no round is going on any more by then.
WARM_UP_ROUNDS = 3.0
# An assumption: more than a start takes, much less than a round.
SHIFT_S = 0.5
# Virtual time of the first arrival: the nodes have joined by then.
FIRST_S = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a live run: rates, the time lost per turn by job type, the time of the solver."""

    rates: live.Rates
    costs: Mapping[str, Cost]
    solver_s: float


def jobs(
    count: int, arrivals_s: float, scale: float = 1.0, first_s: float = 0.0, seed: int = 1
) -> list[live.Paced]:
    """Return jobs of three types in turn, of 12 to 40 s on a GPU of speed 1, which arrive from `first_s` on.

    A short job goes before them, so that the start of the solver's process is no part of the measurement.
    """
    chance, planned = Random(seed), [live.Paced(WARM_UP, WARM_UP, 0.05, 2)]
    for number in range(count):
        job_type = tuple(STEP_S)[number % len(STEP_S)]
        steps = round(scale * chance.uniform(12.0, 40.0) / STEP_S[job_type])
        arrival_s = first_s + arrivals_s * number / max(count - 1, 1)
        planned.append(live.Paced(f"{job_type}-{number}", job_type, STEP_S[job_type], steps, arrival_s))
    return planned


def settings(round_s: float, **more: Any) -> dict[str, Any]:
    """Return the settings of the scheduler, live and simulated."""
    return {
        "policy": "las",
        "round_s": round_s,
        "solve_lead_s": 0.2 * round_s,
        "plan_lead_s": 0.1 * round_s,
        "restart_cost_s": RESTART_COST_S,
        **more,
    }


def run_live(
    folder: Path, wanted: Sequence[live.Paced], scheduling: Mapping[str, Any], gpus: Sequence[str] = GPUS
) -> list[str]:
    """Run the jobs on a real cluster; return the faults in their steps. The journal stays in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "rates.csv"
    live.write_rates(table, live.rates(wanted))
    options: tuple[str, ...] = (f"throughputs={table}", f"agents.report_interval_s={REPORT_S}")
    options += tuple(f"scheduler.{name}={value}" for name, value in scheduling.items())
    work_s = sum(job.steps * job.step_s for job in wanted) / sum(live.SPEED[kind] for kind in gpus)
    with live.cluster(folder, gpus, options) as (_, client):
        ids = live.submitted(client, wanted, RESTART_COST_S)
        done = live.ended(client, ids, 60 + 4 * work_s)
        return [
            text
            for job, result in zip(wanted, done, strict=True)
            if (text := live.inexact(client, job, result))
        ]


def measured(happened: live.Story) -> Measured:
    """Return rates, and costs of turns that add up to the time lost in the live run."""
    steps: dict[tuple[str, int, str], float] = {}
    stepping_s: dict[tuple[str, int, str], float] = {}
    so_far: dict[str, float] = {}
    for turn in happened.turns.values():
        if turn.exit is None:
            continue
        key = (happened.job_type[turn.lease.job], 1, turn.lease.bundle.worker_type)
        steps[key] = steps.get(key, 0.0) + turn.exit.steps - so_far.get(turn.lease.job, 0.0)
        stepping_s[key] = stepping_s.get(key, 0.0) + turn.exit.stepping_s
        so_far[turn.lease.job] = turn.exit.steps
    return Measured(
        {key: count / stepping_s[key] for key, count in steps.items() if count > 0},
        {kind: _cost(happened.of(kind)) for kind in dict.fromkeys(happened.job_type.values())},
        statistics.median(happened.solver_s),
    )


def _cost(turns: Sequence[live.Turn]) -> Cost:
    """Return the mean time from the request to stop until the GPU is free, and all other time without steps."""
    lost_s = [t.closed_s - t.sent_s - t.exit.stepping_s for t in turns if t.exit is not None]
    asked_s = [t.closed_s - t.asked_s for t in turns if 0 < t.asked_s < t.closed_s]
    checkpoint_s = statistics.mean(asked_s) if asked_s else 0.0
    return Cost(max((sum(lost_s) - sum(asked_s)) / len(lost_s), 0.0), checkpoint_s)


def simulated(
    happened: live.Story,
    figures: Measured,
    wanted: Sequence[live.Paced],
    scheduling: Mapping[str, Any],
    gpus: Sequence[str] = GPUS,
    shift: Callable[[], float] = lambda: 0.0,
) -> live.Story:
    """Simulate the same arrivals (each `shift` later) with the rates and costs that were measured."""
    believed = live.rates(wanted)
    first_s = min(happened.submitted_s.values())
    order = sorted(happened.submitted_s, key=int)
    trace = [
        TraceJob(
            id=job,
            arrival_s=FIRST_S + happened.submitted_s[job] - first_s + shift(),
            job_type=paced.job_type,
            steps=float(paced.steps),
        )
        for job, paced in zip(order, wanted, strict=True)
    ]
    journal = MemoryJournal()
    simulate(
        SimOptions(
            cluster={kind: gpus.count(kind) for kind in dict.fromkeys(gpus)},
            jobs=trace,
            throughputs=Throughputs(solo=believed | figures.rates),
            believed=Throughputs(solo=believed),
            settings=Settings(**scheduling).checked(),
            costs=figures.costs,
            solver_latency_s=figures.solver_s,
            report_interval_s=REPORT_S,
            save_every_s=math.inf,
            journal=journal,
        )
    )
    return live.story_of(journal.read())


def table(wanted: Sequence[live.Paced], happened: live.Story, again: live.Story, figures: Measured) -> str:
    """Return a line for each job, and the means."""
    lines = [f"{'job':12}{'steps':>7}{'turns':>12}{'live s':>9}{'simulated s':>13}{'difference':>12}"]
    means: list[tuple[float, float]] = []
    for job, paced in zip(sorted(happened.submitted_s, key=int), wanted, strict=True):
        if paced.job_type == WARM_UP:
            continue
        was_s, is_s = happened.jct_s(job), again.jct_s(job)
        means.append((was_s, is_s))
        turns = " / ".join(
            str(sum(t.lease.job == job for t in run.turns.values())) for run in (happened, again)
        )
        lines.append(
            f"{paced.name:12}{paced.steps:7}{turns:>12}{was_s:9.1f}{is_s:13.1f}{is_s / was_s - 1:+12.1%}"
        )
    was_s, is_s = map(statistics.mean, zip(*means, strict=True))
    lines.append(
        f"mean time to completion: live {was_s:.1f} s, simulated {is_s:.1f} s: "
        f"{is_s / was_s - 1:+.1%} (goal within {GOAL:.0%})"
    )
    costs = ", ".join(
        f"{kind} {c.restart_s:.2f} + {c.checkpoint_s:.2f} s" for kind, c in figures.costs.items()
    )
    lines.append(
        f"lost per turn, to start and to stop: {costs}; an answer of the solver: {figures.solver_s:.3f} s"
    )
    return "\n".join(lines)


def spread(
    happened: live.Story,
    figures: Measured,
    wanted: Sequence[live.Paced],
    scheduling: Mapping[str, Any],
    others: int,
) -> str:
    """Simulate again with arrivals a little later; return the mean of the means, and how far they reach."""
    chance = Random(0)
    counted = [
        job
        for job, paced in zip(sorted(happened.submitted_s, key=int), wanted, strict=True)
        if paced.job_type != WARM_UP
    ]
    live_s = statistics.mean(happened.jct_s(job) for job in counted)
    off = []
    for _ in range(others):
        again = simulated(happened, figures, wanted, scheduling, shift=lambda: chance.uniform(0.0, SHIFT_S))
        off.append(statistics.mean(again.jct_s(job) for job in counted) / live_s - 1)
    return (
        f"{others} more simulations, arrivals up to {SHIFT_S} s later: {statistics.mean(off):+.1%} on average, "
        f"from {min(off):+.1%} to {max(off):+.1%}"
    )


def held(happened: live.Story, again: live.Story) -> str:
    """Return how long GPUs were held live and simulated, and for how much of it jobs made steps."""
    words = []
    for name, story in (("live", happened), ("simulated", again)):
        turns = [turn for turn in story.turns.values() if turn.exit is not None]
        held_s = sum(turn.closed_s - turn.sent_s for turn in turns)
        stepping_s = sum(turn.exit.stepping_s for turn in turns if turn.exit is not None)
        words.append(f"{name} {held_s:.1f} s in {len(turns)} turns, {stepping_s:.1f} s of it making steps")
    return "GPUs held: " + "; ".join(words)


def main() -> None:
    """Run, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--arrivals-s", type=float, default=60.0)
    parser.add_argument("--round-s", type=float, default=10.0)
    parser.add_argument("--scale", type=float, default=0.8, help="of the length of all jobs")
    parser.add_argument("--others", type=int, default=20, help="simulations with arrivals a little later")
    parser.add_argument("--folder", type=Path, help="keep everything there")
    parser.add_argument("--again", type=Path, metavar="DIR", help="of a run with the same options")
    options = parser.parse_args()
    first_s = WARM_UP_ROUNDS * options.round_s
    wanted = jobs(options.jobs, options.arrivals_s, options.scale, first_s)
    scheduling = settings(options.round_s)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.again or options.folder or Path(temporary)
        wrong = [] if options.again else run_live(folder, wanted, scheduling)
        happened = live.story(folder)
    figures = measured(happened)
    again = simulated(happened, figures, wanted, scheduling)
    print(table(wanted, happened, again, figures))
    print(held(happened, again))
    if options.others:
        print(spread(happened, figures, wanted, scheduling, options.others))
    print("; ".join(wrong) or f"all {options.jobs} jobs did their exact steps")


if __name__ == "__main__":
    main()
