"""Agents, shims and machines that disappear and return: no job or exit is lost, and no process runs too long."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.wording import Wording
from tests.worker_agent.live_agents import (
    DEAF,
    ENDS,
    SLEEP,
    WORKER,
    LiveAgent,
    in_time,
    job,
    live,
    until,
)
from tests.worker_agent.shim_runs import ROOT, gone
from worker_agent.agent import StateLocked
from worker_agent.core.messages import LinkUp, Taken
from worker_agent.shim.exit_file import RETRY_S

pytestmark = pytest.mark.usefixtures("nothing_left")


# ------------------------------------------------------------------------------------------- agents that go away


@live
async def test_a_restarted_agent_finds_its_jobs(tmp_path: Path) -> None:
    """The jobs have the same pids and progress, and the next set renews or ends them as if nothing had happened."""
    order = job(WORKER, ends_in_s=60.0)
    async with LiveAgent(tmp_path) as node:
        node.desire(order)
        leader = await node.runs()
        await until(lambda: node.agent.core.runs["17"].steps > 0)
    assert not gone(leader)
    async with LiveAgent(tmp_path) as node:
        (held,) = node.link.hellos[0]
        assert held.lease == "17"
        assert held.steps > 0
        assert held.ran_s > 0
        node.desire(order)
        assert await node.runs() == leader
        node.desire()
        assert (await node.exit()).outcome == "yielded"


@live
async def test_an_exit_while_the_agent_is_away_is_not_lost(tmp_path: Path) -> None:
    """P7: the shim has recorded it; the next agent reports it until the scheduler has it."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(ENDS.format(go=tmp_path / "go", code=7)))
        await node.runs()
    (tmp_path / "go").touch()
    await until((tmp_path / "state" / "runs" / "17" / "exit.json").exists)
    # Twice, as the scheduler has not acknowledged it.
    for _ in range(2):
        async with LiveAgent(tmp_path) as node:
            assert [held.lease for held in node.link.hellos[0]] == ["17"]
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("failed", 7)
    async with LiveAgent(tmp_path) as node:
        await node.exit()
        node.agent.handle(Taken(node.link.reports[-1].number))
    async with LiveAgent(tmp_path) as node:
        assert node.link.hellos == [()]


@live
async def test_a_lease_ends_even_while_the_agent_is_away(tmp_path: Path) -> None:
    """Without an agent to stop it, the job ends with its lease (P4, P8)."""

    async def story(within_s: float) -> bool:
        folder = tmp_path / f"{within_s}"
        async with LiveAgent(folder) as node:
            order = job(DEAF, ends_in_s=within_s)
            node.desire(order)
            await until(lambda: node.log() or time.monotonic() > order.ends_s)
            was_in_time = "here" in node.log() and time.monotonic() < order.ends_s
        if was_in_time:
            leader = json.loads((folder / "state" / "runs" / "17" / "shim.json").read_text())["pids"][0]
            await until(lambda: gone(leader))
            async with LiveAgent(folder) as node:
                exit = await node.exit()
                assert (exit.outcome, exit.code) == ("yielded", -9)
        return was_in_time

    await in_time(story, first_s=2.0)


@live
async def test_an_older_set_is_refused_after_a_restart(tmp_path: Path) -> None:
    """The newest epoch and generation are remembered on disk."""
    async with LiveAgent(tmp_path) as node:
        node.generation = 41
        node.desire(epoch=3)
    async with LiveAgent(tmp_path) as node:
        assert (node.agent.core.epoch, node.agent.core.generation) == (3, 42)
        node.generation = 40
        node.desire(job("pass"), epoch=3)
        assert node.agent.core.runs == {}


@live
async def test_a_shim_that_is_killed_is_the_nodes_failure(tmp_path: Path) -> None:
    """The kernel may kill a shim when memory is short; its processes are gone before the failure is reported."""
    orphan = "import os, time\nif os.fork() == 0:\n    os.setsid(); print(os.getpid(), flush=True)\n" + DEAF
    async with LiveAgent(tmp_path) as node:
        node.desire(job(orphan))
        await node.runs()
        child = int((await until(lambda: [x for x in node.log().split() if x.isdigit()]))[0])
        os.kill(node.agent.processes.live["17"].read_own("shim.json")["pid"], signal.SIGKILL)
        exit = await node.exit()
        assert exit.outcome == "node_failed"
        assert exit.ran_s > 0
        assert gone(child)


