"""A node is suspended until its leases have lapsed, then woken: does a stale attempt set a checkpoint back?

    python -m tests.attacks.stale [--rounds 3] [--jobs 4] [--seed 1] [--plain [--per-attempt]]

Each round starts jobs on one node and suspends all its processes (SIGSTOP) until every job runs on another node. There
each job is requeued, so that a newer attempt saves. Then the processes of the first node are continued one by one in
random order, and the table shows the state that another attempt would load. Jobs run the documented training loop or,
with --plain, one that does not use Gavel. With --plain, --per-attempt gives each attempt its own checkpoint directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.cluster import Cluster, eventually, freeze, gone, thaw
from worker_agent.shim.process_tree import Process

HERE = Path(__file__).parent
OWN_LOOP, PLAIN = HERE / "own_loop.py", HERE / "plain_loop.py"
SETTINGS = (
    *("scheduler.round_s=5", "scheduler.solve_lead_s=2.5", "scheduler.plan_lead_s=2"),
    *("scheduler.lease_margin_s=8", "agents.silence_s=5"),
)
# Options of the agents: shorter times than by default between asking a job to stop, the signal, and the kill.
SOON = ("--ask-s", "4", "--grace-s", "1.5")


class Outcome(NamedTuple):
    """A job whose first attempt was suspended: the newest state saved before that attempt woke, and the state now."""

    job: str
    saved_step: int
    saved_attempt: int
    now_step: int
    now_attempt: int

    @property
    def set_back(self) -> bool:
        """Whether the state now is older than the newest state that was saved."""
        return (self.now_attempt, self.now_step) < (self.saved_attempt, self.saved_step)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the number of jobs that were set back, which is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--per-attempt", action="store_true")
    options = parser.parse_args(arguments)
    fields = {"checkpoints": "per_attempt"} if options.per_attempt else {}
    script = PLAIN if options.plain else OWN_LOOP
    with tempfile.TemporaryDirectory() as folder:
        outcomes = attack(Path(folder), options.rounds, options.jobs, options.seed, script, **fields)
    print(f"{'job':>4} {'saved':>7} {'by':>3} {'counts now':>11} {'by':>3}")
    for outcome in outcomes:
        verdict = "  set back" if outcome.set_back else ""
        saved = f"{outcome.saved_step:>7} {outcome.saved_attempt:>3}"
        print(f"{outcome.job:>4} {saved} {outcome.now_step:>11} {outcome.now_attempt:>3}{verdict}")
    set_back = sum(outcome.set_back for outcome in outcomes)
    print(f"{set_back} of {len(outcomes)} checkpoints set back")
    return set_back


def attack(
    folder: Path, rounds: int, jobs: int, seed: int, script: Path = OWN_LOOP, **fields: Any
) -> list[Outcome]:
    """Run all rounds, one after another, on two nodes. `fields` are set in the specification of each job."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    with Cluster(folder / "cluster", {"n1": f"v100={jobs}"}, SETTINGS, *SOON) as cluster:
        for number in range(rounds):
            go = folder / f"go-{number}"
            submitted = [cluster.submit(str(script), go, **fields) for _ in range(jobs)]
            outcomes += _round(cluster, go, submitted, chance)
    return outcomes


def _round(cluster: Cluster, go: Path, jobs: Sequence[str], chance: random.Random) -> list[Outcome]:
    first_starts, count = {job: cluster.started(job) for job in jobs}, len(jobs)
    for job in jobs:
        _begun(cluster, job, attempt=1)
    cluster.agent("n2", f"v100={count}")
    cluster.wait_until_linked("n2")
    frozen = freeze(cluster.folder / "n1")
    for job in jobs:
        assert cluster.started(job, attempt=2)["node"] == "n2"
        _begun(cluster, job, attempt=2)
        cluster.client.requeue(job)
    third_starts = {job: _next_start(cluster, job, after=2) for job in jobs}
    saved = {job: start["step"] for job, start in third_starts.items()}
    for job, start in third_starts.items():
        _begun(cluster, job, start["attempt"])
    _wake(frozen, chance)
    gone(line["pid"] for line in first_starts.values())
    outcomes = []
    for job in jobs:
        state = loaded(cluster.folder / "checkpoints" / job)
        outcomes.append(Outcome(job, saved[job], 2, state["step"], state["attempt"]))
    cluster.wait_until_linked("n1", "n2")
    go.touch()
    for job in jobs:
        cluster.wait_until_completed(job)
    cluster.wait_until_idle()
    cluster.kill("n2")
    eventually(lambda: cluster.client.nodes(["n2"])[0].state != "up", "n2 is reported to be away")
    return outcomes


def _next_start(cluster: Cluster, job: str, after: int) -> dict[str, Any]:
    """Return the first line of the next attempt that prints one; an attempt may end before it prints a line."""
    return eventually(
        lambda: next((line for line in cluster.json_lines(job, "start") if line["attempt"] > after), None),
        f"job {job} is started again",
    )


def _begun(cluster: Cluster, job: str, attempt: int) -> None:
    """Wait until an attempt has done some steps."""
    eventually(
        lambda: any(line["attempt"] == attempt for line in cluster.json_lines(job, "begun")),
        f"attempt {attempt} of job {job} does steps",
    )


def _wake(frozen: Sequence[Process], chance: random.Random) -> None:
    """Continue the processes one by one, now and then after a pause."""
    order = list(frozen)
    chance.shuffle(order)
    for process in order:
        thaw([process])
        time.sleep(chance.choice((0.0, 0.0, 0.05, 0.3)))


def loaded(checkpoints: Path) -> dict[str, int]:
    """Return the state that the next attempt of a job would load, with the loop's own `load` in another process."""
    newest = max(checkpoints.glob("e*-a*"), default=None)
    if newest is not None:
        return _state(newest / "state.txt")
    if not list(checkpoints.glob("state.txt.*")):
        return _state(checkpoints / "state.txt")
    environ = {
        **os.environ,
        "GAVEL_CHECKPOINT_DIR": str(checkpoints),
        "GAVEL_RUN_DIR": str(checkpoints),
        "GAVEL_EPOCH": str(10**15),
        "GAVEL_ATTEMPT": "999",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
    }
    program = f"import sys, json; sys.path.insert(0, {str(HERE)!r}); sys.argv = ['', '/']\n"
    program += "import own_loop; print(json.dumps(own_loop.load()))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    state: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return state


def _state(path: Path) -> dict[str, int]:
    state: dict[str, int] = json.loads(path.read_text())
    return state


if __name__ == "__main__":
    sys.exit(main())
