"""The job of the attack `stale --plain`: knows nothing of Gavel but a directory, and saves after each step."""

import json
import os
import pathlib
import sys
import time

GO = pathlib.Path(sys.argv[1])
STATE = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / "state.txt"
ATTEMPT = int(os.environ["GAVEL_ATTEMPT"])


def tell(at: str, **words: object) -> None:
    """Print a line for the attack."""
    print(json.dumps({"at": at, "attempt": ATTEMPT, "pid": os.getpid(), **words}))


step = json.loads(STATE.read_text())["step"] if STATE.exists() else 0
tell("start", step=step, node=os.environ["GAVEL_RUN_DIR"].split("/")[-3])
first = step
while not GO.exists():
    step += 1
    time.sleep(0.02)
    aside = STATE.with_name("state.new")
    aside.write_text(json.dumps({"step": step, "attempt": ATTEMPT}))
    aside.replace(STATE)
    if step == first + 5:
        tell("begun", step=step)
