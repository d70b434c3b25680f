"""Ports for tests that name one before somebody listens there."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

# below those that the kernel gives out by itself: no other program of the machine is given one of these meanwhile
FIRST, PER_WORKER, WORKERS = 20_000, 500, 24
_place = random.Random().randrange(PER_WORKER)  # another run of the tests may go on beside this one


def free_port(in_a_row: int = 1) -> int:
    """The first of so many neighbours that nobody has; each process of tests has its own to choose from."""
    global _place  # noqa: PLW0603 - no port is given out twice in a row
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    for _ in range(PER_WORKER):
        _place = (_place + in_a_row) % (PER_WORKER - in_a_row)
        port = FIRST + worker * PER_WORKER + _place
        try:
            with ExitStack() as held:
                for one in range(port, port + in_a_row):
                    held.enter_context(socket.socket()).bind(("", one))
        except OSError:
            continue
        return port
    raise OSError(f"no {in_a_row} free ports in a row")
