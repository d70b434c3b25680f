"""Commands, options and states of other schedulers, which users type out of habit, and ours for them."""

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
        "--wrap": "a command after --",
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
    """Return a message that names our command or option for another scheduler's; None where none is known."""
    unknown = _NO_SUCH.match(error.message)
    if unknown is None:
        return None
    kind, word = unknown[1].lower(), unknown[2]
    command = error.ctx.command if error.ctx else None
    if kind == "command" and isinstance(command, click.Group) and error.ctx and error.ctx.parent:
        return f"no such command '{word}'; there are {', '.join(command.list_commands(error.ctx))}"
    if kind == "command":
        ours = f"`gavel {COMMANDS[word]}`" if word in COMMANDS else None
    else:
        ours = OPTIONS.get((command and command.name) or "", {}).get(word)
    return ours and f"no such {kind} '{word}'; here it is {ours} (docs/from-slurm.md)"
