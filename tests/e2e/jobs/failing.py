"""Prints a line and fails, at once or when a file appears."""

import json
import os
import pathlib
import sys
import time

print(
    json.dumps({"at": "start", "attempt": int(os.environ["GAVEL_ATTEMPT"]), "pid": os.getpid()}), flush=True
)
while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("no such file: data.csv", file=sys.stderr, flush=True)
sys.exit(3)
