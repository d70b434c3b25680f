"""Processes that use all the processor time they get, until a file appears: `python busy.py PROCESSES GO`.

Each has a session of its own, because kernels may divide CPUs among sessions by themselves (autogroup).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

go = Path(sys.argv[2])
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        os.setsid()
        break
while not go.exists():
    sum(range(100_000))
