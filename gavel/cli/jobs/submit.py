"""`gavel submit`: jobs from files or from a command line, submitted, tried dry, waited for, or followed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.job_text import few, ids
from gavel.cli.io.progress import Bar
from gavel.cli.io.session import OK, REFUSED, WRONG, one_line, print_json, print_line, scheduler
from gavel.cli.io.tables import Column, out, table, terminal_width
from gavel.cli.io.units import ago, short_number
from gavel.cli.io.wording import count_of, printable
from gavel.cli.jobs.dependencies import with_ids
from gavel.cli.jobs.flags import flag_values
from gavel.client import Client, JobSpec, Preview, read_job_file
from gavel.client.jobs.fields import json_schema

SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|SECRET_KEY|ACCESS_KEY)$"
)  # names of what nobody should see
SCRIPT_BYTES_MAX = 1 << 20
# How scripts write files, roughly: what only prints has nothing to lose.
WRITES = re.compile(r"open\(.*[\"'][wax]|write_(text|bytes)\(|save(z|txt|_pretrained|_checkpoint)?\(|dump\(")
# Words of scripts that keep their state where the next attempt finds it.
KEEPS_STATE = ("gavel.training", "gavel import training", "GAVEL_CHECKPOINT_DIR")


def submit(
    command: tuple[str, ...] | None,
    files: tuple[str, ...],
    dry_run: bool,
    wait: bool,
    follow: bool,
    key: str | None,
    schema: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
    **flags: Any,
) -> None:
    """The command's body."""
    if schema:
        click.echo(json.dumps(json_schema(), indent=2))
        return
    if (
        key is not None and not key.strip()
    ):  # a variable that is not set would make every submission a new one
        raise Fault("--key: is empty")
    specs = specs_from(files, command, flags)
    if follow and len(specs) * max(len(specs[0].array), 1) > 1:
        raise Fault("--follow shows one job; submit, then `gavel logs -f JOB` for each")
    with scheduler(address, context, changes=True) as client:
        _warn_of_secrets(specs)
        _warn_of_memory(client, specs)
        _warn_of_deadlines(client, specs)
        _warn_of_lost_state(specs)
        specs = with_ids(client, specs, by_flag=bool(flags["after"]), keyed=key is not None)
        if dry_run:
            sys.exit(preview(client, specs, as_json))
        with Bar("packing") as bar:
            jobs = client.submit(
                specs, key, lambda words, done, total: bar.show(words, done / total if total else None)
            )
        if as_json:
            print_line({"jobs": jobs})
        else:
            click.echo(f"submitted {ids(jobs)}")
        if wait or follow:
            sys.exit(_stay(client, jobs, follow, as_json))


def _stay(client: Client, jobs: Sequence[str], follow: bool, as_json: bool) -> int:
    """Until they have ended; the exit code. Ctrl-C ends this command, and none of them."""
    from gavel.cli.jobs.logs import show_logs
    from gavel.cli.jobs.wait import wait_for

    try:
        if follow:
            show_logs(client, [client.get(jobs[0])], follow=True, as_json=as_json)
        return wait_for(client, jobs, as_json=as_json, followed=follow)
    except KeyboardInterrupt:
        stop = " ".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
        click.echo(f"not cancelled: {ids(jobs)}; `gavel cancel {stop}` does that", err=True)
        raise


def _warn_of_secrets(specs: Sequence[JobSpec]) -> None:
    """People who do not know of `env_from` learn of it where they need it."""
    names = sorted({name for spec in specs for name in spec.env if SECRET.search(name)})
    if names:
        click.echo(
            f"env {printable(few(names))}: the value is kept and shown like any other; "
            f"`--env-from {names[0]}=NAME` has the nodes put a secret there (docs/job-file.md)",
            err=True,
        )


def _warn_of_memory(client: Client, specs: Sequence[JobSpec]) -> None:
    """GPUs whose memory nobody has told count as having what is asked for."""
    asking = [spec for spec in specs if spec.gpu_memory_gb]
    if not asking:
        return
    silent = {node.worker_type for node in client.nodes() if not all(gpu.memory_gb for gpu in node.gpus)}
    kinds = sorted(kind for kind in silent if any(_may_use(spec, kind) for spec in asking))
    if kinds:
        click.echo(
            f"gpu_memory cannot be checked on {printable(few(kinds))}: agents there do not tell it; those with "
            f"declared GPUs do with `--gpus {printable(kinds[0])}=COUNT:memory=GB`",
            err=True,
        )


def _warn_of_deadlines(client: Client, specs: Sequence[JobSpec]) -> None:
    """A deadline means nothing to most policies, and to none without steps."""
    due = [spec for spec in specs if spec.deadline_s is not None]
    if not due:
        return
    from policies.registry import names, reads

    policy = client.policy().policy
    if not reads(policy, "deadline_s"):
        keep = ", ".join(name for name in names() if reads(name, "deadline_s"))
        click.echo(
            f"deadline: the policy of this cluster ({policy}) does not look at deadlines, so it may be missed; "
            f"{keep} keep them",
            err=True,
        )
    elif not all(spec.steps for spec in due):
        click.echo("deadline: no policy can keep it without `steps`, so it may be missed", err=True)


