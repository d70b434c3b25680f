"""Interactive jobs through the real programs: a user at a terminal, the command, the scheduler, an agent, a shim."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gavel.client import JobSpec
from tests.e2e.cluster import MARK, PATIENCE_S, Cluster, eventually, freeze, thaw
from tests.support.ports import free_port
from tests.support.user_terminal import UserTerminal

SHELL = ("bash", "--norc", "--noprofile")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with GPUs for several jobs, whose leases outlast restarts."""
    with Cluster(
        tmp_path_factory.mktemp("terminals"), {"n1": "v100=4"}, ["scheduler.round_s=600"]
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Cluster:
    """The cluster, with nothing left on it from the previous test."""
    return shared.cleared()


def environment(cluster: Cluster) -> dict[str, str]:
    """The environment of the user's commands."""
    return {**os.environ, "GAVEL_ADDRESS": cluster.address, MARK: str(cluster.folder), "PS1": "$ "}


def at_terminal(cluster: Cluster, *arguments: str) -> UserTerminal:
    """A user who runs this command of gavel at a terminal."""
    return UserTerminal([sys.executable, "-m", "gavel", *arguments], environment(cluster))


def in_pipe(cluster: Cluster, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run this command of gavel in a pipe."""
    command = [sys.executable, "-m", "gavel", *arguments]
    return subprocess.run(
        command,
        check=False,
        env=environment(cluster),
        input=typed,
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )


def newest(cluster: Cluster) -> str:
    """The id of the job that was submitted last."""
    return next(iter(cluster.client.list())).id


def sleeping(cluster: Cluster, **fields: Any) -> str:
    """Submit a job that only sleeps, and return its id when it runs."""
    job = cluster.client.submit(JobSpec(command=("sleep", "10000"), **fields))[0]
    cluster.wait_until_running(job)
    return job


def terminal_use(cluster: Cluster, job: str) -> tuple[bool, bool]:
    """Whether a client is attached to the terminal of a job, and whether the job names the end of its patience."""
    placement = cluster.job(job).placement
    assert placement is not None
    assert placement.terminal is not None
    return placement.terminal.attached, placement.terminal.until is not None


def test_run_gives_a_terminal_and_its_exit_code(cluster: Cluster) -> None:
    """The program sees the size of the user's window and its changes; keys are signals; its exit code is returned."""
    with at_terminal(cluster, "run", "--gpus", "2", "--", *SHELL) as user:
        user.type("stty size; echo $((6 * 7)) $GAVEL_GPUS $TERM\r")
        user.sees("30 100")
        user.sees("42 2 xterm")
        user.resize(50, 120)
        user.type("until [ \"$(stty size)\" = '50 120' ]; do sleep 0.05; done; echo re''sized\r")
        user.sees("resized")
        # Ctrl-C ends the program that runs, not a shell that is about to start it.
        user.type("sh -c \"echo sl''eeps; exec sleep 1000\"\r")
        user.sees("sleeps")
        user.type("\x03")
        user.type("echo after $?; exit 7\r")
        user.sees("after 130")
        assert user.ends() == 7
    job = cluster.wait_until_ended(newest(cluster))
    assert (job.state, job.exit_code) == ("failed", 7)
    assert (job.spec.preemptible, job.spec.retries_node, job.spec.retries_preemption) == (False, 0, 0)
    assert "42 2 xterm" in cluster.output(job.id)


def test_in_a_pipe_input_and_output_pass_unchanged(cluster: Cluster) -> None:
    """Without a terminal, the program has pipes: bytes as they are, and an end of its input. Signals become 128 + N."""
    done = in_pipe(cluster, "run", "--", "cat", typed="one\ntwo\x03\n")
    assert (done.returncode, done.stdout) == (0, "one\ntwo\x03\n")
    assert in_pipe(cluster, "run", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_detaching_and_attaching(cluster: Cluster) -> None:
    """Enter ~ . leaves the program running; the next terminal shows what was printed, and continues."""
    with at_terminal(cluster, "run", "--", *SHELL) as user:
        user.type("echo fir''st; n=5\r")
        user.sees("first")
        user.type("~.")
        job = newest(cluster)
        user.sees(f"\r\n[gavel: detached from job {job}")
        user.sees(f"gavel attach {job}")
        assert user.ends() == 0
    eventually(lambda: terminal_use(cluster, job) == (False, True), "the job says until when it waits")
    with at_terminal(cluster, "attach", job) as user:
        user.sees("first")
        eventually(
            lambda: terminal_use(cluster, job) == (True, False), "the job says that a client is attached"
        )
        user.type("echo $((n * 5)); exit\r")
        user.sees("25")
        assert user.ends() == 0
    cluster.wait_until_completed(job)


def test_a_lost_connection_and_restarts_lose_nothing(cluster: Cluster) -> None:
    """Agent and scheduler are killed and started again; the user sees every number once, and every key arrives."""
    with at_terminal(cluster, "run", "--", *SHELL) as user:
        # It counts until a line is typed. A shell whose programs end all the time may miss Ctrl-C between two of them,
        # and what is typed before its prompt may be lost when it changes the modes of its terminal. A `read` whose time
        # is over may lose a line as well, so the one that waits reads from a pipe in which nothing is ever written.
        wait = "read -t 0.01 -u 9"
        user.type(
            f"exec 9<> <(:); until read -t 0; do echo \"<$((++n))>\"; {wait}; done; read; echo ok''ay; exit 3\r"
        )
        output = user.sees("<20>") + "<20>"
        cluster.kill("n1")
        cluster.agent("n1", "v100=4")
        output += user.sees("<300>") + "<300>"
        cluster.kill("scheduler")
        cluster.start_scheduler()
        user.type("\r")
        output += user.sees("okay")
        assert user.ends() == 3
    numbers = [int(number) for number in re.findall(r"<(\d+)>", output)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_end_of_the_job_ends_the_terminal(cluster: Cluster) -> None:
    """A cancelled job's shell is hung up, and the command ends with the code of that signal."""
    with at_terminal(cluster, "run", "--", *SHELL) as user:
        user.type("echo re''ady\r")
        user.sees("ready")
        cluster.client.cancel(newest(cluster))
        assert user.ends() == 128 + signal.SIGHUP


def test_ctrl_c_while_waiting_cancels_the_job(cluster: Cluster) -> None:
    """The user sees what the job waits for, and leaves nothing behind."""
    sleeping(cluster, gpus=4, preemptible=False)
    with at_terminal(cluster, "run", "--gpus", "4", "--", *SHELL) as user:
        user.sees("job ")
        user.type("\x03")
        assert user.ends() == 130
    assert cluster.job(newest(cluster)).state == "cancelled"


def test_what_is_not_interactive_or_has_ended_says_what_to_do(cluster: Cluster) -> None:
    """One line each, with the next command."""
    job = sleeping(cluster)
    refused = in_pipe(cluster, "attach", job)
    assert refused.returncode == 6
    assert f"gavel logs -f {job}" in refused.stderr
    assert in_pipe(cluster, "attach", "999").returncode == 3
    too_wide = in_pipe(cluster, "run", "--gpus", "5", "--", "true")
    assert too_wide.returncode == 2
    assert "one node" in too_wide.stderr


def test_a_shell_beside_a_job(cluster: Cluster) -> None:
    """It is in the job's environment; its exit code is its own, and the job goes on."""
    job = sleeping(cluster, name="asleep")
    with at_terminal(cluster, "shell", "asleep") as user:
        user.type("echo $GAVEL_JOB_ID; stty size; exit 4\r")
        user.sees(f"{job}\r\n30 100")
        assert user.ends() == 4
    done = in_pipe(cluster, "shell", job, typed="echo $((6 * 7)); exit 5\n")
    assert (done.returncode, done.stdout) == (5, "42\n"), done.stderr
    assert cluster.job(job).state == "running"
    elsewhere = in_pipe(cluster, "shell", job, "--node", "n2")
    assert elsewhere.returncode == 2
    assert "runs on n1" in elsewhere.stderr


def test_a_port_is_forwarded(cluster: Cluster, tmp_path: Path) -> None:
    """A web server of the job answers at a local port, for each of several connections; a port in use is refused."""
    (tmp_path / "page").write_text("hello " * 100_000)
    port, local_port = free_port(), free_port()
    command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    job = cluster.client.submit(JobSpec(command=command, workdir=str(tmp_path)))[0]
    cluster.wait_until_running(job)
    with at_terminal(cluster, "shell", job, "--forward", f"{local_port}:{port}") as user:
        user.sees(f"forwarding 127.0.0.1:{local_port} to port {port}")

        def page() -> str | None:
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{local_port}/page").read().decode()
            return None

        # The server may not listen yet.
        assert eventually(page, "the page is there") == "hello " * 100_000
        assert page() == "hello " * 100_000
        refused_port = in_pipe(cluster, "shell", job, "--forward", str(local_port))
        assert refused_port.returncode == 2
        assert f"127.0.0.1:{local_port}" in refused_port.stderr
        assert in_pipe(cluster, "shell", job, "--forward", "http").returncode == 2
        user.type("exit\r")
        assert user.ends() == 0


def test_a_killed_client_whose_input_nothing_takes_is_missed(cluster: Cluster) -> None:
    """Though it had sent as much as it may ahead of the process: gRPC takes more between scheduler and agent, and
    reports the end of a client only when all that it sent was read. So the job may end for want of a client."""
    command = [sys.executable, "-m", "gavel", "run", "--name", "deaf", "--", "sleep", "1000"]
    with subprocess.Popen(command, env=environment(cluster), stdin=subprocess.PIPE) as client:
        assert client.stdin is not None
        job = eventually(
            lambda: next((it.id for it in cluster.client.list() if it.spec.name == "deaf"), ""),
            "is submitted",
        )
        cluster.wait_until_running(job)
        eventually(lambda: terminal_use(cluster, job)[0], "the client is attached")
        # Nothing reads at the other end, so that only gRPC's buffers can take the input.
        frozen = freeze(cluster.folder / "n1")
        try:
            # This returns when the client has read nearly all of it.
            client.stdin.write(b"x" * (1 << 20))
            client.kill()
            eventually(lambda: terminal_use(cluster, job) == (False, True), "the client is missed")
        finally:
            thaw(frozen)
