"""With cgroup v2 the groups of runs have weights only if no process is in the group above, and none is ever shut out.

The tests run on files that behave like those of Linux 6.1.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.worker_agent.runs.test_containment import MOUNT_V2, OTHER_V1
from worker_agent.core.messages import Order
from worker_agent.runs import containment, cpu_groups
from worker_agent.runs.containment import Containment, find_containment
from worker_agent.runs.cpu_groups import CpuGroups, find_cpu_groups
from worker_agent.runs.own_groups import AGENT, own_groups
from worker_agent.shim.control_groups import V2


class Kernel:
    """The files of cgroup v2 in a directory, by the rules of Linux 6.1 for the `cpu` controller.

    It can be enabled beside processes unless a group below has processes. But then no process can enter those groups.
    """

    def __init__(self, home: Path, *processes: int, controllers: str = "cpu io memory") -> None:
        self.home, self.procs = home, set(processes)
        # The processes in each group below.
        self.below: dict[str, set[int]] = {}
        home.mkdir(parents=True)
        (home / "cgroup.controllers").write_text(controllers + "\n")
        (home / "cgroup.subtree_control").write_text("\n")
        self._write_state()

    @property
    def has_weights(self) -> bool:
        """Whether the groups below have weights."""
        return "cpu" in (self.home / "cgroup.subtree_control").read_text()

    @property
    def type(self) -> str:
        """The type of the group."""
        return (self.home / "cgroup.type").read_text().strip()

    def write(self, path: str, text: str) -> None:
        """Write to a file as the kernel does; a new group has its files once its parent gives it weights."""
        group, name = os.path.split(path)
        if not os.path.isdir(group):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        has_processes_below = any(self.below.values())
        if name == "cgroup.procs":
            is_home = Path(group) == self.home
            if is_home and self.has_weights and has_processes_below:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            if not is_home and self.type != "domain":
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            for pids in (self.procs, *self.below.values()):
                pids.discard(int(text))
            (self.procs if is_home else self.below.setdefault(group, set())).add(int(text))
        elif name == "cgroup.subtree_control":
            if text == "+cpu" and self.procs and has_processes_below:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            Path(path).write_text({"+cpu": "cpu\n", "-cpu": "\n"}[text])
        elif self.has_weights:
            assert name == "cpu.weight"
            assert 1 <= int(text) <= 10_000
            Path(path).write_text(text)
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._write_state()

    def _write_state(self) -> None:
        (self.home / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in self.procs))
        is_threaded = self.procs and self.has_weights
        (self.home / "cgroup.type").write_text("domain threaded\n" if is_threaded else "domain\n")


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
    assert (kernel.procs, kernel.below) == (set(), {str(kernel.home / AGENT): {os.getpid()}})
    assert (kernel.home / AGENT / "cpu.weight").read_text() == "1000"
    for name, gpus in (("whole", 8), ("one", 1)):
        (kernel.home / name).mkdir()
        assert weights.make_group(order(gpus), str(kernel.home / name)) == ""
        kernel.write(str(kernel.home / name / "cgroup.procs"), str(gpus))
    assert (kernel.home / "whole" / "cpu.weight").read_text() == "10000"
    assert (kernel.home / "one" / "cpu.weight").read_text() == "1250"
    weights.weigh(replace(order(1), packed=True), str(kernel.home / "one"), "")
    assert (kernel.home / "one" / "cpu.weight").read_text() == "625"
    assert weights_of(kernel, monkeypatch) == weights


@pytest.mark.parametrize("has_weights", [False, True], ids=["at first", "as an earlier release has left it"])
@pytest.mark.parametrize(
    ("processes", "environ", "why"),
    [
        ((os.getpid(), 1), {}, "other processes are in the agent's control group, "),
        ((os.getpid(), 0), {}, "other processes are in the agent's control group, "),
        (
            (os.getpid(),),
            {"INVOCATION_ID": "5f"},
            "the agent's unit needs DelegateSubgroup=gavel-agent beside",
        ),
        ((1,), {"INVOCATION_ID": "5f"}, "processes of an earlier agent are in "),
        ((0,), {}, "processes of an earlier agent are in "),
    ],
)
def test_where_the_agent_cannot_leave_processes_can_enter_groups(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: tuple[int, ...],
    environ: dict[str, str],
    why: str,
    has_weights: bool,
) -> None:
    """With others in the group nothing would be gained; systemd could not start the next agent beside running jobs."""
    kernel = Kernel(tmp_path / "unit", *processes)
    if has_weights:
        kernel.write(str(kernel.home / "cgroup.subtree_control"), "+cpu")
        assert kernel.type == "domain threaded"
    monkeypatch.setattr(cpu_groups, "write_file", kernel.write)
    cpu_groups.allow_entry(str(kernel.home))
    weights = weights_of(kernel, monkeypatch, **environ)
    assert (weights.home, weights.kind) == ("", "")
    assert weights.trouble.startswith(why)
    assert (kernel.procs, kernel.has_weights) == (set(processes), False)
    assert not (kernel.home / AGENT).exists()
    (kernel.home / "one").mkdir()
    assert weights.make_group(order(1), str(kernel.home / "one")) == ""
    kernel.write(str(kernel.home / "one" / "cgroup.procs"), "77")
    assert kernel.below[str(kernel.home / "one")] == {77}


def test_a_process_that_comes_late_takes_the_weights_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It enters the group after the agent has seen it empty; runs can enter their groups all the same."""
    kernel = Kernel(tmp_path / "unit")
    write = kernel.write

    def write_late(path: str, text: str) -> None:
        if text == "+cpu":
            write(str(kernel.home / "cgroup.procs"), "1")
        write(path, text)

    monkeypatch.setattr(kernel, "write", write_late)
    assert weights_of(kernel, monkeypatch).trouble.startswith("other processes are in ")
    assert (kernel.type, kernel.has_weights) == ("domain", False)


