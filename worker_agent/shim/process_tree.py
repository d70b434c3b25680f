"""Processes as the kernel reports them: their descent, their start times, and the run for which they were started.

Standard library only, because the shim uses this module, too. Pids are reused, so a `Process` is a pid with its start
time. A process is signalled only through a pidfd, after its start time was compared.
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
# How many times `kill_all` looks for new processes.
_PASSES_MAX = 5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    # In clock ticks since the boot.
    start_ticks: int


class _Stat(NamedTuple):
    parent: int
    start_ticks: int
    dead: bool


def boot_id() -> str:
    """Return the id of this boot of the machine; pids and monotonic times are valid only within a boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def look_up(pid: int) -> Process | None:
    """Return the living process with this pid; None if there is none."""
    stat = _stat(pid)
    return None if stat is None or stat.dead else Process(pid, stat.start_ticks)


def alive(process: Process) -> bool:
    """Return whether this process, not just its pid, is alive."""
    return look_up(process.pid) == process


def descendants(root: int, *, without: Collection[int] = ()) -> list[Process]:
    """Return all living descendants of a process, except those in `without` and their descendants."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    living, parents = [], [root]
    while parents:
        for pid in children.get(parents.pop(), ()):
            if pid not in without:
                parents.append(pid)
                if not stats[pid].dead:
                    living.append(Process(pid, stats[pid].start_ticks))
    return living


def processor_times(roots: Collection[int]) -> dict[int, float]:
    """Return the processor time of the living descendants of each process, and of their children that have ended."""
    ticks: dict[int, tuple[int, int]] = {}
    for pid in _pids():
        fields = _stat_fields(pid)
        if fields is not None:
            ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    times = dict.fromkeys(roots, 0)
    for pid, (_, spent) in ticks.items():
        # Processes are read one after another, so a pid that is used again meanwhile may be its own ancestor.
        ancestor, passed = pid, set[int]()
        while ancestor in ticks and ancestor not in passed:
            passed.add(ancestor)
            ancestor = ticks[ancestor][0]
            if ancestor in times:
                times[ancestor] += spent
                break
    return {pid: spent / _TICKS_PER_S for pid, spent in times.items() if pid in ticks}


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process is gone or its parent cannot be seen."""
    stat = _stat(pid)
    return 0 if stat is None else stat.parent


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, including dead ones that it has not waited for."""
    return [child for child in _pids() if (stat := _stat(child)) is not None and stat.parent == pid]


def started_with(variable: str, value: str) -> list[Process]:
    """Return all living processes that had this environment variable when they were started."""
    entry = f"{variable}={value}".encode()
    processes = []
    for pid in _pids():
        process = look_up(pid)
        if process is not None and pid != os.getpid() and entry in _environ(pid):
            processes.append(process)
    return processes


def session_leaders(*words: str) -> dict[str, Process]:
    """Return the living session leaders of this user with these words in their command lines.

    The key of each is the word that follows these words in its command line.
    """
    sequence = b"\0".join(os.fsencode(word) for word in words) + b"\0"
    leaders = {}
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                before, _, after = file.read(_COMMAND_BYTES_MAX).partition(sequence)
            if not after or os.stat(f"/proc/{pid}").st_uid != os.geteuid() or os.getsid(pid) != pid:
                continue
        except OSError:
            continue
        process = look_up(pid)
        if process is not None and before:
            leaders[os.fsdecode(after.partition(b"\0")[0])] = process
    return leaders


def send(process: Process, signum: int) -> bool:
    """Signal this process; return False if it is gone, or if we may not signal it."""
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
    living = find()
    for _ in range(_PASSES_MAX):
        if killed.issuperset(living):
            break
        for process in living:
            send(process, signal.SIGKILL)
        killed.update(living)
        reap()
        living = find()
    # A dying process can no longer be found by its environment, but may still hold its GPU.
    return [*living, *(process for process in killed.difference(living) if alive(process))]


def children() -> list[int]:
    """Return the pids of this process's children, at a fraction of the cost of `descendants`.

    Correct only in a process with one thread. Empty if the kernel does not report children.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def adopt_orphans() -> None:
    """Make this process the parent of its orphaned descendants from now on."""
    _prctl(_SET_SUBREAPER, 1)


def adopts_orphans() -> bool:
    """Return whether this process becomes the parent of its orphaned descendants."""
    setting = ctypes.c_int(0)
    _libc.prctl(
        _GET_SUBREAPER, ctypes.byref(setting), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )
    return bool(setting.value)


def forbid_new_privileges() -> None:
    """Prevent this process and its descendants from gaining rights through setuid programs and the like."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; kill it now if the parent is already dead."""
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


def _stat_fields(pid: int) -> list[bytes] | None:
    """Return the fields of a process after its name: state, parent, …; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The name, which comes first, may contain spaces and parentheses.
    return text[text.rindex(b")") + 2 :].split()


def _stat(pid: int) -> _Stat | None:
    fields = _stat_fields(pid)
    if fields is None:
        return None
    # A process whose first thread has exited is shown as a zombie, but lives while it has other threads.
    dead = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return _Stat(int(fields[1]), int(fields[19]), dead)


def _environ(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(_ENVIRON_BYTES_MAX).split(b"\0")
    except OSError:
        return []
