"""A live agent with real processes, from the order to the reported exit."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.wording import Wording
from tests.worker_agent.live_agents import (
    DEAF,
    LIMITS,
    PATIENT,
    WORKER,
    LiveAgent,
    in_time,
    job,
    live,
    until,
)
from tests.worker_agent.node.test_packages import archive, digest, entry
from tests.worker_agent.shim_runs import PATIENCE_S, gone
from worker_agent.core.messages import Renewed

pytestmark = pytest.mark.usefixtures("nothing_left")

# ------------------------------------------------------------------------------------------------ start and end


@live
async def test_a_job_runs_to_its_end(tmp_path: Path) -> None:
    """Its start and its end are reported, once each and in this order."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("print('done')"))
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("finished", 0)
        assert 0 < exit.ran_s < PATIENCE_S
        assert node.started() == {"17"}
        assert node.log() == "done\n"
        assert node.agent.core.running == ()


@live
async def test_a_failed_job_is_reported_with_its_code(tmp_path: Path) -> None:
    """The exit has its code, and the last lines of its output."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import sys; print('no data'); sys.exit(3)"))
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("failed", 3)
        assert node.agent.last_lines("17") == "no data\n"


@live
async def test_progress_is_reported_and_a_job_ends_when_asked(tmp_path: Path) -> None:
    """Steps are reported at the interval; a job whose lease is gone stops by itself, with the steps it saved."""
    async with LiveAgent(tmp_path, limits=PATIENT) as node:
        node.desire(job(WORKER))
        progress = await until(lambda: next((r.progress[0] for r in node.link.reports if r.progress), None))
        assert (progress.lease, progress.saved) == ("17", progress.steps - progress.steps % 5)
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("yielded", 0)
        assert exit.steps >= progress.steps - 5
        assert exit.steps % 5 == 0
        assert "SIGTERM" not in node.log()


@live
async def test_a_job_that_does_not_end_when_asked_is_signalled_then_killed(
    tmp_path: Path, wording: Wording
) -> None:
    """SIGTERM goes to the leader after ask_s, SIGKILL to all after grace_s more; the job has yielded, not failed."""
    # Long enough for a shim on a busy machine to signal.
    limits = msgspec.structs.replace(LIMITS, grace_s=4.0)
    async with LiveAgent(tmp_path, limits=limits) as node:
        node.desire(job(DEAF))
        leader = await node.runs()
        await node.says("here")
        asked_s = time.monotonic()
        node.desire()
        exit = await node.exit()
        assert (exit.outcome, exit.code) == ("yielded", -9)
        assert time.monotonic() - asked_s >= limits.ask_s + limits.grace_s
        assert gone(leader)
        lines = node.log().splitlines()
        _, signalled, killed = lines
        assert ("SIGTERM" in signalled, "killed" in killed) == (True, True)
        wording(signalled)
        wording(killed)


@live
async def test_steps_after_the_last_checkpoint_are_lost_with_a_kill(tmp_path: Path) -> None:
    """A job that has to be killed has done what it saved, and nothing more."""
    code = WORKER.replace("if json.load", "if False and json.load").replace(
        "import json", "import signal, json"
    )
    async with LiveAgent(tmp_path) as node:
        node.desire(job("import signal; signal.signal(15, signal.SIG_IGN)\n" + code))
        await until(lambda: any(progress.saved for r in node.link.reports for progress in r.progress))
        node.desire()
        exit = await node.exit()
        assert exit.outcome == "yielded"
        assert exit.steps == exit.saved > 0
        assert exit.stepping_s > 0


@live
async def test_a_lease_that_is_not_renewed_ends(tmp_path: Path) -> None:
    """Without any message, at its end and a little later."""
    async with LiveAgent(tmp_path) as node:
        order = job(WORKER, ends_in_s=0.8)
        node.desire(order)
        assert (await node.exit()).outcome == "yielded"
        assert time.monotonic() > order.ends_s


@live
async def test_a_renewed_lease_continues(tmp_path: Path) -> None:
    """The file is written again when the end has moved, and only then."""

    async def story(within_s: float) -> bool:
        async with LiveAgent(tmp_path / f"{within_s}") as node:
            order = job(f"import time; time.sleep({within_s} + 0.8)", ends_in_s=within_s)
            node.desire(order)
            await until(lambda: node.started() or time.monotonic() > order.ends_s)
            if time.monotonic() > order.ends_s:
                return False
            lease = node.agent.processes.path("17") / "lease.json"
            first = lease.stat().st_ino
            # A renewal of the same round changes nothing.
            node.agent.handle(Renewed(1, 1, 0, time.monotonic() + 60))
            assert lease.stat().st_ino == first
            node.agent.handle(Renewed(1, 1, 1, time.monotonic() + 60))
            if time.monotonic() > order.ends_s:
                return False
            second = lease.stat().st_ino
            assert json.loads(lease.read_text())["ask_s"] > order.ends_s + 30
            node.agent.handle(Renewed(1, 1, 1, time.monotonic() + 60))
            assert lease.stat().st_ino == second
            assert (await node.exit()).outcome == "finished"
            return True

    await in_time(story, first_s=0.7)


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
async def test_a_job_has_one_rank_per_gpu(tmp_path: Path) -> None:
    """The lowest rank's progress counts."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job(WORKER, gpus=(0, 1), world_size=2))
        await until(lambda: any(r.progress for r in node.link.reports))
        run = node.agent.processes.live["17"]
        assert run.ranks == (0, 1)
        node.desire()
        assert (await node.exit()).outcome == "yielded"


