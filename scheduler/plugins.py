"""Policies that Gavel does not ship: from Python files, and from installed packages (entry points `gavel.policies`).

Rules:
- a file or package is loaded whole or not at all, and a fault in one leaves the others alone;
- a file is loaded without its folder: it can import installed packages, but no files beside it;
- the time of each answer is limited. Code that takes longer is interrupted, if Python can interrupt it: in the main
  thread, between two instructions of Python. The live scheduler kills its solver's process otherwise;
- what the code prints goes to standard error.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import math
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from policies.engine.solvers import time_left_s
from policies.errors import BrokenPolicy, OutOfTime, fault_of
from policies.problem import Allocation, Problem
from policies.registry import Entry, broken, forget, registered_from

GROUP = "gavel.policies"
FILE_BYTES_MAX = 2**20
# How long a file or package may take to load.
LOAD_S = 20.0
# How long an answer may take if the solvers have no time limit.
ANSWER_S = 120.0
# If they have a time limit: how many times as long the whole answer may take, and how much longer in any case.
LIMIT_FACTOR, LIMIT_EXTRA_S = 1.5, 1.0
# After this time, code that has caught the interruption is interrupted again.
AGAIN_S = 1.0


def load(files: Iterable[str] = ()) -> dict[str, str]:
    """Register the policies of installed packages and of these files; return the faults of files, by file.

    Faults of packages are noted in `registry.broken`. A file is loaded again if it has changed.
    """
    _load_packages()
    return {file: fault for file in files if (fault := _load_file(file))}


def any_exist(files: Iterable[str] = ()) -> bool:
    """Return whether there are any such files or packages."""
    return any(True for _ in files) or bool(metadata.entry_points(group=GROUP))


@functools.cache
def _load_packages() -> None:
    for point in metadata.entry_points(group=GROUP):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
        try:
            with registered_from(origin, _limited), _foreign_code(LOAD_S, "", f"loading {origin}"):
                point.load()
        except (Exception, SystemExit) as error:
            broken[origin] = f"{origin}: {fault_of(error, _file_of(point.module))}"


def _file_of(module: str) -> str:
    """Return the file of a module that cannot be imported; empty if it is unknown."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:
        spec = None
    return (spec.origin if spec else "") or ""


# By real path: the digest of the content of a file when it was last loaded, and its fault.
_loaded: dict[str, tuple[bytes, str]] = {}


def _load_file(file: str) -> str:
    """Load a file unless it is loaded already. Return its fault; empty if there is none."""
    try:
        path = os.path.realpath(os.path.expanduser(file))
        content = _read(path)
    except (BrokenPolicy, ValueError) as error:
        return f"{file}: {error}"
    digest = hashlib.sha256(content).digest()
    if path not in _loaded or _loaded[path][0] != digest:
        forget(file)
        _loaded[path] = digest, _register(file, path, content)
    return _loaded[path][1]


def _read(path: str) -> bytes:
    """Return the content of a regular file of reasonable size."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise BrokenPolicy("is not a file")
        if status.st_size > FILE_BYTES_MAX:
            raise BrokenPolicy(f"has {status.st_size:,} bytes; the limit is {FILE_BYTES_MAX:,}")
        return Path(path).read_bytes()
    except OSError as error:
        raise BrokenPolicy((error.strerror or str(error)).lower()) from None


def _register(file: str, path: str, content: bytes) -> str:
    module = ModuleType(f"gavel_policy_{hashlib.sha256(path.encode()).hexdigest()[:12]}")
    module.__file__ = path
    # Dataclasses look up the module of their class by its name.
    sys.modules[module.__name__] = module
    try:
        with registered_from(file, _limited) as names, _foreign_code(LOAD_S, file, f"loading {file}"):
            # The user has named this file in order to run its code.
            exec(compile(content, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102
        return "" if names else f'{file}: registers no policy; write @policy("name") above a function'
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        return str(error) if isinstance(error, OutOfTime) else fault_of(error, file)


def _limited(entry: Entry) -> Entry:
    """Return the entry with a time limit for each answer of its function."""
    function, file = entry.function, entry.file

    @functools.wraps(function)
    def call(problem: Problem, **parameters: Any) -> Allocation:
        left_s = time_left_s()
        limit_s = LIMIT_FACTOR * max(left_s, 0.0) + LIMIT_EXTRA_S if math.isfinite(left_s) else ANSWER_S
        with _foreign_code(limit_s, file, entry.name):
            return function(problem, **parameters)

    return replace(entry, function=call)


class _TimeIsUp(BaseException):
    """Interrupts foreign code. Its handlers of `Exception` do not catch this."""


@contextmanager
def _foreign_code(limit_s: float, file: str, name: str) -> Iterator[None]:
    """Run this block with its output on standard error; if it takes too long, raise OutOfTime with its line."""
    line = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal line
        while frame is not None and frame.f_code.co_filename != file:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
        raise _TimeIsUp

    try:
        with redirect_stdout(sys.stderr), _alarm(limit_s, interrupt):
            yield
    except _TimeIsUp:
        place = f"; it was at {file}, line {line}" if line else ""
        raise OutOfTime(f"{name} did not end within {limit_s:.3g} s{place}") from None


@contextmanager
def _alarm(limit_s: float, interrupt: Any) -> Iterator[None]:
    """Call `interrupt` when the time is over, and again each AGAIN_S until the block has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        # The alarm may ring here for the last time.
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
