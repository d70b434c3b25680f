"""Common words of Slurm, SkyPilot and Ray, and our names for them: users type them out of habit."""

from __future__ import annotations

import re

import click

from gavel.cli.faults import WORDS

COMMANDS = {
    "sbatch": "submit",
    "srun": "submit --follow",
    "squeue": "queue",
    "scancel": "cancel",
    "sinfo": "nodes",
    "sacct": "queue --ended --since 1d",
    "sacctmgr": "tenant",
    "sreport": "usage",
    "sshare": "shares",
    "sprio": "explain JOB",
    "sstat": "show JOB",
    "scontrol": "show",
    "salloc": "run",
    # SkyPilot.
    "launch": "submit",
    "exec": "submit -- COMMAND",
    "ssh": "shell",
    "rsync": "fetch",
    "down": "cancel",
    "jobs": "queue",
    "jobs launch": "submit",
    "jobs logs": "logs",
    "jobs cancel": "cancel",
    "show-gpus": "nodes",
    "gpus": "nodes",
    "check": "status",
    "cost-report": "usage",
    # Ray.
    "job": "queue",
    "job submit": "submit",
    "job status": "show JOB",
    "job logs": "logs",
    "job stop": "cancel",
    "list": "queue",
    "stop": "cancel",
    "dashboard": "top",
}
# Commands that Gavel needs no equivalent of, and why.
NOT_NEEDED = {
    "autostop": "a job gives its GPUs back when it ends, and Gavel starts or stops no machines",
    "start": "the cluster runs already: `gavel status`; `gavel up` starts one on this machine, to try Gavel",
    "storage": "jobs read data from where their nodes see it",
    "volumes": "jobs read data from where their nodes see it",
}
_AT_ITS_END = "not needed: a job gives its GPUs back when it ends"
_ONE_CLUSTER = "not needed: there is one cluster, which all jobs share"
_ON_SUBMIT = {
    "--job-name": "--name",
    "--partition": "--worker-type",
    "--gres": "--gpus",
    "--nodes": "--gpus",
    "--gpus-per-node": "--gpus-together",
    "--mem": "--memory",
    "--time": "--time-limit",
    "--dependency": "--after",
    "--account": "--tenant",
    **dict.fromkeys(("--mail-type", "--mail-user"), "--notify"),
    "--output": "`gavel logs JOB`",
    "--wrap": "a command after --",
    # SkyPilot.
    "--num-nodes": "--gpus",
    "--secret": "--env-from",
    "--env-file": "--env, or `env` in a job file",
    "--image-id": "--container",
    "--instance-type": "--worker-type",
    "--use-spot": "not needed: a job whose node goes away continues elsewhere",
    "--dryrun": "--dry-run",
    **dict.fromkeys(("-c", "--cluster"), _ONE_CLUSTER),
    **dict.fromkeys(("-i", "--idle-minutes-to-autostop", "--down"), _AT_ITS_END),
    **dict.fromkeys(("--infra", "--cloud", "--region", "--zone"), "--worker-type or --label"),
    **dict.fromkeys(("-y", "--yes"), "not needed: it asks nothing"),
    # Ray.
    "--working-dir": "`--workdir DIR --upload`",
    "--num-gpus": "--gpus",
    "--num-cpus": "--cpus",
    "--entrypoint-num-gpus": "--gpus",
    "--entrypoint-num-cpus": "--cpus",
    "--entrypoint-memory": "--memory",
    "--entrypoint-resources": "--label",
    "--submission-id": "--name",
    "--metadata-json": "--name",
    **dict.fromkeys(("--runtime-env", "--runtime-env-json"), "--env, --setup and --upload"),
    **dict.fromkeys(
        ("--no-wait", "-d", "--detach-run"), "not needed: it does not wait without --wait or --follow"
    ),
}
OPTIONS = {
    "submit": _ON_SUBMIT,
    "update": {"--time": "--time-limit", "--partition": "--worker-type"},
    "logs": {"--no-follow": "not needed: it does not follow without --follow"},
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
        if word in NOT_NEEDED:
            return f"no such command '{word}'; {NOT_NEEDED[word]} (docs/coming-from.md)"
        two_words = " ".join(error.ctx.meta.get(WORDS, ())[:2]) if error.ctx else ""
        word = two_words if two_words in COMMANDS else word
        replacement = f"`gavel {COMMANDS[word]}`" if word in COMMANDS else None
    else:
        replacement = OPTIONS.get((command and command.name) or "", {}).get(word)
    return replacement and f"no such {kind} '{word}'; here it is {replacement} (docs/coming-from.md)"
