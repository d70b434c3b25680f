"""Commands and options of other schedulers, as people type them here out of habit: what to say instead."""

from __future__ import annotations

import re

import click

COMMANDS = {
    "sbatch": "submit",
    "srun": "submit --follow",
    "salloc": "submit --follow",
    "run": "submit",
    "squeue": "queue",
    "list": "queue",
    "ls": "queue",
    "jobs": "queue",
    "ps": "queue",
    "scancel": "cancel",
    "kill": "cancel",
    "delete": "cancel",
    "rm": "cancel",
    "stop": "cancel",
    "sinfo": "nodes",
    "sacct": "queue --ended --since 1d",
    "history": "queue --ended",
    "scontrol": "show",
    "describe": "show",
    "info": "show",
    "get": "show",
    "sprio": "explain",
    "why": "explain",
    "sreport": "usage",
    "tail": "logs -f",
    "log": "logs",
    "watch": "top",
    "smap": "top",
}
OPTIONS = {
    "submit": {
        "-J": "--name",
        "--job-name": "--name",
        "-p": "--worker-type",
        "--partition": "--worker-type",
        "--gres": "--gpus",
        "-G": "--gpus",
        "-c": "--cpus",
        "--cpus-per-task": "--cpus",
        "--mem": "--memory",
        "--time": "--time-limit",
        "-d": "--after",
        "--dependency": "--after",
        "-a": "--array",
        "-A": "--tenant",
        "--account": "--tenant",
        "--begin": "--start",
        "--nodelist": "--node",
        "-w": "--node",
        "--ntasks-per-node": "--ranks",
        "--constraint": "--label",
        "-C": "--label",
        "-D": "--workdir",
        "--chdir": "--workdir",
        "--export": "--env",
        "--nice": "--weight",
        "--qos": "--weight",
        "--exclusive": "--not-packable",
        "--requeue": "--retries",
        "--test-only": "--dry-run",
        "--nodes": "--gpus",
        "-N": "--gpus",
        "--ntasks": "--gpus",
        "--wrap": "a command behind --",
        "-o": "`gavel logs JOB`",
        "--output": "`gavel logs JOB`",
        "--error": "`gavel logs JOB`",
    },
    "queue": {
        "--me": "not needed: they are yours unless -a says otherwise",
        "-t": "--state",
        "--states": "--state",
        "-j": "`gavel show JOB`",
        "--job": "`gavel show JOB`",
        "-p": "--worker-type",
        "--partition": "--worker-type",
        "-A": "--tenant",
        "--account": "--tenant",
        "-S": "--since",
        "--starttime": "--since",
        "--start": "`gavel explain JOB`",
        "--format": "--json",
        "-o": "--json",
        "-O": "--json",
        "-i": "--watch",
    },
    "show": {"-w": "`gavel wait JOB`", "--watch": "`gavel wait JOB`", "-f": "`gavel logs -f JOB`"},
    "logs": {"--task": "--rank"},
}
STATES = {
    "pd": "queued",
    "pending": "queued",
    "waiting": "queued",
    "r": "running",
    "s": "preempted",
    "suspended": "preempted",
    "cd": "completed",
    "done": "completed",
    "succeeded": "completed",
    "f": "failed",
    "error": "failed",
    "ca": "cancelled",
    "canceled": "cancelled",
}
_NO_SUCH = re.compile(r"no such (command|option):? '?([^\s'.]+)", re.IGNORECASE)


def our_word(error: click.UsageError) -> str | None:
    """What to say instead, where it is known; None: it is not."""
    found = _NO_SUCH.match(error.message)
    if found is None:
        return None
    kind, word = found[1].lower(), found[2]
    command = error.ctx.command.name if error.ctx and error.ctx.command.name else ""
    group = error.ctx.command if error.ctx and kind == "command" else None
    if isinstance(group, click.Group) and error.ctx and error.ctx.parent is not None:
        return f"no such command '{word}'; there are {', '.join(group.list_commands(error.ctx))}"
    here = COMMANDS.get(word) if kind == "command" else OPTIONS.get(command, {}).get(word)
    if here is None:
        return None
    here = f"`gavel {here}`" if kind == "command" else here
    return f"no such {kind} '{word}'; here it is {here} (docs/from-slurm.md)"
