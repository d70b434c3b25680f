"""Before GPUs go to the next run, every process of the last one has ended, however it was hidden (P5)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_agent.live_agents import SLEEP, LiveAgent, job, live, until
from tests.worker_agent.shim_runs import ROOT, gone, python, shim_run, wait_for
from worker_agent.runs.containment import Containment, NoControlGroups, find_containment
from worker_agent.shim import process_tree
from worker_agent.shim.control_groups import V1, V2, ControlGroup

BEST = find_containment()
groups_only = pytest.mark.skipif(not BEST.is_certain, reason="no control group can be created here")
CONTAINMENTS = [
    pytest.param(BEST, id="group", marks=groups_only),
    pytest.param(Containment(), id="subreaper"),
]
# Leaves an orphan with a session of its own, a clean environment and no file of the job's, and writes its pid to a
# file.
ORPHAN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({pid!r} + ".new", "w") as file: file.write(str(os.getpid()))
        os.rename({pid!r} + ".new", {pid!r})
        os.chdir("/")
        os.closerange(0, 256)
        os.execve("/bin/sleep", ["sleep", "600"], {{}})
    os._exit(0)
while not os.path.exists({pid!r}): time.sleep(0.01)
{then}
"""
# Prints whether the orphan still runs; a zombie counts as gone.
CHECK_ORPHAN = """
try: state = open("/proc/" + open({pid!r}).read() + "/stat").read().rpartition(")")[2].split()[0]
except OSError: state = "X"
print("gone" if state in "ZX" else "lives")
"""


@pytest.fixture(autouse=True)
def no_orphan_left(nothing_left: None, tmp_path: Path) -> Iterator[None]:
    """After each test, kill the orphans that it left behind."""
    yield
    for path in tmp_path.glob("**/orphan"):
        if (process := process_tree.look_up(int(path.read_text()))) is not None:
            process_tree.send(process, signal.SIGKILL)


def orphan_of(path: Path) -> int:
    """Wait until the orphan runs, and return its pid."""
    wait_for(path.exists)
    pid = int(path.read_text())
    wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return pid


# ---------------------------------------------------------------------------------------------- control groups


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ControlGroup]:
    """A new control group; without permission to create one, the test is skipped."""
    if not BEST.is_certain:
        pytest.skip("no control group can be created here")
    group = ControlGroup(BEST.make_group(tmp_path.name[-40:]))
    yield group
    group.kill()
    group.remove()


def sleeper(group: ControlGroup) -> subprocess.Popen[bytes]:
    """Start a process in the group."""
    script = 'echo 0 > "$1" && exec sleep 600'
    process = subprocess.Popen(["/bin/sh", "-c", script, "sh", f"{group.path}/cgroup.procs"])
    wait_for(lambda: not group.is_empty())
    return process


