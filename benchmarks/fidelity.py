"""How true a simulation is: the completion times of the same jobs, live and simulated.

    python -m benchmarks.fidelity [--jobs 20] [--arrivals-s 60] [--round-s 10] [--scale 0.8]
                                [--others 20] [--folder DIR]

Paced jobs of three types run on a real scheduler and four real agents: two GPUs of speed 1, two of speed 0.4. Then the
same arrivals and settings are simulated, with the rates and the time lost per turn from the live run's journal. Steps
wait instead of computing, so the speed of this machine has no influence. `--again DIR` simulates an earlier live run.

Hundredths of a second decide which job runs next, so live runs differ from each other, and so do simulations whose
arrivals differ slightly. Therefore `--others` more simulations have their arrivals delayed by up to `SHIFT_S`: the
spread of their means is the uncertainty of one comparison.
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
# The scheduler's setting. The simulation uses the cost that was measured instead.
RESTART_COST_S = 0.5
REPORT_S = 2.0
GOAL = 0.05
WARM_UP = "warm-up"
# Rounds until the other jobs arrive; the warm-up job has ended by then.
WARM_UP_ROUNDS = 3.0
# Chosen to be more than the duration of a start, and much less than a round.
SHIFT_S = 0.5
# Virtual time of the first arrival, when the nodes have joined.
FIRST_S = 1.0


@dataclass(frozen=True, slots=True)
class Measurements:
    """Figures of a live run: rates, the time lost per turn of each job type, the median time of the solver."""

    rates: live.Rates
    costs: Mapping[str, Cost]
    solver_s: float


def jobs(
    count: int, arrivals_s: float, scale: float = 1.0, first_s: float = 0.0, seed: int = 1
) -> list[live.PacedJob]:
    """Return jobs of three types in turn, of 12 to 40 s on a GPU of speed 1; the first arrives at `first_s`.

    A short job comes before them, so that the measurement does not include the start of the solver's process.
    """
    rng, planned = Random(seed), [live.PacedJob(WARM_UP, WARM_UP, 0.05, 2)]
    for number in range(count):
        job_type = tuple(STEP_S)[number % len(STEP_S)]
        steps = round(scale * rng.uniform(12.0, 40.0) / STEP_S[job_type])
        arrival_s = first_s + arrivals_s * number / max(count - 1, 1)
        planned.append(live.PacedJob(f"{job_type}-{number}", job_type, STEP_S[job_type], steps, arrival_s))
    return planned


def settings(round_s: float, **more: Any) -> dict[str, Any]:
    """Return the settings of the scheduler, for the live run and the simulation."""
    return {
        "policy": "las",
        "round_s": round_s,
        "solve_lead_s": 0.2 * round_s,
        "plan_lead_s": 0.1 * round_s,
        "restart_cost_s": RESTART_COST_S,
        **more,
    }


def run_live(
    folder: Path, planned: Sequence[live.PacedJob], scheduling: Mapping[str, Any], gpus: Sequence[str] = GPUS
) -> list[str]:
    """Run the jobs on a real cluster; return the faults in their steps. The journal stays in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "rates.csv"
    live.write_rates(table, live.rates(planned))
    options: tuple[str, ...] = (f"throughputs={table}", f"agents.report_interval_s={REPORT_S}")
    options += tuple(f"scheduler.{name}={value}" for name, value in scheduling.items())
    work_s = sum(job.steps * job.step_s for job in planned) / sum(live.SPEED[kind] for kind in gpus)
    with live.cluster(folder, gpus, options) as (_, client):
        ids = live.submit_all(client, planned, RESTART_COST_S)
        done = live.wait_for_end(client, ids, 60 + 4 * work_s)
        return [
            text
            for job, result in zip(planned, done, strict=True)
            if (text := live.step_fault(client, job, result))
        ]


def measure(live_run: live.Events) -> Measurements:
    """Return the rates of the live run, the median time of its solver, and costs that add up to the time it lost."""
    steps: dict[tuple[str, int, str], float] = {}
    stepping_s: dict[tuple[str, int, str], float] = {}
    so_far: dict[str, float] = {}
    for turn in live_run.turns.values():
        if turn.exit is None:
            continue
        key = (live_run.job_type[turn.lease.job], 1, turn.lease.bundle.worker_type)
        steps[key] = steps.get(key, 0.0) + turn.exit.steps - so_far.get(turn.lease.job, 0.0)
        stepping_s[key] = stepping_s.get(key, 0.0) + turn.exit.stepping_s
        so_far[turn.lease.job] = turn.exit.steps
    return Measurements(
        {key: count / stepping_s[key] for key, count in steps.items() if count > 0},
        {kind: _cost(live_run.turns_of(kind)) for kind in dict.fromkeys(live_run.job_type.values())},
        statistics.median(live_run.solver_s),
    )


def _cost(turns: Sequence[live.Turn]) -> Cost:
    """Return the mean cost of a turn.

    It has two parts: the time from the request to stop until the GPU is free, and all other time without steps.
    """
    lost_s = [t.closed_s - t.sent_s - t.exit.stepping_s for t in turns if t.exit is not None]
    asked_s = [t.closed_s - t.asked_s for t in turns if 0 < t.asked_s < t.closed_s]
    checkpoint_s = statistics.mean(asked_s) if asked_s else 0.0
    return Cost(max((sum(lost_s) - sum(asked_s)) / len(lost_s), 0.0), checkpoint_s)


