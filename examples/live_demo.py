"""`make demo`: a scheduler and four agents on this machine train ten small PyTorch models.

What to look for: ten jobs share four GPUs, two fast and two slow, by being preempted and resumed. In the middle the
scheduler is restarted, without any effect on the jobs. The GPUs are emulated: jobs compute on the CPU, then wait until
the step has taken as long as on such a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gavel import Client
from gavel.cli.service.local_cluster import AGENTS_DEFAULT as AGENTS
from gavel.cli.service.local_cluster import LocalCluster, web_line
from gavel.client import GavelError, Job, JobSpec
from scheduler.live.data.fsck import check_data_directory

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "out" / "demo"
SETTINGS = (
    "scheduler.policy=las",
    *("scheduler.round_s=12", "scheduler.solve_lead_s=1", "scheduler.plan_lead_s=0.5"),
    *("scheduler.restart_cost_s=4", "scheduler.trust_after_s=10", "scheduler.reserve_after=1"),
)
# The script of each job; the last job runs on two GPUs.
KINDS = ("regression",) * 4 + ("digits",) * 3 + ("text",) * 3
# How long the demo waits for its jobs to end.
LIMIT_S = 290.0
# The fraction of all steps after which the scheduler is restarted.
RESTART_AT = 0.35
# How long a step takes on a GPU of speed 1.
STEP_S = {"regression": 0.04, "digits": 0.05, "text": 0.06}


@dataclass(frozen=True)
class Plan:
    """The cluster to start and the jobs to train on it."""

    folder: Path = FOLDER
    agents: tuple[str, ...] = AGENTS
    settings: tuple[str, ...] = SETTINGS
    kinds: tuple[str, ...] = KINDS
    # The steps of the shortest job.
    steps: int = 240


def jobs(plan: Plan) -> list[JobSpec]:
    """Return a training job for each script in `plan.kinds`."""
    specs = []
    for number, name in enumerate(plan.kinds):
        steps = plan.steps + 20 * (number % 3)
        gpus = 2 if number == len(KINDS) - 1 else 1
        script = ROOT / "examples" / "jobs" / f"{name}.py"
        command = [sys.executable, str(script), "--steps", str(steps), "--step-s", str(STEP_S[name])]
        specs.append(
            JobSpec(
                name=f"{name}-{number}" if gpus == 1 else f"{name}-{number}-2-gpus",
                command=tuple(command),
                job_type=name,
                gpus=gpus,
                steps=float(steps),
            )
        )
    return specs


@dataclass
class Story:
    """The events of the demo so far, and the line that reports the last of them."""

    # When the scheduler was restarted, in seconds since the start of the demo.
    restarted_s: float | None = None
    # The output of `gavel explain` about a waiting job; empty before it was asked.
    explained: str = ""
    # The line below the queue.
    headline: str = ""


def main(plan: Plan | None = None) -> int:
    """Start the cluster, submit the jobs, watch them, check the result; return the exit status."""
    plan = plan or Plan()
    console = Console()
    began_s = time.monotonic()
    shutil.rmtree(plan.folder, ignore_errors=True)
    gpus = ", ".join(agent.partition("=")[0].upper() for agent in plan.agents)
    console.print(
        f"Starting a scheduler and {len(plan.agents)} agents, with a GPU each ({gpus}; all declared) …"
    )
    with (
        LocalCluster(plan.folder, plan.agents, settings=plan.settings) as cluster,
        Client(cluster.address, retry_s=30) as client,
    ):
        wait_for_nodes(client, len(plan.agents))
        console.print(Text(web_line(cluster, "127.0.0.1:7080")))
        ids = client.submit(jobs(plan))
        console.print(f"Submitted {len(ids)} training jobs.\n")
        story = Story()
        ended_jobs = watch(console, cluster, client, began_s, story)
        losses = {job.id: last_loss(client, job.id) for job in ended_jobs}
        console.print(closing_table(ended_jobs, losses))
        if story.explained:
            console.print(f"\nWhile the jobs ran, `gavel explain` printed:\n{story.explained}")
        scheduler_folder = cluster.folder / "scheduler"
    faults = faults_of(ended_jobs, losses, story)
    faults += [finding.what for finding in check_data_directory(scheduler_folder) if finding.level == "bad"]
    for fault in faults:
        console.print(Text(f"fault: {fault}", "bold red"))
    if not faults:
        moved = sum(len(job.time_s) > 1 for job in ended_jobs)
        preemptions = sum(job.preemptions for job in ended_jobs)
        console.print(
            f"\nEvery job did exactly its steps; {preemptions} preemptions, {moved} jobs ran on both types; "
            f"the scheduler was restarted after {story.restarted_s:.0f} s; its journal keeps every promise."
        )
    console.print(
        f"{time.monotonic() - began_s:.0f} s in all. Logs and journal: {os.path.relpath(plan.folder, ROOT)}"
    )
    return 1 if faults else 0


def wait_for_nodes(client: Client, count: int) -> None:
    """Wait until all agents are linked."""
    give_up_s = time.monotonic() + 60
    while sum(node.state == "up" for node in client.nodes()) < count:
        if time.monotonic() > give_up_s:
            raise SystemExit("not all agents have connected; their logs are in out/demo/logs")
        time.sleep(0.2)


def watch(console: Console, cluster: LocalCluster, client: Client, began_s: float, story: Story) -> list[Job]:
    """Show the queue until all jobs have ended, and restart the scheduler once meanwhile; return the jobs."""
    printed_s = 0.0
    with Live(
        console=console, refresh_per_second=4, transient=True, auto_refresh=console.is_terminal
    ) as live:
        while True:
            now_s = time.monotonic() - began_s
            try:
                listed = sorted(client.list(), key=lambda job: int(job.id))
            except GavelError as error:
                listed, story.headline = [], f"the scheduler does not answer: {error}"
            if listed:
                if console.is_terminal:
                    live.update(queue_view(listed, now_s, story))
                elif now_s - printed_s >= 10:
                    printed_s = now_s
                    console.print(status_line(listed, now_s))
                if all(job.state.is_final for job in listed):
                    return listed
                explain_and_restart(cluster, client, listed, now_s, story)
            if name := cluster.ended_process():
                raise SystemExit(f"{name} ended: {cluster.last_line(name)}")
            if now_s > LIMIT_S:
                return listed
            time.sleep(0.5)


def explain_and_restart(
    cluster: LocalCluster, client: Client, listed: list[Job], now_s: float, story: Story
) -> None:
    """Ask once why a job waits, and restart the scheduler once."""
    fraction = sum(job.steps_done for job in listed) / sum(job.spec.steps or 0.0 for job in listed)
    waiting = next((job for job in listed if job.state == "preempted"), None)
    if waiting is not None and not story.explained:
        story.explained = client.explain(waiting.id).rendered
    if story.restarted_s is None and fraction > RESTART_AT:
        story.headline = "restarting the scheduler: running jobs continue"
        cluster.stop_scheduler()
        cluster.start_scheduler()
        story.restarted_s = now_s
        story.headline = f"the scheduler was restarted after {now_s:.0f} s"


def queue_view(listed: list[Job], now_s: float, story: Story) -> Group:
    """Return the queue as a table with bars."""
    table = Table(title=f"{now_s:.0f} s", title_justify="left", box=None, pad_edge=False)
    for column in ("job", "state", "where", "steps", "", "preempted"):
        table.add_column(column)
    for job in listed:
        total = job.spec.steps or 1.0
        where = ", ".join(job.placement.gpus) if job.placement else ""
        bar = ProgressBar(total=total, completed=min(job.steps_done, total), width=24)
        steps = f"{job.steps_done:.0f}/{total:.0f}"
        table.add_row(job.spec.name, str(job.state), where, steps, bar, str(job.preemptions or ""))
    return Group(table, Text(story.headline))


def status_line(listed: list[Job], now_s: float) -> str:
    """Return the state of the queue in one line, for output that is not a terminal."""
    counts: dict[str, int] = {}
    for job in listed:
        counts[str(job.state)] = counts.get(str(job.state), 0) + 1
    steps_done = sum(job.steps_done for job in listed)
    total = sum(job.spec.steps or 0.0 for job in listed)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"{now_s:4.0f} s  {states}; {steps_done / total:.0%} of all steps"


def last_loss(client: Client, job: str) -> tuple[int, float]:
    """Return the step and the loss in the line that the job printed at its end; -1 and NaN if there is none."""
    for line in reversed(list(client.logs(job))):
        if '"at": "end"' in line:
            record = json.loads(line)
            return int(record["step"]), float(record["loss"])
    return -1, float("nan")


def closing_table(ended_jobs: list[Job], losses: dict[str, tuple[int, float]]) -> Table:
    """Return a table with the result of each job."""
    table = Table(title="Results", title_justify="left", box=None, pad_edge=False)
    for column in ("job", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("steps", "loss", "starts", "preempted", "v100 s", "k80 s"):
        table.add_column(column, justify="right", no_wrap=True)
    for job in ended_jobs:
        times = [f"{job.time_s[kind]:.0f}" if kind in job.time_s else "" for kind in ("v100", "k80")]
        step, loss = losses[job.id]
        table.add_row(
            *(job.spec.name, str(job.state), f"{step}/{job.spec.steps:.0f}", f"{loss:.3f}"),
            *(str(job.attempt), str(job.preemptions), *times),
        )
    return table


def faults_of(ended_jobs: list[Job], losses: dict[str, tuple[int, float]], story: Story) -> list[str]:
    """Return a description of each promise of the demo that was not kept."""
    faults = []
    for job in ended_jobs:
        if job.state != "completed":
            faults.append(f"{job.spec.name} is {job.state}: {job.why}")
        elif losses[job.id][0] != job.spec.steps or job.steps_done != job.spec.steps:
            faults.append(f"{job.spec.name} did {job.steps_done:.0f} steps instead of {job.spec.steps:.0f}")
    if not any(job.preemptions and len(job.time_s) > 1 for job in ended_jobs):
        faults.append("no job was preempted and continued on the other type")
    if story.restarted_s is None:
        faults.append("the scheduler was not restarted")
    return faults


if __name__ == "__main__":
    sys.exit(main())
