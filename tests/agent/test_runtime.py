"""A live agent with real processes, from the order to the reported exit."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.live_agents import LiveAgent, end_all, job, until
from tests.agent.runs import ROOT, gone
from worker_agent.orders import LinkUp, Renewed, Taken
from worker_agent.rendezvous import NobodyStarts, Rendezvous
from worker_agent.runtime import StateLocked

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
# does as gavel.training does: says how far it is, and ends by itself when the lease asks
WORKER = """
import json, os, sys, time
run = os.environ["GAVEL_RUN_DIR"]
mine = run + "/.mine-" + os.environ["RANK"]
def say(steps, state):
    said = {"epoch": int(os.environ["GAVEL_EPOCH"]), "attempt": int(os.environ["GAVEL_ATTEMPT"]), "steps": steps,
            "saved": steps - steps % 5, "stepping_s": steps / 50, "state": state}
    with open(mine, "w") as file: json.dump(said, file)
    os.rename(mine, run + f"/progress-{os.environ['RANK']}.json")
print("here", flush=True)
for step in range(1, 100_000):
    say(step, "running")
    time.sleep(0.02)
    if json.load(open(run + "/lease.json"))["ask_s"] <= time.monotonic():
        say(step - step % 5, "yielded")
        sys.exit()
"""


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Whatever happens, no process of a test outlives it."""
    yield
    end_all(tmp_path)


