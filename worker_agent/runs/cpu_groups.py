"""Control groups by whose weights the kernel divides a node's CPUs among its runs. The agent finds the way once.

A weight is no limit: a run gets its share when it wants it (cpu_shares.py), and CPUs that are idle go to those that
can use them. With cgroup v1 a run gets a second group, in the hierarchy of the `cpu` controller. With v2 its own group
has the weight; then no process may be in the group that contains those of the runs, so the agent is in another one
below it, `gavel-agent`, with its shims and daemons. Without weights, jobs run all the same.

The kernel does not enforce that rule of v2 for `cpu`: it accepts the controller beside processes, but makes the group
the root of a threaded subtree, and no process can enter the groups below it. So the agent looks for processes first.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from worker_agent.core.messages import Order
from worker_agent.runs.cpu_shares import fair_cpus
from worker_agent.runs.own_groups import AGENT, own_groups
from worker_agent.shim.control_groups import V1_CPU, V2, ControlGroup, write_file

LOG = logging.getLogger(__name__)
# The weight of one CPU in v1, which is also that of a process outside all groups; and the least and the most.
_SHARES_OF_CPU, _SHARES_MIN, _SHARES_MAX = 1024, 2, 262_144
# The weight of all CPUs of a node in v2, the most that is allowed; and that of the agent, its shims and its daemons.
_V2_NODE, _V2_AGENT = 10_000, 1000


class CpuGroups(NamedTuple):
    """How CPUs are divided among runs. `home`: the directory of the groups with weights; empty if there are none."""

    kind: str = ""
    home: str = ""
    # Why CPUs are not divided.
    trouble: str = ""
    # The CPUs and the number of GPUs of the node.
    cpus: float = 0.0
    gpus: int = 0

    @property
    def description(self) -> str:
        """The agent's log line about how jobs share the CPUs."""
        if self.home:
            return f"CPUs are divided among jobs by weights, in {self.home}"
        return f"CPUs are not divided among jobs, so a busy job slows others: {self.trouble} (docs/operations.md)"

    def make_group(self, order: Order, group: str) -> str:
        """Give a run its weight. Return the group that its processes enter besides `group`; empty if there is none."""
        if not self.home:
            return ""
        path = ""
        try:
            if self.kind == V1_CPU:
                path = f"{self.home}/{os.path.basename(group)}"
                os.mkdir(path, 0o755)
            self._write_weight(order, path or group)
        except OSError as error:
            LOG.error(
                "job %(job)s, lease %(lease)s: no weight for CPUs: %(error)s", order.log_fields(error=error)
            )
            if path:
                ControlGroup(path).remove()
            return ""
        return path

    def weigh(self, order: Order, group: str, cpu_group: str) -> None:
        """Give a run the weight that its order has now."""
        path = cpu_group if self.kind == V1_CPU else group
        if self.home and path:
            # A run that has just ended has no group.
            with contextlib.suppress(OSError):
                self._write_weight(order, path)

    def _write_weight(self, order: Order, path: str) -> None:
        cpus = fair_cpus(order, cpus=self.cpus, gpus=self.gpus)
        if self.kind == V1_CPU:
            write_file(
                f"{path}/cpu.shares", str(min(max(round(_SHARES_OF_CPU * cpus), _SHARES_MIN), _SHARES_MAX))
            )
        else:
            write_file(f"{path}/cpu.weight", str(min(max(round(_V2_NODE * cpus / self.cpus), 1), _V2_NODE)))