@live
async def test_a_job_that_removes_its_directory_frees_its_gpu_at_once(tmp_path: Path) -> None:
    """The exit is reported without the directory, and the agent does not wait for it."""
    code = "import os, shutil, sys; shutil.rmtree(os.environ['GAVEL_RUN_DIR']); sys.exit(5)"
    async with LiveAgent(tmp_path) as node:
        node.desire(job(code))
        exit = await until(lambda: node.exits().get("17"), RETRY_S / 2)
        assert (exit.outcome, exit.code) == ("failed", 5)
        node.desire(job("pass", "18"))
        assert (await node.exit("18")).outcome == "finished"


@live
async def test_the_run_of_a_shim_that_died_with_the_agent_is_reported(tmp_path: Path) -> None:
    """The run has no exit: the next agent ends its processes, and reports it."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import os, time\nif os.fork() == 0: os.setsid()\n" + DEAF))
        await node.runs()
        await until(lambda: node.log().count("here") == 2)
        shim = node.agent.processes.live["17"].read_own("shim.json")["pid"]
    os.kill(shim, signal.SIGKILL)
    await until(lambda: gone(shim))
    async with LiveAgent(tmp_path) as node:
        assert (await node.exit()).outcome == "node_failed"


@live
async def test_a_stopped_shim_does_not_keep_its_job_alive(tmp_path: Path) -> None:
    """The agent continues a stopped shim; if that does not help, the agent kills the job itself."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(DEAF))
        leader = await node.runs()
        await node.says("here")
        os.kill(node.agent.processes.live["17"].read_own("shim.json")["pid"], signal.SIGSTOP)
        node.desire()
        assert (await node.exit()).outcome == "yielded"
        assert gone(leader)


@live
async def test_a_job_that_keeps_stopping_its_shim_is_killed(tmp_path: Path) -> None:
    """In single-user mode a job can stop its shim again and again, so the agent kills the job itself."""
    code = "import signal, os, time; signal.signal(15, signal.SIG_IGN)\nprint('here', flush=True)\n"
    code += f"while not os.path.exists('{tmp_path}/go'): time.sleep(0.01)\n"
    code += "while True: os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.001)"
    async with LiveAgent(tmp_path) as node:
        node.desire(job(code))
        leader = await node.runs()
        (tmp_path / "go").touch()
        node.desire()
        assert (await node.exit()).outcome == "yielded"
        assert gone(leader)


@live
async def test_a_killed_agent_loses_no_job_and_no_exit(tmp_path: Path) -> None:
    """P6, P7: after kill -9 of the agent, one job continues under its pid, and the exit of the other is not lost."""
    lonely = [sys.executable, "-m", "tests.worker_agent.live_agents", str(tmp_path)]
    first = subprocess.Popen(lonely, stdout=subprocess.PIPE, cwd=ROOT)
    assert first.stdout is not None
    leaders = [int(word) for word in (await asyncio.to_thread(first.stdout.readline)).split()]
    first.kill()
    first.wait()
    first.stdout.close()
    (tmp_path / "go").touch()
    async with LiveAgent(tmp_path) as node:
        assert {held.lease for held in node.link.hellos[0]} == {"goes on", "ends"}
        assert await node.runs("goes on") == leaders[0]
        exit = await node.exit("ends")
        assert (exit.outcome, exit.code) == ("failed", 9)
        node.agent.processes.kill("goes on")
        assert (await node.exit("goes on")).outcome == "yielded"


@live
async def test_bad_directories_block_no_run(tmp_path: Path) -> None:
    """Files, garbage, runs of other boots and incomplete directories do not keep other runs from starting."""
    runs = tmp_path / "state" / "runs"
    for name in ("half", "rubbish", "empty-order"):
        (runs / name / "logs").mkdir(parents=True)
    (runs / "rubbish" / "start.json").write_bytes(b"\0" * 100)
    (runs / "rubbish" / "exit.json").write_text("{}")
    (runs / "empty-order" / "start.json").write_text('{"order": {}, "ranks": []}')
    (runs / "empty-order" / "exit.json").write_text("{}")
    (runs / "file").write_text("x")
    (runs / "link").symlink_to(runs / "half")
    async with LiveAgent(tmp_path) as node:
        assert node.link.hellos == [()]
        assert not (runs / "half").exists()
        node.desire(job("print('done')"))
        assert (await node.exit()).outcome == "finished"


