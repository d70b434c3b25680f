"""`gavel nodes`, and `drain`, `resume`, `remove`: the machines, and what operators do to them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import click

from gavel.cli.faults import Fault
from gavel.cli.io.job_text import few, node_state_text
from gavel.cli.io.session import OK, exit_code, print_json, scheduler
from gavel.cli.io.tables import Column, out, show_table
from gavel.cli.io.units import ago
from gavel.cli.io.wording import count_of, printable
from gavel.client import GavelError, Node
from gavel.client.errors import NotReachable

COLUMNS = (
    Column("node", most=20),
    Column("type", most=12),
    Column("state"),
    Column("busy", right=True),
    Column("CPUs", right=True),
    Column("memory", right=True),
    Column("heard", right=True),
    Column("jobs, why"),
)
GPU_COLUMNS = (
    Column("  GPU", right=True),
    Column("name", most=24),
    Column("memory", right=True),
    Column("°C", right=True),
    Column("jobs, fault"),
)
SAID = {"drain": "is draining", "resume": "gets jobs again", "remove": "is removed"}


def nodes(names: tuple[str, ...], as_json: bool, address: str | None, context: str | None) -> None:
    """The command's body."""
    with scheduler(address, context) as client:
        found = client.nodes(names)
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no node has joined yet; `gavel agent --help` says how", err=True)
        return
    show_table(COLUMNS, rows(found, datetime.now(UTC)))
    if names:
        for node in found:
            _show_one(node)


def rows(found: Sequence[Node], now: datetime) -> list[tuple[Any, ...]]:
    """A row for each node."""
    return [
        (
            node.name,
            node.worker_type,
            node_state_text(node),
            f"{busy(node)}/{len(node.gpus)}",
            f"{node.cpus:g}" if node.cpus else "",
            f"{node.memory_gb:.0f} GB" if node.memory_gb else "",
            ago(node.heard, now) if node.heard else "",
            _words(node),
        )
        for node in found
    ]


def busy(node: Node) -> int:
    """GPUs that jobs hold."""
    return sum(bool(gpu.jobs) for gpu in node.gpus)


def _words(node: Node) -> str:
    broken = [str(gpu.index) for gpu in node.gpus if gpu.broken]
    jobs = list(dict.fromkeys(job for gpu in node.gpus for job in gpu.jobs))
    words = [few(jobs, 6)] if jobs else []
    words += [f"GPU {few(broken)} out of service"] if broken else []
    words += [node.why] if node.why and (node.state != "up" or not jobs) else []
    return "; ".join(words)


def _show_one(node: Node) -> None:
    console = out()
    console.print()
    labels = ", ".join(f"{key}={value}" for key, value in sorted(node.labels.items()))
    facts = (
        ("labels", labels),
        ("agent", node.agent_version),
        ("driver", node.driver_version),
        ("storage", node.storage),
        ("containment", node.containment),
        ("speed", f"{node.speed:g} (emulated)" if node.speed else ""),
    )
    said = "; ".join(f"{name} {value}" for name, value in facts if value)
    console.print(f"{printable(node.name)}{': ' if said else ''}{printable(said)}")
    show_table(
        GPU_COLUMNS,
        [
            (
                str(gpu.index),
                gpu.name or "declared",
                f"{gpu.memory_used_gb:.1f}/{gpu.memory_gb:.0f} GB" if gpu.memory_gb else "",
                f"{gpu.temperature_c:.0f}" if gpu.temperature_c else "",
                f"out of service: {gpu.broken}" if gpu.broken else few(gpu.jobs),
            )
            for gpu in node.gpus
        ],
    )


def change(
    action: Literal["drain", "resume", "remove"],
    names: tuple[str, ...],
    yes: bool,
    as_json: bool,
    address: str | None,
    context: str | None,
) -> None:
    """The body of the commands that change nodes; the exit code is that of the first that fails."""
    if not yes and not sys.stdin.isatty():
        raise Fault(f"this would {action} {count_of(len(names), 'node')}: say --yes if you mean it")
    if not yes and not click.confirm(f"{action} {few(names, 8)}?", err=True):
        raise Fault("nothing was done")
    code, done, failed = OK, [], []
    with scheduler(address, context, changes=True) as client:
        for name in dict.fromkeys(names):
            try:
                node = getattr(client, action)(name)
            except NotReachable:
                raise
            except GavelError as error:
                code = code or exit_code(error)
                failed.append({"node": name, "reason": error.reason, "message": error.message})
                if not as_json:
                    click.echo(f"gavel {action}: {printable(error.message)}", err=True)
                continue
            done.append(node)
            if not as_json:
                left = busy(node)
                more = f"; {count_of(left, 'GPU')} still busy" if action == "drain" and left else ""
                click.echo(f"{printable(node.name)} {SAID[action]}{more}")
    if as_json:
        print_json({"nodes": done, "failed": failed})
    sys.exit(code)
