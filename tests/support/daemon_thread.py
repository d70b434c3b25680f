"""The whole daemon in a thread, as `gavel serve` runs it: for tests of commands, which block.

with DaemonThread(folder) as daemon:
    Client(daemon.address)
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from scheduler.live.config import DaemonConfig, daemon_config
from scheduler.live.daemon import Daemon

START_S = 60.0


class DaemonThread:
    """A daemon that runs within the block, configured by a file, or by `folder` and a free port."""

    def __init__(self, folder: Path, config: Path | None = None, **settings: Any) -> None:
        free_ports = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}
        flags = {**free_ports, **settings, "data_dir": str(folder)}
        self.config: DaemonConfig = daemon_config(str(config) if config else None, flags, (), {})
        self.daemon: Daemon
        self._loop = asyncio.new_event_loop()
        self._started: Future[Daemon] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> DaemonThread:
        self._thread.start()
        self.daemon = self._started.result(START_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self.daemon.stop)
        self._thread.join(START_S)
        assert not self._thread.is_alive()

    @property
    def address(self) -> str:
        """The address that users connect to."""
        return str(self.daemon.listen)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)
        finally:
            self._loop.close()

    async def _live(self) -> None:
        async with Daemon(self.config) as daemon:
            self._started.set_result(daemon)
            await daemon.ended()
