"""Two jobs on the same GPUs, one of which came later: who is told what, and what becomes of the MPS daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from tests.worker_agent.live_agents import SLEEP, LiveAgent, end_all, job, live, until
from tests.worker_agent.node.test_mps import Control
from worker_agent.core.messages import Order
from worker_agent.node.mps import MpsDaemons

ECHO = "import os; print(os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'no daemon'), flush=True); " + SLEEP
SLICES = (
    "[gavel: another job is on the same GPUs, in time slices: CUDA MPS is for jobs that both start under it]"
)
MPS = "[gavel: another job is on the same GPUs, side by side through CUDA MPS]"


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever happens, no process of a test outlives it."""
    yield
    end_all(tmp_path)


class Node(LiveAgent):
    """A node with a GPU and an MPS control program that only remembers."""

    def __init__(self, tmp_path: Path, root: Path, **more: Any) -> None:
        super().__init__(tmp_path, **more)
        self.control = Control()
        facts = msgspec.structs.replace(self.workshop.node, devices=("GPU-1",))
        mps = MpsDaemons(root, "/bin/mps", self.control)
        self.workshop = msgspec.structs.replace(self.workshop, node=facts, mps=mps)
        self.agent.workshop = self.workshop


def packed(order: Order, is_packed: bool = True) -> Order:
    """The same order, with another job beside it."""
    return msgspec.structs.replace(order, packed=is_packed)


@live
async def test_who_joins_a_running_job_takes_turns_with_it(tmp_path: Path) -> None:
    """It runs without MPS and cannot change that: both logs say so, once, also over a restart of the agent."""
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
async def test_who_starts_together_runs_under_mps_until_both_have_ended(tmp_path: Path) -> None:
    """The next agent knows it: its daemon serves who stays and who comes, and quits with the last of them."""
    with TemporaryDirectory(dir="/tmp") as root:
        one, two, three = packed(job(ECHO, "one")), packed(job(ECHO, "two")), packed(job(ECHO, "three"))
        async with Node(tmp_path, Path(root)) as node:
            node.desire(one, two)
            for lease in ("one", "two"):
                await node.says("here", lease)
                assert node.log(lease).splitlines()[:2] == [MPS, f"{root}/GPU-1.own"]
            assert node.control.said() == [("start", f"{root}/GPU-1.own")]
        async with Node(tmp_path, Path(root)) as node:
            node.desire(one, two)
            node.desire(one)
            await node.exit("two")
            node.desire(one, three)
            await node.says("here", "three")
            assert MPS in node.log("three")
            node.desire(one)
            await node.exit("three")
            assert node.control.said() == []
            node.desire()
            await node.exit("one")
            await until(lambda: node.control.said() == [("quit", f"{root}/GPU-1.own")])
