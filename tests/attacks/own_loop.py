"""The job of the attack `stale`: the documented loop with slow steps, which finishes when a given file exists.

It saves its step and its attempt. In an older release, which lacks `save_text`, it saves as was documented for that
release: by writing the file.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

from gavel import training
from gavel.training import end, report, time_left_s

GO = pathlib.Path(sys.argv[1])
ATTEMPT = int(os.environ["GAVEL_ATTEMPT"])
PLAIN = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "state.txt"


def load() -> dict[str, int]:
    """Return the last saved state."""
    if hasattr(training, "load_text"):
        text = training.load_text("state.txt", "{}")
    else:
        text = PLAIN.read_text() if PLAIN.exists() else "{}"
    return {"step": 0, "attempt": 0, **json.loads(text)}


def save(step: int) -> None:
    """Save the step."""
    text = json.dumps({"step": step, "attempt": ATTEMPT})
    if hasattr(training, "save_text"):
        training.save_text("state.txt", text)
    else:
        PLAIN.write_text(text)


def tell(at: str, **words: object) -> None:
    """Print a JSON line that the attack reads: the event `at`, and more fields."""
    print(json.dumps({"at": at, "attempt": ATTEMPT, "pid": os.getpid(), **words}), flush=True)


if __name__ == "__main__":
    state = load()
    step = state["step"]
    tell("start", step=step, node=os.environ["GAVEL_RUN_DIR"].split("/")[-3])
    while not GO.exists() and time_left_s() > 0:
        step += 1
        time.sleep(0.02)
        report(step)
        if step == state["step"] + 5:
            tell("begun", step=step)
    save(step)
    tell("saved", step=step)
    end(step, saved=step, finished=GO.exists())
