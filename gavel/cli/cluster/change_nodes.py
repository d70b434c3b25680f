"""`gavel drain`, `resume` and `remove`: change nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from gavel.cli.cluster.nodes import busy
from gavel.cli.io.completion import complete_nodes
from gavel.cli.io.options import YES, options
from gavel.cli.io.session import LIVE, Session, confirm, print_json
from gavel.cli.io.wording import count_of
from gavel.client.views.job_text import few

if TYPE_CHECKING:
    from gavel.client import Node

OUTCOMES = {"drain": "is draining", "resume": "gets jobs again", "remove": "is removed"}


def _command(action: str, help: str, *more: Callable[..., Any]) -> click.Command:
    @click.command(action, help=help)
    @click.argument("names", nargs=-1, required=True, metavar="NODE…", shell_complete=complete_nodes)
    @options(*more, LIVE)
    def change(names: tuple[str, ...], session: Session, yes: bool = True, reason: str = "") -> None:
        def in_words(name: str, node: Node) -> str:
            busy_gpus = busy(node) if action == "drain" else 0
            more = f"; {count_of(busy_gpus, 'GPU')} still busy" if busy_gpus else ""
            return f"{node.name} {OUTCOMES[action]}{more}"

        if not yes:
            confirm(action, count_of(len(names), "node"), few(names, 8))
        with session.client(changes=True) as client:
            act = getattr(client, action)
            nodes, failed, code = session.do_each(
                "node", names, partial(act, reason=reason) if reason else act, in_words
            )
        if session.as_json:
            print_json({"nodes": nodes, "failed": failed})
        sys.exit(code)

    return change


REASON = click.option(
    "--reason", default="", metavar="TEXT", help="Why, for others: `gavel nodes` and the page show it."
)
drain = _command("drain", "Let nodes finish their jobs, and give them no new ones.", REASON)
resume = _command("resume", "Let drained nodes take jobs again.", REASON)
remove = _command(
    "remove", "Remove nodes from the cluster for good. A node must be lost, or drained and empty.", YES
)