def test_another_fault_than_other_processes_is_reported_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may not write to the switch of its group: it stays there, and its log names the group and the error."""
    kernel = Kernel(tmp_path / "unit", os.getpid())
    write = kernel.write

    def write_partly(path: str, text: str) -> None:
        if text == "+cpu":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        write(path, text)

    monkeypatch.setattr(kernel, "write", write_partly)
    assert weights_of(kernel, monkeypatch).trouble == f"{kernel.home}: Permission denied"
    assert kernel.procs == {os.getpid()}


def test_the_root_of_all_groups_may_have_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no type; the agent stays in it, and the groups below have weights."""
    kernel = Kernel(tmp_path / "cgroup", os.getpid(), 1)
    monkeypatch.setattr(kernel, "_write_state", lambda: None)
    (kernel.home / "cgroup.type").unlink()
    cpu_groups.allow_entry(str(kernel.home))
    assert weights_of(kernel, monkeypatch).home == str(kernel.home)
    assert (kernel.procs, kernel.has_weights) == ({os.getpid(), 1}, True)


def test_a_group_is_mended_before_it_is_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that enabled weights beside its own process has left groups that no process can enter."""
    kernel = Kernel(tmp_path / "sys" / "fs" / "cgroup" / "unit", os.getpid())
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text(MOUNT_V2)
    (proc / "cgroup").write_text("0::/unit\n")
    kernel.write(str(kernel.home / "cgroup.subtree_control"), "+cpu")
    (kernel.home / "probe").mkdir()
    monkeypatch.setattr(cpu_groups, "write_file", kernel.write)
    monkeypatch.setattr(
        containment, "_test_groups", lambda home: kernel.write(f"{home}/probe/cgroup.procs", "77")
    )
    assert find_containment("cgroup", tmp_path) == Containment(V2, str(kernel.home))


def test_groups_for_the_threads_of_another_program_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their weights, which a new start of the controller would reset, are not the agent's to change."""
    kernel = Kernel(tmp_path / "unit", 1)
    kernel.write(str(kernel.home / "cgroup.subtree_control"), "+cpu")
    (kernel.home / "threads").mkdir()
    (kernel.home / "threads" / "cgroup.type").write_text("threaded\n")
    monkeypatch.setattr(cpu_groups, "write_file", kernel.write)
    cpu_groups.allow_entry(str(kernel.home))
    assert kernel.has_weights


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
    unit = tmp_path / "sys/fs/cgroup/system.slice/gavel-agent.service"
    unit.mkdir(parents=True)
    for path in ("/system.slice/gavel-agent.service/gavel-agent", "/system.slice/gavel-agent.service"):
        assert own_group_of(tmp_path, path) == (V2, str(unit))


def test_an_agent_stays_below_a_group_that_it_may_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has chosen the name for a group whose parent has other owners, or the container begins there."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert own_group_of(tmp_path, "/limited/gavel-agent") == (
        V2,
        f"{tmp_path}/sys/fs/cgroup/limited/gavel-agent",
    )
    monkeypatch.undo()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    mount = MOUNT_V2.replace(" / ", " /docker/gavel-agent ")
    assert own_group_of(tmp_path, "/docker/gavel-agent", mount) == (V2, f"{tmp_path}/sys/fs/cgroup")


def own_group_of(root: Path, path: str, mount: str = MOUNT_V2) -> tuple[str, str]:
    """Return where an agent in this group of v2 makes groups."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True, exist_ok=True)
    (proc / "mountinfo").write_text(mount + OTHER_V1)
    (proc / "cgroup").write_text(f"0::{path}\n8:pids:/b\n")
    (own,) = own_groups(root, "cpu")
    return own