def live(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop."""

    @functools.wraps(test)
    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


# ------------------------------------------------------------------------------------------------ start and end


@live
async def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    """Started and finished are reported, once each and in this order."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("print('done')"))
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("finished", 0)
        assert 0 < exit.ran_s < 10
        assert node.started() == {"17"}
        assert node.log() == "done\n"
        assert node.agent.core.running == ()


@live
async def test_a_job_that_fails_says_with_what(tmp_path: Path) -> None:
    """Its code, and the end of its output."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import sys; print('no data'); sys.exit(3)"))
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("failed", 3)
        assert node.agent.last_lines("17") == "no data\n"


@live
async def test_progress_is_reported_and_asking_is_enough(tmp_path: Path) -> None:
    """Steps are said at the interval; a job that is not wanted any more stops by itself, with what it saved."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER))
        said = await until(lambda: next((r.progress[0] for r in node.link.reports if r.progress), None))
        assert (said.lease, said.saved) == ("17", said.steps - said.steps % 5)
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("yielded", 0)
        assert exit.steps >= said.steps - 5
        assert exit.steps % 5 == 0
        assert "SIGTERM" not in node.log()


@live
async def test_who_does_not_listen_is_signalled_then_killed(tmp_path: Path) -> None:
    """ask_s later SIGTERM to the leader, grace_s later everything; it has yielded, and did not fail."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(DEAF))
        leader = await node.runs()
        await node.says("here")
        asked_s = time.monotonic()
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("yielded", -9)
        assert 1.4 < time.monotonic() - asked_s < 4
        assert gone(leader)
        lines = node.log().splitlines()
        assert lines[1:] == [
            "[gavel: SIGTERM: the lease is over (the scheduler wants the GPUs back)]",
            "[gavel: killed: the lease is over (the scheduler wants the GPUs back)]",
        ]


@live
async def test_steps_after_the_last_checkpoint_are_lost_with_a_kill(tmp_path: Path) -> None:
    """A job that has to be killed has done what it saved, and nothing more."""
    code = WORKER.replace("if json.load", "if False and json.load").replace(
        "import json", "import signal, json"
    )
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import signal; signal.signal(15, signal.SIG_IGN)\n" + code))
        await until(lambda: any(r.progress for r in node.link.reports))
        node.desire()
        exit = await node.exit()
        assert exit.outcome == "yielded"
        assert exit.steps == exit.saved > 0
        assert exit.stepping_s > 0


@live
async def test_a_lease_that_nobody_renews_ends(tmp_path: Path) -> None:
    """Without a word from anybody, at its end and a little more."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER, ends_in_s=0.8))
        begun_s = time.monotonic()
        assert (await node.exit()).outcome == "yielded"
        assert 0.8 < time.monotonic() - begun_s < 3


@live
async def test_a_renewed_lease_goes_on(tmp_path: Path) -> None:
    """The file is written again when the end has moved, and only then."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import time; time.sleep(1.5); print('done')", ends_in_s=0.7))
        await node.runs()
        lease = node.agent.processes.path("17") / "lease.json"
        first = lease.stat().st_ino
        node.agent.tell(Renewed(1, 1, 0, time.monotonic() + 60))  # of no later round: says nothing
        assert lease.stat().st_ino == first
        node.agent.tell(Renewed(1, 1, 1, time.monotonic() + 60))
        second = lease.stat().st_ino
        assert json.loads(lease.read_text())["ask_s"] > time.monotonic() + 50
        node.agent.tell(Renewed(1, 1, 1, time.monotonic() + 60))
        assert lease.stat().st_ino == second
        assert (await node.exit()).outcome == "finished"


@live
async def test_the_next_job_waits_for_the_gpu(tmp_path: Path) -> None:
    """Its process starts when the exit of the former one is confirmed."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER, "a"))
        await node.runs("a")
        node.desire(job("import time; print(time.monotonic())", "b"))
        await node.exit("b")
        ended = json.loads((node.agent.processes.path("a") / "exit.json").read_text())["ended_s"]
        assert float(node.log("b")) > ended


@live
async def test_several_ranks(tmp_path: Path) -> None:
    """One per GPU; the lowest one's progress counts."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER, gpus=(0, 1), gpus_total=2))
        await until(lambda: any(r.progress for r in node.link.reports))
        run = node.agent.processes.live["17"]
        assert run.ranks == (0, 1)
        node.desire()
        assert (await node.exit()).outcome == "yielded"


# --------------------------------------------------------------------------------------------- what cannot start


@pytest.mark.parametrize(
    ("launch", "word"),
    [
        ({"command": ["no-such-command"]}, "cannot run no-such-command"),
        ({"workdir": "/no/such/place"}, "working directory /no/such/place: No such file or directory"),
        ({"comand": []}, "unknown field `comand`"),
        ({"env_from": {"TOKEN": "secret:token"}}, "env_from.TOKEN: secret:token cannot be read on this node"),
        ({"checkpoint_dir": "/proc/x"}, "checkpoint directory /proc/x: No such file or directory"),
    ],
)
def test_a_job_that_cannot_start_fails(tmp_path: Path, launch: dict[str, Any], word: str) -> None:
    """It is the job's failure, and its log says what to do about it."""

    async def story() -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(job("pass", launch=launch))
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("failed", 127)
            assert word in node.agent.last_lines("17")

    asyncio.run(story())


@live
async def test_a_package_that_cannot_be_had_is_the_nodes_failure(tmp_path: Path) -> None:
    """Another node may have more luck."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass", launch={"upload": "sha256:" + "0" * 64}))
        assert (await node.exit()).outcome == "node_failed"


@live
async def test_secrets_do_not_stay(tmp_path: Path) -> None:
    """The job has them; what is left of the run has not."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("s3cret\n")
    async with LiveAgent(tmp_path) as node:
        code = "import os, time; print(len(os.environ['TOKEN']))"
        node.desire(job(code, launch={"env_from": {"TOKEN": "secret:token"}}))
        await node.exit()
        assert node.log() == "6\n"
        left = [path for path in node.state.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
        assert left == []


# ------------------------------------------------------------------------------------------- agents that go away


@live
async def test_a_restarted_agent_finds_its_jobs(tmp_path: Path) -> None:
    """Same pids, known progress, and the next set renews or ends them as if nothing had happened."""
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
    """P7: the shim has written it; the next agent says it, until the scheduler knows."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import sys, time; time.sleep(0.5); sys.exit(7)"))
        await node.runs()
    await until((tmp_path / "state" / "runs" / "17" / "exit.json").exists)
    for _ in range(2):  # twice: nobody has taken it
        async with LiveAgent(tmp_path) as node:
            assert [held.lease for held in node.link.hellos[0]] == ["17"]
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("failed", 7)
    async with LiveAgent(tmp_path) as node:
        await node.exit()
        node.agent.tell(Taken(node.link.reports[-1].number))
    async with LiveAgent(tmp_path) as node:
        assert node.link.hellos == [()]


@live
async def test_a_lease_ends_while_the_agent_is_away(tmp_path: Path) -> None:
    """Nobody is there to stop the job; it is gone all the same (P4, P8)."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(DEAF, ends_in_s=1.0))
        leader = await node.runs()
    begun_s = time.monotonic()
    await until(lambda: gone(leader))
    assert time.monotonic() - begun_s < 5
    async with LiveAgent(tmp_path) as node:
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("yielded", -9)


@live
async def test_an_older_set_is_refused_after_a_restart(tmp_path: Path) -> None:
    """What was believed once is not unlearned."""
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
    """The kernel may take it for want of memory: what belongs to it is gone before that is reported."""
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
async def test_a_shim_that_died_with_the_agent(tmp_path: Path) -> None:
    """Found without an exit: cleaned up, and reported."""
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
    """The agent wakes it; where that does not help, it kills by itself."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(DEAF))
        leader = await node.runs()
        await node.says("here")
        os.kill(node.agent.processes.live["17"].read_own("shim.json")["pid"], signal.SIGSTOP)
        node.desire()
        assert (await node.exit()).outcome == "yielded"
        assert gone(leader)


@live
async def test_a_job_that_keeps_stopping_its_shim(tmp_path: Path) -> None:
    """Where all users are one, a job can do that; then the agent kills it by itself."""
    code = "import signal, os, time; signal.signal(15, signal.SIG_IGN)\nprint('here', flush=True); time.sleep(0.3)\n"
    code += "while True: os.kill(os.getppid(), signal.SIGSTOP); time.sleep(0.001)"
    async with LiveAgent(tmp_path) as node:
        node.desire(job(code))
        leader = await node.runs()
        node.desire()
        assert (await node.exit()).outcome == "yielded"
        assert gone(leader)


@live
async def test_an_agent_that_is_killed(tmp_path: Path) -> None:
    """P6, P7: kill -9 in the middle; one job goes on with its pid, the exit of the other is there."""
    lonely = [sys.executable, "-m", "tests.agent.live_agents", str(tmp_path)]
    first = subprocess.Popen(lonely, stdout=subprocess.PIPE, cwd=ROOT)
    assert first.stdout is not None
    leaders = [int(word) for word in (await asyncio.to_thread(first.stdout.readline)).split()]
    first.kill()
    first.wait()
    first.stdout.close()
    async with LiveAgent(tmp_path) as node:
        assert {held.lease for held in node.link.hellos[0]} == {"goes on", "ends"}
        assert await node.runs("goes on") == leaders[0]
        exit = await node.exit("ends")
        assert (exit.outcome, exit.code) == ("failed", 9)
        node.agent.processes.kill("goes on")
        assert (await node.exit("goes on")).outcome == "yielded"


@live
async def test_bad_directories_block_nobody(tmp_path: Path) -> None:
    """Files, rubbish, other boots and half-made directories: the rest starts, and nothing is made up."""
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
async def test_a_run_that_never_started_is_started_again(tmp_path: Path) -> None:
    """The agent died between the files and the shim: the next set starts it as if it were new."""
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
    """Pids of another boot are nobody's: without exit.json the node has failed, with it the job has ended."""
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
async def test_a_state_directory_has_one_agent(tmp_path: Path) -> None:
    """A second one is told to take another."""
    async with LiveAgent(tmp_path):
        with pytest.raises(StateLocked, match="another agent works here"):
            LiveAgent(tmp_path)


@live
async def test_a_new_link_says_what_is_held(tmp_path: Path) -> None:
    """With how far it is."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER))
        await node.runs()
        node.agent.tell(LinkUp())
        assert [held.lease for held in node.link.hellos[-1]] == ["17"]


# --------------------------------------------------------------------------------------------------------- gangs


@live
async def test_a_gang_starts_when_all_are_ready(tmp_path: Path) -> None:
    """The first node offers two ports, and nothing runs before the scheduler says go."""
    async with LiveAgent(tmp_path) as node:
        code = "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], os.environ['RANK'])"
        node.desire(job(code, nodes=2, world_size=2, gpus_total=2))
        await until(lambda: node.link.ready)
        assert node.link.ready == [("17", 2)]
        assert node.agent.processes.live == {}
        assert node.link.go is not None
        node.link.go.set_result(Rendezvous("10.0.0.1", 4000, 4001))
        assert (await node.exit()).outcome == "finished"
        assert node.log() == "10.0.0.1 4000 0\n"


@live
async def test_a_gang_starts_nowhere_when_one_node_cannot(tmp_path: Path) -> None:
    """This one has not failed at its job: it never ran."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass", nodes=2, node_rank=1, gpus_total=2, rank_first=1))
        await until(lambda: node.link.go)
        assert node.link.ready == [("17", 0)]
        assert node.link.go is not None
        node.link.go.set_exception(NobodyStarts("node-b has no such user"))
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("node_failed", 0.0)
        assert not node.agent.processes.path("17").exists()


@live
async def test_a_gang_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Nodes that never come are given up, and the others are told."""
    async with LiveAgent(tmp_path, gang_timeout_s=0.2) as node:
        node.desire(job("pass", nodes=2, gpus_total=2))
        assert (await node.exit()).outcome == "node_failed"
        assert len(node.link.cannot) == 1


@live
async def test_a_gang_that_is_recalled_while_it_waits(tmp_path: Path) -> None:
    """Has yielded, and its other nodes are told that it will not come."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass", nodes=2, gpus_total=2))
        await until(lambda: node.link.go)
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("yielded", 0.0)
        assert node.link.cannot == ["its lease was recalled"]


@live
async def test_a_job_that_cannot_start_here_stops_its_gang(tmp_path: Path) -> None:
    """The others hear why, instead of waiting for it."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass", nodes=2, gpus_total=2, launch={"venv": "relative"}))
        assert (await node.exit()).outcome == "failed"
        assert node.link.cannot == ["launch.venv: 'relative' is not an absolute path"]


@live
async def test_recalled_before_anything_was_done(tmp_path: Path) -> None:
    """Ordered and recalled in one breath: an exit, and no process."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass"))
        node.desire()
        assert (await node.exit()).outcome == "yielded"
