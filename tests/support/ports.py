"""Free ports, for tests that need a port's number before a server listens there."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack

# Below the range from which the kernel assigns ports, so that no other program gets one of these meanwhile.
FIRST, PER_WORKER, WORKERS = 20_000, 500, 24
# Random, as another run of the tests may use ports of this machine at the same time.
_place = random.Random().randrange(PER_WORKER)


def free_port(in_a_row: int = 1) -> int:
    """Return the first of so many neighbouring free ports; each process of tests has a range of its own."""
    global _place  # noqa: PLW0603 - no port is given out twice in a row
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    for _ in range(PER_WORKER):
        _place = (_place + in_a_row) % (PER_WORKER - in_a_row)
        port = FIRST + worker * PER_WORKER + _place
        try:
            with ExitStack() as held:
                for number in range(port, port + in_a_row):
                    held.enter_context(socket.socket()).bind(("", number))
        except OSError:
            continue
        return port
    raise OSError(f"no {in_a_row} free ports in a row")
