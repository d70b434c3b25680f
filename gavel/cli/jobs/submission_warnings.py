"""Warnings of `gavel submit` about accepted jobs that may not do what their user expects."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from gavel.client import Client, JobSpec
from gavel.client.jobs.spec import AutoPlans
from gavel.client.plans.planning import allows, may_use
from gavel.client.views.job_text import few

if TYPE_CHECKING:
    from gavel.client.results import Node

# Environment variables with such names probably hold secrets.
SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|SECRET_KEY|ACCESS_KEY)$")
SCRIPT_BYTES_MAX = 1 << 20
# Roughly, how scripts write files. A script that only prints has no state to lose.
WRITES = re.compile(r"open\(.*[\"'][wax]|write_(text|bytes)\(|save(z|txt|_pretrained|_checkpoint)?\(|dump\(")
# A script that contains one of these keeps its state where its next attempt can read it.
KEEPS_STATE = ("gavel.training", "gavel import training", "GAVEL_CHECKPOINT_DIR")
# Scripts for other schedulers, and their lines with options.
SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".job")
DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|\$) ", re.MULTILINE)
# Their variables, which Gavel does not set.
VARIABLE = re.compile(r"\$\{?((SLURM|SKYPILOT)_\w+)")
# Programs that start a process per GPU themselves.
LAUNCHER = re.compile(
    r"(^|[\s/;&|])(torchrun|accelerate\s+launch|deepspeed|torch\.distributed\.(run|launch))(\s|$)"
)


def submission_warnings(client: Client, specs: Sequence[JobSpec]) -> Iterator[str]:
    """Yield every warning about these jobs."""
    yield from _secrets(specs)
    yield from _unknown_memory(client, specs)
    yield from _too_little_memory(client, specs)
    yield from _deadlines(client, specs)
    yield from _lost_state(specs)
    yield from _launchers(specs)
    yield from _directives(specs)


def _secrets(specs: Sequence[JobSpec]) -> Iterator[str]:
    names = sorted({name for spec in specs for name in spec.env if SECRET.search(name)})
    if names:
        yield (
            f"env {few(names)}: the value is kept and shown like any other; "
            f"`--env-from {names[0]}=NAME` has the nodes put a secret there (docs/job-file.md)"
        )


def _unknown_memory(client: Client, specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn that GPUs of unknown memory count as large enough for any `gpu_memory`."""
    with_minimum = [spec for spec in specs if spec.gpu_memory_gb]
    if not with_minimum:
        return
    unknown = {node.worker_type for node in client.nodes() if not all(gpu.memory_gb for gpu in node.gpus)}
    kinds = sorted(kind for kind in unknown if any(may_use(spec, kind) for spec in with_minimum))
    if kinds:
        yield (
            f"gpu_memory cannot be checked on {few(kinds)}, whose agents do not report it; "
            f"start them with `--gpus {kinds[0]}=COUNT:memory=GB`"
        )


