"""Ways to save a checkpoint while training, after equally many steps: ours, and those of PyTorch.

Every block of steps with a checkpoint, until that is on disk, is compared with blocks without one just before and after
it, in time of the clock and of the processors. All ways are equally durable: `dcp.save` and `dcp.async_save` flush
their files by themselves; `torch.save` writes aside, and is followed by a flush and a renaming. The files of ours and
of `torch.save` have sums.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gavel.training import LeasedIterator, TorchCheckpoint

LAYERS = 8
# A parameter and two values of Adam, of four bytes each.
BYTES_PER_PARAMETER = 12
STEPS = 12
# The greatest part of the overhead of `torch.save` and of `dcp.async_save` that ours may have in the background.
HALF, FIFTH = 0.5, 0.2


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
    """Flush a file or the entries of a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@contextlib.contextmanager
def with_torch_save(training: Training, folder: Path) -> Iterator[Save]:
    """Save with `torch.save`, so that a crash leaves one of two files complete."""
    import torch

    def save(step: int) -> Finish:
        aside = folder / "new.pt"
        torch.save(training.state, aside)
        flush(aside)
        aside.replace(folder / f"{step % 2}.pt")
        flush(folder)
        return int

    yield save


@contextlib.contextmanager
def with_dcp(training: Training, folder: Path) -> Iterator[Save]:
    """Save with PyTorch's distributed checkpoint."""
    dcp = importlib.import_module("torch.distributed.checkpoint")

    def save(step: int) -> Finish:
        dcp.save(training.state, checkpoint_id=folder / str(step % 2))
        return int

    yield save


@contextlib.contextmanager
def with_dcp_async(training: Training, folder: Path) -> Iterator[Save]:
    """Save with PyTorch's distributed checkpoint in its thread."""
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


class Cost(NamedTuple):
    """Seconds of the clock, and of all processors of this process."""

    clock_s: float
    cpu_s: float

    @classmethod
    def since(cls, began: Cost) -> Cost:
        """Return what has passed since then."""
        now = cls.now()
        return cls(now.clock_s - began.clock_s, now.cpu_s - began.cpu_s)

    @classmethod
    def now(cls) -> Cost:
        """Return the present times."""
        return cls(time.perf_counter(), time.process_time())


def block(training: Training, steps: int) -> Cost:
    """Return the cost of so many steps without checkpoints."""
    began = Cost.now()
    for _ in range(steps):
        training.step()
    return Cost.since(began)


def saved_block(training: Training, steps: int, save: Save) -> tuple[Cost, float]:
    """Return the cost of so many steps with a checkpoint at the begin, until it is on disk, and the pause for it."""
    began = Cost.now()
    finish = save(int(began.clock_s))
    pause_s = Cost.since(began).clock_s
    for _ in range(steps):
        training.step()
    finish()
    return Cost.since(began), pause_s


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


class Measured(NamedTuple):
    """The cost of a way to save: parts of the time of the steps, and the pause."""

    overhead: float
    overhead_cpu: float
    pause_s: float


def measure(megabytes: float, repeats: int) -> tuple[float, dict[str, list[Measured]]]:
    """Return the seconds of a step, and what each way costs, once for each repeat."""
    training = Training(megabytes)
    # Two directories in turn are overwritten.
    warnings.filterwarnings("ignore", "Detected an existing checkpoint")
    measured: dict[str, list[Measured]] = {name: [] for name in WAYS}
    steps_s: list[float] = []
    with contextlib.ExitStack() as stack:
        saves: dict[str, Save] = {}
        for name, way in WAYS.items():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            saves[name] = stack.enter_context(way(training, folder))
        # The first round allocates memory, and is not counted.
        for number in range(repeats + 1):
            for name, save in saves.items():
                before = block(training, STEPS)
                cost, pause_s = saved_block(training, STEPS, save)
                after = block(training, STEPS)
                base = [(first + second) / 2 for first, second in zip(before, after, strict=True)]
                if number:
                    steps_s.append(base[0] / STEPS)
                    parts = [value / usual - 1 for value, usual in zip(cost, base, strict=True)]
                    measured[name].append(Measured(parts[0], parts[1], pause_s))
    return statistics.median(steps_s), measured


def compare(megabytes: float, repeats: int) -> None:
    """Print the overhead and the pause of each way, after equally many steps, and whether ours reaches its goals."""
    step_s, measured = measure(megabytes, repeats)
    print(
        f"{megabytes:g} MB, a step of {1e3 * step_s:.0f} ms, a checkpoint each {STEPS} steps, {repeats} repeats"
    )
    print(f"  {'medians':26} {'clock':>8}  {'quartiles':15} {'processors':>10}  {'pause':>9}")
    for name, values in measured.items():
        clock = [value.overhead for value in values]
        low, high = quantile(clock, 0.25), quantile(clock, 0.75)
        cpu, pause_s = (statistics.median(column) for column in list(zip(*values, strict=True))[1:])
        print(
            f"  {name:26} {statistics.median(clock):8.1%}  {low:6.1%} to {high:6.1%} {cpu:10.1%}  "
            f"{1e3 * pause_s:6.1f} ms"
        )
    background = measured["ours, in the background"]
    for other in ("torch.save", "dcp.async_save"):
        ratio = statistics.median(
            own.overhead / max(rival.overhead, 1e-9)
            for own, rival in zip(background, measured[other], strict=True)
        )
        print(f"  ours in the background ÷ {other}: {ratio:.2f} (goal: {HALF:g})")
    foreground = measured["ours, in the foreground"]
    pauses = [own.pause_s / other.pause_s for own, other in zip(background, foreground, strict=True)]
    print(f"  pause in the background ÷ in the foreground: {statistics.median(pauses):.2f} (goal: {FIFTH:g})")


def quantile(values: list[float], part: float) -> float:
    """Return the value below which this part of the values lies."""
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]
