"""The arena of a data set on this node. The job asks the agent for it with a file, and reads storage until it exists.

`GAVEL_CACHE` is the directory of the user's arenas. `cache-KEY.json` in the run directory names the data set, and as
long as the run goes on, the agent keeps `KEY.arena` (docs/job-directory.md). Nothing else passes between the two.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

from gavel.training.data.arena import Arena, NoArena
from gavel.training.data.probe import MODE

log = logging.getLogger("gavel.training")

# How long the first process waits for the agent, which takes a second per few gigabytes.
WAIT_S = 10.0
LOOK_S = 0.05
# How often to look again for an arena that the agent could not make.
RETRY_S = 10.0


class NodeArena:
    """The arena of one data set; None where there is no cache. It may be inherited by a fork or pickled."""

    def __init__(self, name: str, key: str, items: int, size: int | None) -> None:
        """`key`: 32 hexadecimal digits that stand for the data set's content. `size`: the wanted size, if known."""
        self._name, self._key, self._items, self._size = name, key, items, size
        self._directory = os.environ.get("GAVEL_CACHE")
        self._arena: Arena | None = None
        self._look_at_s = 0.0
        self._fault_logged = False

    def request(self) -> None:
        """Ask the agent for the arena, and wait a moment for its answer.

        A probe uses an arena that exists and asks for none: it runs in a directory of its own, where no agent looks.
        """
        run = os.environ.get("GAVEL_RUN_DIR")
        if not self._directory or not run or os.environ.get(MODE):
            return
        path = os.path.join(run, f"cache-{self._key}.json")
        new_path = f"{path}.{os.getpid()}.new"
        try:
            with open(new_path, "w", encoding="ascii") as file:
                json.dump({"name": self._name, "key": self._key, "bytes": self._size}, file)
            os.replace(new_path, path)
        except OSError as fault:
            self._log(f"{path} cannot be written: {fault.strerror}")
            return
        end_s = time.monotonic() + WAIT_S
        while not os.path.exists(self._path(self._directory)) and time.monotonic() < end_s:
            time.sleep(LOOK_S)

    def open(self) -> Arena | None:
        """Return the arena; None if there is none now."""
        if self._arena is None and time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + RETRY_S
            path = self._path(self._directory) if self._directory else ""
            # An empty file: the agent has no room.
            if path and os.path.exists(path) and os.path.getsize(path):
                try:
                    self._arena = Arena(path, self._items)
                except NoArena as fault:
                    self._log(str(fault))
        return self._arena

    def _path(self, directory: str) -> str:
        return os.path.join(directory, f"{self._key}.arena")

    def _log(self, fault: str) -> None:
        if not self._fault_logged:
            log.warning("gavel: data set %s is read from storage: %s", self._name, fault)
        self._fault_logged = True

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arena": None, "_look_at_s": 0.0}
