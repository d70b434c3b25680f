"""Cost of checkpoints while training: `python -m benchmarks.checkpoints`.

A model of square layers with Adam trains on one thread of the CPU. Ours in the background and in the foreground,
`torch.save`, `dcp.save` and `dcp.async_save` save it, each after the same number of steps. Every block of steps with a
checkpoint, until that is on disk, is compared with blocks without one just before and after it: on a busy machine
single runs mean nothing, so the table has medians and quartiles. Ours writes sums and flushes to disk; `torch.save` and
`dcp.save` are followed by a flush, `dcp.async_save` is not.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gavel.training import LeasedIterator, TorchCheckpoint

LAYERS = 8
# A parameter and two values of Adam, of four bytes each.
BYTES_PER_PARAMETER = 12
STEPS = 12


class Training:
    """A model of about so many megabytes with its optimizer."""

    def __init__(self, megabytes: float) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        width = int((megabytes * 1e6 / BYTES_PER_PARAMETER / LAYERS) ** 0.5)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(LAYERS)))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(16, width)
        self.step()

    def step(self, *_: object) -> None:
        """Do a step."""
        self.optimizer.zero_grad()
        self.model(self._batch).pow(2).mean().backward()
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        """The state as the other ways save it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


# Saves a checkpoint. The result waits until it is on disk.
Finish = Callable[[], object]
Save = Callable[[int], Finish]


def flush(path: Path) -> None:
    """Flush the files of a checkpoint to disk."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        handle = os.open(file, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


@contextlib.contextmanager
def with_torch_save(training: Training, folder: Path) -> Iterator[Save]:
    """Save with `torch.save`."""
    import torch

    def save(step: int) -> Finish:
        torch.save(training.state, folder / "state.pt")
        flush(folder / "state.pt")
        return int

    yield save


@contextlib.contextmanager
def with_dcp(training: Training, folder: Path) -> Iterator[Save]:
    """Save with PyTorch's distributed checkpoint."""
    dcp = importlib.import_module("torch.distributed.checkpoint")

    def save(step: int) -> Finish:
        dcp.save(training.state, checkpoint_id=folder / str(step % 2))
        flush(folder / str(step % 2))
        return int

    yield save


@contextlib.contextmanager
def with_dcp_async(training: Training, folder: Path) -> Iterator[Save]:
    """Save with PyTorch's distributed checkpoint in its thread; it flushes no file."""
    from torch import distributed

    dcp = importlib.import_module("torch.distributed.checkpoint")

    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)

    def save(step: int) -> Finish:
        future = dcp.async_save(training.state, checkpoint_id=folder / str(step % 2))
        return future.result

    try:
        yield save
    finally:
        distributed.destroy_process_group()


def block_s(training: Training, steps: int) -> float:
    """Return the seconds per step without checkpoints."""
    began_s = time.perf_counter()
    for _ in range(steps):
        training.step()
    return (time.perf_counter() - began_s) / steps


def saved_block_s(training: Training, steps: int, save: Save) -> tuple[float, float]:
    """Return the seconds per step with a checkpoint at the begin, until it is on disk, and the pause for it."""
    began_s = time.perf_counter()
    finish = save(int(began_s))
    pause_s = time.perf_counter() - began_s
    for _ in range(steps):
        training.step()
    finish()
    return (time.perf_counter() - began_s) / steps, pause_s


@contextlib.contextmanager
def with_ours(training: Training, folder: Path, background: bool) -> Iterator[Save]:
    """Save with a LeasedIterator, at the end of a step of its loop."""
    checkpoint = TorchCheckpoint(
        folder, background=background, model=training.model, optimizer=training.optimizer
    )
    loop = LeasedIterator(range(1 << 40), checkpoint=checkpoint)
    batches = iter(loop)
    next(batches)

    def save(step: int) -> Finish:
        loop._gate.save_at(loop.step + 1)
        next(batches)
        return loop._saver._wait

    yield save


WAYS: dict[str, Callable[[Training, Path], contextlib.AbstractContextManager[Save]]] = {
    "torch.save": with_torch_save,
    "dcp.save": with_dcp,
    "dcp.async_save": with_dcp_async,
    "ours, in the foreground": functools.partial(with_ours, background=False),
    "ours, in the background": functools.partial(with_ours, background=True),
}


def compare(megabytes: float, repeats: int) -> None:
    """Print the overhead and the pause of each way, after equally many steps."""
    training = Training(megabytes)
    overheads: dict[str, list[float]] = {}
    pauses_s: dict[str, list[float]] = {}
    steps_s: list[float] = []
    with contextlib.ExitStack() as stack:
        saves: dict[str, Save] = {}
        for name, way in WAYS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            saves[name] = stack.enter_context(way(training, folder))
        # The first round allocates memory, and is not counted.
        for number in range(repeats + 1):
            for name, save in saves.items():
                before_s = block_s(training, STEPS)
                with_s, pause_s = saved_block_s(training, STEPS, save)
                base_s = (before_s + block_s(training, STEPS)) / 2
                if number:
                    steps_s.append(base_s)
                    overheads.setdefault(name, []).append(with_s / base_s - 1)
                    pauses_s.setdefault(name, []).append(pause_s)
    step_ms = 1e3 * statistics.median(steps_s)
    print(
        f"{megabytes:g} MB, a step of {step_ms:.0f} ms, a checkpoint each {STEPS} steps, medians of {repeats}"
    )
    for name, values in overheads.items():
        low, middle, high = (quantile(values, part) for part in (0.25, 0.5, 0.75))
        pause_ms = 1e3 * statistics.median(pauses_s[name])
        print(
            f"  {name:26} {100 * middle:6.1f} % ({100 * low:.1f} to {100 * high:.1f})  pause {pause_ms:7.1f} ms"
        )


def quantile(values: list[float], part: float) -> float:
    """Return the value below which this part of the values lies."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, nargs="+", default=[25.0, 100.0, 400.0])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    for megabytes in arguments.megabytes:
        compare(megabytes, arguments.repeats)


if __name__ == "__main__":
    main()