def find_cpu_groups(
    kind: str,
    home: str,
    *,
    cpus: float,
    gpus: int,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> CpuGroups:
    """Return how CPUs are divided on a node whose runs have control groups of this kind in `home`.

    With v2, this moves the agent into a group of its own if nothing else is in `home`.
    """
    if not home:
        return CpuGroups(trouble="the agent cannot make control groups")
    trouble = "the kernel's cpu controller is neither in the agent's control group nor mounted (cgroup v1)"
    try:
        if kind == V2 and "cpu" in _read(f"{home}/cgroup.controllers").split():
            _enable_weights(home, environ)
            return CpuGroups(V2, home, "", cpus, gpus)
        cpu_home = next((own_home for own, own_home in own_groups(root, "cpu") if own == V1_CPU), "")
        if cpu_home:
            _test_weights(cpu_home)
            return CpuGroups(V1_CPU, cpu_home, "", cpus, gpus)
    except OSError as error:
        trouble = (
            str(error.args[0]) if len(error.args) == 1 else f"{error.filename or home}: {error.strerror}"
        )
    return CpuGroups(trouble=trouble)


def allow_entry(home: str) -> None:
    """Let processes enter the groups below `home` again, if only the `cpu` controller prevents that.

    An earlier release enabled it while the agent was in `home`.
    """
    switch = f"{home}/cgroup.subtree_control"
    # Without cgroup.type, `home` is the root of all groups, which may have processes.
    with contextlib.suppress(OSError):
        if _type_of(home) != "domain threaded" or _read(switch).split() != ["cpu"]:
            return
        if any(_type_of(str(path.parent)) == "threaded" for path in Path(home).glob("*/cgroup.type")):
            # Another program has made these groups for its threads.
            return
        write_file(switch, "-cpu")
        LOG.warning(
            "%(home)s: the cpu controller is disabled, because it kept all processes out of the groups below",
            {"home": home},
        )


def _enable_weights(home: str, environ: Mapping[str, str]) -> None:
    """Let the groups below `home` have weights; raise OSError if that is not possible."""
    switch, is_root = f"{home}/cgroup.subtree_control", not os.path.exists(f"{home}/cgroup.type")
    # Processes of other pid namespaces are listed as 0.
    if not is_root and (pids := _read(f"{home}/cgroup.procs").split()):
        if str(os.getpid()) not in pids:
            raise OSError(
                f"processes of an earlier agent are in {home}: restart the agent when they have ended"
            )
        if "INVOCATION_ID" in environ:
            # systemd starts the next agent in `home`, which fails as long as jobs keep the groups below.
            raise OSError(
                f"the agent's unit needs DelegateSubgroup={AGENT} beside Delegate=yes (systemd 254 or later)"
            )
        _leave(home, switch)
    if "cpu" not in _read(switch).split():
        write_file(switch, "+cpu")
    if not is_root and _type_of(home) != "domain":
        # A process has entered `home` meanwhile.
        write_file(switch, "-cpu")
        raise OSError(f"other processes are in the agent's control group, {home}")
    with contextlib.suppress(OSError):
        write_file(f"{home}/{AGENT}/cpu.weight", str(_V2_AGENT))


def _leave(home: str, switch: str) -> None:
    """Move this process out of `home`, and let the groups below it have weights."""
    own = f"{home}/{AGENT}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(own, 0o755)
    try:
        write_file(f"{own}/cgroup.procs", str(os.getpid()))
        # Beside this populated group, the kernel refuses the controller if a process is left in `home`.
        write_file(switch, "+cpu")
    except OSError as error:
        with contextlib.suppress(OSError):
            write_file(f"{home}/cgroup.procs", str(os.getpid()))
            os.rmdir(own)
        if error.errno == errno.EBUSY:
            raise OSError(f"other processes are in the agent's control group, {home}") from None
        raise


def _type_of(group: str) -> str:
    """Return the type of a group of v2; raise OSError for the root of all groups, which has none."""
    return _read(f"{group}/cgroup.type").strip()


def _test_weights(home: str) -> None:
    """Make a group of v1, give it a weight, and remove it; raise OSError if that fails."""
    path = f"{home}/gavel-probe-{os.getpid()}-{secrets.token_hex(4)}"
    os.mkdir(path, 0o755)
    try:
        write_file(f"{path}/cpu.shares", str(_SHARES_OF_CPU))
    finally:
        os.rmdir(path)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
