"""Two ranks that wait for each other; in the first attempt, rank 1 dies when rank 0 waits."""

import json
import os
import pathlib
import time

rank, attempt = int(os.environ["RANK"]), int(os.environ["GAVEL_ATTEMPT"])
here = pathlib.Path(os.environ["GAVEL_CHECKPOINT_DIR"]) / f"rank-0-of-{attempt}"
print(json.dumps({"rank": rank, "attempt": attempt, "pid": os.getpid()}) + "\n", end="", flush=True)
if rank == 0:
    here.touch()
    while attempt == 1:
        time.sleep(1)
while not here.exists():
    time.sleep(0.02)
if rank == 1 and attempt == 1:
    print("no more memory", flush=True)
    os._exit(9)
