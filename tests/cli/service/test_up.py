"""`gavel up` starts a scheduler and its agents, runs jobs, and leaves no process when it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from gavel.cli.service.local_cluster import STOPS, run
from gavel.client import Client, JobSpec, JobState
from scheduler.journal.store import SqliteJournal
from tests.cli.service import interrupted_cluster
from tests.e2e.cluster import PATIENCE_S, eventually, processes_of
from tests.support.up import Up
from tests.support.wording import Wording
from worker_agent.shim import process_tree


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder; the processes that use it are killed after the test, however the test ends."""
    yield tmp_path / "up"
    process_tree.kill_all(lambda: processes_of(tmp_path / "up"))


def test_a_job_completes_and_no_process_stays(folder: Path, wording: Wording) -> None:
    """Ctrl-C ends the command, with exit code 0, and its processes; the next start has the job and runs new jobs."""
    up = Up(folder, "--listen", "127.0.0.1:0")
    with Client(up.address(), retry_s=PATIENCE_S) as client:
        (job,) = client.submit(JobSpec(command=("echo", "hello")))
        (done,) = client.wait(job, timeout_s=PATIENCE_S)
        assert done.state is JobState.COMPLETED
        assert list(client.logs(job)) == ["hello"]
    up.process.send_signal(signal.SIGINT)
    code, output = up.ended()
    assert (code, "Ctrl-C" in output.splitlines()[-1]) == (0, True)
    wording(output.splitlines()[-1])
    assert processes_of(folder) == []
    again = Up(folder, "--listen", "127.0.0.1:0")
    with Client(again.address(), retry_s=PATIENCE_S) as client:
        assert client.get(job).state is JobState.COMPLETED
        second = client.submit(JobSpec(command=("echo", "again")))
        assert client.wait(second, timeout_s=PATIENCE_S)[0].state is JobState.COMPLETED
    again.process.send_signal(signal.SIGTERM)
    assert again.ended()[0] == 0
    assert processes_of(folder) == []


def test_a_second_interrupt_does_not_wait(folder: Path) -> None:
    """A second Ctrl-C kills a job that is slow to stop, with every process that it started."""
    up = Up(folder, "--listen", "127.0.0.1:0", "--round-s", "600")
    with Client(up.address(), retry_s=PATIENCE_S) as client:
        (job,) = client.submit(JobSpec(command=("sh", "-c", "trap '' TERM; sleep 1000 & wait")))
        eventually(lambda: client.get(job).state is JobState.RUNNING, "the job runs")
        eventually(lambda: _running(folder, b"sleep"), "the job has a child")
    up.process.send_signal(signal.SIGINT)
    assert up.process.stdout is not None
    while "stopping" not in (line := up.process.stdout.readline()):
        assert line
    up.process.send_signal(signal.SIGINT)
    assert up.ended()[0] == 0
    assert processes_of(folder) == []


def test_interrupts_are_taken_at_any_line(folder: Path) -> None:
    """Two interrupts stop processes that do not stop by themselves, wherever the interrupts come."""
    command = [sys.executable, "-m", interrupted_cluster.__name__, str(folder)]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == 0


def _running(folder: Path, word: bytes) -> bool:
    lines = [Path(f"/proc/{process.pid}/cmdline") for process in processes_of(folder)]
    return any(word == path.read_bytes().split(b"\0")[0] for path in lines if path.exists())


def test_a_wrong_declaration_is_refused_before_anything_starts(folder: Path, wording: Wording) -> None:
    """The refusal is one line about the option, and no directory is made."""
    code, output = Up(folder, "--gpus", "v100").ended()
    assert (code, output.count("\n")) == (2, 1)
    assert output.startswith("gavel up: --gpus 'v100': ")
    wording(output)
    assert not folder.exists()


