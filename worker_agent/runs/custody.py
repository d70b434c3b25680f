"""Records of the processes of runs, kept outside the directories of the runs, because jobs can change those.

Each run has a record in STATE/custody from before its shim starts until the end of the run is certain. Rules:
- a run with a control group is gone when the group is empty;
- without a group, orphans of a killed shim become children of the agent that started the shim; the agent kills them;
- if that agent is gone, too, its orphans become children of another process, its adopter. The run counts as gone only
  when the adopter has no child of unknown origin; such children are suspects, and are not killed;
- after a restart of the machine, no process of an earlier run is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from worker_agent.core.messages import Order
from worker_agent.runs.containment import Containment, adopter_of_orphans
from worker_agent.runs.run import SHIM_WORDS, start_shim
from worker_agent.shim import process_tree
from worker_agent.shim.control_groups import ControlGroup
from worker_agent.shim.process_tree import Process
from worker_agent.shim.run_directory import RunDirectory, directory_name

LOG = logging.getLogger(__name__)
# The programs of MPS daemons, which are children of the agent but belong to no job.
_MPS = "nvidia-cuda-mps"
# Stands for an unknown process.
_UNKNOWN = Process(0, 0)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How to find the processes of a run."""

    order: Order
    boot_id: str
    # The agent that started the shim.
    agent: Process
    # The process that adopts orphans of that agent.
    adopter: Process = _UNKNOWN
    # The time at which the run's first process was started, or earlier; in clock ticks since the boot.
    since_ticks: int = 0
    # The content of /proc/PID/cgroup of the shim, which is the same for its orphans.
    groups: str = ""
    # The run's own control group; empty if there is none.
    group: str = ""
    # Its control group in the hierarchy of CPUs of cgroup v1; empty if there is none.
    cpu_group: str = ""
    # The part of start.json that the removal of its containers needs. None: the record is of an older release.
    removal: dict[str, Any] | None = None

    @property
    def groups_to_enter(self) -> dict[str, str]:
        """The part of start.json about control groups."""
        return {"group": self.group, "cpu_group": self.cpu_group}


class Remaining(msgspec.Struct, frozen=True):
    """The processes that remain of a run."""

    # Whether some were killed but are not gone yet.
    dying: bool = False
    # Processes that may belong to the run.
    suspects: tuple[Process, ...] = ()

    def __bool__(self) -> bool:
        return self.dying or bool(self.suspects)


