"""`gavel update`: changes fields of jobs that were submitted earlier."""

from __future__ import annotations

import sys
from typing import Any

import click

from gavel.cli.faults import Fault
from gavel.cli.io.completion import UNFINISHED, complete_jobs
from gavel.cli.io.options import options
from gavel.cli.io.session import LIVE, Session, print_json
from gavel.cli.jobs.field_table import FIELDS
from gavel.cli.jobs.submit import field_option
from gavel.client.views.job_text import ids

# With the value `none`, these options remove a limit.
LIMITS = {"time_limit": "time_limit_s", "deadline": "deadline_s", "max_cost": "max_cost"}
CHANGEABLE = ("name", "weight", "tenant", "gpus", "gpus_together", "worker_types", "plan", "retries", *LIMITS)
NONE = "none"


@click.command()
@click.argument(
    "jobs",
    nargs=-1,
    required=True,
    metavar="JOB…",
    shell_complete=complete_jobs(UNFINISHED, to_change=True),
)
@options(
    *(
        field_option(*field, metavar="FILE|none" if field[0] == "plan" else "")
        for field in FIELDS
        if field[0] in CHANGEABLE
    )
)
@LIVE
def update(jobs: tuple[str, ...], session: Session, **fields: Any) -> None:
    """Change jobs that were submitted earlier. JOB may be an array.

    A running job keeps its GPUs and worker types: hold it, update it, release it. `--time-limit none` removes a limit
    (also --deadline, --max-cost). A deadline counts from now. Only operators change the tenant. `gavel plan --refresh`
    computes automatic plans again.
    """
    from gavel.cli.jobs.flags import flag_values

    removed = [name for name in LIMITS if fields[name] == NONE]
    changes = flag_values({name: value for name, value in fields.items() if name not in removed})
    changes |= {LIMITS[name]: None for name in removed}
    if not changes:
        raise Fault("give at least one option, such as --weight 2 (see `gavel update --help`)")
    with session.client(changes=True) as client:

        def in_words(job: str, changed: tuple[str, ...]) -> str:
            return f"updated {ids(changed)}"

        done, failed, code = session.do_each("job", jobs, lambda job: client.update(job, **changes), in_words)
    if session.as_json:
        print_json({"jobs": [job for changed in done for job in changed], "failed": failed})
    sys.exit(code)