def _too_little_memory(client: Client, specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn about a plan that needs more memory than some GPUs on which it may run report.

    Automatic plans are computed for the memory that nodes report.
    """
    plans = [(spec, plan) for spec in specs if not isinstance(spec.plans, AutoPlans) for plan in spec.plans]
    if not plans:
        return
    # By worker type: the nodes of known memory, the least first.
    nodes: dict[str, list[tuple[float, Node]]] = {}
    for node in client.nodes():
        if least_gb := min((gpu.memory_gb for gpu in node.gpus), default=0.0):
            nodes.setdefault(node.worker_type, []).append((least_gb, node))
    for of_type in nodes.values():
        of_type.sort(key=itemgetter(0))
    for spec, plan in plans:
        if not (spec.gpus_min or spec.gpus or 1) <= plan.gpus <= (spec.gpus_max or spec.gpus or plan.gpus):
            continue
        for least_gb, node in nodes.get(plan.worker_type, ()):
            if least_gb >= plan.memory_gb:
                break
            if allows(spec, node):
                needed = f"{plan.memory_gb:.4g}"
                yield (
                    f"plan: {plan.label} needs {needed} GB on each {plan.worker_type}, and {node.name} has "
                    f"{least_gb:.4g}: there the job would run out of memory, and lose this plan on all nodes; "
                    f"`--gpu-memory {needed}GB` keeps it away from such GPUs"
                )
                return


def _deadlines(client: Client, specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn about deadlines that the policy ignores, or cannot keep because the number of steps is unknown."""
    with_deadline = [spec for spec in specs if spec.deadline_s is not None]
    if not with_deadline:
        return
    from policies.registry import is_known, names, reads

    policy = client.policy().policy
    # A policy of the operator's own is known to the scheduler only.
    if not is_known(policy):
        return
    if not reads(policy, "deadline_s"):
        observing = ", ".join(name for name in names() if reads(name, "deadline_s"))
        yield (
            f"deadline: the policy of this cluster ({policy}) ignores deadlines, so this one may be missed; "
            f"policies that keep them: {observing}"
        )
    elif not all(spec.steps for spec in with_deadline):
        yield "deadline: no policy can keep it without `steps`, so the job may miss it"


def _lost_state(specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn that an uploaded script probably loses its state, because each attempt starts in a fresh copy."""
    for spec in specs:
        script = _local_script(spec)
        if script and WRITES.search(script[1]) and not any(word in script[1] for word in KEEPS_STATE):
            yield (
                f"upload: each attempt starts in a fresh copy of {spec.workdir or '.'}, and "
                f"{script[0]} names neither gavel.training nor GAVEL_CHECKPOINT_DIR: if it is preempted, "
                "what it has written is left behind (docs/training.md)"
            )
            return


def _local_script(spec: JobSpec) -> tuple[str, str] | None:
    """Return the name and text of the script that the job runs from its uploaded directory, if there is one."""
    if not spec.upload or spec.preemptible is False or "GAVEL_CHECKPOINT_DIR" in spec.script:
        return None
    return next(_scripts(spec, (".py", ".sh")), None)


def _scripts(spec: JobSpec, suffixes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each word of the command that names a script on this machine."""
    for word in spec.command:
        if word.endswith(suffixes):
            with contextlib.suppress(OSError, UnicodeDecodeError, ValueError):
                path = Path(spec.workdir or ".", word)
                if path.is_file() and path.stat().st_size <= SCRIPT_BYTES_MAX:
                    yield word, path.read_text(encoding="utf-8")


def _launchers(specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn about a launcher that would be started once per GPU, and each time start a process per GPU."""
    for spec in specs:
        launcher = LAUNCHER.search(spec.script or " ".join(spec.command))
        if launcher and spec.ranks != "per_node" and (spec.gpus_max or spec.gpus or 1) > 1:
            yield (
                f"ranks: Gavel starts {launcher[2]} once per GPU, and it starts a process per GPU each time; "
                "`ranks: per_node` starts it once per node (docs/distributed.md)"
            )
            return


def _directives(specs: Sequence[JobSpec]) -> Iterator[str]:
    """Warn about lines such as `#SBATCH --gpus=4`, which ask for nothing here, and variables that are not set."""
    for spec in specs:
        texts = [("script", spec.script), *_scripts(spec, SHELL_SUFFIXES)]
        directive = _first(DIRECTIVE, texts)
        if directive:
            yield (
                f"{directive[0]}: its lines with {directive[1]} are comments to Gavel; give what they ask for as "
                "options, or in a job file (docs/from-slurm.md)"
            )
        variable = _first(VARIABLE, texts)
        if variable:
            yield f"{variable[0]}: Gavel sets no {variable[1]}; docs/coming-from.md has the variables that it sets"
        if directive or variable:
            return


def _first(pattern: re.Pattern[str], texts: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the name of the first text in which the pattern occurs, with what it captured."""
    return next(((name, match[1]) for name, text in texts if (match := pattern.search(text))), None)
