"""`gavel up` in a process of its own, as in a terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
from pathlib import Path

from tests.e2e.cluster import MARK, PATIENCE_S


class Up:
    """The command, with one GPU and short rounds."""

    def __init__(self, folder: Path, *options: str, **environ: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gavel", "up", "--data-dir", str(folder), "--round-s", "2"),
                *("--gpus", "v100=1", *([] if "--web" in options else ["--no-web"]), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: str(folder), **environ},
        )

    def address(self) -> str:
        """Wait for the first line of output and return the address in it."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "gavel up prints nothing"
        line = self.process.stdout.readline()
        address = re.search(r" at (\S+:\d+) ", line)
        assert address, line + self.process.stdout.read()
        return address[1]

    def ended(self) -> tuple[int, str]:
        """Wait until the command ends; return its exit code and the output since the last read."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output