class Custody:
    """The records of all runs of a node."""

    def __init__(self, state: Path, containment: Containment) -> None:
        self.containment = containment
        self._folder = state / "custody"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._boot_id = process_tree.boot_id()
        self._agent = process_tree.look_up(os.getpid()) or _UNKNOWN
        self._adopter = _UNKNOWN if containment.is_certain else adopter_of_orphans() or _UNKNOWN
        self._records: dict[str, Record] = {}
        # Pids of our shims. A pid stays here while the shim's session exists.
        self._shims: set[int] = set()
        # Held from the start of a shim until its pid is in `_shims`.
        self._start_lock = threading.Lock()
        for path in self._folder.glob("*.json"):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=Record)
            except (OSError, msgspec.MsgspecError) as error:
                LOG.error("%s: ignored, because it cannot be read: %s", path, error)
            else:
                self._records[record.order.lease] = record

    # ------------------------------------------------------------------------------------------------- records

    def add(self, order: Order, removal: dict[str, Any]) -> Record:
        """Record a run whose shim is about to start; raise OSError if the record cannot be written.

        `removal`: as in `Record`.
        """
        if order.lease in self._records:
            # An earlier start of this run was interrupted.
            self.release(order.lease)
        group = self.containment.make_group(order.lease)
        record = Record(
            order=order,
            boot_id=self._boot_id,
            agent=self._agent,
            adopter=self._adopter,
            since_ticks=_ticks_now(),
            groups=_groups_of(os.getpid()),
            group=group,
            cpu_group=self.containment.cpus.make_group(order, group),
            removal=removal,
        )
        try:
            self._write(record)
        except OSError:
            _remove_groups(record)
            raise
        return record

    def add_adopted(self, order: Order, shim: Process | None) -> None:
        """Record the run of an earlier agent if the shim lives and there is no record; raise OSError as `add` does."""
        if shim is not None and order.lease not in self._records:
            record = Record(
                order=order,
                boot_id=self._boot_id,
                agent=_UNKNOWN,
                adopter=process_tree.look_up(process_tree.parent_of(shim.pid)) or _UNKNOWN,
                since_ticks=shim.start_ticks,
                groups=_groups_of(shim.pid),
            )
            self._write(record)

    def start_shim(self, directory: RunDirectory) -> subprocess.Popen[bytes]:
        """Start the shim of a run that has a record."""
        with self._start_lock:
            shim = start_shim(directory)
            self._shims.add(shim.pid)
        return shim

    def add_shims(self, shims: Iterable[Process]) -> None:
        """Never treat these living shims and their children as orphans."""
        self._shims.update(shim.pid for shim in shims)

    def orders(self) -> dict[str, Order]:
        """Return the orders of all runs with a record, by the names of their directories."""
        return {directory_name(lease): record.order for lease, record in self._records.items()}

    def group(self, lease: str) -> ControlGroup | None:
        """Return the control group of a run, if it has one."""
        record = self._records.get(lease)
        return ControlGroup(record.group) if record is not None and record.group else None

    def weigh(self, order: Order, *, packed: bool | None = None) -> None:
        """Give a run the part of the CPUs that its order has now. `packed`: by default, as the order says."""
        if packed is not None:
            order = structs.replace(order, packed=packed)
        if (record := self._records.get(order.lease)) is not None:
            self.containment.cpus.weigh(order, record.group, record.cpu_group)

    def removal(self, lease: str) -> dict[str, Any] | None:
        """Return the part of start.json that the removal of a run's containers needs; None if it is not known."""
        record = self._records.get(lease)
        return None if record is None else record.removal

    def release(self, lease: str) -> None:
        """Drop the record of a run that is gone or was never started."""
        if (record := self._records.pop(lease, None)) is not None:
            _remove_groups(record)
        with contextlib.suppress(OSError):
            self._path(lease).unlink()

    def _write(self, record: Record) -> None:
        path = self._path(record.order.lease)
        aside = path.with_suffix(".new")
        # No flush is needed, because no process survives a power cut.
        aside.write_bytes(msgspec.json.encode(structs.asdict(record) | {"order": record.order.record()}))
        aside.replace(path)
        self._records[record.order.lease] = record

    def _path(self, lease: str) -> Path:
        return self._folder / f"{directory_name(lease)}.json"

    # -------------------------------------------------------------------------------------- remaining processes

    def kill_remaining(self, lease: str) -> Remaining:
        """Kill the known processes of a run whose shim is gone, and return those that remain."""
        record = self._records.get(lease)
        if record is None or record.boot_id != self._boot_id:
            return Remaining()
        if record.group and not ControlGroup(record.group).kill():
            return Remaining(dying=True)
        # As the first process of a container, the agent also adopts orphans that are not ours, so it kills none.
        adopts = self._agent.pid != 1 and process_tree.adopts_orphans()
        if adopts and process_tree.kill_all(self._adopted_orphans):
            return Remaining(dying=True)
        if record.group or (adopts and record.agent == self._agent):
            return Remaining()
        return Remaining(suspects=tuple(self._suspects(record)))

    def _adopted_orphans(self) -> list[Process]:
        """Return the orphans of our shims, with their descendants.

        Shims and their log writers are recognised by their sessions, which no process of a job can join.
        """
        orphans, sessions = [], set()
        with self._start_lock:
            for pid in process_tree.children_of(os.getpid()):
                try:
                    session = os.getsid(pid)
                except ProcessLookupError:
                    continue
                sessions.add(session)
                if session == os.getsid(0) or session in self._shims or _is_mps(pid):
                    continue
                process = process_tree.look_up(pid)
                if process is None:
                    _reap(pid)
                else:
                    orphans += [process, *process_tree.descendants(pid)]
            self._shims &= sessions
        return orphans

    def _suspects(self, record: Record) -> Iterator[Process]:
        """Yield the processes that may be orphans of this run."""
        if record.adopter.pid == 1 and not process_tree.alive(record.adopter):
            # The adopter was the first process of the run's container, so all processes there ended with it.
            return
        parents = (
            {record.adopter.pid} if process_tree.alive(record.adopter) else {1, *_ancestors(os.getpid())}
        )
        own = {os.getpid(), *_ancestors(os.getpid()), *_living_shims()}
        for parent in parents:
            for pid in process_tree.children_of(parent):
                if pid in own or _is_mps(pid):
                    continue
                for process in (process_tree.look_up(pid), *process_tree.descendants(pid, without=own)):
                    if process is not None and _may_be_of(record, process):
                        yield process


def _remove_groups(record: Record) -> None:
    for path in record.groups_to_enter.values():
        if path:
            ControlGroup(path).remove()


def _may_be_of(record: Record, process: Process) -> bool:
    """Return whether a process started no earlier than the run, and is in the control groups of the run's shim."""
    return process.start_ticks >= record.since_ticks and _groups_of(process.pid) == record.groups


def list_processes(processes: tuple[Process, ...]) -> str:
    """Return pids and names of some of these processes, for an operator who may recognise them."""
    names = [f"{pid} ({_read(pid, 'comm').strip() or 'gone'})" for pid, _ in processes[:5]]
    return ", ".join(names) + (f" and {len(processes) - 5} more" if len(processes) > 5 else "")


def _groups_of(pid: int) -> str:
    return _read(pid, "cgroup")


def _read(pid: int, name: str) -> str:
    """Return the content of a file of a process in /proc; empty once the process is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _ticks_now() -> int:
    """Return the time one second ago, to be safe, in the unit of start times in /proc."""
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - 1.0) * os.sysconf("SC_CLK_TCK"))


def _living_shims() -> set[int]:
    """Return the pids of all shims of this user."""
    return {shim.pid for shim in process_tree.session_leaders(*SHIM_WORDS).values()}


def _ancestors(pid: int) -> Iterator[int]:
    while (pid := process_tree.parent_of(pid)) > 0:
        yield pid


def _is_mps(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(_MPS)
    return False


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
