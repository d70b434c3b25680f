"""The kernel divides a node's CPUs among runs by the weights of control groups; without weights, jobs run as before."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.worker_agent.live_agents import SLEEP, LiveAgent, job, live, until
from tests.worker_agent.runs.test_containment import MOUNT_V2, OTHER_V1
from tests.worker_agent.shim_runs import gone, python, shim_run
from worker_agent.core.messages import Order
from worker_agent.runs import cpu_groups
from worker_agent.runs.containment import Containment, find_containment
from worker_agent.runs.cpu_groups import CpuGroups, find_cpu_groups
from worker_agent.runs.own_groups import AGENT, own_groups
from worker_agent.shim.control_groups import V1, V2

CONTAINMENT = find_containment()
# The groups of cgroup v1 on this machine, as if it had four GPUs and eight CPUs.
HERE = find_cpu_groups(V1, CONTAINMENT.home, cpus=8.0, gpus=4)
v1_only = pytest.mark.skipif(HERE.kind != V1, reason="no control group of cgroup v1 can have a weight here")
WEIGHED = CONTAINMENT._replace(cpus=HERE)


# -------------------------------------------------------------------------------------- real groups of cgroup v1


@v1_only
@live
async def test_a_run_has_its_share_as_a_weight(tmp_path: Path) -> None:
    """Its ranks are in the group with the weight; a second job on its GPU takes half, and gives it back."""
    async with LiveAgent(tmp_path, containment=WEIGHED) as node:
        order = job("print(open('/proc/self/cgroup').read())\n" + SLEEP)
        node.desire(order)
        await node.runs()
        record = node.agent.processes.custody._records["17"]
        assert os.path.dirname(record.cpu_group) == HERE.home
        await until(lambda: f":{record.cpu_group.removeprefix('/sys/fs/cgroup/cpu')}\n" in node.log())
        assert weight(record.cpu_group) == 2 * 1024
        node.desire(replace(order, packed=True))
        assert weight(record.cpu_group) == 1024
        node.desire(replace(order, packed=False, cpus=6.0))
        assert weight(record.cpu_group) == 6 * 1024
        node.desire()
        await node.exit()
        assert not os.path.exists(record.cpu_group)
        assert not os.path.exists(record.group)


def weight(group: str) -> int:
    """Return the weight of a group of v1."""
    return int(Path(group, "cpu.shares").read_text())


@v1_only
@live
async def test_the_group_of_a_killed_run_is_removed_by_the_next_agent(tmp_path: Path) -> None:
    """Agent and shim are killed; nothing is left, neither of the job nor of its groups."""
    async with LiveAgent(tmp_path, containment=WEIGHED) as node:
        node.desire(job(SLEEP))
        await node.runs()
        shim = node.agent.processes.live["17"].read_own("shim.json")["pid"]
        record = node.agent.processes.custody._records["17"]
    os.kill(shim, signal.SIGKILL)
    await until(lambda: gone(shim))
    assert os.path.isdir(record.cpu_group)
    # The next agent may find no weights; the group is in the record of the run.
    async with LiveAgent(tmp_path, containment=CONTAINMENT) as node:
        assert (await node.exit()).outcome == "node_failed"
        assert not os.path.exists(record.cpu_group)


@live
async def test_a_job_runs_without_its_weight(tmp_path: Path) -> None:
    """A directory in which no group can be made costs a line in the agent's log, and not the job."""
    broken = CpuGroups(V1, str(tmp_path / "missing"), "", 8.0, 4)
    async with LiveAgent(tmp_path, containment=CONTAINMENT._replace(cpus=broken)) as node:
        node.desire(job("print('here')"))
        assert (await node.exit()).outcome == "finished"
        assert node.log() == "here\n"


def test_a_rank_runs_that_may_not_enter_the_group_with_its_weight(tmp_path: Path) -> None:
    """The kernel refuses processes with real-time priority; here every entry is refused."""
    refusing = tmp_path / "group"
    refusing.mkdir()
    (refusing / "cgroup.procs").symlink_to("/dev/full")
    with shim_run(tmp_path / "runs", python("print('here')"), cpu_group=str(refusing)) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "here\n"


# -------------------------------------------------------------------------------------- a kernel with cgroup v2


