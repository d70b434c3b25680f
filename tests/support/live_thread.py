"""A daemon in a thread, for tests of programs that block: the client and the command line.

with LiveThread(folder) as live:
    # `Live`'s own methods run on its own loop.
    live.do(live.daemon.node("n1", gpus=2))
    Client(live.address)
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.live import DEADLINE_S, Live

T = TypeVar("T")


@contextmanager
def own_port() -> Iterator[int]:
    """Reserve a port: calls to it are refused until a server of the test listens there."""
    with socket.socket() as held:
        # With this option, a server of the test that sets it, too, can listen on the reserved port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


class LiveThread:
    """A daemon that runs within the block."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder, self._options = folder, options
        self.daemon: Live

    def __enter__(self) -> LiveThread:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.daemon = Live(self._folder, **self._options)
        self.do(self.daemon.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self.do(self.daemon.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"127.0.0.1:{self.daemon.port}"

    def do(self, story: Coroutine[Any, Any, T]) -> T:
        """Run this on the daemon's loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(DEADLINE_S)
