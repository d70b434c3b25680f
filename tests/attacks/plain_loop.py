"""The job of the attack `stale --plain`: it uses nothing of Gavel's, and saves every 8 s and on SIGTERM."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

GO = pathlib.Path(sys.argv[1])
STATE = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "state.txt"
ATTEMPT = int(os.environ["GAVEL_ATTEMPT"])
EVERY_S = 8.0


def save() -> None:
    """Save the step."""
    aside = STATE.with_name("state.new")
    aside.write_text(json.dumps({"step": step, "attempt": ATTEMPT}))
    aside.replace(STATE)


def stop(number: int, frame: object) -> None:
    """Save at SIGTERM."""
    save()
    sys.exit(0)


def tell(at: str, **words: object) -> None:
    """Print a JSON line that the attack reads: the event `at`, and more fields."""
    print(json.dumps({"at": at, "attempt": ATTEMPT, "pid": os.getpid(), **words}))


first = step = json.loads(STATE.read_text())["step"] if STATE.exists() else 0
signal.signal(signal.SIGTERM, stop)
tell("start", step=step, node=os.environ["GAVEL_RUN_DIR"].split("/")[-3])
saved_s = time.monotonic()
while not GO.exists():
    step += 1
    time.sleep(0.02)
    if step == first + 5:
        tell("begun", step=step)
    if time.monotonic() - saved_s > EVERY_S:
        save()
        saved_s = time.monotonic()
