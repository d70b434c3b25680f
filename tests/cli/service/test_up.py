"""`gavel up`: a scheduler and its agents start, a job runs through, and nothing is left when it ends."""

from __future__ import annotations

import os
import re
import select
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
from tests.e2e.cluster import MARK, PATIENCE_S, eventually, processes_of
from worker_agent.shim import process_tree


class Up:
    """The command, in a process of its own, as in a terminal."""

    def __init__(self, folder: Path, *options: str, **environ: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gavel", "up", "--data-dir", str(folder), "--round-s", "2"),
                *("--gpus", "v100=1", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, MARK: str(folder), **environ},
        )

    def address(self) -> str:
        """What its first line says, once it is there."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert ready, "it says nothing"
        line = self.process.stdout.readline()
        found = re.fullmatch(r"a scheduler at (\S+) and 1 agent: v100-1\n", line)
        assert found, line + self.process.stdout.read()
        return found[1]

    def ended(self) -> tuple[int, str]:
        """Its exit code and what it said since."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Whatever happens, no process of this folder outlives the test."""
    yield tmp_path / "up"
    process_tree.kill_all(lambda: processes_of(tmp_path / "up"))


def test_a_job_runs_through_and_nothing_is_left(folder: Path) -> None:
    """A job completes; Ctrl-C ends it with code 0 and no process stays; the next one knows the job and goes on."""
    up = Up(folder, "--listen", "127.0.0.1:0")
    with Client(up.address(), retry_s=PATIENCE_S) as client:
        (job,) = client.submit(JobSpec(command=("echo", "hello")))
        (done,) = client.wait(job, timeout_s=PATIENCE_S)
        assert done.state is JobState.COMPLETED
        assert b"".join(chunk.data for chunk in client.logs(job)) == b"hello\n"
    up.process.send_signal(signal.SIGINT)
    code, said = up.ended()
    assert (code, said.splitlines()[-1]) == (
        0,
        "stopping: jobs save and end with their turn; Ctrl-C again does not wait for them",
    )
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
    """A job that would take its time is killed with everything that it started."""
    up = Up(folder, "--listen", "127.0.0.1:0", "--round-s", "600")
    with Client(up.address(), retry_s=PATIENCE_S) as client:
        (job,) = client.submit(JobSpec(command=("sh", "-c", "trap '' TERM; sleep 1000 & wait")))
        eventually(lambda: client.get(job).state is JobState.RUNNING, "it runs")
        eventually(lambda: _running(folder, b"sleep"), "it has a child")
    up.process.send_signal(signal.SIGINT)
    assert up.process.stdout is not None
    while "stopping" not in (line := up.process.stdout.readline()):
        assert line
    up.process.send_signal(signal.SIGINT)
    assert up.ended()[0] == 0
    assert processes_of(folder) == []


def _running(folder: Path, word: bytes) -> bool:
    lines = [Path(f"/proc/{process.pid}/cmdline") for process in processes_of(folder)]
    return any(word == path.read_bytes().split(b"\0")[0] for path in lines if path.exists())


def test_a_wrong_declaration_is_refused_before_anything_starts(folder: Path) -> None:
    """One line about the option, and not even a directory."""
    code, said = Up(folder, "--gpus", "v100").ended()
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("gavel up: --gpus 'v100': expected TYPE=COUNT")
    assert not folder.exists()


def test_a_second_one_in_the_same_directory_harms_nothing(folder: Path) -> None:
    """It is refused at once, and the first one can still be found by its file."""
    with SqliteJournal(_made(folder / "scheduler") / "journal.db"):
        (folder / "scheduler" / "daemon.json").write_text("{}")
        code, said = Up(folder).ended()
        assert (code, f"--data-dir {folder}: a scheduler runs there; stop that one first" in said) == (
            2,
            True,
        )
        assert (folder / "scheduler" / "daemon.json").exists()
    assert not (folder / "logs").exists()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_port_in_use_is_one_clear_line(folder: Path) -> None:
    """Named, with what to do; nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = Up(folder, "--listen", address).ended()
    assert (code, said.splitlines()) == (
        2,
        [
            f"gavel up: the scheduler did not start: gavel serve: cannot listen on {address}: another program uses it, "
            "or it is not an address of this machine; stop that program or choose another address with --listen"
        ],
    )
    assert processes_of(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_can_be_stopped_while_it_starts(folder: Path, number: signal.Signals) -> None:
    """Ctrl-C, kill and a terminal that closes, before the scheduler answers: nothing is left running."""
    site = folder.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys, time\nif 'scheduler' in sys.orig_argv: time.sleep(600)\n"  # it does not come to answering
    )
    up = Up(folder, "--listen", "127.0.0.1:0", PYTHONPATH=f"{site}:{os.environ.get('PYTHONPATH', '')}")
    eventually((folder / "logs" / "scheduler.log").exists, "the scheduler is started")
    up.process.send_signal(number)
    code, said = up.ended()
    assert (code, said.splitlines()[-1]) == (130, "gavel: interrupted"), said
    assert processes_of(folder) == []


class Pressed:
    """In the place of a process that does not come to answering: at these moments of it somebody presses Ctrl-C."""

    moments: tuple[str, ...] = ()
    made: ClassVar[Pressed]

    def __init__(self, *_: object, **__: object) -> None:
        self.left, self.terminated = list(self.moments), False
        self._now("born")
        Pressed.made = self

    def _now(self, moment: str) -> None:
        if moment in self.left:
            self.left.remove(moment)
            signal.raise_signal(signal.SIGINT)

    def poll(self) -> int | None:
        """Whether it has ended."""
        self._now("waited for")
        return 0 if self.terminated else None

    def terminate(self) -> None:
        """It ends."""
        self._now("stopped")
        self.terminated = True


@pytest.mark.parametrize("moments", [("born",), ("born", "stopped"), ("waited for", "stopped")], ids=" ".join)
def test_no_moment_of_its_start_leaves_an_orphan(
    folder: Path, moments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that between the birth of a process and when its number is known, nor a second Ctrl-C while it stops."""
    monkeypatch.setattr(Pressed, "moments", moments)
    monkeypatch.setattr(
        "gavel.cli.service.local_cluster.subprocess",
        SimpleNamespace(Popen=Pressed, DEVNULL=subprocess.DEVNULL),
    )
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        with pytest.raises(KeyboardInterrupt):
            run(folder, ["v100=1"], "127.0.0.1:0", (), 1.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (Pressed.made.terminated, Pressed.made.left) == (True, [])


def test_an_agent_that_cannot_start_is_named(folder: Path) -> None:
    """With what it said last and where its log is; the rest is stopped."""
    (folder / "v100-1").mkdir(parents=True)
    (folder / "checkpoints").write_text("a file in the way")
    up = Up(folder, "--listen", "127.0.0.1:0")
    up.address()
    code, said = up.ended()
    *before, last = said.splitlines()
    assert code == 2
    assert "v100-1 ended by itself; stopping the others" in before  # said before what may take a while
    assert last.startswith("gavel up: v100-1 ended: gavel agent: ")
    assert last.endswith(f"its log is {folder}/logs/v100-1.log")
    assert processes_of(folder) == []