@live
async def test_a_run_with_a_damaged_shim_file_is_ended(tmp_path: Path) -> None:
    """Without the shim's pid, the run's processes are found by their environment, ended, and reported."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(DEAF))
        leader = await node.runs()
        shim = node.agent.processes.live["17"].read_own("shim.json")["pid"]
    os.kill(shim, signal.SIGKILL)
    (tmp_path / "state" / "runs" / "17" / "shim.json").write_text(
        '{"boot_id": 7, "pid": "x", "pids": [null]}'
    )
    async with LiveAgent(tmp_path) as node:
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("node_failed", 0.0)
        assert gone(leader)


@live
async def test_a_run_that_never_started_is_started_again(tmp_path: Path) -> None:
    """If the agent died after the files were written and before the shim started, the next set starts the run."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("print('first')"))
        await node.exit()
    run = tmp_path / "state" / "runs" / "17"
    for name in ("exit.json", "shim.json"):
        (run / name).unlink()
    async with LiveAgent(tmp_path) as node:
        assert node.link.hellos == [()]
        node.desire(job("print('second')"))
        assert (await node.exit()).outcome == "finished"
        assert node.log() == "second\n"


@live
async def test_a_reboot_loses_processes_but_no_exit(tmp_path: Path) -> None:
    """Pids of another boot mean nothing: without exit.json the node has failed, with it the job has ended."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import sys; sys.exit(5)", "a"))
        await node.exit("a")
        node.desire(job(SLEEP, "b", gpus=(1,)))
        leader = await node.runs("b")
        shim = node.agent.processes.live["b"].read_own("shim.json")["pid"]
    os.kill(shim, signal.SIGTERM)
    await until(lambda: gone(leader) and gone(shim))
    for lease in ("a", "b"):
        path = tmp_path / "state" / "runs" / lease / "shim.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"boot_id": "another", "pid": os.getpid()}))
    (tmp_path / "state" / "runs" / "b" / "exit.json").unlink()
    async with LiveAgent(tmp_path) as node:
        assert (await node.exit("a")).code == 5
        assert (await node.exit("b")).outcome == "node_failed"


@live
async def test_a_state_directory_has_one_agent(tmp_path: Path, wording: Wording) -> None:
    """A second one is refused."""
    async with LiveAgent(tmp_path):
        with pytest.raises(StateLocked) as refused:
            LiveAgent(tmp_path)
        wording(refused.value, folder=tmp_path)


@live
async def test_the_hello_of_a_new_link_lists_the_held_leases(tmp_path: Path) -> None:
    """The hello also has the steps done so far."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER))
        await node.runs()
        node.agent.handle(LinkUp())
        assert [held.lease for held in node.link.hellos[-1]] == ["17"]


REMOVALS = ["rm start.json", "echo 1 > start.json", "rm -r ../17"]


@pytest.mark.parametrize(
    "trick", ["touch told", "echo '{}' > exit.json", "rm shim.json", "echo 1 > shim.json", *REMOVALS]
)
def test_a_job_cannot_hide_from_the_next_agent(tmp_path: Path, trick: str) -> None:
    """The next agent finds a run as long as its shim exists, whatever its job does to the directory (P5)."""

    async def hidden(tmp_path: Path) -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(job(SLEEP))
            leader = await node.runs()
        subprocess.run(["/bin/sh", "-c", trick], cwd=node.agent.processes.path("17"), check=True)
        async with LiveAgent(tmp_path) as node:
            assert [held.lease for held in node.link.hellos[0]] == ["17"]
            assert not gone(leader)
            node.desire()
            await node.exit()
            assert gone(leader)

    live(hidden)(tmp_path)


@pytest.mark.parametrize("trick", REMOVALS)
def test_a_run_without_any_order_is_ended(tmp_path: Path, trick: str) -> None:
    """Without a readable order the agent can report no held lease, so nothing may use its GPUs either (P5).

    The agent's own record is also missing: the run is of an older release, or a job of the agent's user removed it.
    """

    async def unknown(tmp_path: Path) -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(job(DEAF))
            leader = await node.runs()
            await node.says("here")
            shim = node.agent.processes.live["17"].read_own("shim.json")["pid"]
        subprocess.run(["/bin/sh", "-c", trick], cwd=node.agent.processes.path("17"), check=True)
        (node.state / "custody" / "17.json").unlink()
        async with LiveAgent(tmp_path) as node:
            assert node.link.hellos == [()]
            assert gone(leader)
            assert gone(shim)

    live(unknown)(tmp_path)
