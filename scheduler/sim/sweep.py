"""Many runs over processes: policies × rates × seeds × clusters, resumed where an earlier sweep was interrupted.

Rules:
- a results directory holds one JSON file per finished run, named by the run's key; a file that is not whole
  is not taken for a result;
- a run that cannot start is refused before any run starts; one that fails does not stop the others.
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

POLL_S = 0.3
Figures = dict[str, Any]
Finished = Generator[tuple[int, Figures], None, None]


class Failed(Exception):
    """A run came to nothing."""


class Engine(Protocol):
    """Where runs are carried out."""

    def carry_out(self, runs: Sequence[Run], seen: Callable[[float], None]) -> Finished:
        """Each run's number and figures, as they finish; `seen` hears of the part of all work that is done."""
        ...


def grid(
    base: Run,
    policies: Iterable[str],
    rates_per_h: Iterable[float | None],
    seeds: Iterable[int],
    clusters: Iterable[Mapping[str, int]],
) -> list[Run]:
    """Every combination, each once."""
    every = itertools.product(clusters, rates_per_h, seeds, policies)
    runs = [
        msgspec.structs.replace(base, cluster=dict(cluster), rate_per_h=rate, seed=seed, policy=policy)
        for cluster, rate, seed, policy in every
    ]
    return list({key(run): run for run in runs}.values())


@dataclass(frozen=True)
class Results:
    """Finished runs in a directory."""

    directory: Path

    def path(self, run: Run) -> Path:
        """Where a run's figures are, or will be."""
        return self.directory / f"{key(run)}.json"

    def load(self, run: Run) -> Figures | None:
        """The figures of a run that was finished before; None for one that was not, or not wholly written."""
        try:
            found = json.loads(self.path(run).read_bytes())
            figures = found["figures"]
            return figures if tuple(figures) == KEYS else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, run: Run, figures: Figures) -> None:
        """Whole or not at all."""
        path = self.path(run)
        written = path.with_suffix(f".{os.getpid()}.tmp")
        written.write_text(
            json.dumps({"run": run.data, "figures": figures}, indent=2, allow_nan=False) + "\n"
        )
        written.replace(path)


def sweep(
    runs: Sequence[Run],
    results: Results,
    engine: Engine,
    *,
    seen: Callable[[int, float], None] = lambda finished, part: None,
) -> list[Figures | str]:
    """The figures of every run in order, or why it failed. `seen`: runs finished, part of the work done."""
    found: list[Figures | str | None] = [results.load(run) for run in runs]
    left = [number for number, figures in enumerate(found) if figures is None]
    before = len(runs) - len(left)

    def part_seen(part: float) -> None:
        finished = sum(figures is not None for figures in found)
        seen(finished, (before + part * len(left)) / max(len(runs), 1))

    part_seen(0.0)
    with closing(engine.carry_out([runs[number] for number in left], part_seen)) as finished:
        for number, figures in finished:
            run = runs[left[number]]
            if "error" in figures:
                found[left[number]] = str(figures["error"])
            else:
                results.save(run, figures)
                found[left[number]] = figures
    part_seen(1.0)
    return [figures if figures is not None else "was not carried out" for figures in found]


def carry_out(run: Run, seen: Callable[[float], None] | None = None) -> Figures:
    """One run, here and now."""
    prepared = prepare(run)

    def progress(now: Progress) -> None:
        if seen is not None and prepared.jobs:
            seen(min(now.ended / prepared.jobs, 1.0))

    result = simulate(prepared.options, progress=progress)
    if result.interrupted:
        raise Failed("was interrupted")
    return summarise(
        result.metrics, wall_s=result.wall_s, policy=run.policy, cluster=dict(run.cluster), seed=run.seed
    )


class Processes:
    """Runs spread over processes of this machine."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1

    def carry_out(self, runs: Sequence[Run], seen: Callable[[float], None]) -> Finished:
        """As they finish. Leaving early ends the processes."""
        if not runs:
            return
        spawn = multiprocessing.get_context("spawn")
        parts = spawn.Array("d", len(runs))
        workers = min(self.count, len(runs))
        pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(parts,))
        try:
            with no_interrupts():
                numbers: dict[Future[Figures], int] = {
                    pool.submit(_carry_out_in_process, number, run): number for number, run in enumerate(runs)
                }
            waiting = set(numbers)
            while waiting:
                done, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield numbers[future], _figures_of(future)
                seen(sum(parts[:]) / len(runs))
        finally:
            _end(pool)


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ctrl-C waits, here for a moment, and for good in processes that are started meanwhile: they would tell of it.

    Processes inherit what this thread blocks. But other threads, those of numpy among them, still take the signal, and
    Python would hand it to this one: so it is put off as well.
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


_parts: SynchronizedArray[float] | None = None


def _begin(parts: SynchronizedArray[float]) -> None:
    global _parts  # noqa: PLW0603  (what the pool hands to each of its processes, once)
    _parts = parts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that shows the progress


def _carry_out_in_process(number: int, run: Run) -> Figures:
    assert _parts is not None

    def seen(part: float) -> None:
        _parts[number] = part

    figures = _attempt(run, seen)
    _parts[number] = 1.0
    return figures


def _attempt(run: Run, seen: Callable[[float], None] | None = None) -> Figures:
    """Figures, or the error in words: not every exception travels between processes."""
    try:
        return carry_out(run, seen)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _figures_of(future: Future[Figures]) -> Figures:
    try:
        return future.result()
    except Exception as error:  # the process died: the other runs go on, as far as they can
        return {"error": f"{type(error).__name__}: {error}"}


def _end(pool: ProcessPoolExecutor) -> None:
    """Do not wait for runs that nobody wants any more."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


class Ray:
    """Runs spread over a Ray cluster: the one that RAY_ADDRESS names, else one on this machine."""

    def __init__(self) -> None:
        self._ray: Any = importlib.import_module(
            "ray"
        )  # the extra `ray`; ImportError says that it is missing

    def carry_out(self, runs: Sequence[Run], seen: Callable[[float], None]) -> Finished:
        """As they finish."""
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
            seen(1 - len(waiting) / len(runs))


def _carry_out_of_data(data: dict[str, Any]) -> Figures:
    return _attempt(run_of(data))


def run_of(data: Mapping[str, Any]) -> Run:
    """The run that `Run.data` was taken from."""
    plain = dict(data)
    if plain.get("rate_per_h") == "inf":
        plain["rate_per_h"] = float("inf")
    return msgspec.convert(plain, Run)
