"""Processes as the kernel reports them: their descent, their start times, and the run for which they were started.

Standard library only: the shim uses it too. A pid alone means nothing, since pids are reused; a `Process` is a pid with
its start time, and is signalled only through a pidfd after that time was compared.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_GET_SUBREAPER = 37
_SET_NO_NEW_PRIVS = 38
_ENVIRON_BYTES_MAX = 4 << 20
_COMMAND_BYTES_MAX = 1 << 16
_PASSES_MAX = 5


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start_ticks: int


class _Stat(NamedTuple):
    parent: int
    start_ticks: int
    dead: bool


def boot_id() -> str:
    """Return the id of this boot of the machine: pids and monotonic times of another boot mean nothing."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def look_up(pid: int) -> Process | None:
    """Return the living process with this pid."""
    stat = _stat(pid)
    return None if stat is None or stat.dead else Process(pid, stat.start_ticks)


def alive(process: Process) -> bool:
    """Return whether exactly this process lives."""
    return look_up(process.pid) == process


def descendants(root: int, *, without: Collection[int] = ()) -> list[Process]:
    """Return all living descendants of a process, except those in `without` and their descendants."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    below, todo = [], [root]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in without:
                todo.append(pid)
                if not stats[pid].dead:
                    below.append(Process(pid, stats[pid].start_ticks))
    return below


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if none can be seen."""
    stat = _stat(pid)
    return 0 if stat is None else stat.parent


def children_of(pid: int) -> list[int]:
    """Return the children of a process, including dead ones that it has not waited for."""
    return [child for child in _pids() if (stat := _stat(child)) is not None and stat.parent == pid]


def started_with(variable: str, value: str) -> list[Process]:
    """Return all living processes that had this environment variable when they were started."""
    wanted = f"{variable}={value}".encode()
    processes = []
    for pid in _pids():
        process = look_up(pid)
        if process is not None and pid != os.getpid() and wanted in _environ(pid):
            processes.append(process)
    return processes


def session_leaders(*words: str) -> dict[str, Process]:
    """Return living session leaders of our own user whose command line has these words and one more, by that word."""
    wanted = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    leaders = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                before, _, after = file.read(_COMMAND_BYTES_MAX).partition(wanted)
            if not after or os.stat(f"/proc/{pid}").st_uid != os.geteuid() or os.getsid(pid) != pid:
                continue
        except OSError:
            continue
        process = look_up(pid)
        if process is not None and before:
            leaders[os.fsdecode(after.partition(b"\0")[0])] = process
    return leaders


def send(process: Process, signum: int) -> bool:
    """Signal exactly this process; return False if it is gone, or if we may not signal it."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def kill_all(find: Callable[[], list[Process]], reap: Callable[[], object] = lambda: None) -> list[Process]:
    """Kill the processes that `find` returns, repeating while there are new ones; return those that remain.

    One pass is not enough: a process that forks between being listed and being killed leaves a child behind.
    """
    killed: set[Process] = set()
    left = find()
    for _ in range(_PASSES_MAX):
        if killed.issuperset(left):
            break
        for process in left:
            send(process, signal.SIGKILL)
        killed.update(left)
        reap()
        left = find()
    # A dying process can no longer be found by its environment, but may still hold its GPU.
    return [*left, *(process for process in killed.difference(left) if alive(process))]


def children() -> list[int]:
    """Return the children of this process, if it has one thread, at a fraction of the cost of `descendants`.

    Empty if the kernel does not report them.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make orphaned descendants of this process its children from now on."""
    _prctl(_SET_SUBREAPER, 1)


def adopts_orphans() -> bool:
    """Return whether orphaned descendants of this process become its children."""
    answer = ctypes.c_int(0)
    _libc.prctl(_GET_SUBREAPER, ctypes.byref(answer), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    return bool(answer.value)


def forbid_new_privileges() -> None:
    """Prevent this process and its descendants from gaining rights by the file of a program from now on."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the parent dies; at once if it is dead already."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name, which comes first, may contain spaces and parentheses.
    fields = text[text.rindex(b")") + 2 :].split()
    # A leader that has exited while its threads continue is also shown as a zombie.
    dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return _Stat(int(fields[1]), int(fields[19]), dead)


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(_ENVIRON_BYTES_MAX).split(b"\0")
    except OSError:
        return []
