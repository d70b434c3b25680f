"""`gavel nodes`: the nodes of the cluster; for nodes given by name, their GPUs, too."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.io.completion import complete_nodes
from gavel.cli.io.outputs import echo
from gavel.cli.io.session import LIVE, Session
from gavel.cli.io.tables import Column, show_table, state_text
from gavel.client.views.job_text import few
from gavel.client.views.units import ago

if TYPE_CHECKING:
    from gavel.client import Node
    from gavel.client.results import Gpu

COLUMNS = (
    Column("node", width_max=20),
    Column("type", width_max=12),
    Column("state"),
    Column("busy", right=True),
    Column("CPUs", right=True),
    Column("memory", right=True),
    Column("heard", right=True),
    Column("jobs, why"),
)
GPU_COLUMNS = (
    Column("  GPU", right=True),
    Column("name", width_max=24),
    Column("memory", right=True),
    Column("°C", right=True),
    Column("jobs, fault"),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[NODE…]", shell_complete=complete_nodes)
@LIVE
def nodes(names: tuple[str, ...], session: Session) -> None:
    """List nodes; for nodes given by name, each GPU, too."""
    with session.client() as client:
        listed = client.nodes(names)
    nothing = "no node has joined yet; see `gavel agent --help`"
    session.show(listed, COLUMNS, rows(listed, datetime.now(UTC)), nothing)
    if names and not session.as_json:
        for node in listed:
            _show_gpus(node)


def rows(nodes: Sequence[Node], now: datetime) -> list[tuple[Any, ...]]:
    """Return a row of COLUMNS for each node."""
    return [
        (
            node.name,
            node.worker_type,
            state_text(node.state),
            f"{busy(node)}/{len(node.gpus)}",
            f"{node.cpus:g}" if node.cpus else "",
            f"{node.memory_gb:.0f} GB" if node.memory_gb else "",
            ago(node.heard, now) if node.heard else "",
            _jobs_and_why(node, now),
        )
        for node in nodes
    ]


def busy(node: Node) -> int:
    """Return the number of GPUs that jobs hold."""
    return sum(bool(gpu.jobs) for gpu in node.gpus)


def _jobs_and_why(node: Node, now: datetime) -> str:
    broken = [str(gpu.index) for gpu in node.gpus if gpu.broken]
    jobs = list(dict.fromkeys(job for gpu in node.gpus for job in gpu.jobs))
    words = [few(jobs, 6)] if jobs else []
    words += [f"GPU {few(broken)} out of service"] if broken else []
    words += [node.why] if node.why and (node.state != "up" or not jobs) else []
    words += [f"tried again {ago(node.back, now)}"] if node.back else []
    return "; ".join(words)


def _memory(gpu: Gpu) -> str:
    """Return the memory of a GPU, and how much of it is used where the driver knows; empty if neither is known."""
    used = f"{gpu.memory_used_gb:.1f}/" if gpu.memory_used_gb else ""
    return f"{used}{gpu.memory_gb:.3g} GB" if gpu.memory_gb else ""


def _show_gpus(node: Node) -> None:
    facts = {
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items())),
        "agent": node.agent_version,
        "driver": node.driver_version,
        "storage": node.storage,
        "containment": node.containment,
        "speed": f"{node.speed:g} (emulated)" if node.speed else "",
    }
    listed = "; ".join(f"{name} {value}" for name, value in facts.items() if value)
    click.echo()
    echo(f"{node.name}{': ' if listed else ''}{listed}")
    show_table(
        GPU_COLUMNS,
        [
            (
                str(gpu.index),
                gpu.name or "declared",
                _memory(gpu),
                f"{gpu.temperature_c:.0f}" if gpu.temperature_c else "",
                f"out of service: {gpu.broken}" if gpu.broken else few(gpu.jobs),
            )
            for gpu in node.gpus
        ],
    )
