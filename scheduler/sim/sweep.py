"""Many runs, spread over processes: policies × rates × seeds × clusters. An interrupted sweep can be resumed.

Rules:
- a results directory holds one JSON file per finished run, named by the run's key; an incomplete file does not count;
- a run that cannot start is refused before any run starts; a run that fails does not stop the others.
"""

from __future__ import annotations

import importlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import msgspec

from scheduler.sim.figures.summary import KEYS, summarise
from scheduler.sim.run import Run
from scheduler.sim.runs import key, prepare
from scheduler.sim.simulate import Progress, simulate

# How long to wait for finished runs before progress is reported again.
POLL_S = 0.3
Figures = dict[str, Any]
# Yields the index and the figures of each run as it finishes.
Finished = Generator[tuple[int, Figures], None, None]


class Failed(Exception):
    """A run was interrupted before its end."""


class Engine(Protocol):
    """Carries out runs."""

    def carry_out(self, runs: Sequence[Run], progress: Callable[[float], None]) -> Finished:
        """Yield each run's number and figures as it finishes. Call `progress` with the fraction of all work done."""
        ...


def grid(base: Run, axes: Mapping[str, Iterable[Any]]) -> list[Run]:
    """Return `base` with every combination of the values that `axes` has for its fields, without duplicates."""
    combinations = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    runs = [msgspec.structs.replace(base, **values) for values in combinations]
    return list({key(run): run for run in runs}.values())


@dataclass(frozen=True)
class Results:
    """Finished runs in a directory."""

    directory: Path

    def path(self, run: Run) -> Path:
        """Return the path of the file for a run's figures."""
        return self.directory / f"{key(run)}.json"

    def load(self, run: Run) -> Figures | None:
        """Return the figures of a finished run; None if there is no complete file."""
        try:
            figures = json.loads(self.path(run).read_bytes())["figures"]
            return figures if tuple(figures) == KEYS else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, run: Run, figures: Figures) -> None:
        """Write the figures of a run, atomically."""
        path = self.path(run)
        new_path = path.with_suffix(f".{os.getpid()}.tmp")
        text = json.dumps({"run": run.data, "figures": figures}, indent=2, allow_nan=False)
        new_path.write_text(text + "\n")
        new_path.replace(path)


def sweep(
    runs: Sequence[Run],
    results: Results,
    engine: Engine,
    *,
    progress: Callable[[int, float], None] = lambda finished, fraction: None,
) -> list[Figures | str]:
    """Return, in order, the figures of each run or the reason why it failed.

    `progress` is called with the number of finished runs, and with the fraction of all work done.
    """
    outcomes: list[Figures | str | None] = [results.load(run) for run in runs]
    missing = [number for number, figures in enumerate(outcomes) if figures is None]
    loaded = len(runs) - len(missing)

    def report(fraction: float) -> None:
        finished = sum(figures is not None for figures in outcomes)
        progress(finished, (loaded + fraction * len(missing)) / max(len(runs), 1))

    report(0.0)
    with closing(engine.carry_out([runs[number] for number in missing], report)) as finished:
        for index, figures in finished:
            number = missing[index]
            if "error" in figures:
                outcomes[number] = str(figures["error"])
            else:
                results.save(runs[number], figures)
                outcomes[number] = figures
    report(1.0)
    return [figures if figures is not None else "was not carried out" for figures in outcomes]


def carry_out(run: Run, progress: Callable[[float], None] | None = None) -> Figures:
    """Carry out one run in this process, and return its figures."""
    prepared = prepare(run)

    def report(now: Progress) -> None:
        if progress is not None and prepared.jobs:
            progress(min(now.ended / prepared.jobs, 1.0))

    result = simulate(prepared.options, progress=report)
    if result.interrupted:
        raise Failed("was interrupted")
    return summarise(
        result.metrics, wall_s=result.wall_s, policy=run.policy, cluster=dict(run.cluster), seed=run.seed
    )


class Processes:
    """Spreads runs over processes of this machine."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1

    def carry_out(self, runs: Sequence[Run], progress: Callable[[float], None]) -> Finished:
        """Yield runs as they finish. Closing the generator early ends the processes."""
        if not runs:
            return
        spawn = multiprocessing.get_context("spawn")
        fractions = spawn.Array("d", len(runs))
        workers = min(self.count, len(runs))
        pool = ProcessPoolExecutor(
            workers, mp_context=spawn, initializer=_init_process, initargs=(fractions,)
        )
        try:
            with no_interrupts():
                numbers: dict[Future[Figures], int] = {
                    pool.submit(_carry_out_in_process, number, run): number for number, run in enumerate(runs)
                }
            waiting = set(numbers)
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    # If a run's process died, the other runs continue as far as they can.
                    yield numbers[future], _attempt(future.result)
                progress(sum(fractions[:]) / len(runs))
        finally:
            _terminate(pool)


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Postpone Ctrl-C to the end of this block. Processes started in the block never receive it.

    Processes inherit the signals that this thread blocks. Other threads, such as numpy's, still receive the signal, and
    Python would run its handler in this thread, so the handler is replaced as well.
    """
    pressed: list[tuple[int, FrameType | None]] = []
    handler = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if pressed and callable(handler):
            handler(*pressed[0])


# By run: the fraction of its work that is done. Shared by the processes of a pool.
_fractions: SynchronizedArray[float] | None = None


def _init_process(fractions: SynchronizedArray[float]) -> None:
    """Prepare a process of the pool. The pool calls this once in each of its processes."""
    global _fractions  # noqa: PLW0603
    _fractions = fractions
    # Ctrl-C is for the process that shows the progress.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _carry_out_in_process(number: int, run: Run) -> Figures:
    assert _fractions is not None

    def progress(fraction: float) -> None:
        _fractions[number] = fraction

    figures = _attempt(lambda: carry_out(run, progress))
    _fractions[number] = 1.0
    return figures


def _attempt(run: Callable[[], Figures]) -> Figures:
    """Return the figures, or the error as text: not every exception can be passed between processes."""
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _terminate(pool: ProcessPoolExecutor) -> None:
    """End the processes without waiting for their runs."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


class Ray:
    """Spreads runs over the Ray cluster at RAY_ADDRESS; without RAY_ADDRESS, over a Ray cluster on this machine."""

    def __init__(self) -> None:
        """Raises ImportError if the extra `ray` is not installed."""
        self._ray: Any = importlib.import_module("ray")

    def carry_out(self, runs: Sequence[Run], progress: Callable[[float], None]) -> Finished:
        """Yield runs as they finish."""
        ray = self._ray
        if not runs:
            return
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="error")
        remote = ray.remote(num_cpus=1)(_carry_out_of_data)
        numbers = {remote.remote(run.data): number for number, run in enumerate(runs)}
        waiting = list(numbers)
        while waiting:
            done, waiting = ray.wait(waiting, timeout=POLL_S)
            for reference in done:
                try:
                    figures = ray.get(reference)
                except Exception as error:
                    figures = {"error": str(error).strip().splitlines()[-1]}
                yield numbers[reference], figures
            progress(1 - len(waiting) / len(runs))


def _carry_out_of_data(data: dict[str, Any]) -> Figures:
    return _attempt(lambda: carry_out(run_of(data)))


def run_of(data: Mapping[str, Any]) -> Run:
    """Return the run with this `Run.data`."""
    plain = dict(data)
    if plain.get("rate_per_h") == "inf":
        plain["rate_per_h"] = float("inf")
    return msgspec.convert(plain, Run)
