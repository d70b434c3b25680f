"""A live agent removes what real jobs have prepared for each other, when all of them are gone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.training.leases import ROOT
from tests.worker_agent.live_agents import SLEEP, LiveAgent, job, live, until
from worker_agent import agent
from worker_agent.node.node_cache import NodeCache

pytestmark = pytest.mark.usefixtures("nothing_left")

# A member of a group of jobs, which prepares a batch and then waits.
MEMBER = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from gavel.training.data.staging import Staging
member = Staging(os.environ["GAVEL_CACHE"] + "/staging/sweep", 600.0)
member.join(100, 0)
member.put(member.claim(), b"batch")
print("here", flush=True)
time.sleep(600)
"""


class Counting(NodeCache):
    """A cache that counts how often the agent has looked for batches to remove."""

    looks = 0

    def remove_staging(self, *arguments: object) -> None:
        """Remove what is left, and count it."""
        super().remove_staging(*arguments)  # type: ignore[arg-type]
        self.looks += 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """A cache at which the agent looks often."""
    monkeypatch.setattr(agent, "CACHE_INTERVAL_S", 0.02)
    return Counting(tmp_path / "cache" / "n1", 2_000_000)


def rings(cache: NodeCache) -> list[Path]:
    """Return the rings of all groups."""
    return list(cache.root.glob("user-*/staging/*/ring-*"))


async def kill(node: LiveAgent, lease: str) -> None:
    """Send SIGKILL to a job, and wait until its exit is reported."""
    os.kill(await node.runs(lease), signal.SIGKILL)
    assert (await node.exit(lease)).outcome == "failed"


async def looked(cache: Counting) -> None:
    """Wait until the agent has begun and ended a look."""
    looks = cache.looks
    await until(lambda: cache.looks >= looks + 2)


@live
async def test_the_batches_of_killed_jobs_go_with_the_last_of_them(tmp_path: Path, cache: Counting) -> None:
    """They stay while a job of the group lives, and no longer, also if another job of the user runs on."""
    async with LiveAgent(tmp_path, cache=cache) as node:
        leases = ("17", "18")
        other = job(SLEEP, "19", gpus=(2,))
        node.desire(*(job(MEMBER, lease, gpus=(i,)) for i, lease in enumerate(leases)), other)
        for lease in (*leases, "19"):
            await node.says("here", lease)
        (ring,) = rings(cache)
        await kill(node, "17")
        await looked(cache)
        assert rings(cache) == [ring]
        assert sorted(path.name for path in ring.glob("*.batch")) == ["0.batch", "1.batch"]
        await kill(node, "18")
        await until(lambda: not rings(cache))
        assert "19" in node.agent.processes.live


@live
async def test_nothing_is_left_of_a_user_without_jobs(tmp_path: Path, cache: Counting) -> None:
    """When the only jobs of a user are killed, the directory for batches is empty."""
    async with LiveAgent(tmp_path, cache=cache) as node:
        node.desire(job(MEMBER))
        await node.says("here")
        (ring,) = rings(cache)
        assert [path.name for path in ring.glob("*.batch")] == ["0.batch"]
        await kill(node, "17")
        staging = ring.parent.parent
        await until(lambda: not list(staging.iterdir()))
