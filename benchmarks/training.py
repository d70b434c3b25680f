"""The cost of a lease for a training loop: time per step, pauses at renewals, checkpoints.

    python -m benchmarks.training [--steps 2000000]

Steps do nothing, so all the time is that of the iterator. With every="auto" it also measures each step, and makes
checkpoints in the background so rarely that their threads add a thousandth. The last lines of the table need PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gavel.training import LeasedIterator, TorchCheckpoint, session

REPEATS = 5
# An agent renews a lease only about ten times a minute.
RENEWALS_PER_S = 100.0
LONG_S = 3600.0
# The number of batches in a pass over the data.
PASS = 100_000


class NoCheckpoint:
    """A checkpoint that saves nothing."""

    def load(self) -> int:
        """Begin at step 0."""
        return 0

    def save(self, step: int) -> None:
        """Do nothing."""


class NoCopy(NoCheckpoint):
    """A checkpoint in the background that copies and saves nothing."""

    background = True

    def snapshot(self, step: int) -> Callable[[], None]:
        """Return the function that saves nothing."""
        return lambda: None


# The part of the time that checkpoints may cost a loop that chooses their interval: too little to be measurable.
OVERHEAD = 0.001


def write_lease(run_dir: Path) -> None:
    """Write a lease that ends in an hour, as the agent does."""
    ask_s = time.monotonic() + LONG_S
    fields = {
        "lease": "1",
        "epoch": 1,
        "attempt": 1,
        "ask_s": ask_s,
        "signal_s": ask_s + 20,
        "kill_s": ask_s + 25,
    }
    new_path = run_dir / "lease.json.new"
    new_path.write_text(json.dumps(fields))
    os.replace(new_path, run_dir / "lease.json")


@contextmanager
def under_lease(run_dir: Path) -> Iterator[None]:
    """Put this process under a lease within this block."""
    write_lease(run_dir)
    names = {"GAVEL_RUN_DIR": str(run_dir), "GAVEL_EPOCH": "1", "GAVEL_ATTEMPT": "1"}
    os.environ.update(names)
    lease_session = session.current()
    assert lease_session is not None
    try:
        yield
    finally:
        lease_session.close()
        session._session = None
        for name in names:
            del os.environ[name]


@contextmanager
def frequent_renewals(run_dir: Path) -> Iterator[None]:
    """Renew the lease RENEWALS_PER_S times a second within this block."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(1.0 / RENEWALS_PER_S):
            write_lease(run_dir)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ns_per_step(batches: Iterable[object], steps: int) -> float:
    """Return the nanoseconds per step of a loop that does nothing."""
    started_s = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started_s) / steps * 1e9


def bare_loader(steps: int) -> Iterator[object]:
    """Yield `steps` batches from the loader itself, pass by pass."""
    for _ in range(steps // PASS):
        yield from range(PASS)


def loop(steps: int) -> LeasedIterator[int]:
    """Return a LeasedIterator over `steps` batches."""
    return LeasedIterator(range(PASS), checkpoint=NoCheckpoint(), steps=steps)


def auto_loop(steps: int) -> LeasedIterator[int]:
    """Return a LeasedIterator that measures its steps and chooses when to save."""
    return LeasedIterator(range(PASS), checkpoint=NoCopy(), steps=steps, every="auto", overhead=OVERHEAD)


def longest_step_ms(batches: Iterable[object]) -> float:
    """Return the longest step of a loop. On a busy machine it is the time that other processes had the CPU."""
    longest_s, last_s = 0.0, time.perf_counter()
    for _ in batches:
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s * 1e3


def print_row(title: str, values: list[float], unit: str) -> None:
    """Print a line: the median, the least and the greatest."""
    print(f"{title:<44} {statistics.median(values):>10.3g} {min(values):>10.3g} {max(values):>10.3g}  {unit}")


def measure_steps(steps: int) -> None:
    """Print the cost of a step."""
    with tempfile.TemporaryDirectory() as folder:
        print_row("bare loader", [ns_per_step(bare_loader(steps), steps) for _ in range(REPEATS)], "ns/step")
        print_row(
            "LeasedIterator outside Gavel",
            [ns_per_step(loop(steps), steps) for _ in range(REPEATS)],
            "ns/step",
        )
        with under_lease(Path(folder)):
            print_row(
                "LeasedIterator under a lease",
                [ns_per_step(loop(steps), steps) for _ in range(REPEATS)],
                "ns/step",
            )
            print_row(
                '... with every="auto" in the background',
                [ns_per_step(auto_loop(steps), steps) for _ in range(REPEATS)],
                "ns/step",
            )
            alone = [longest_step_ms(bare_loader(steps)) for _ in range(REPEATS)]
            pauses = [longest_step_ms(loop(steps)) for _ in range(REPEATS)]
            with frequent_renewals(Path(folder)):
                values = [ns_per_step(loop(steps), steps) for _ in range(REPEATS)]
                print_row(f"... renewed {RENEWALS_PER_S:g} times a second", values, "ns/step")
                renewals = [longest_step_ms(loop(steps)) for _ in range(REPEATS)]
        print_row("longest step, bare loader", alone, "ms")
        print_row("longest step, lease not renewed", pauses, "ms")
        print_row("longest step, lease renewed often", renewals, "ms")


def measure_checkpoints() -> None:
    """Print how long saving and loading a small model with its optimizer take."""
    try:
        import torch
    except ImportError:
        print("(no checkpoints: torch is not installed)")
        return
    for width in (64, 1024, 4096):
        model = torch.nn.Linear(width, width)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
        # The parameters, and two values of the optimizer for each of them.
        name = f"{3 * 4 * (width + 1) * width / 1e6:.2g} MB"
        with tempfile.TemporaryDirectory() as folder:
            saves, loads = [], []
            for step in range(1, REPEATS + 1):
                checkpoint = TorchCheckpoint(folder, model=model, optimizer=optimizer)
                started_s = time.perf_counter()
                checkpoint.save(step)
                saved_s = time.perf_counter()
                checkpoint.load()
                saves.append((saved_s - started_s) * 1e3)
                loads.append((time.perf_counter() - saved_s) * 1e3)
        print_row(f"save {name}, flushed to disk", saves, "ms")
        print_row(f"load {name}, sums checked", loads, "ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2_000_000, help="the steps of each loop")
    steps = max(parser.parse_args().steps // PASS, 1) * PASS
    print(f"{'':<44} {'median':>10} {'least':>10} {'greatest':>10}")
    measure_steps(steps)
    measure_checkpoints()


if __name__ == "__main__":
    main()