def test_a_second_cluster_in_the_same_directory_is_refused(folder: Path, wording: Wording) -> None:
    """The second scheduler is refused at once, and the first one's `daemon.json` stays."""
    with SqliteJournal(_new_folder(folder / "scheduler") / "journal.db"):
        (folder / "scheduler" / "daemon.json").write_text("{}")
        code, output = Up(folder).ended()
        assert (code, f"--data-dir {folder}: " in output) == (2, True)
        wording(output, folder=folder)
        assert (folder / "scheduler" / "daemon.json").exists()
    assert not (folder / "logs").exists()


def _new_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_port_in_use_is_one_line(folder: Path, wording: Wording) -> None:
    """The line names the address and a remedy, and no process is left."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, output = Up(folder, "--listen", address).ended()
    assert (code, output.count("\n"), address in output, "--listen" in output) == (2, 1, True, True)
    wording(output, address=address)
    assert processes_of(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_can_be_stopped_while_it_starts(folder: Path, number: signal.Signals, wording: Wording) -> None:
    """Ctrl-C, kill, or a closed terminal before the scheduler answers leaves no process."""
    site = folder.parent / "site"
    site.mkdir()
    # The scheduler sleeps before it can answer.
    (site / "sitecustomize.py").write_text(
        "import sys, time\nif 'scheduler' in sys.orig_argv: time.sleep(600)\n"
    )
    up = Up(folder, "--listen", "127.0.0.1:0", PYTHONPATH=f"{site}:{os.environ.get('PYTHONPATH', '')}")
    eventually((folder / "logs" / "scheduler.log").exists, "the scheduler is started")
    up.process.send_signal(number)
    code, output = up.ended()
    assert code == 130, output
    wording(output.splitlines()[-1])
    assert processes_of(folder) == []


class InterruptingProcess:
    """A stand-in for a scheduler that never answers; each of `moments` interrupts this process, like Ctrl-C."""

    moments: tuple[str, ...] = ()
    last: ClassVar[InterruptingProcess]

    def __init__(self, *_: object, **__: object) -> None:
        self.pending, self.terminated = list(self.moments), False
        self._interrupt_at("started")
        InterruptingProcess.last = self

    def _interrupt_at(self, moment: str) -> None:
        if moment in self.pending:
            self.pending.remove(moment)
            signal.raise_signal(signal.SIGINT)

    def poll(self) -> int | None:
        """Return 0 if the process has been terminated, else None."""
        self._interrupt_at("polled")
        return 0 if self.terminated else None

    def terminate(self) -> None:
        """Record the termination."""
        self._interrupt_at("terminated")
        self.terminated = True


@pytest.mark.parametrize(
    "moments", [("started",), ("started", "terminated"), ("polled", "terminated")], ids=" ".join
)
def test_an_interrupt_during_the_start_leaves_no_process(
    folder: Path, moments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves no process, just after a start, before the pid is kept, or again while a process is terminated."""
    monkeypatch.setattr(InterruptingProcess, "moments", moments)
    monkeypatch.setattr(
        "gavel.cli.service.local_cluster.subprocess",
        SimpleNamespace(Popen=InterruptingProcess, DEVNULL=subprocess.DEVNULL),
    )
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        with pytest.raises(KeyboardInterrupt):
            run(folder, ["v100=1"], "127.0.0.1:0", (), 1.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (InterruptingProcess.last.terminated, InterruptingProcess.last.pending) == (True, [])


def test_an_agent_that_cannot_start_is_named(folder: Path, wording: Wording) -> None:
    """The error has the agent's last message and the path of its log; the other processes are stopped."""
    (folder / "v100-1").mkdir(parents=True)
    (folder / "checkpoints").write_text("a file in the way")
    up = Up(folder, "--listen", "127.0.0.1:0")
    up.address()
    code, output = up.ended()
    *before, last = output.splitlines()
    assert code == 2
    # Stopping the other processes may take a while, so it is announced first.
    wording(before[-1])
    assert last.startswith("gavel up: v100-1 ended: gavel agent: ")
    assert last.endswith(f" {folder}/logs/v100-1.log")
    wording(last, folder=folder)
    assert processes_of(folder) == []