def simulate_again(
    live_run: live.Events,
    figures: Measurements,
    planned: Sequence[live.PacedJob],
    scheduling: Mapping[str, Any],
    gpus: Sequence[str] = GPUS,
    shift: Callable[[], float] = lambda: 0.0,
) -> live.Events:
    """Simulate the arrivals of a live run, each delayed by `shift()`, with the measured rates and costs."""
    believed = live.rates(planned)
    first_s = min(live_run.submitted_s.values())
    order = sorted(live_run.submitted_s, key=int)
    trace = [
        TraceJob(
            id=job,
            arrival_s=FIRST_S + live_run.submitted_s[job] - first_s + shift(),
            job_type=paced.job_type,
            steps=float(paced.steps),
        )
        for job, paced in zip(order, planned, strict=True)
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
    return live.events_of(journal.read())


def table(
    planned: Sequence[live.PacedJob], live_run: live.Events, simulated: live.Events, figures: Measurements
) -> str:
    """Return a line for each job, and the means."""
    lines = [f"{'job':12}{'steps':>7}{'turns':>12}{'live s':>9}{'simulated s':>13}{'difference':>12}"]
    means: list[tuple[float, float]] = []
    for job, paced in zip(sorted(live_run.submitted_s, key=int), planned, strict=True):
        if paced.job_type == WARM_UP:
            continue
        live_s, simulated_s = live_run.jct_s(job), simulated.jct_s(job)
        means.append((live_s, simulated_s))
        turns = " / ".join(
            str(sum(t.lease.job == job for t in run.turns.values())) for run in (live_run, simulated)
        )
        lines.append(
            f"{paced.name:12}{paced.steps:7}{turns:>12}{live_s:9.1f}{simulated_s:13.1f}"
            f"{simulated_s / live_s - 1:+12.1%}"
        )
    live_s, simulated_s = map(statistics.mean, zip(*means, strict=True))
    lines.append(
        f"mean time to completion: live {live_s:.1f} s, simulated {simulated_s:.1f} s: "
        f"{simulated_s / live_s - 1:+.1%} (goal within {GOAL:.0%})"
    )
    costs = ", ".join(
        f"{kind} {c.restart_s:.2f} + {c.checkpoint_s:.2f} s" for kind, c in figures.costs.items()
    )
    lines.append(
        f"lost per turn, to start and to stop: {costs}; an answer of the solver: {figures.solver_s:.3f} s"
    )
    return "\n".join(lines)


def spread(
    live_run: live.Events,
    figures: Measurements,
    planned: Sequence[live.PacedJob],
    scheduling: Mapping[str, Any],
    others: int,
) -> str:
    """Simulate with slightly later arrivals; return the mean and the range of the deviations from the live run."""
    rng = Random(0)
    counted = [
        job
        for job, paced in zip(sorted(live_run.submitted_s, key=int), planned, strict=True)
        if paced.job_type != WARM_UP
    ]
    live_s = statistics.mean(live_run.jct_s(job) for job in counted)
    deviations = []
    for _ in range(others):
        simulated = simulate_again(
            live_run, figures, planned, scheduling, shift=lambda: rng.uniform(0.0, SHIFT_S)
        )
        deviations.append(statistics.mean(simulated.jct_s(job) for job in counted) / live_s - 1)
    return (
        f"{others} more simulations, arrivals up to {SHIFT_S} s later: {statistics.mean(deviations):+.1%} on average, "
        f"from {min(deviations):+.1%} to {max(deviations):+.1%}"
    )


def held_time(live_run: live.Events, simulated: live.Events) -> str:
    """Return how long GPUs were held, and how long jobs made steps on them, live and simulated."""
    parts = []
    for name, story in (("live", live_run), ("simulated", simulated)):
        turns = [turn for turn in story.turns.values() if turn.exit is not None]
        held_s = sum(turn.closed_s - turn.sent_s for turn in turns)
        stepping_s = sum(turn.exit.stepping_s for turn in turns if turn.exit is not None)
        parts.append(f"{name} {held_s:.1f} s in {len(turns)} turns, {stepping_s:.1f} s of it making steps")
    return "GPUs held: " + "; ".join(parts)


def main() -> None:
    """Run, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--arrivals-s", type=float, default=60.0)
    parser.add_argument("--round-s", type=float, default=10.0)
    parser.add_argument("--scale", type=float, default=0.8, help="a factor for the length of all jobs")
    parser.add_argument("--others", type=int, default=20, help="simulations with slightly later arrivals")
    parser.add_argument("--folder", type=Path, help="keep all files there")
    parser.add_argument("--again", type=Path, metavar="DIR", help="the folder of a run with the same options")
    options = parser.parse_args()
    first_s = WARM_UP_ROUNDS * options.round_s
    planned = jobs(options.jobs, options.arrivals_s, options.scale, first_s)
    scheduling = settings(options.round_s)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.again or options.folder or Path(temporary)
        faults = [] if options.again else run_live(folder, planned, scheduling)
        live_run = live.read_events(folder)
    figures = measure(live_run)
    simulated = simulate_again(live_run, figures, planned, scheduling)
    print(table(planned, live_run, simulated, figures))
    print(held_time(live_run, simulated))
    if options.others:
        print(spread(live_run, figures, planned, scheduling, options.others))
    print("; ".join(faults) or f"all {options.jobs} jobs did exactly their steps")


if __name__ == "__main__":
    main()
