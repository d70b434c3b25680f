"""`make plans`: a model that is too large for one GPU trains on several, by one plan after the other.

What to look for: the model is cut into four stages on two agents. When another job wants GPUs, all four stop after the
same step, and the training continues in two stages; without that job, in four again, if they are faster. Its losses
are those of a training that is not interrupted, bit for bit. The GPUs are emulated: jobs compute on the CPU, then wait
until the step has taken as long as on such GPUs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.live_demo import wait_for_nodes
from gavel import Client
from gavel.cli.service.local_cluster import LocalCluster
from gavel.client import Job

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "examples" / "jobs"
FOLDER = ROOT / "out" / "plans"
# The memory of each emulated GPU.
MEMORY_GB = 0.016
AGENTS = (f"v100=2:memory={MEMORY_GB}",) * 2
# The GPUs of all agents.
ALL = 4
SETTINGS = (
    "scheduler.policy=las",
    *("scheduler.round_s=8", "scheduler.solve_lead_s=1", "scheduler.plan_lead_s=0.5"),
    *("scheduler.stay_rounds=1", "scheduler.restart_cost_s=1"),
    *("scheduler.trust_after_s=10", "agents.report_interval_s=1"),
)
# Plans on 2 and 4 GPUs can divide an odd batch neither into copies nor into microbatches of several samples. So all of
# them add the same numbers in the same order.
PLANNING = (
    *("gpt.profile.json", "--batch", "5", "--cluster", "v100=4", "--gpus-per-node", "2"),
    *("--gpu-memory", f"v100={MEMORY_GB}"),
)
STEPS = 60
# How long a step takes on one emulated GPU.
STEP_S = 1.2
# How many steps an attempt does at least before the demo changes its GPUs.
STEPS_BETWEEN = 5
# The length of the timeline.
CHARACTERS = 66
# How long the demo waits for its job.
LIMIT_S = 600.0


@dataclass(frozen=True)
class Attempt:
    """One attempt of the job: its GPUs, the steps between which it trained, and its losses by step."""

    number: int
    gpus: int
    first_step: int
    last_step: int
    losses: dict[int, float]


@dataclass
class Watch:
    """A record of where jobs ran, second by second."""

    # By second: what each GPU did then.
    seconds: dict[int, dict[str, str]] = field(default_factory=dict)
    # The steps done when each lease was first seen.
    begins: dict[str, float] = field(default_factory=dict)

    def note(self, second: int, jobs: Iterable[Job]) -> None:
        """Record where jobs run."""
        for job in jobs:
            if job.placement is not None and job.placement.phase == "running":
                self.begins.setdefault(job.placement.lease, job.steps_done)
                mark = str(len(job.placement.gpus)) if job.spec.name == "gpt" else "o"
                self.seconds.setdefault(second, {}).update(dict.fromkeys(job.placement.gpus, mark))

    def mark(self, gpu: str, seconds: Iterable[int]) -> str:
        """Return what a GPU did in the first of these seconds in which anything was seen."""
        return next((marks.get(gpu, "·") for second in seconds if (marks := self.seconds.get(second))), "·")

    def steps_in_lease(self, job: Job) -> float:
        """Return how many steps a job has done under its lease."""
        if job.placement is None or job.placement.lease not in self.begins:
            return 0.0
        return job.steps_done - self.begins[job.placement.lease]


class Commands:
    """Commands, run in a folder as a user runs them, and shown with what they print."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder, self._console = folder, console
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}

    def gavel(self, *words: str) -> None:
        """Run `gavel` with these arguments; end the demo if it fails."""
        short = [Path(word).name if os.path.isabs(word) else word for word in words]
        self._console.print(Text(f"\n$ gavel {shlex.join(short)}", "bold"), soft_wrap=True)
        output = self._run([sys.executable, "-m", "gavel", *words], subprocess.STDOUT)
        self._console.print(Text(output.rstrip("\n")), soft_wrap=True)

    def plans(self) -> dict[int, str]:
        """Profile the model, write the plans of the job, and return their labels by number of GPUs."""
        self.gavel("profile", "--type", "v100", "-o", "gpt.profile.json", str(JOBS / "gpt.py"))
        self.gavel("plan", *PLANNING)
        text = self._run([sys.executable, "-m", "gavel", "plan", *PLANNING, "--json"])
        (self._folder / "gpt.plans.json").write_text(text, encoding="utf-8")
        return {plan["gpus"]: plan["label"] for plan in json.loads(text)["plans"]}

    def submit(self, steps: int) -> None:
        """Submit the model with its plans."""
        script = (sys.executable, str(JOBS / "gpt.py"), "--steps", str(steps), "--step-s", str(STEP_S))
        options = ("--name", "gpt", "--steps", str(steps), "--job-type", "gpt", "--plan", "gpt.plans.json")
        self.gavel("submit", *options, "--", *script)

    def _run(self, command: Sequence[str], stderr: int | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self.environ,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} ended with exit code {done.returncode}: {done.stdout}")
        return done.stdout


