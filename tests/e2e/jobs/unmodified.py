"""Knows nothing of Gavel but a directory: counts, saves when it is told to end, and goes on from there."""

import os
import pathlib
import signal
import sys
import time

state = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "state.txt"
go = pathlib.Path(sys.argv[1])
count = int(state.read_text()) if state.exists() else 0
print("from", count, flush=True)


def save(number: int, frame: object) -> None:
    """Told to end."""
    state.write_text(str(count))
    print("saved", count, flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
while not go.exists():
    count += 1
    time.sleep(0.02)
print("done", count, flush=True)
