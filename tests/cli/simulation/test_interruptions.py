"""Ctrl-C at any moment: one line, exit code 130, and what is partial says that it is."""

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

RUN = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", "--cluster", "t4=4,a100=8")


def pressed(*arguments: object, **options: object) -> None:
    """Somebody presses Ctrl-C here."""
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
    module: str, function: str, arguments: tuple[str, ...], gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it still reads its files: 130 and one line, as of a run that was interrupted, and no word of click's."""
    monkeypatch.setattr(import_module(module), function, pressed)
    result = gavel(*arguments)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "gavel: interrupted\n"


def test_a_trace_half_written_is_not_left_behind(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted among many jobs: no file, and nothing beside it."""
    monkeypatch.setattr("gavel.cli.simulation.generate._Counted.__iter__", pressed)
    assert gavel("generate", str(tmp_path / "a.csv"), "--rate", "6", "--jobs", "12").exit_code == 130
    assert list(tmp_path.iterdir()) == []


def test_while_the_command_itself_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is any command that could catch it: one line all the same."""

    class Reading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "gavel.cli.main", Reading("gavel.cli.main"))
    with pytest.raises(SystemExit) as left:
        run()
    assert (left.value.code, capsys.readouterr().err) == (130, "gavel: interrupted\n")


def test_processes_of_a_sweep_that_begin_say_nothing(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all of them, those too that are only just being started."""
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
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said == f"interrupted with 0 of 2 runs in {tmp_path}; the same command goes on\n"


def test_ctrl_c_among_starting_processes_comes_after_them() -> None:
    """Whichever thread takes the signal: what is being started is started, then the interrupt is there."""
    told = threading.Event()
    taker = threading.Thread(target=told.wait)  # blocks nothing, as the threads of numpy
    taker.start()
    reached = []

    def starting() -> None:
        with no_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            told.wait(0.1)
            reached.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            starting()
    finally:
        told.set()
        taker.join()
    assert reached


def children(pid: int) -> list[int]:
    """Processes that it has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_worker(pid: int) -> bool:
    """Whether it is one that carries out runs, from its first moment on."""
    with suppress(OSError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_figures_of_an_interrupted_run_say_so(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key more, only then; and who compares them is told."""
    whole, part = str(tmp_path / "whole.json"), str(tmp_path / "part.json")
    assert gavel("simulate", *RUN, "--json", whole).exit_code == 0
    monkeypatch.setattr("gavel.cli.io.progress.Wish.stop", True)
    assert gavel("simulate", *RUN, "--json", part).exit_code == 130
    figures = json.loads(Path(part).read_text())
    assert tuple(figures) == (*KEYS, INTERRUPTED)
    assert figures[INTERRUPTED] is True
    assert tuple(json.loads(Path(whole).read_text())) == KEYS
    compared = gavel("compare", whole, part)
    assert compared.exit_code == 0
    assert "note: B was interrupted" in compared.stdout
    assert "interrupted" not in gavel("compare", whole, whole).stdout