@contextmanager
def alone(folder: Path, environ: Mapping[str, str], steps: int) -> Iterator[subprocess.Popen[str]]:
    """Train the model in one process, without Gavel and with little priority, while the block runs."""
    folder.mkdir()
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"format": "gavel-plan/1", "microbatch": 1}), encoding="utf-8")
    with subprocess.Popen(
        ["nice", sys.executable, str(JOBS / "gpt.py"), "--steps", str(steps)],
        cwd=folder,
        env={**environ, "GAVEL_PLAN": str(plan)},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def main(folder: Path = FOLDER, steps: int = STEPS) -> int:
    """Plan the model, train it while GPUs come and go, check the result; return the exit status."""
    console, began_s = Console(highlight=False), time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    commands = Commands(folder, console)
    labels = commands.plans()
    with (
        alone(folder / "alone", commands.environ, steps) as uninterrupted,
        LocalCluster(folder / "cluster", AGENTS, settings=SETTINGS) as cluster,
        Client(cluster.address, retry_s=30) as client,
    ):
        commands.environ["GAVEL_ADDRESS"] = cluster.address
        wait_for_nodes(client, len(AGENTS))
        watch = train(commands, client, cluster, steps)
        job = client.get("gpt")
        attempts = attempts_in(client)
        output, _ = uninterrupted.communicate()
    console.print(*timeline(watch), sep="\n", soft_wrap=True)
    console.print(table_of(attempts, labels))
    faults = faults_of(job, attempts, losses_in(output.splitlines()), steps)
    for fault in faults:
        console.print(Text(f"fault: {fault}", "bold red"))
    if not faults:
        console.print(
            f"\nNo step was lost, and none done twice: {len(attempts)} attempts by different plans have the losses of "
            "one process that was not interrupted, bit for bit."
        )
    console.print(
        f"{time.monotonic() - began_s:.0f} s in all. Profile, plans and logs: {os.path.relpath(folder)}"
    )
    return 1 if faults else 0


def train(commands: Commands, client: Client, cluster: LocalCluster, steps: int) -> Watch:
    """Train the model on all GPUs, then beside another job, then on all GPUs again; return the record."""
    commands.gavel("nodes", "v100-1")
    commands.submit(steps)
    watch, began_s = Watch(), time.monotonic()
    # What to do next, by the number of GPUs on which the job trains.
    todo = {ALL: partial(beside, commands), ALL // 2: partial(alone_again, commands)}
    while True:
        now_s = time.monotonic() - began_s
        jobs = list(client.list())
        watch.note(int(now_s), jobs)
        job = next(job for job in jobs if job.spec.name == "gpt")
        if job.state.is_final or now_s > LIMIT_S:
            return watch
        if name := cluster.ended_process():
            raise SystemExit(f"{name} ended: {cluster.last_line(name)}")
        width = len(job.placement.gpus) if job.placement else 0
        if watch.steps_in_lease(job) >= STEPS_BETWEEN and width == next(iter(todo), None):
            todo.pop(width)()
        time.sleep(0.3)


def beside(commands: Commands) -> None:
    """Submit another job, which takes half of the GPUs."""
    commands.gavel("show", "gpt")
    commands.gavel("submit", "--name", "other", "--gpus", str(ALL // 2), "--", "sleep", "1000")


def alone_again(commands: Commands) -> None:
    """Cancel the other job."""
    commands.gavel("explain", "gpt")
    commands.gavel("cancel", "other")


def losses_in(lines: Iterable[str]) -> dict[int, float]:
    """Return the losses that the script has printed, by step."""
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return {record["step"]: record["loss"] for record in records if record.get("loss") is not None}


def attempts_in(client: Client) -> list[Attempt]:
    """Return the attempts of the job, as its output tells of them."""
    attempts = []
    lines = [line for line in client.logs("gpt") if line.startswith("{")]
    for number in sorted({line.attempt for line in lines}):
        own = [line for line in lines if line.attempt == number]
        first, last = json.loads(own[0]), json.loads(own[-1])
        attempts.append(Attempt(number, first["ranks"], first["step"], last["step"], losses_in(own)))
    return attempts


def faults_of(job: Job, attempts: Sequence[Attempt], alone: dict[int, float], steps: int) -> list[str]:
    """Return a description of each promise of the demo that was not kept."""
    faults = [] if job.state == "completed" else [f"the job is {job.state}: {job.why}"]
    last = 0
    for attempt in attempts:
        if attempt.first_step != last:
            faults.append(f"attempt {attempt.number} began at step {attempt.first_step} instead of {last}")
        last = attempt.last_step
    if (last, job.steps_done) != (steps, steps):
        faults.append(f"{last} steps were done and {job.steps_done:g} reported, instead of {steps}")
    if len({attempt.gpus for attempt in attempts}) < 2:
        faults.append("the job was not continued on another number of GPUs")
    if steps not in alone:
        faults.append("the training that is not interrupted did not end")
    for attempt in attempts:
        for step, loss in attempt.losses.items():
            if step in alone and alone[step] != loss:
                faults.append(f"the loss of step {step} is {loss!r}, and in one process {alone[step]!r}")
    return faults


def timeline(watch: Watch) -> list[Text]:
    """Return a line for each GPU: what it did in each second."""
    gpus = sorted({gpu for marks in watch.seconds.values() for gpu in marks})
    end, margin = max(watch.seconds, default=0) + 1, max(map(len, gpus), default=0) + 2
    # How many seconds a character stands for.
    each = -(-end // CHARACTERS)
    scale = "".join(f"{each * place} s".ljust(10) for place in range(0, -(-end // each), 10))
    lines = [Text(f"\n{' ' * margin}{scale}".rstrip(), "dim")]
    for gpu in gpus:
        marks = [watch.mark(gpu, range(first, first + each)) for first in range(0, end, each)]
        lines.append(Text(gpu.ljust(margin) + "".join(marks)))
    return [
        *lines,
        Text(f"{ALL}, {ALL // 2}: the model, on so many GPUs; o: the other job; ·: nothing", "dim"),
    ]


def table_of(attempts: Sequence[Attempt], labels: dict[int, str]) -> Table:
    """Return a table with a row for each attempt."""
    table = Table(title="\nAttempts", title_justify="left", box=None, pad_edge=False)
    for column in ("attempt", "plan", "GPUs", "steps", "last loss"):
        table.add_column(column, justify="left" if column == "plan" else "right", no_wrap=True)
    for attempt in attempts:
        loss = f"{attempt.losses[max(attempt.losses)]:.4f}" if attempt.losses else ""
        steps = f"{attempt.first_step} to {attempt.last_step}"
        table.add_row(str(attempt.number), labels[attempt.gpus], f"{attempt.gpus} × v100", steps, loss)
    return table


if __name__ == "__main__":
    sys.exit(main())
