"""The time and memory of a simulation, part by part, and the time of one full round of a large cluster.

    python -m benchmarks.simulation [--jobs 5000] [--policies las,ftf] [--no-round] [--profile]

Simulates the published single-GPU workload at 4.8 jobs per hour on 36 GPUs of each of three types, without a journal
and with one on disk, each run in a process of its own. The shares of time are those of the solver (with all of
`answer`), the core, the simulated machines and the journal; the rest is metrics and the loop. For the peak memory of a
long replay: `--jobs 100000 --policies las --no-round`.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import pstats
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from scheduler.core.core import Core
from scheduler.core.effects import Effect, Solve
from scheduler.core.messages import Configure, GiveRates, NodeHello, SubmitJobs, Woke
from scheduler.core.planning import problem, round_inputs
from scheduler.core.planning.kinds import Kinds
from scheduler.journal.store import SqliteJournal
from scheduler.model.cluster import NodeSpec
from scheduler.model.jobs import JobSpec
from scheduler.model.settings import COMPARISON, Settings
from scheduler.rounds.diff import diff
from scheduler.rounds.inputs import RoundInputs
from scheduler.rounds.plan import plan_round
from scheduler.sim import simulate as simulation
from scheduler.sim.engine.machines import Machines
from scheduler.sim.run import RARE_REPORTS_S
from scheduler.sim.simulate import SimOptions, simulate
from scheduler.solving import answer
from traces.published import JOB_TYPES, published_jobs
from traces.throughput_files import load_throughputs
from traces.throughputs import Throughputs

TABLE = Path(__file__).parents[2] / "shared" / "data" / "gavel" / "simulation_throughputs.json"
CLUSTER = {"v100": 36, "p100": 36, "k80": 36}
RATE_PER_H = 4.8
POLICIES = "las,las+packing,ftf"
NODES, GPUS_PER_NODE, ACTIVE = 1000, 8, 20_000
REPEATS = 5


@dataclass(slots=True)
class Watch:
    """Times calls of functions, and keeps the seconds of each call under a name."""

    calls: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def on(self, owner: Any, function: str, name: str) -> Iterator[None]:
        """Time calls of the owner's function within this block."""
        real: Callable[..., Any] = getattr(owner, function)
        durations_s = self.calls.setdefault(name, [])

        def timed(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return real(*args, **named)
            finally:
                durations_s.append(time.perf_counter() - started)

        setattr(owner, function, timed)
        try:
            yield
        finally:
            setattr(owner, function, real)

    def total_s(self, name: str) -> float:
        """Return the seconds of all calls under this name."""
        return sum(self.calls.get(name, ()))


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a run."""

    wall_s: float
    rounds: int
    events: int
    solves: int
    # The median.
    solve_ms: float
    shares: dict[str, float]
    peak_mb: float


def options(policy: str, jobs: int) -> SimOptions:
    """Return the options under which the published figures were made, for this number of jobs."""
    table = load_throughputs(TABLE)
    stream = published_jobs("single", rate_per_h=RATE_PER_H, seed=0, throughputs=table)
    return SimOptions(
        cluster=CLUSTER,
        jobs=islice(stream, jobs),
        throughputs=table,
        settings=msgspec.structs.replace(COMPARISON, policy=policy),
        report_interval_s=RARE_REPORTS_S,
    )


def run(policy: str, jobs: int, on_disk: bool) -> Row:
    """Run a simulation; return its figures and how its time was spent."""
    watch = Watch()
    with ExitStack() as stack:
        sim_options = options(policy, jobs)
        if on_disk:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            journal = stack.enter_context(SqliteJournal(Path(folder, "journal.db"), durable=False))
            sim_options = msgspec.structs.replace(sim_options, journal=journal)
        for owner, function, name in (
            (simulation, "answer", "solve"),
            (Core, "handle_all", "core"),
            (Machines, "advance", "machines"),
            (Machines, "deliver", "machines"),
            (SqliteJournal, "append", "journal"),
        ):
            stack.enter_context(watch.on(owner, function, name))
        result = simulate(sim_options)
    names = ("solve", "core", "machines", "journal")
    return Row(
        wall_s=result.wall_s,
        rounds=result.rounds,
        events=result.events,
        solves=len(watch.calls["solve"]),
        solve_ms=statistics.median(watch.calls["solve"]) * 1e3,
        shares={name: watch.total_s(name) / result.wall_s for name in names},
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def print_runs(policies: list[str], jobs: int) -> None:
    """Print the table. Each row is measured in a process of its own, because of the peak memory."""
    print(
        f"{jobs:,} jobs at {RATE_PER_H} per hour; a solve is the median, other figures are of the one run\n"
    )
    head = f"{'policy':<14}{'journal':<9}{'wall s':>8}{'rounds/s':>10}{'events/s':>10}{'solves':>8}{'ms each':>9}"
    print(head + "   solve   core machines journal   rest  peak MB")
    for policy in policies:
        for on_disk in (False, True):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                row = process.submit(run, policy, jobs, on_disk).result()
            rest = 1.0 - sum(row.shares.values())
            print(
                f"{policy:<14}{'on disk' if on_disk else 'none':<9}{row.wall_s:>8.1f}"
                f"{row.rounds / row.wall_s:>10,.0f}{row.events / row.wall_s:>10,.0f}"
                f"{row.solves:>8,}{row.solve_ms:>9.2f}"
                f"{row.shares['solve']:>8.0%}{row.shares['core']:>7.0%}{row.shares['machines']:>9.0%}"
                f"{row.shares['journal']:>8.0%}{rest:>7.0%}{row.peak_mb:>9,.0f}",
                flush=True,
            )


def print_profile(policies: list[str], jobs: int) -> None:
    """Print how the time was spent, function by function."""
    for policy in policies:
        sim_options, profile = options(policy, jobs), cProfile.Profile()
        profile.runcall(simulate, sim_options)
        print(f"--- {policy}")
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def large_cluster(table: Throughputs) -> Core:
    """Return a scheduler with NODES nodes and ACTIVE waiting jobs."""
    core = Core()
    solo = [(*key, rate) for key, rate in sorted(table.restrict(CLUSTER).solo.items())]
    core.handle(0.0, Configure(settings=Settings(policy="las")))
    core.handle(0.0, GiveRates(solo=solo))
    kinds = list(CLUSTER)
    for i in range(NODES):
        kind = kinds[i % len(kinds)]
        spec = NodeSpec(name=f"node-{i:04d}", worker_type=kind, gpus=GPUS_PER_NODE, storage="shared")
        core.handle(0.0, NodeHello(spec=spec))
    stream = published_jobs("single", rate_per_h=float("inf"), seed=0, throughputs=table)
    specs = [
        JobSpec(name=job.name or job.id, job_type=job.job_type, gpus=job.gpus, steps=float(job.steps or 1))
        for job in islice(stream, ACTIVE)
    ]
    core.handle(0.0, SubmitJobs(specs=tuple(specs)))
    return core


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Return the median seconds of some calls, and the result of the last one."""
    durations_s, result = [], None
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        durations_s.append(time.perf_counter() - started)
    return statistics.median(durations_s), result


def question_in(effects: Sequence[Effect]) -> Solve:
    """Return the question to the solver among these effects."""
    return next(effect for effect in effects if isinstance(effect, Solve))


def print_round() -> None:
    """Print the time of each part of a round in which all GPUs are held and all shares are new."""
    core = large_cluster(load_throughputs(TABLE))
    state, kinds = core.state, Kinds()
    first = question_in(core.handle(0.0, Woke(what="tick")).effects)
    core.handle(0.0, answer(first))
    core.handle(state.settings.solve_lead_s, Woke(what="plan"))
    core.handle(1.0, SubmitJobs(specs=(JobSpec(name="one-more", job_type=JOB_TYPES[0], gpus=1, steps=1e6),)))
    now_s = state.round.ends_s - state.settings.solve_lead_s
    question = question_in(core.handle(now_s, Woke(what="tick")).effects)
    solved_s, solved = timed(lambda: answer(question))
    built_s, _ = timed(lambda: problem.build(state, kinds, now_s))
    adopted_s, _ = timed(lambda: core.handle(now_s, solved), 1)
    at_s = state.round.ends_s - state.settings.plan_lead_s

    def inputs_with_new_shares() -> RoundInputs:
        # As if the shares had changed, which they do in nearly every round.
        kinds.frame = None
        return round_inputs.at_boundary(state, kinds, at_s, state.round.ends_s)

    inputs_s, inputs = timed(inputs_with_new_shares)
    planned_s, planned = timed(lambda: plan_round(inputs))
    empty = replace(inputs, held={})
    empty_s, _ = timed(lambda: plan_round(empty))
    # Each node has more of the data than the one before it, so every job would rather be elsewhere.
    sizes = {view.name: float(number) for number, view in enumerate(inputs.nodes)}
    near_data_s, _ = timed(lambda: plan_round(replace(empty, cached_bytes=dict.fromkeys(inputs.jobs, sizes))))
    leases_s, _ = timed(lambda: diff(inputs.held, planned))
    whole_s, _ = timed(lambda: core.handle(at_s, Woke(what="plan")), 1)
    facts_s = max(whole_s - inputs_s - planned_s - leases_s, 0.0)
    print(
        f"\none round of {NODES:,} nodes × {GPUS_PER_NODE} GPUs, {ACTIVE:,} active jobs, las; medians of {REPEATS}"
    )
    for title, seconds in (
        ("problem: jobs and columns", built_s),
        ("solve", solved_s),
        ("adopt the shares (once)", adopted_s),
        ("inputs of the plan", inputs_s),
        ("plan", planned_s),
        ("leases: what changes", leases_s),
        ("facts, applied; effects (once)", facts_s),
        ("not in all: plan of idle GPUs", empty_s),
        ("the same, data on all nodes", near_data_s),
    ):
        print(f"  {title:<34}{seconds * 1e3:>9.1f} ms")
    print(
        f"  {'in all':<34}{(built_s + solved_s + adopted_s + max(whole_s, planned_s)) * 1e3:>9.1f} ms",
        flush=True,
    )


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5000, help="jobs in each run")
    parser.add_argument("--policies", default=POLICIES, help="names, separated by commas")
    parser.add_argument("--no-round", action="store_true", help="leave out the round of the large cluster")
    parser.add_argument("--profile", action="store_true", help="print only the time of each function")
    chosen = parser.parse_args()
    if not TABLE.exists():
        print(f"The published throughput table does not exist: {TABLE}")
        return 1
    policies = chosen.policies.split(",")
    if chosen.profile:
        print_profile(policies, chosen.jobs)
        return 0
    print_runs(policies, chosen.jobs)
    if not chosen.no_round:
        print_round()
    return 0


if __name__ == "__main__":
    sys.exit(main())
