"""The option `--forward`: ports of this machine that lead to ports on the node of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from gavel.cli.faults import Fault, reason
from gavel.cli.io.outputs import say

if TYPE_CHECKING:
    from gavel.client import Client
    from gavel.client.forwarding import Forwarding

FORWARD = click.option(
    "--forward",
    "ports",
    multiple=True,
    metavar="[LOCAL:]PORT",
    help="Let 127.0.0.1:LOCAL here lead to PORT on the job's node; may be repeated.",
)


@contextmanager
def opened(ports: Sequence[str]) -> Iterator[list[Forwarding]]:
    """Listen at the local ports until the block ends. Faults name the port that cannot be used."""
    from gavel.client.forwarding import Forwarding

    with ExitStack() as closing:
        forwardings = []
        for text in ports:
            local_port, port = _ports(text)
            try:
                forwardings.append(Forwarding(port, local_port))
            except OSError as error:
                raise Fault(f"--forward {text}: 127.0.0.1:{local_port}: {reason(error)}") from None
            closing.callback(forwardings[-1].close)
        yield forwardings


def begin(forwardings: Sequence[Forwarding], client: Client, job: str) -> None:
    """Serve connections to the local ports from now on."""
    from gavel.cli.io.local_terminal import report

    for forwarding in forwardings:
        port = forwarding.port
        say(f"forwarding 127.0.0.1:{forwarding.local_port} to port {port} of job {job}")
        forwarding.begin(client, job, lambda error: report(error.message))


def _ports(text: str) -> tuple[int, int]:
    """Return the local port and the port of the node."""
    local, colon, port = text.rpartition(":")
    numbers = (local if colon else port, port)
    if not all(number.isascii() and number.isdecimal() and 0 < int(number) <= 65_535 for number in numbers):
        raise Fault(f"--forward {text}: must be PORT or LOCAL:PORT, each from 1 to 65535")
    return int(numbers[0]), int(port)
