"""`gavel fetch`: bring the files of a job from its nodes to this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.faults import Fault, reason
from gavel.cli.io.outputs import echo, say
from gavel.cli.io.session import FAILED, LIVE, OK, Session, print_line
from gavel.cli.io.tables import Column, show_table
from gavel.cli.io.wording import count_of
from gavel.client.views.units import ago, size

if TYPE_CHECKING:
    from gavel.client import Client, Job
    from gavel.client.files.fetching import Fetched
    from gavel.client.results import FileList

COLUMNS = (
    Column("path", width_max=80),
    Column("size", right=True),
    Column("changed", right=True),
    Column("node"),
)


@click.command()
@click.argument("job")
@click.argument("paths", nargs=-1, metavar="[PATH…]")
@click.option(
    "--to", "folder", metavar="DIR", help="Where the files go.  [default: job-ID in the current folder]"
)
@click.option("--list", "only_list", is_flag=True, help="Only list the files, with their sizes.")
@click.option("--checkpoints", is_flag=True, help="Files of the newest checkpoint directory instead.")
@click.option(
    "--attempt",
    type=click.IntRange(1),
    metavar="N",
    help="Only this attempt.  [default: the last]",
    default=None,
)
@click.option("--force", is_flag=True, help="Overwrite files that exist and differ.")
@LIVE
def fetch(
    job: str,
    paths: tuple[str, ...],
    folder: str | None,
    only_list: bool,
    checkpoints: bool,
    attempt: int | None,
    force: bool,
    session: Session,
) -> None:
    """Fetch files of a job from its nodes: by default its `outputs`.

    PATH is a file, a directory or a pattern such as 'results/**/*.pt', relative to the job's work directory; `.` is all
    of it. Files that are here already are not fetched again, and a fetch that was interrupted continues. Exit code 0:
    everything is here; 1: something is missing.
    """
    if checkpoints and attempt:
        raise Fault("--checkpoints: always fetches the newest; leave --attempt out")
    if folder == "":
        raise Fault("--to: is empty, must be a directory")
    code = OK
    with session.client() as client:
        jobs = client.members(job)
        for each in jobs:
            wanted = _paths(each, paths, checkpoints or only_list)
            if only_list:
                code = max(code, _list(client, each, wanted, attempt or 0, checkpoints, session.as_json))
                continue
            target = Path(folder) / each.id if folder and len(jobs) > 1 else Path(folder or f"job-{each.id}")
            fetched = _fetch(client, each, wanted, target, attempt or 0, checkpoints, force)
            code = max(code, _report(each, fetched, session.as_json))
    sys.exit(code)


def _paths(job: Job, paths: Sequence[str], by_default_all: bool) -> Sequence[str]:
    """Return what to fetch: the paths given, or the declared outputs."""
    if paths or by_default_all:
        return paths or (".",)
    if not job.spec.outputs:
        raise Fault(
            f"job {job.id} declares no `outputs`: name what to fetch, such as `gavel fetch {job.id} 'results/*.pt'`,"
            f" or `gavel fetch {job.id} .` for its whole work directory; --list shows what there is"
        )
    return job.spec.outputs


def _list(
    client: Client, job: Job, paths: Sequence[str], attempt: int, checkpoints: bool, as_json: bool
) -> int:
    from gavel.client.files.fetching import left_out

    lists = client.files(job.id, paths, attempt=attempt, checkpoints=checkpoints)
    if as_json:
        for each in lists:
            print_line(each)
    else:
        show_table(COLUMNS, _rows(lists, datetime.now(UTC)))
        for each in lists:
            _say_all([f"{each.node} {each.missing}: its files are missing"] if each.missing else [])
        _say_all(left_out(lists))
    return FAILED if any(each.missing for each in lists) else OK


def _rows(lists: Sequence[FileList], now: datetime) -> list[tuple[Any, ...]]:
    return [
        (
            file.path,
            size(file.size_bytes),
            # Uploaded files have no time.
            ago(datetime.fromtimestamp(file.modified_ns / 1e9, UTC), now) if file.modified_ns else "-",
            each.node,
        )
        for each in lists
        for file in each.files
    ]


def _fetch(
    client: Client, job: Job, paths: Sequence[str], target: Path, attempt: int, checkpoints: bool, force: bool
) -> Fetched:
    from gavel.cli.io.progress import bar

    with bar("fetching") if sys.stderr.isatty() else nullcontext() as show:

        def progress(words: str, done: int, total: int) -> None:
            if show is not None:
                show(f"{words} {size(done)} of {size(total)}", done / total if total else None)

        try:
            return client.fetch(
                job.id,
                paths,
                to=target,
                attempt=attempt,
                checkpoints=checkpoints,
                force=force,
                progress=progress,
            )
        except OSError as error:
            raise Fault(f"{error.filename or target}: cannot write: {reason(error)}", FAILED) from None


def _report(job: Job, fetched: Fetched, as_json: bool) -> int:
    """Print what was fetched and what is missing; return the exit code."""
    if as_json:
        print_line(fetched)
    else:
        _say_all(fetched.notices)
        words = f"fetched {count_of(len(fetched.fetched), 'file')} ({size(fetched.size_bytes)}) to {fetched.folder}"
        present = f"; {count_of(len(fetched.present), 'file')} already there" if fetched.present else ""
        echo(f"job {job.id}: {words}{present}")
        _say_all(fetched.problems)
    return FAILED if fetched.problems else OK


def _say_all(lines: Sequence[str]) -> None:
    command = click.get_current_context().command_path
    for line in lines:
        say(f"{command}: {line}")
