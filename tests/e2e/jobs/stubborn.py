"""Ignores every signal but SIGKILL, and leaves an orphan in another session that does the same."""

import json
import os
import signal
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writing, str(os.getpid()).encode())
        time.sleep(3600)
    os._exit(0)
os.wait()
print(json.dumps({"pid": os.getpid(), "orphan": int(os.read(reading, 32))}), flush=True)
time.sleep(3600)
