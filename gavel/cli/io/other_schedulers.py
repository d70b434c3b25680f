"""Common words of Slurm, SkyPilot and Ray, and our names for them: users type them out of habit."""

from __future__ import annotations

import re

import click

COMMANDS = {
    "sbatch": "submit",
    "srun": "submit --follow",
    "squeue": "queue",
    "scancel": "cancel",
    "sinfo": "nodes",
    "sacct": "queue --ended --since 1d",
    "scontrol": "show",
    "salloc": "run",
    # SkyPilot.
    "launch": "submit",
    "exec": "shell",
    "ssh": "shell",
    "down": "cancel",
    "jobs": "queue",
    # Ray: `ray job list`, `ray job stop`.
    "list": "queue",
    "stop": "cancel",
}
_ON_SUBMIT = {
    "--job-name": "--name",
    "--partition": "--worker-type",
    "--gres": "--gpus",
    "--nodes": "--gpus",
    "--mem": "--memory",
    "--time": "--time-limit",
    "--dependency": "--after",
    "--account": "--tenant",
    "--output": "`gavel logs JOB`",
    "--wrap": "a command after --",
    # SkyPilot.
    "--num-nodes": "--gpus",
    "--secret": "--env-from",
    # Ray.
    "--working-dir": "`--workdir DIR --upload`",
    "--num-gpus": "--gpus",
    "--num-cpus": "--cpus",
    "--entrypoint-num-gpus": "--gpus",
    "--entrypoint-num-cpus": "--cpus",
    "--runtime-env-json": "--env, --setup and --upload",
    "--no-wait": "not needed: it does not wait without --wait or --follow",
}
OPTIONS = {
    "submit": _ON_SUBMIT,
    "update": {"--time": "--time-limit", "--partition": "--worker-type"},
    "queue": {"-t": "--state", "--me": "not needed: the list has only your jobs unless you give -a"},
}
STATES = {
    **dict.fromkeys(("pd", "pending", "waiting"), "queued"),
    "r": "running",
    **dict.fromkeys(("s", "suspended"), "preempted"),
    **dict.fromkeys(("cd", "done", "succeeded"), "completed"),
    **dict.fromkeys(("f", "error"), "failed"),
    **dict.fromkeys(("ca", "canceled"), "cancelled"),
}
_NO_SUCH = re.compile(r"no such (command|option):? '?([^\s'.]+)", re.IGNORECASE)


def our_equivalent(error: click.UsageError) -> str | None:
    """Return a message with our equivalent of another scheduler's command or option; None if there is none."""
    unknown = _NO_SUCH.match(error.message)
    if unknown is None:
        return None
    kind, word = unknown[1].lower(), unknown[2]
    command = error.ctx.command if error.ctx else None
    if kind == "command" and isinstance(command, click.Group) and error.ctx and error.ctx.parent:
        return f"no such command '{word}'; there are {', '.join(command.list_commands(error.ctx))}"
    if kind == "command":
        replacement = f"`gavel {COMMANDS[word]}`" if word in COMMANDS else None
    else:
        replacement = OPTIONS.get((command and command.name) or "", {}).get(word)
    return replacement and f"no such {kind} '{word}'; here it is {replacement} (docs/coming-from.md)"
