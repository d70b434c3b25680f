"""Two jobs on the same GPUs: the notes in their logs, and the life of the MPS daemon."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from tests.worker_agent.live_agents import SLEEP, LiveAgent, job, live, until
from tests.worker_agent.node.test_mps import Control
from worker_agent.core.messages import Order
from worker_agent.node.mps import MpsDaemons

pytestmark = pytest.mark.usefixtures("nothing_left")
ECHO = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'no daemon'), flush=True); " + SLEEP
SLICES = "[gavel: another job is on the same GPUs, in time slices: CUDA MPS works only if both jobs start under it]"
MPS = "[gavel: another job is on the same GPUs, side by side through CUDA MPS]"


class Node(LiveAgent):
    """A node with a GPU and an MPS control program that only records its calls."""

    def __init__(self, tmp_path: Path, root: Path, **more: Any) -> None:
        super().__init__(tmp_path, **more)
        self.control = Control()
        facts = msgspec.structs.replace(self.workshop.node, devices=("GPU-1",))
        mps = MpsDaemons(root, "/bin/mps", self.control)
        self.workshop = msgspec.structs.replace(self.workshop, node=facts, mps=mps)
        self.agent.workshop = self.workshop


def packed(order: Order, is_packed: bool = True) -> Order:
    """Return the same order with another job on its GPUs."""
    return msgspec.structs.replace(order, packed=is_packed)


@live
async def test_a_job_that_joins_a_running_one_takes_turns_with_it(tmp_path: Path) -> None:
    """The first job runs without MPS, and this cannot change: both logs note it once, even over an agent's restart."""
    with TemporaryDirectory(dir="/tmp") as root:
        old, new = job(ECHO, "old"), job(ECHO, "new")
        async with Node(tmp_path, Path(root)) as node:
            node.desire(old)
            await node.says("here", "old")
            node.desire(packed(old), packed(new))
            await node.says("here", "new")
            await node.says(SLICES, "old")
            assert node.log("old").splitlines() == ["no daemon", "here", SLICES]
            assert node.log("new").splitlines() == [SLICES, "no daemon", "here"]
            assert node.control.calls == []
        async with Node(tmp_path, Path(root)) as node:
            node.desire(packed(old), packed(new))
            node.desire(packed(old, False))
            await node.exit("new")
            await node.says("no other job is on the same GPUs any more", "old")
            assert node.log("old").count(SLICES) == 1


@live
async def test_jobs_that_start_together_run_under_mps_until_both_have_ended(tmp_path: Path) -> None:
    """The next agent uses the same daemon, which serves the remaining job and a new one and quits after the last."""
    with TemporaryDirectory(dir="/tmp") as root:
        first, second, third = packed(job(ECHO, "one")), packed(job(ECHO, "two")), packed(job(ECHO, "three"))
        async with Node(tmp_path, Path(root)) as node:
            node.desire(first, second)
            for lease in ("one", "two"):
                await node.says("here", lease)
                assert node.log(lease).splitlines()[:2] == [MPS, f"{root}/GPU-1.own"]
            assert node.control.commands() == [("start", f"{root}/GPU-1.own")]
        async with Node(tmp_path, Path(root)) as node:
            node.desire(first, second)
            node.desire(first)
            await node.exit("two")
            node.desire(first, third)
            await node.says("here", "three")
            assert MPS in node.log("three")
            node.desire(first)
            await node.exit("three")
            assert node.control.commands() == []
            node.desire()
            await node.exit("one")
            await until(lambda: node.control.commands() == [("quit", f"{root}/GPU-1.own")])
