"""One screen of `gavel top`: nodes with their GPUs, running jobs, the queue, the round. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gavel.cli.io.lines import Line, fitted, words
from gavel.cli.io.tables import STYLES, Column, state_text, table
from gavel.cli.io.wording import count_of
from gavel.client.results import Job, Node, Status
from gavel.client.views.job_text import few, job_on, job_progress, job_where
from gavel.client.views.units import age, span

RUNNING_COLUMNS = (
    Column("job", right=True, width_max=10),
    Column("name", width_max=18),
    Column("user", width_max=10),
    Column("GPUs", width_max=12),
    Column("done", right=True, width_max=10),
    Column("age", right=True),
    Column("where"),
)
QUEUE_COLUMNS = (*RUNNING_COLUMNS[:3], Column("state"), *RUNNING_COLUMNS[3:6], Column("why"))
BUSY, FREE, SHARED, BROKEN = "█", "░", "▓", "x"


@dataclass(frozen=True)
class Picture:
    """The state of a cluster at one moment.

    `waiting` is the number of waiting jobs, which may be more than `jobs` has. `trouble` is the reason if the state is
    out of date.
    """

    status: Status
    nodes: Sequence[Node]
    jobs: Sequence[Job]
    waiting: int
    at: datetime
    trouble: str = ""


def screen(picture: Picture, width: int, height: int) -> list[Line]:
    """Return at most `height` lines, each at most `width` wide."""
    running = [job for job in picture.jobs if job.placement is not None]
    waiting = [job for job in picture.jobs if job.placement is None and not job.state.is_final]
    head = _head(picture)
    room = max(height - len(head) - 4, 3)
    nodes = _nodes(picture.nodes, width, max(room // 3, 1))
    room = max(room - len(nodes), 2)
    running_lines = _jobs_table(
        "running",
        RUNNING_COLUMNS,
        running,
        len(running),
        max(room - min(len(waiting) + 1, room // 2), 2),
        width,
        picture,
    )
    waiting_lines = _jobs_table(
        "waiting", QUEUE_COLUMNS, waiting, picture.waiting, max(room - len(running_lines), 2), width, picture
    )
    lines = [*head, *nodes, Line(), *running_lines, Line(), *waiting_lines]
    return [line.cut(width) for line in lines[:height]]


def _head(picture: Picture) -> list[Line]:
    status, now = picture.status, picture.at
    left = "" if status.round_ends is None else f", {span((status.round_ends - now).total_seconds())} left"
    busy = f"{status.gpus_busy}/{status.gpus} GPUs busy"
    lines = [words(f"{busy}  {status.policy}  round {status.round}{left}", "bold")]
    if picture.trouble:
        lines.append(words(picture.trouble, "red"))
    lines += [words(warning, "yellow") for warning in status.warnings[:2]]
    return lines


def _nodes(nodes: Sequence[Node], width: int, lines_max: int) -> list[Line]:
    """Return a bar for each node, in as many columns as fit. If not all fit, busy and unhealthy nodes come first."""
    name_width = max([min(len(node.name), 16) for node in nodes], default=0)
    kind_width = max([min(len(node.worker_type), 10) for node in nodes], default=0)
    bar_width = max([len(node.gpus) for node in nodes], default=0)
    cell = min(name_width + 1 + kind_width + 1 + bar_width + 10, width)
    columns = max((width + 2) // (cell + 2), 1)
    ordered = sorted(
        nodes, key=lambda node: (node.state == "up" and not any(g.jobs for g in node.gpus), node.name)
    )
    visible = ordered[: columns * lines_max] if len(nodes) > columns * lines_max else list(nodes)
    lines = []
    for start in range(0, len(visible), columns):
        line = Line()
        for node in visible[start : start + columns]:
            line.add(_node(node, name_width, kind_width, cell)).add("  ")
        lines.append(line)
    if len(visible) < len(nodes):
        lines.append(Line(f"and {count_of(len(nodes) - len(visible), 'more node')}", "dim"))
    return lines


def _node(node: Node, name_width: int, kind_width: int, cell: int) -> Line:
    style = STYLES.get(node.state, "")
    line = fitted(words(node.name, style), name_width).add(" ")
    line.add(fitted(words(node.worker_type, style), kind_width)).add(" ")
    for gpu in node.gpus:
        if gpu.broken:
            line.add(BROKEN, "red")
        elif gpu.jobs:
            line.add(SHARED if len(gpu.jobs) > 1 else BUSY, "green")
        else:
            line.add(FREE, "dim")
    if node.state != "up":
        line.add(f" {node.state.value}")
    return line.add(" " * max(cell - line.width, 0))


def _jobs_table(
    title: str,
    columns: Sequence[Column],
    jobs: Sequence[Job],
    count: int,
    lines_max: int,
    width: int,
    picture: Picture,
) -> list[Line]:
    """Return a table of jobs in at most `lines_max` lines; `count` may be more jobs than `jobs` has."""
    if not jobs:
        return [Line(f"{title}: none", "dim")]
    room = lines_max - 1
    visible = jobs if len(jobs) <= room and count <= len(jobs) else jobs[: max(room - 1, 0)]
    rows = [tuple(_cells(job, columns is QUEUE_COLUMNS, picture.at)) for job in visible]
    lines = table(columns, rows, width)
    rest = max(count, len(jobs)) - len(visible)
    if rest > 0:
        lines.append(Line(f"and {rest} more {title}", "dim"))
    return lines


def _cells(job: Job, is_waiting: bool, now: datetime) -> Iterable[str | Line]:
    yield job.id
    yield job.spec.name or job.spec.job_type
    yield job.spec.user
    if is_waiting:
        yield state_text(job.state)
    yield job_on(job)
    yield job_progress(job)
    yield age(job.ended or job.submitted, now)
    if job.state == "running" and job.placement is not None and job.placement.phase == "running":
        yield few(job.placement.nodes)
    else:
        yield job_where(job)
