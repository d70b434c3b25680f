"""One part of a gang over nodes: what can fail is done before it is ready, and no rank runs before the go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker_agent.live_agents import PATIENT, LiveAgent, end_all, job, live, until
from worker_agent.core.messages import Order
from worker_agent.runs.rendezvous import Rendezvous


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever happens, no process of a test outlives it."""
    yield
    end_all(tmp_path)


MEETING = Rendezvous("10.0.0.1", 4000, 4001)
SETUP = "echo here; until [ -e {go} ]; do sleep 0.02; done"


def part(tmp_path: Path, rank: int = 0, **more: Any) -> Order:
    """One of two parts of a gang, whose command leaves a trace."""
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK")
    code = f"import os; print(*(os.environ[name] for name in {names})); open('{tmp_path}/ran', 'w')"
    return job(code, nodes=2, node_rank=rank, rank_first=rank, world_size=2, **more)


@live
async def test_a_gang_starts_when_all_are_ready(tmp_path: Path) -> None:
    """The first node offers two ports, and nothing of the job's own runs before the scheduler says go."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        await until(lambda: node.link.are_ready)
        ((lease, ports),) = node.link.are_ready
        assert (node.link.begun, lease, len(set(ports))) == (["17"], "17", 2)
        assert (node.started(), (tmp_path / "ran").exists()) == (set(), False)
        node.agent.go("17", MEETING)
        node.agent.go("17", Rendezvous("elsewhere", 1, 2))  # said again: nothing changes
        assert (await node.exit()).outcome == "finished"
        assert node.log() == "10.0.0.1 4000 0\n"
        assert node.started() == {"17"}


@live
async def test_a_part_is_ready_when_its_setup_is_done(tmp_path: Path) -> None:
    """However long it takes; the other nodes hear before that it is being prepared."""
    go = tmp_path / "go"
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path, 0, launch={"setup": SETUP.format(go=go)}))
        await node.says("here")
        assert (node.link.begun, node.link.are_ready) == (["17"], [])
        go.touch()
        await until(lambda: node.link.are_ready)
        node.agent.go("17", MEETING)
        assert (await node.exit()).outcome == "finished"


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        ({"setup": "exit 7"}, "setup ended with exit code 7: nothing was started"),
        ({"env_from": {"TOKEN": "secret:token"}}, "env_from.TOKEN: secret:token cannot be read on this node"),
        ({"venv": "/no/such"}, "virtual environment /no/such: there is no /no/such/bin on this node"),
        ({"venv": "relative"}, "launch.venv: 'relative' is not an absolute path"),
        (
            {"command": ["no-such-command"]},
            "cannot run no-such-command: No such file or directory (looked for in PATH)",
        ),
        ({"command": ["/etc/passwd"]}, "cannot run /etc/passwd: Permission denied"),
        ({"workdir": "/no/such"}, "working directory /no/such: No such file or directory"),
        ({"checkpoint_dir": "/proc/x"}, "checkpoint directory /proc/x: No such file or directory"),
    ],
)
def test_whatever_cannot_start_says_so_before_its_gang_goes(
    tmp_path: Path, launch: dict[str, Any], why: str
) -> None:
    """The other nodes hear why, instead of a part that is ready; and it is the job's failure."""

    async def story() -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(part(tmp_path, launch=launch))
            assert (await node.exit()).outcome == "failed"
            assert node.link.are_ready == []
            assert [text.startswith(why) for text in node.link.cannot] == [True], node.link.cannot
            assert why in node.log()

    asyncio.run(story())


@live
async def test_a_gang_starts_nowhere_when_one_node_cannot(tmp_path: Path) -> None:
    """This part has not failed, and its log says why it was not started."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path, 1))
        await until(lambda: node.link.are_ready)
        assert node.link.are_ready == [("17", ())]  # only the first node has ports
        node.agent.nobody_starts("17", "n1: setup ended with exit code 7")
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("node_failed", 0.0)
        assert node.log(rank=1) == "[gavel: nothing was started: n1: setup ended with exit code 7]\n"
        assert (node.started(), (tmp_path / "ran").exists()) == (set(), False)


@live
async def test_a_setup_that_is_in_vain_is_ended(tmp_path: Path) -> None:
    """Nobody waits for it, and the other nodes know already."""
    async with LiveAgent(tmp_path, limits=PATIENT) as node:
        node.desire(part(tmp_path, launch={"setup": "echo here; exec sleep 600"}))
        await node.says("here")
        node.agent.nobody_starts("17", "n2: no such user")
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s, node.started()) == ("node_failed", 0.0, set())
        assert "[gavel: SIGTERM: the lease is over (n2: no such user)]" in node.log()
        assert not (tmp_path / "ran").exists()


@live
async def test_a_part_that_waits_survives_its_agent(tmp_path: Path) -> None:
    """The next agent says again that it is ready; one that was told to go says the same ports as before."""
    async with LiveAgent(tmp_path) as first:
        first.desire(part(tmp_path))
        await until(lambda: first.link.are_ready)
    async with LiveAgent(tmp_path) as second:
        await until(lambda: second.link.are_ready)
        ((held,),) = second.link.hellos
        assert (held.lease, held.ran_s, second.started()) == ("17", 0.0, set()), "nothing of it runs"
        second.agent.go("17", MEETING)
        assert second.agent.processes.ports("17") == (4000, 4001)
        await until((tmp_path / "ran").exists)
        await until(second.started)


@live
async def test_a_part_that_did_not_wait_is_not_waited_for(tmp_path: Path) -> None:
    """Ranks that an agent of before started at once: the next one tells no other node that they cannot start."""
    async with LiveAgent(tmp_path) as first:
        first.desire(part(tmp_path, launch={"setup": SETUP.format(go=tmp_path / "go")}))
        await first.says("here")
        (file,) = tmp_path.glob("**/start.json")
        start = json.loads(file.read_text())
        del start["gathers"]
        file.write_text(json.dumps(start))
    async with LiveAgent(tmp_path) as second:
        second.agent.processes.kill("17")
        await second.exit()
        assert second.link.cannot == []


@live
async def test_a_gang_that_is_recalled_while_it_waits(tmp_path: Path) -> None:
    """Has yielded, at once, and a go that comes too late starts nothing."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        await until(lambda: node.link.are_ready)
        node.desire()
        node.agent.go("17", MEETING)
        assert (await node.exit()).outcome == "yielded"
        assert "nothing was started: the scheduler wants the GPUs back" in node.log()
        assert not (tmp_path / "ran").exists()


@live
async def test_a_gang_that_is_recalled_while_its_package_is_fetched(tmp_path: Path) -> None:
    """Has yielded, and its other nodes are told that it will not come."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("yielded", 0.0)
        assert node.link.cannot == ["its lease was recalled"]
