"""A program for `test_up`: runs clusters of processes that do not stop by themselves, and interrupts each one twice.

The interrupts come at every pair of lines, counted in the module of the cluster and in `threading`, whose locks a
handler must not need.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

from gavel.cli.service import local_cluster

# Enough lines for more than one turn of each loop that waits.
LINES = 16


class Stubborn:
    """A process that runs until it is killed."""

    killed = False

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def poll(self) -> int | None:
        """Return -9 once it has been killed."""
        return -9 if self.killed else None

    def terminate(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """End."""
        self.killed = True

    def wait(self) -> None:
        """Return at once."""


class Interrupts:
    """Raises SIGINT at two lines after the cluster has started."""

    def __init__(self, first: int, second: int) -> None:
        self.left = [first, second]
        self.started = False

    def echo(self, text: str, **_: object) -> None:
        """Take the output of the command, whose last line at the start explains Ctrl-C."""
        self.started = self.started or text.startswith("Ctrl-C stops them")

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Count the lines."""
        if not frame.f_code.co_filename.endswith(("/local_cluster.py", "/threading.py")):
            return None
        if event == "line" and self.started and self.left:
            self.left[0] -= 1
            if not self.left[0]:
                del self.left[0]
                signal.raise_signal(signal.SIGINT)
        return self.trace


def main(folder: Path) -> None:
    """Run a cluster for each pair of lines."""
    for first, second in itertools.product(range(1, LINES), repeat=2):
        interrupts = Interrupts(first, second)
        with (
            mock.patch.multiple(
                local_cluster,
                click=SimpleNamespace(echo=interrupts.echo),
                subprocess=SimpleNamespace(Popen=Stubborn, DEVNULL=subprocess.DEVNULL),
                LOOK_S=0.0,
            ),
            mock.patch.object(local_cluster.LocalCluster, "start_scheduler"),
        ):
            sys.settrace(interrupts.trace)
            local_cluster.run(folder, ["v100=1"], "127.0.0.1:0", (), stop_s=3600.0)
            sys.settrace(None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
