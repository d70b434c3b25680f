"""A node suspended past its leases, and woken in any order: does a stale attempt set a checkpoint back?

    python -m tests.attacks.stale [--rounds 3] [--jobs 4] [--seed 1]

Each round starts jobs with the documented loop on one node and stops all processes of it (SIGSTOP), until every job
runs on another node. There they are requeued, so that a newer attempt has saved. Then the processes of the first node
are continued one by one in random order, and the table says what a next attempt would load.
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
from typing import NamedTuple

from tests.e2e.cluster import Cluster, eventually, freeze, gone, thaw
from worker_agent.process_tree import Process

SCRIPT = Path(__file__).with_name("own_loop.py")
SETTINGS = (
    *("scheduler.round_s=5", "scheduler.solve_lead_s=2.5", "scheduler.plan_lead_s=2"),
    *("scheduler.lease_margin_s=8", "agents.silence_s=5"),
)
SOON = ("--ask-s", "4", "--grace-s", "1.5")


class Outcome(NamedTuple):
    """What became of a job whose first attempt was suspended: what was saved last, and what counts now."""

    job: str
    stale_step: int
    saved_step: int
    saved_attempt: int
    now_step: int
    now_attempt: int

    @property
    def set_back(self) -> bool:
        """Whether the state that counts now is an older attempt's than the newest that was saved."""
        return (self.now_attempt, self.now_step) < (self.saved_attempt, self.saved_step)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the number of jobs that were set back is the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = attack(Path(folder), options.rounds, options.jobs, options.seed)
    print(f"{'job':>4} {'stale at':>9} {'saved':>7} {'by':>3} {'counts now':>11} {'by':>3}")
    for one in outcomes:
        verdict = "  set back" if one.set_back else ""
        print(
            f"{one.job:>4} {one.stale_step:>9} {one.saved_step:>7} {one.saved_attempt:>3} "
            f"{one.now_step:>11} {one.now_attempt:>3}{verdict}"
        )
    back = sum(one.set_back for one in outcomes)
    print(f"{back} of {len(outcomes)} checkpoints set back")
    return back


def attack(folder: Path, rounds: int, jobs: int, seed: int) -> list[Outcome]:
    """All rounds, one after the other, on two nodes."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    with Cluster(folder / "cluster", {"n1": f"v100={jobs}"}, SETTINGS, *SOON) as cluster:
        for number in range(rounds):
            outcomes += _round(cluster, folder / f"go-{number}", jobs, chance)
    return outcomes


def _round(cluster: Cluster, go: Path, count: int, chance: random.Random) -> list[Outcome]:
    jobs = [cluster.submit(str(SCRIPT), go) for _ in range(count)]
    first = {job: cluster.started(job) for job in jobs}
    for job in jobs:
        cluster.until(job, lambda it: it.steps_done > 0, "has begun")
    cluster.agent("n2", f"v100={count}")
    cluster.linked("n2")
    frozen = freeze(cluster.folder / "n1")
    stale_steps = {job: int(cluster.job(job).steps_done) for job in jobs}
    for job in jobs:
        assert cluster.started(job, attempt=2)["node"] == "n2"
        cluster.until(job, lambda it: it.steps_done > 0, "goes on elsewhere")
        cluster.client.requeue(job)
    for job in jobs:
        cluster.started(job, attempt=3)
    saved = {job: cluster.told(job, "saved")[-1] for job in jobs}
    _wake(frozen, chance)
    gone(line["pid"] for line in first.values())
    cluster.linked("n1", "n2")
    outcomes = []
    for job in jobs:
        now = loaded(cluster.folder / "checkpoints" / job)
        newest = saved[job]
        outcomes.append(
            Outcome(job, stale_steps[job], newest["step"], newest["attempt"], now["step"], now["attempt"])
        )
    go.touch()
    for job in jobs:
        cluster.completed(job)
    cluster.runs_nothing()
    cluster.kill("n2")
    eventually(lambda: cluster.client.nodes(["n2"])[0].state != "up", "n2 is known to be away")
    return outcomes


def _wake(frozen: Sequence[Process], chance: random.Random) -> None:
    """Continue them one by one, now and then after a pause."""
    order = list(frozen)
    chance.shuffle(order)
    for process in order:
        thaw([process])
        time.sleep(chance.choice((0.0, 0.0, 0.05, 0.3)))


def loaded(checkpoints: Path) -> dict[str, int]:
    """What the next attempt of a job would load, by its own function in a process of its own."""
    environ = {
        **os.environ,
        "GAVEL_CHECKPOINT_DIR": str(checkpoints),
        "GAVEL_RUN_DIR": str(checkpoints),
        "GAVEL_EPOCH": str(10**15),
        "GAVEL_ATTEMPT": "999",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])),
    }
    program = f"import sys, json; sys.path.insert(0, {str(SCRIPT.parent)!r}); sys.argv = ['', '/']\n"
    program += "import own_loop; print(json.dumps(own_loop.load()))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    state: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return state


if __name__ == "__main__":
    sys.exit(main())
