"""How fast measured rates replace estimated rates that are wrong by a factor of three.

    python -m benchmarks.learning [--wrong-by 3] [--round-s 10] [--folder DIR]

Paced jobs of three types take turns on a GPU of speed 1 and on one of speed 0.4, under a real scheduler with real
agents. Each line is a job's first lease on a type: the rate in the scheduler's table, the rate that the scheduler
believes after the lease, and the true rate. Jobs name their GPU type, because the policy avoids types that the table
calls slow.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import live
from scheduler.core.apply import apply
from scheduler.core.facts import Fact, LeaseClosed
from scheduler.core.state import SchedulerState
from scheduler.journal.store import SqliteJournal
from scheduler.model.throughput import RateKey

# How long a step takes on a GPU of speed 1.
STEP_S = {"small": 0.05, "middle": 0.1, "large": 0.2}
GPUS = ("v100", "k80")
GOAL = 0.10


@dataclass(frozen=True, slots=True)
class LearntRate:
    """The estimated rate of a job type on a worker type after a job's first lease there."""

    job: str
    job_type: str
    worker_type: str
    # How long the steps took from which the rate was measured.
    stepping_s: float
    in_table: float
    believed: float


def learnt_rates(records: Iterable[tuple[float, Fact]]) -> list[LearntRate]:
    """Return an entry for each job and worker type on which the job had a lease, in the order of the leases' ends."""
    state, entries = SchedulerState(), dict[tuple[str, str], LearntRate]()
    for at_s, fact in records:
        lease = state.leases[fact.exit.lease].lease if isinstance(fact, LeaseClosed) else None
        apply(state, at_s, fact)
        if lease is None or not isinstance(fact, LeaseClosed) or fact.exit.stepping_s <= 0:
            continue
        kind, job_type = lease.bundle.worker_type, state.jobs[lease.job].spec.job_type
        if (lease.job, kind) not in entries:
            key = RateKey(job_type, len(lease.gpus), kind)
            in_table = state.rates.from_table(job_type, len(lease.gpus), kind)
            believed = state.rates.rate(key, in_table, state.settings.trust_after_s)
            measured_s = state.rates.measured[key].observed_s if key in state.rates.measured else 0.0
            entries[lease.job, kind] = LearntRate(
                lease.job, job_type, kind, measured_s, in_table or 0.0, believed
            )
    return list(entries.values())


def distorted(rates: live.Rates, factor: float) -> live.Rates:
    """Return rates wrong by this factor: each job type is too fast on one worker type and too slow on the other."""
    types = sorted({key[0] for key in rates})
    kinds = sorted({key[2] for key in rates})
    return {
        key: rate * (factor if (types.index(key[0]) + kinds.index(key[2])) % 2 else 1 / factor)
        for key, rate in rates.items()
    }


def table(entries: Iterable[LearntRate], truth: live.Rates) -> str:
    """Return a line for each lease."""
    lines = [f"{'job':8}{'on':8}{'measured for':>13}{'table':>10}{'believed':>10}{'true':>8}{'off by':>9}"]
    worst = 0.0
    for rate in entries:
        true = truth[rate.job_type, 1, rate.worker_type]
        deviation = rate.believed / true - 1
        worst = max(worst, abs(deviation))
        figures = f"{rate.in_table:10.2f}{rate.believed:10.2f}{true:8.2f}{deviation:+9.1%}"
        lines.append(f"{rate.job_type:8}{rate.worker_type:8}{rate.stepping_s:11.1f} s{figures}")
    return "\n".join(
        (
            *lines,
            f"worst after a first lease: {worst:.1%} (goal within {GOAL:.0%}); rates in steps per second",
        )
    )


def main() -> None:
    """Run, read, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wrong-by", type=float, default=3.0)
    parser.add_argument("--round-s", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, help="keep all files there")
    options = parser.parse_args()
    round_s = options.round_s
    settings = (
        *("scheduler.policy=las", f"scheduler.round_s={round_s}", "scheduler.restart_cost_s=0.5"),
        *(f"scheduler.solve_lead_s={0.2 * round_s}", f"scheduler.plan_lead_s={0.1 * round_s}"),
        # The same fraction of a round as in the defaults, 60 s in rounds of 360 s.
        f"scheduler.trust_after_s={round_s / 6}",
    )
    jobs = [
        live.PacedJob(
            f"{name}-{kind}", name, step_s, int(3 * round_s / step_s * live.SPEED[kind]), 0.0, (kind,)
        )
        for name, step_s in STEP_S.items()
        for kind in GPUS
    ]
    truth = live.rates(jobs)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        live.write_rates(folder / "rates.csv", distorted(truth, options.wrong_by))
        with live.cluster(folder, GPUS, (*settings, f"throughputs={folder / 'rates.csv'}")) as (_, client):
            done = live.wait_for_end(client, live.submit_all(client, jobs, 0.5), 60 + 40 * round_s)
            faults = [
                text
                for job, result in zip(jobs, done, strict=True)
                if (text := live.step_fault(client, job, result))
            ]
        with SqliteJournal(folder / "scheduler" / "journal.db", read_only=True) as journal:
            print(table(learnt_rates(journal.read()), truth))
    print("; ".join(faults) or f"{len(jobs)} jobs did exactly their steps")


if __name__ == "__main__":
    main()