@live
async def test_an_uploaded_job_starts_in_a_fresh_copy(tmp_path: Path) -> None:
    """Its package is fetched once, and each run starts in a fresh copy of it."""
    data = archive(entry("sub/data.txt", b"uploaded"))
    code = "print(open('data.txt').read()); open('data.txt', 'w').write('changed')"
    launch = {"upload": digest(data), "workdir": "sub"}
    async with LiveAgent(tmp_path) as node:
        node.link.package = data
        for lease in ("a", "b"):
            node.desire(job(code, lease, launch=launch))
            assert (await node.exit(lease)).outcome == "finished"
            assert node.log(lease) == "uploaded\n"
            # The package is not fetched again.
            node.link.package = b""


@live
async def test_a_job_whose_package_is_damaged_fails(tmp_path: Path, wording: Wording) -> None:
    """The job fails with the reason in its log, whether the package was damaged on its way or is hostile."""
    async with LiveAgent(tmp_path) as node:
        node.link.package = b"something else"
        node.desire(job("pass", launch={"upload": "sha256:" + "0" * 64}))
        assert (await node.exit()).outcome == "failed"
        wording(node.log())


@live
async def test_the_log_of_a_packed_job_has_a_note_about_sharing(tmp_path: Path, wording: Wording) -> None:
    """The line comes before the job's own first line."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("print('done')", packed=True))
        await node.exit()
        notice, line = node.log().splitlines()
        assert (notice.startswith("[gavel: "), line) == (True, "done")
        wording(notice)


@live
async def test_a_full_disk_is_the_nodes_failure(tmp_path: Path) -> None:
    """A run whose files cannot be written does not start, and another node may take the job."""
    async with LiveAgent(tmp_path) as node:
        runs = node.agent.processes.runs_path
        runs.rmdir()
        # Not even root can create a directory there.
        runs.symlink_to("/dev/full")
        node.desire(job("pass"))
        exit = await node.exit()
        assert (exit.outcome, exit.ran_s) == ("node_failed", 0.0)
        runs.unlink()
        runs.mkdir()
        node.desire(job("print('done')", "18"))
        assert (await node.exit("18")).outcome == "finished"


# --------------------------------------------------------------------------------------------- what cannot start


@pytest.mark.parametrize(
    ("launch", "culprit"),
    [
        ({"command": ["no-such-command"]}, "no-such-command"),
        ({"workdir": "/no/such/place"}, "/no/such/place"),
        ({"command": ()}, "launch.command"),
        ({"env_from": {"TOKEN": "secret:token"}}, "env_from.TOKEN"),
        ({"checkpoint_dir": "/proc/x"}, "/proc/x"),
    ],
    ids=["command", "workdir", "no command", "env_from", "checkpoint_dir"],
)
def test_a_job_that_cannot_start_fails(
    tmp_path: Path, launch: dict[str, Any], culprit: str, wording: Wording
) -> None:
    """The failure is the job's, and its log has the remedy."""

    async def story() -> None:
        async with LiveAgent(tmp_path) as node:
            node.desire(job("pass", launch=launch))
            exit = await node.exit()
            assert (exit.outcome, exit.code) == ("failed", 127)
            assert culprit in node.agent.last_lines("17")
            wording(node.agent.last_lines("17"), folder=tmp_path)

    asyncio.run(story())


@live
async def test_a_package_that_cannot_be_fetched_is_the_nodes_failure(tmp_path: Path) -> None:
    """Another node may be able to fetch it."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass", launch={"upload": "sha256:" + "0" * 64}))
        assert (await node.exit()).outcome == "node_failed"


@live
async def test_secrets_are_not_left_on_disk(tmp_path: Path) -> None:
    """The job's environment has them; the run's files do not."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "token").write_text("s3cret\n")
    async with LiveAgent(tmp_path) as node:
        code = "import os, time; print(len(os.environ['TOKEN']))"
        node.desire(job(code, launch={"env_from": {"TOKEN": "secret:token"}}))
        await node.exit()
        assert node.log() == "6\n"
        leaks = [path for path in node.state.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
        assert leaks == []


@live
async def test_an_order_that_is_recalled_at_once_starts_nothing(tmp_path: Path) -> None:
    """Ordered and recalled in one turn: an exit, and no process."""
    async with LiveAgent(tmp_path) as node:
        node.desire(job("pass"))
        node.desire()
        assert (await node.exit()).outcome == "yielded"


@live
async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    """A disk that is full for a day must not use up the agent's file descriptors."""
    async with LiveAgent(tmp_path) as node:
        node.workshop.node.checkpoints.write_text("no directory")
        before = len(os.listdir("/proc/self/fd"))
        for lease in ("1", "2", "3"):
            node.desire(job("pass", lease))
            assert (await node.exit(lease)).outcome == "node_failed"
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
