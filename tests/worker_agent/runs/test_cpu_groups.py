"""The kernel divides a node's CPUs among runs by the weights of control groups; without weights, jobs run as before."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.worker_agent.live_agents import SLEEP, LiveAgent, job, live, until
from tests.worker_agent.shim_runs import PATIENCE_S, gone, python, shim_run
from worker_agent.core.messages import Order
from worker_agent.runs import cpu_groups
from worker_agent.runs.containment import Containment, find_containment
from worker_agent.runs.cpu_groups import CpuGroups, find_cpu_groups
from worker_agent.runs.custody import Custody
from worker_agent.runs.prepare import Workshop
from worker_agent.shim.control_groups import V1_CPU

CONTAINMENT = find_containment()
# The groups of cgroup v1 on this machine, as if it had four GPUs and eight CPUs.
HERE = find_cpu_groups("cgroup v1 freezer", CONTAINMENT.home, cpus=8.0, gpus=4)
v1_only = pytest.mark.skipif(
    HERE.kind != V1_CPU, reason="no control group of cgroup v1 can have a weight here"
)
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
        await node.says("here")
        line = next(line for line in node.log().splitlines() if "cpu" in re.split("[:,]", line))
        assert line.endswith(record.cpu_group.removeprefix(HERE.home))
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


@v1_only
@live
async def test_a_run_that_is_packed_while_it_is_prepared_has_half_the_weight(tmp_path: Path) -> None:
    """Its group is made with the weight of its first order, of a whole GPU; it gets the new one when its shim runs."""
    is_preparing, go_on = threading.Event(), threading.Event()
    prepare = Workshop.prepare

    def prepare_slowly(*arguments: Any, **options: Any) -> dict[str, Any]:
        is_preparing.set()
        assert go_on.wait(PATIENCE_S)
        return prepare(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workshop, "prepare", prepare_slowly)
        async with LiveAgent(tmp_path, containment=WEIGHED) as node:
            order = job(SLEEP)
            node.desire(order)
            await until(is_preparing.is_set)
            node.desire(replace(order, packed=True))
            go_on.set()
            await node.runs()
            assert weight(node.agent.processes.custody._records["17"].cpu_group) == 1024
            node.desire()
            await node.exit()


@v1_only
@live
async def test_an_agent_weighs_the_runs_that_it_adopts(tmp_path: Path) -> None:
    """The next agent has twice as many GPUs, and the run shares its GPU: a quarter of the weight is left."""
    async with LiveAgent(tmp_path, containment=WEIGHED) as node:
        order = job(SLEEP)
        node.desire(order)
        await node.runs()
        group = node.agent.processes.custody._records["17"].cpu_group
        assert weight(group) == 2048
        node.desire(replace(order, packed=True))
    async with LiveAgent(tmp_path, containment=CONTAINMENT._replace(cpus=HERE._replace(gpus=8))) as node:
        assert weight(group) == 512
        node.desire()
        await node.exit()


def test_a_job_runs_without_its_weight(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory in which no group can be made costs a line in the agent's log, and not the job."""
    broken = CpuGroups(V1_CPU, str(tmp_path / "missing"), "", 8.0, 4)

    async def story() -> None:
        async with LiveAgent(tmp_path, containment=CONTAINMENT._replace(cpus=broken)) as node:
            node.desire(job("print('here')"))
            assert (await node.exit()).outcome == "finished"
            assert node.log() == "here\n"

    with caplog.at_level(logging.ERROR, logger=cpu_groups.__name__):
        asyncio.run(story())
    (line,) = (record for record in caplog.records if record.name == cpu_groups.__name__)
    assert "job job-17, lease 17: no weight for CPUs: " in line.getMessage()


def test_a_run_without_a_record_leaves_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the record is written: both groups, which nothing else names, are removed."""
    homes = [tmp_path / name for name in ("freezer", "cpu")]
    for home in homes:
        home.mkdir()
    monkeypatch.setattr(cpu_groups, "write_file", lambda path, text: None)
    cpus = CpuGroups(V1_CPU, str(homes[1]), "", 8.0, 4)
    order = Order("17", "12", 1, (0,), 9.0)
    custody = Custody(tmp_path, Containment("cgroup v1 freezer", str(homes[0]), cpus))
    record = custody.add(order, {})
    assert os.path.isdir(record.group)
    assert os.path.isdir(record.cpu_group)
    custody.release("17")
    (tmp_path / "custody").rmdir()
    with pytest.raises(FileNotFoundError):
        custody.add(order, {})
    assert [list(home.iterdir()) for home in homes] == [[], []]


def test_a_rank_runs_without_the_group_with_its_weight(tmp_path: Path) -> None:
    """Another program has removed the empty group before the shim opens it."""
    with shim_run(tmp_path / "runs", python("print('here')"), cpu_group=str(tmp_path / "gone")) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "here\n"


def test_a_rank_runs_that_may_not_enter_the_group_with_its_weight(tmp_path: Path) -> None:
    """The kernel refuses processes with real-time priority; here every entry is refused."""
    refusing = tmp_path / "group"
    refusing.mkdir()
    (refusing / "cgroup.procs").symlink_to("/dev/full")
    with shim_run(tmp_path / "runs", python("print('here')"), cpu_group=str(refusing)) as run:
        assert run.ended()["codes"] == {"0": 0}
        assert run.log() == "here\n"
