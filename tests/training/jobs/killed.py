"""A training script whose attempts are forks of one process, which kills them with SIGKILL when it is told to.

    python killed.py STEPS EVERY

PyTorch is imported once, with the parts that optimizers import at their first step. Each line of the input starts an
attempt: {"environ": …, "log": FILE, "kill": [WORD, COUNT, SECONDS]}. The attempt is killed so many seconds after it has
logged the word for the count-th time. "kill" may be null. When the attempt is over, its end is printed: its exit code,
or -9.

An attempt logs its acts, a line each: `from STEP`, `step STEP`, `begun STEP` and `on_disk STEP` of a checkpoint, `told
STEP` when the loop can know of that, and at the end of all steps `digest HEX`. A line that is in the log has happened.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from gavel.training import LeasedIterator, TorchCheckpoint
from tests.training.jobs.small_model import digest

WIDTH = 128


class Logged(TorchCheckpoint):
    """A checkpoint that logs when it begins, and when it is on disk."""

    def __init__(self, log: Callable[..., None], **words: Any) -> None:
        super().__init__("checkpoints", background=True, **words)
        self._log = log
        # By thread: the step that it has written.
        self.written = threading.local()

    def snapshot(self, step: int) -> Callable[[], None]:
        """Copy the state; return a function that writes the copy, and logs that."""
        self._log("begun", step)
        write = super().snapshot(step)

        def logged() -> None:
            write()
            self._log("on_disk", step)
            self.written.step = step

        return logged


def train(steps: int, every_steps: int, log: Callable[..., None]) -> None:
    """Train to the last step."""
    torch.manual_seed(0)
    random.seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.4), torch.nn.BatchNorm1d(WIDTH)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    checkpoint = Logged(log, model=model, optimizer=optimizer)
    batches = LeasedIterator(range(16), checkpoint=checkpoint, steps=steps, every_steps=every_steps)
    gate, call = batches._gate, batches._gate.call

    def call_and_log() -> None:
        call()
        log("told", checkpoint.written.step)

    gate.call = call_and_log  # type: ignore[method-assign]
    log("from", batches.step)
    for number in batches:
        optimizer.zero_grad()
        (model(torch.randn(4, WIDTH)) - number - random.random()).pow(2).mean().backward()
        optimizer.step()
        log("step", batches.step + 1)
    log("digest", digest(model, optimizer))


def child(order: dict[str, Any]) -> None:
    """Run one attempt in this process."""
    os.environ.update(order["environ"])
    handle = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def log(*words: object) -> None:
        os.write(handle, f"{' '.join(map(str, words))}\n".encode())

    train(int(sys.argv[1]), int(sys.argv[2]), log)


def kill_when_due(pid: int, log: Path, word: str, count: int, after_s: float) -> None:
    """Kill the attempt after it has logged this word so often, unless it ends before."""
    while log.read_text().count(f"{word} ") < count:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Run the attempts that the input orders, one after another."""
    torch.set_num_threads(1)
    # SIGKILL takes nothing from the page cache, and a test has no time to wait for a disk.
    os.fsync = lambda handle: None
    for line in sys.stdin:
        order = json.loads(line)
        Path(order["log"]).touch()
        pid = os.fork()
        if pid == 0:
            child(order)
            return
        if order["kill"] is not None:
            kill_when_due(pid, Path(order["log"]), *order["kill"])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
