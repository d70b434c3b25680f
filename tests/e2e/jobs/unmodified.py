"""Uses nothing of Gavel but a directory: counts, saves at SIGTERM, and continues from there."""

import os
import pathlib
import signal
import sys
import time

state = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "state.txt"
go = pathlib.Path(sys.argv[1])
first_count = count = int(state.read_text()) if state.exists() else 0


def save(number: int, frame: object) -> None:
    """Save and end."""
    state.write_text(str(count))
    print("saved", count, flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
count += 1
print("from", first_count, flush=True)
while not go.exists():
    count += 1
    time.sleep(0.02)
print("done", count, flush=True)
