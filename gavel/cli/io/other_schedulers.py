"""Commands, options and states of other schedulers, which users type out of habit, and ours for them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click


def _by_word(words: Mapping[str, str]) -> dict[str, str]:
    """Turn a table of ours → theirs, separated by spaces, into one of theirs → ours."""
    return {word: replacement for replacement, others in words.items() for word in others.split()}


COMMANDS = _by_word(
    {
        "submit": "sbatch run",
        "submit --follow": "srun salloc",
        "queue": "squeue list ls jobs ps",
        "cancel": "scancel kill delete rm stop",
        "nodes": "sinfo",
        "queue --ended --since 1d": "sacct",
        "queue --ended": "history",
        "show": "scontrol describe info get",
        "explain": "sprio why",
        "usage": "sreport",
        "logs -f": "tail",
        "logs": "log",
        "top": "watch smap",
    }
)
OPTIONS = {
    "submit": _by_word(
        {
            "--name": "-J --job-name",
            "--worker-type": "-p --partition",
            "--gpus": "--gres -G --nodes -N --ntasks",
            "--cpus": "-c --cpus-per-task",
            "--memory": "--mem",
            "--time-limit": "--time",
            "--after": "-d --dependency",
            "--array": "-a",
            "--tenant": "-A --account",
            "--start": "--begin",
            "--node": "--nodelist -w",
            "--ranks": "--ntasks-per-node",
            "--label": "--constraint -C",
            "--workdir": "-D --chdir",
            "--env": "--export",
            "--weight": "--nice --qos",
            "--not-packable": "--exclusive",
            "--retries": "--requeue",
            "--dry-run": "--test-only",
            "a command after --": "--wrap",
            "`gavel logs JOB`": "-o --output --error",
        }
    ),
    "queue": _by_word(
        {
            "not needed: they are yours unless -a says otherwise": "--me",
            "--state": "-t --states",
            "`gavel show JOB`": "-j --job",
            "--worker-type": "-p --partition",
            "--tenant": "-A --account",
            "--since": "-S --starttime",
            "`gavel explain JOB`": "--start",
            "--json": "--format -o -O",
            "--watch": "-i",
        }
    ),
    "show": _by_word(
        {
            "`gavel wait JOB`": "-w --watch",
            "`gavel logs -f JOB`": "-f",
        }
    ),
    "logs": _by_word(
        {
            "--rank": "--task",
        }
    ),
}
STATES = _by_word(
    {
        "queued": "pd pending waiting",
        "running": "r",
        "preempted": "s suspended",
        "completed": "cd done succeeded",
        "failed": "f error",
        "cancelled": "ca canceled",
    }
)
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
        replacement = f"`gavel {COMMANDS[word]}`" if word in COMMANDS else None
    else:
        replacement = OPTIONS.get((command and command.name) or "", {}).get(word)
    return replacement and f"no such {kind} '{word}'; here it is {replacement} (docs/from-slurm.md)"
