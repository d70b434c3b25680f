"""Ctrl-C at any moment: one line, exit code 130, and partial figures are marked as such."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from gavel.__main__ import run
from scheduler.sim.figures.summary import INTERRUPTED, KEYS
from scheduler.sim.sweep import no_interrupts
from tests.cli.conftest import Gavel
from tests.support.wording import Wording

RUN = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", "--cluster", "t4=4,a100=8")


def interrupt(*arguments: object, **options: object) -> None:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "function", "arguments"),
    [
        ("scheduler.sim.runs", "prepare", ("simulate", *RUN)),
        ("scheduler.sim.runs", "prepare", ("sweep", *RUN, "--policy", "las")),
        ("gavel.cli.simulation.generate", "table_of", ("generate", "a.csv", "--rate", "6", "--jobs", "12")),
        ("gavel.cli.simulation.replay", "read_history", ("replay", "a.db")),
        ("gavel.cli.io.document", "read_document", ("compare", "a.json", "b.json")),
        ("gavel.cli.simulation.explain_journal", "state_at", ("explain", "1", "--journal", "a.db")),
        ("gavel.cli.policies.problem_file", "read_problem", ("allocate", "a.json")),
        ("gavel.cli.policies.list", "_as_data", ("policies", "--json")),
    ],
)
def test_before_there_is_anything_worth_keeping(
    module: str,
    function: str,
    arguments: tuple[str, ...],
    gavel: Gavel,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    """While a command still reads its files, Ctrl-C ends it with exit code 130 and one line of Gavel's, not click's."""
    monkeypatch.setattr(import_module(module), function, interrupt)
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.count("\n") == 1
    wording(result.stderr)


def test_a_trace_half_written_is_not_left_behind(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a trace leaves no file, not even a temporary one."""
    monkeypatch.setattr("gavel.cli.simulation.generate._CountingJobs.__iter__", interrupt)
    assert gavel("generate", str(tmp_path / "a.csv"), "--rate", "6", "--jobs", "12").exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_during_the_imports_of_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Ctrl-C during the import of the commands also ends in one line."""

    class Reading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "gavel.cli.main", Reading("gavel.cli.main"))
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    wording(capsys.readouterr().err)


def test_new_processes_of_a_sweep_print_nothing(tmp_path: Path, wording: Wording) -> None:
    """Ctrl-C reaches every process of a sweep, even those that are still starting; only one line is printed."""
    command = [
        sys.executable,
        "-m",
        "gavel",
        "sweep",
        "--workload",
        "mixed-day",
        "--measure",
        "100000:100001",
    ]
    command += ["--rate", "8", "--policy", "las,fifo", "--cluster", "a100=8", "--processes", "2"]
    command += ["--results", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while (
        process.poll() is None
        and time.monotonic() < deadline
        and not any(map(is_worker, children(process.pid)))
    ):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert (stderr.count("\n"), " 0 of 2 " in stderr, str(tmp_path) in stderr) == (1, True, True)
    wording(stderr, folder=tmp_path)


def test_ctrl_c_among_starting_processes_comes_after_them() -> None:
    """Whichever thread gets the signal, processes that are starting are started before the interrupt is raised."""
    received = threading.Event()
    # Like numpy's threads, this one does not block signals.
    taker = threading.Thread(target=received.wait)
    taker.start()
    reached = []

    def starting() -> None:
        with no_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            received.wait(0.1)
            reached.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            starting()
    finally:
        received.set()
        taker.join()
    assert reached


def children(pid: int) -> list[int]:
    """Return the processes that this process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_worker(pid: int) -> bool:
    """Return whether this is a process that carries out runs, even if it is still starting."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_figures_of_an_interrupted_run_are_marked(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Partial figures have one more key, and a comparison with them prints a note."""
    whole, part = str(tmp_path / "whole.json"), str(tmp_path / "part.json")
    assert gavel("simulate", *RUN, "--json", whole).exit_code == 0
    monkeypatch.setattr("gavel.cli.io.progress.StopRequest.stop", True)
    assert gavel("simulate", *RUN, "--json", part).exit_code == 130
    figures = json.loads(Path(part).read_text())
    assert tuple(figures) == (*KEYS, INTERRUPTED)
    assert figures[INTERRUPTED] is True
    assert tuple(json.loads(Path(whole).read_text())) == KEYS
    compared = gavel("compare", whole, part)
    assert compared.exit_code == 0
    (note,) = [line for line in compared.stdout.splitlines() if "interrupted" in line]
    wording(note)
    assert "interrupted" not in gavel("compare", whole, whole).stdout