def _warn_of_lost_state(specs: Sequence[JobSpec]) -> None:
    """Each attempt of an uploaded job starts in a fresh copy: a script has to keep its state elsewhere."""
    for spec in specs:
        script = _local_script(spec)
        if script and WRITES.search(script[1]) and not any(word in script[1] for word in KEEPS_STATE):
            click.echo(
                f"upload: each attempt starts in a fresh copy of {printable(spec.workdir or '.')}, and "
                f"{printable(script[0])} names neither gavel.training nor GAVEL_CHECKPOINT_DIR: if it is preempted, "
                "what it has written is left behind (docs/training.md)",
                err=True,
            )
            return


def _local_script(spec: JobSpec) -> tuple[str, str] | None:
    """The name and text of the script that an upload runs, where that is a file of the uploaded directory."""
    if not spec.upload or spec.preemptible is False or "GAVEL_CHECKPOINT_DIR" in spec.script:
        return None
    for word in spec.command:
        if word.endswith((".py", ".sh")):
            with contextlib.suppress(OSError, UnicodeDecodeError, ValueError):
                path = Path(spec.workdir or ".", word)
                if path.is_file() and path.stat().st_size <= SCRIPT_BYTES_MAX:
                    return word, path.read_text(encoding="utf-8")
    return None


def _may_use(spec: JobSpec, worker_type: str) -> bool:
    allowed = not spec.worker_types or worker_type in spec.worker_types
    return allowed and worker_type not in spec.excluded_worker_types


def specs_from(
    files: Sequence[str], command: tuple[str, ...] | None, flags: dict[str, Any]
) -> tuple[JobSpec, ...]:
    """Jobs of the files, or the one of the command line, with what flags say over both."""
    if command is None and not files:
        raise Fault("give a job file, or a command behind --: `gavel submit --gpus 1 -- python train.py`")
    if command is not None and files:
        raise Fault(
            f"give either job files or a command, not both ('{printable(files[0])}' stands before --)"
        )
    if command is not None and not (command and command[0]):
        raise Fault("no command after --")
    if (
        files
        and not files[0].endswith((".yaml", ".yml"))
        and files[0] != "-"
        and not os.path.exists(files[0])
    ):
        words = printable(" ".join(files))
        raise Fault(
            f"{printable(files[0])}: no such file or directory; a command stands behind --: `gavel submit -- {words}`"
        )
    said = flag_values(flags)
    if said.get("workdir"):
        said["workdir"] = os.path.abspath(os.path.expanduser(said["workdir"]))
    if command is not None:
        return (JobSpec(**{"workdir": os.getcwd(), **said}, command=command),)
    with one_line():
        specs = [spec for file in files for spec in read_job_file(file)]
    return tuple(_over(spec, said) for spec in specs)


def _over(spec: JobSpec, said: dict[str, Any]) -> JobSpec:
    """The job of a file, with what flags say; one without a directory sends that of its file."""
    if "gpus" in said:  # a range of the file's goes with its number
        said = {"gpus_min": None, "gpus_max": None, **said}
    if said.get("upload") and not spec.workdir and spec.source is not None:
        said = {"workdir": os.path.dirname(os.path.abspath(spec.source.file)), **said}
    return replace(spec, **said)


def preview(client: Client, specs: Sequence[JobSpec], as_json: bool) -> int:
    """What would happen; the exit code."""
    found = client.preview(specs)
    if as_json:
        print_json(found)
    else:
        now = datetime.now(UTC)
        for at, (spec, one) in enumerate(zip(specs, found, strict=True)):
            if at:
                click.echo()
            _show_preview(spec, one, f"job {at + 1}" if len(specs) > 1 else "job", now)
    if all(one.accepted for one in found):
        return OK
    return WRONG if any(one.refused_field for one in found if not one.accepted) else REFUSED


def _show_preview(spec: JobSpec, one: Preview, name: str, now: datetime) -> None:
    from gavel.client.jobs.errors import file_field

    named = f"{name} '{printable(spec.name)}'" if spec.name else name
    members = f", {count_of(len(spec.array), 'member')}" if spec.array else ""
    if not one.accepted:
        field = file_field(one.refused_field)
        line = spec.source and spec.source.lines.get(field.partition(".")[0])
        where = f"{spec.source.file}: line {line}: " if spec.source and line else ""
        click.echo(f"{named}: would be refused: {printable(f'{where}{field}: {one.refused_why}')}")
        return
    start = ""
    if one.expected_start:
        start = f"; expected start {'now' if one.expected_start <= now else ago(one.expected_start, now)}"
    click.echo(f"{named}{members}: would be accepted{start}")
    for words in one.text.splitlines()[1:]:
        if not words.startswith("expected start"):
            click.echo(f"  {printable(words)}")
    rows = [
        (
            f"  {place.worker_type}",
            str(place.gpus),
            "?" if not place.rate else f"{'~' if place.rate_guessed else ''}{short_number(place.rate)}",
            f"{place.gpus_free}/{place.gpus_fitting}",
            few(place.nodes),
        )
        for place in one.places
    ]
    heads = (
        Column("  type"),
        Column("GPUs", True),
        Column("steps/s", True),
        Column("free", True),
        Column("nodes"),
    )
    if rows:
        console = out()
        for text in table(heads, rows, terminal_width()):
            console.print(text)
