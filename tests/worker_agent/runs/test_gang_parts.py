"""One part of a gang over nodes: every step that can fail precedes its readiness, and no rank runs before the go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.wording import Wording
from tests.worker_agent.live_agents import PATIENT, LiveAgent, job, live, until
from worker_agent.core.messages import Order
from worker_agent.node.node_cache import NodeCache
from worker_agent.runs.rendezvous import Rendezvous

pytestmark = pytest.mark.usefixtures("nothing_left")

MEETING = Rendezvous("127.0.0.1", 4000, 4001)
SETUP = "echo here; until [ -e {go} ]; do sleep 0.02; done"


def part(tmp_path: Path, rank: int = 0, **more: Any) -> Order:
    """Return an order for one of two parts of a gang, whose command creates a file."""
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK")
    code = f"import os; print(*(os.environ[name] for name in {names})); open('{tmp_path}/ran', 'w')"
    return job(code, nodes=2, node_rank=rank, rank_first=rank, world_size=2, **more)


@live
async def test_a_gang_starts_when_all_are_ready(tmp_path: Path) -> None:
    """The first node offers two ports, and nothing of the job's own runs before the scheduler's go."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        await until(lambda: node.link.are_ready)
        ((lease, ports),) = node.link.are_ready
        assert (node.link.begun, lease, len(set(ports))) == (["17"], "17", 2)
        assert (node.started(), (tmp_path / "ran").exists()) == (set(), False)
        node.agent.go("17", MEETING)
        # A second go changes nothing.
        node.agent.go("17", Rendezvous("elsewhere", 1, 2))
        assert (await node.exit()).outcome == "finished"
        assert node.log() == "127.0.0.1 4000 0\n"
        assert node.started() == {"17"}


@live
@pytest.mark.parametrize("rank", [0, 1])
async def test_a_node_with_a_cache_offers_a_port_for_it(tmp_path: Path, rank: int) -> None:
    """The port is none of those at which ranks meet. Only the first node makes a secret. Without a cache: no port."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path, rank))
        await until(lambda: node.link.are_ready)
        (offer,) = node.link.caches
        assert (offer.port, len(offer.secret)) == (0, 0 if rank else 32)
    async with LiveAgent(tmp_path, cache=NodeCache(tmp_path / "cache" / "n1", 1 << 20)) as node:
        await until(lambda: node.link.are_ready)
        (offer,) = node.link.caches
        ((_, ports),) = node.link.are_ready
        assert (offer.port > 0, offer.port in ports, len(ports)) == (True, False, 0 if rank else 2)
        node.desire()
        await node.exit()


@live
async def test_a_part_that_cannot_reach_the_meeting_fails_with_the_address(
    tmp_path: Path, wording: Wording
) -> None:
    """Its ranks would wait for the others in silence, so none is started."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path, 1))
        await until(lambda: node.link.are_ready)
        # No connection to a broadcast address is possible.
        node.agent.go("17", Rendezvous("255.255.255.255", 4000, 4001))
        exit = await node.exit()
        assert (exit.outcome, (tmp_path / "ran").exists()) == ("failed", False)
        assert "255.255.255.255 at port 4001" in node.log(rank=1)
        wording(node.log(rank=1))


@live
async def test_a_part_is_ready_when_its_setup_is_done(tmp_path: Path) -> None:
    """The setup may take any time; the other nodes are notified before that the part is being prepared."""
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
    ("launch", "culprit"),
    [
        ({"setup": "exit 7"}, "exit code 7"),
        ({"env_from": {"TOKEN": "secret:token"}}, "env_from.TOKEN"),
        ({"venv": "/no/such"}, "/no/such/bin"),
        ({"venv": "relative"}, "launch.venv: 'relative'"),
        ({"command": ["no-such-command"]}, "no-such-command"),
        ({"command": ["/etc/passwd"]}, "/etc/passwd: Permission denied"),
        ({"workdir": "/no/such"}, "/no/such"),
        ({"checkpoint_dir": "/proc/x"}, "/proc/x"),
    ],
    ids=["setup", "env_from", "venv", "relative venv", "command", "no program", "workdir", "checkpoint_dir"],
)
def test_a_part_that_cannot_start_reports_it_before_its_gang_goes(
    tmp_path: Path, launch: dict[str, Any], culprit: str, wording: Wording
) -> None:
    """The other nodes get the reason, instead of a part that is ready; and the failure is the job's."""

    async def story() -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(part(tmp_path, launch=launch))
            assert (await node.exit()).outcome == "failed"
            assert node.link.are_ready == []
            (why,) = node.link.cannot
            assert culprit in why
            assert why.splitlines()[0] in node.log()
            wording(why, folder=tmp_path)

    asyncio.run(story())


@live
async def test_a_gang_starts_nowhere_when_one_node_cannot(tmp_path: Path, wording: Wording) -> None:
    """A part that was not started has not failed, and its log has the reason."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path, 1))
        await until(lambda: node.link.are_ready)
        # Only the first node has ports.
        assert node.link.are_ready == [("17", ())]
        node.agent.call_off("17", "n1: setup ended with exit code 7")
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("node_failed", 0.0)
        assert "n1: setup ended with exit code 7]" in node.log(rank=1)
        wording(node.log(rank=1))
        assert (node.started(), (tmp_path / "ran").exists()) == (set(), False)


@live
async def test_a_setup_whose_gang_has_failed_is_ended(tmp_path: Path, wording: Wording) -> None:
    """The agent ends the setup, as the other nodes have failed already."""
    async with LiveAgent(tmp_path, limits=PATIENT) as node:
        node.desire(part(tmp_path, launch={"setup": "echo here; exec sleep 600"}))
        await node.says("here")
        node.agent.call_off("17", "n2: no such user")
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s, node.started()) == ("node_failed", 0.0, set())
        line = next(line for line in node.log().splitlines() if "SIGTERM" in line)
        assert "(n2: no such user)" in line
        wording(line)
        assert not (tmp_path / "ran").exists()


@live
async def test_a_part_that_waits_survives_its_agent(tmp_path: Path) -> None:
    """The next agent reports again that the part is ready; a part that got its go is reported with the same ports."""
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
async def test_a_part_of_an_older_agent_is_not_waited_for(tmp_path: Path) -> None:
    """The ranks of an older agent's part run already, so the next agent does not report that they cannot start."""
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
async def test_a_gang_that_is_recalled_while_it_waits_yields(tmp_path: Path, wording: Wording) -> None:
    """The part yields at once, and a go that comes too late starts nothing."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        await until(lambda: node.link.are_ready)
        node.desire()
        node.agent.go("17", MEETING)
        assert (await node.exit()).outcome == "yielded"
        wording(node.log())
        assert not (tmp_path / "ran").exists()


@live
async def test_a_gang_that_is_recalled_while_its_package_is_fetched_yields(
    tmp_path: Path, wording: Wording
) -> None:
    """The other nodes of the gang get the reason."""
    async with LiveAgent(tmp_path) as node:
        node.desire(part(tmp_path))
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("yielded", 0.0)
        (why,) = node.link.cannot
        wording(why)