class Kernel:
    """The files of cgroup v2 in a directory: no process may be in a group whose children have weights."""

    def __init__(self, home: Path, *processes: int, controllers: str = "cpu io memory") -> None:
        self.home, self.procs = home, set(processes)
        home.mkdir(parents=True)
        self._list_processes()
        (home / "cgroup.controllers").write_text(controllers + "\n")
        (home / "cgroup.subtree_control").write_text("\n")

    def write(self, path: str, text: str) -> None:
        """Write to a file as the kernel does; a new group has its files once its parent gives it weights."""
        group, name = os.path.split(path)
        assert os.path.isdir(group)
        if name == "cgroup.procs":
            (self.procs.add if Path(group) == self.home else self.procs.discard)(int(text))
            self._list_processes()
        elif name == "cgroup.subtree_control":
            if self.procs:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            Path(path).write_text(text.removeprefix("+"))
        elif "cpu" in (self.home / "cgroup.subtree_control").read_text():
            assert name == "cpu.weight"
            assert 1 <= int(text) <= 10_000
            Path(path).write_text(text)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _list_processes(self) -> None:
        (self.home / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in self.procs))


def weights_of(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, **environ: str) -> CpuGroups:
    """Return how CPUs are divided below a group of this kernel."""
    monkeypatch.setattr(cpu_groups, "write_file", kernel.write)
    home, root = str(kernel.home), kernel.home.parent
    return find_cpu_groups(V2, home, cpus=24.0, gpus=8, root=root, environ=environ)


def order(gpus: int) -> Order:
    """Return an order for so many GPUs."""
    return Order("17", "12", 1, tuple(range(gpus)), 9.0)


def test_the_agent_leaves_the_group_of_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then the groups in it have weights; agents that come later find it so."""
    kernel = Kernel(tmp_path / "unit", os.getpid())
    weights = weights_of(kernel, monkeypatch)
    assert weights == CpuGroups(V2, str(kernel.home), "", 24.0, 8)
    assert kernel.procs == set()
    assert (kernel.home / AGENT / "cpu.weight").read_text() == "1000"
    for name, gpus in (("whole", 8), ("one", 1)):
        (kernel.home / name).mkdir()
        assert weights.make_group(order(gpus), str(kernel.home / name)) == ""
    assert (kernel.home / "whole" / "cpu.weight").read_text() == "10000"
    assert (kernel.home / "one" / "cpu.weight").read_text() == "1250"
    weights.weigh(replace(order(1), packed=True), str(kernel.home / "one"), "")
    assert (kernel.home / "one" / "cpu.weight").read_text() == "625"
    assert weights_of(kernel, monkeypatch) == weights


@pytest.mark.parametrize(
    ("processes", "environ", "why"),
    [
        ((os.getpid(), 1), {}, "other processes are in the agent's control group, "),
        (
            (os.getpid(),),
            {"INVOCATION_ID": "5f"},
            "the agent's unit needs DelegateSubgroup=gavel-agent beside",
        ),
        ((1,), {"INVOCATION_ID": "5f"}, "processes of an earlier agent are in "),
    ],
)
def test_where_the_agent_cannot_leave_nothing_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: tuple[int, ...],
    environ: dict[str, str],
    why: str,
) -> None:
    """With others in the group nothing would be gained; systemd could not start the next agent beside running jobs."""
    kernel = Kernel(tmp_path / "unit", *processes)
    weights = weights_of(kernel, monkeypatch, **environ)
    assert (weights.home, weights.kind) == ("", "")
    assert weights.trouble.startswith(why)
    assert kernel.procs == set(processes)
    assert not (kernel.home / AGENT).exists()
    assert weights.make_group(order(1), str(kernel.home / "one")) == ""


def test_without_a_controller_or_groups_there_are_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent says why, once."""
    weights = weights_of(Kernel(tmp_path / "unit", controllers="memory"), monkeypatch)
    assert "the kernel's cpu controller is neither in" in weights.description
    weights = find_cpu_groups("subreaper", "", cpus=8.0, gpus=1)
    assert weights.description.startswith(
        "CPUs are not divided among jobs, so a busy job slows others: the agent"
    )
    assert Containment().cpus.make_group(order(1), "") == ""


def test_an_agent_in_its_own_group_makes_groups_beside_it(tmp_path: Path) -> None:
    """The unit has DelegateSubgroup=gavel-agent, or an earlier agent has made that group."""
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text(MOUNT_V2 + OTHER_V1)
    for path in ("/system.slice/gavel-agent.service/gavel-agent", "/system.slice/gavel-agent.service"):
        (proc / "cgroup").write_text(f"0::{path}\n8:pids:/b\n")
        (own,) = own_groups(tmp_path, "cpu")
        assert own == (V2, f"{tmp_path}/sys/fs/cgroup/system.slice/gavel-agent.service")