@pytest.mark.parametrize("has_kill", [True, False])
def test_a_group_is_killed_as_a_whole(
    group: ControlGroup, has_kill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing a group also kills the groups below it, even on kernels without `cgroup.kill`; then it can be removed."""
    if not has_kill:
        from worker_agent.shim import control_groups

        write = control_groups.write_file

        def older(path: str, text: str) -> None:
            if path.endswith("cgroup.kill"):
                raise FileNotFoundError(path)
            write(path, text)

        monkeypatch.setattr(control_groups, "write_file", older)
    below = ControlGroup(f"{group.path}/below")
    os.mkdir(below.path)
    assert group.is_empty()
    with sleeper(group) as first, sleeper(below) as second:
        wait_for(group.kill)
    assert (first.returncode, second.returncode) == (-9, -9)
    wait_for(lambda: group.remove() or not os.path.exists(group.path))
    assert group.is_empty()


MOUNT_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_V1 = "40 32 0:36 {root} /sys/fs/cgroup/freezer rw,nosuid shared:20 - cgroup cgroup rw,freezer\n"
OTHER_V1 = "41 32 0:37 / /sys/fs/cgroup/pids rw,nosuid shared:21 - cgroup cgroup rw,pids\n"


@pytest.mark.parametrize(
    ("mounts", "own", "expected"),
    [
        (MOUNT_V2, "0::/system.slice/gavel-agent.service\n", (V2, "/system.slice/gavel-agent.service")),
        (MOUNT_V1.format(root="/") + OTHER_V1, "7:freezer:/a\n8:pids:/b\n", (V1, "/freezer/a")),
        (MOUNT_V1.format(root="/docker/c1"), "7:freezer:/docker/c1/x\n", (V1, "/freezer/x")),
        (MOUNT_V2 + MOUNT_V1.format(root="/"), "7:freezer:/a\n0::/b\n", (V2, "/b")),
        (MOUNT_V2, "0::/../elsewhere\n", None),
        (OTHER_V1, "8:pids:/b\n", None),
        ("", "", None),
    ],
)
def test_groups_are_created_below_the_agents_own(
    tmp_path: Path, mounts: str, own: str, expected: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """v2 is preferred to v1; without either, an agent that requires groups does not start."""
    monkeypatch.setattr("worker_agent.runs.containment._test_groups", lambda home: None)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounts)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own)
    if expected is None:
        assert find_containment("auto", tmp_path) == Containment()
        with pytest.raises(NoControlGroups):
            find_containment("cgroup", tmp_path)
    else:
        home = f"{tmp_path}/sys/fs/cgroup{expected[1]}"
        assert find_containment("cgroup", tmp_path) == Containment(expected[0], home)
    assert find_containment("subreaper", tmp_path) == Containment()


def test_a_directory_in_which_no_group_can_be_created_is_not_used(tmp_path: Path) -> None:
    """The agent tests a directory by putting a process into a group; that the directory is writable proves little."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(MOUNT_V2)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "sys" / "fs").mkdir(parents=True)
    (tmp_path / "sys" / "fs" / "cgroup").symlink_to("/proc/self")
    assert find_containment("auto", tmp_path) == Containment()


# ------------------------------------------------------------------------------------------------- whole runs


def test_a_shim_ends_with_an_empty_group(group: ControlGroup, tmp_path: Path) -> None:
    """The ranks run in the group, the shim and the log writer outside; at the end the group is empty and removed."""
    code = ORPHAN.format(pid=str(tmp_path / "orphan"), then="print(open('/proc/self/cgroup').read())")
    with shim_run(tmp_path / "runs", python(code), group=group.path) as run:
        exit = run.ended()
        assert exit["codes"] == {"0": 0}
        assert os.path.basename(group.path) in run.log()
        assert gone(int((tmp_path / "orphan").read_text()))
        assert not os.path.exists(group.path)


@pytest.mark.parametrize("containment", CONTAINMENTS)
@pytest.mark.parametrize("forged", [False, True], ids=["", "forged exit"])
def test_an_orphan_does_not_outlive_its_killed_shim(
    tmp_path: Path, containment: Containment, forged: bool
) -> None:
    """The job kills its shim; a job that runs as the agent's user may have forged its exit file before."""
    then = "import json, signal\n"
    if forged:
        then += "with open(os.environ['GAVEL_RUN_DIR'] + '/exit.json', 'w') as file:\n"
        then += "    json.dump({'codes': {'0': 0}}, file)\n"
    then += "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(600)"
    code = ORPHAN.format(pid=str(tmp_path / "orphan"), then=then)
    check = CHECK_ORPHAN.format(pid=str(tmp_path / "orphan"))

    async def story(tmp_path: Path) -> None:
        async with LiveAgent(tmp_path, containment=containment) as node:
            node.desire(job(code))
            assert (await node.exit()).outcome == ("finished" if forged else "node_failed")
            node.desire(job(check, "18"))
            assert (await node.exit("18")).outcome == "finished"
            assert node.log("18") == "gone\n"
            assert node.agent.processes.custody.orders() == {}

    live(story)(tmp_path)


@groups_only
@live
async def test_an_orphan_does_not_outlive_shim_and_agent(tmp_path: Path) -> None:
    """The next agent finds the orphan by its control group, even if the job has removed its run directory."""
    code = ORPHAN.format(pid=str(tmp_path / "orphan"), then="time.sleep(600)")
    async with LiveAgent(tmp_path) as node:
        node.desire(job(code))
        await node.runs()
        orphan = await asyncio.to_thread(orphan_of, tmp_path / "orphan")
        shim = node.agent.processes.live["17"].read_own("shim.json")["pid"]
    os.kill(shim, signal.SIGKILL)
    await until(lambda: gone(shim))
    subprocess.run(["rm", "-r", str(node.agent.processes.path("17"))], check=True)
    async with LiveAgent(tmp_path) as node:
        await until(lambda: not os.listdir(node.state / "custody"))
        assert gone(orphan)


# ------------------------------------------------------------------------------------------ without control groups


@contextlib.contextmanager
def adopted_by_another(tmp_path: Path) -> Iterator[int]:
    """Kill an agent and its shim, and yield the pid of an orphan that another process has adopted."""
    program = [sys.executable, "-m", "tests.worker_agent.runs.test_containment", str(tmp_path)]
    keeper = subprocess.Popen(program, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert keeper.stdout is not None
        agent, shim = map(int, keeper.stdout.readline().split())
        orphan = orphan_of(tmp_path / "orphan")
        for pid in (agent, shim):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: process_tree.parent_of(orphan) == keeper.pid and gone(shim) and gone(agent))
        keeper.stdout.close()
        yield orphan
    finally:
        keeper.kill()
        keeper.wait()


def keep(tmp_path: Path) -> None:
    """Adopt orphans, start an agent with a job that leaves one, and wait to be killed."""
    process_tree.adopt_orphans()
    agent = os.fork()
    if not agent:
        asyncio.run(_run_agent(tmp_path))
    signal.pause()


async def _run_agent(tmp_path: Path) -> None:
    async with LiveAgent(tmp_path, containment=Containment()) as node:
        node.desire(job(ORPHAN.format(pid=str(tmp_path / "orphan"), then=SLEEP)))
        await node.runs()
        print(os.getpid(), node.agent.processes.live["17"].read_own("shim.json")["pid"], flush=True)
        await asyncio.sleep(600)


@pytest.mark.parametrize("resumed", [False, True], ids=["it is ended", "an operator resumes"])
def test_a_gpu_is_withheld_as_long_as_an_orphan_may_be_on_it(tmp_path: Path, resumed: bool) -> None:
    """Without control groups, the next agent reports no exit and kills nothing until the orphan is gone."""

    async def story(orphan: int) -> None:
        other = job("print('here')", "18")
        async with LiveAgent(tmp_path, containment=Containment()) as node:
            assert [held.lease for held in node.link.hellos[0]] == ["17"]
            await until(node.agent.processes.withheld)
            node.desire(other)
            assert str(orphan) in node.agent.processes.withheld()[0]
            assert (node.exits(), node.log("18"), gone(orphan)) == ({}, "", False)
            if resumed:
                node.agent.processes.release_withheld()
            else:
                os.kill(orphan, signal.SIGKILL)
            assert (await node.exit("17")).outcome == "node_failed"
            assert (await node.exit("18")).outcome == "finished"
            assert (node.agent.processes.withheld(), gone(orphan)) == ({}, not resumed)

    with adopted_by_another(tmp_path) as orphan:
        asyncio.run(story(orphan))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
