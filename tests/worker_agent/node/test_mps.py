"""Two jobs on the same GPUs: MPS where it can be, turns where not, and what is installed for jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from worker_agent.node.job_library import LibraryMissing, install
from worker_agent.node.mps import PIPES, MpsDaemons, decide
from worker_agent.node.users import Account

OWN = Account(name="ada", home=Path("/"), login_shell="/bin/sh")


@pytest.mark.parametrize(
    ("facts", "mps", "why"),
    [
        ({"packed": False}, False, ""),
        ({}, True, "side by side through CUDA MPS"),
        ({"devices": []}, False, "which are only declared"),
        ({"daemon": None}, False, "in time slices: nvidia-cuda-mps-control is not installed"),
        ({"apart": True}, False, "in time slices: CUDA MPS is for jobs that both start under it"),
    ],
)
def test_how_gpus_are_shared(facts: dict[str, Any], mps: bool, why: str) -> None:
    """Decided from facts alone, with the reason in the words that the job's log gets."""
    sharing = decide(**{"packed": True, "devices": ["GPU-a"], "daemon": "/bin/mps"} | facts)
    assert sharing.mps == mps
    assert why in sharing.why
    assert bool(sharing.why) == facts.get("packed", True)


class Control:
    """Stands in for nvidia-cuda-mps-control; remembers how it was called."""

    def __init__(self, code: int = 0, stderr: str = "") -> None:
        self.code, self.stderr = code, stderr
        self.calls: list[tuple[list[str], str | None, str | None]] = []
        self.pipes: list[str] = []

    def __call__(self, argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert more["timeout"] > 0
        self.pipes.append(more["env"][PIPES])
        self.calls.append((argv, more["env"].get("CUDA_VISIBLE_DEVICES"), more.get("input")))
        return subprocess.CompletedProcess(argv, self.code, "", self.stderr)

    def said(self) -> list[tuple[str, str]]:
        """What it was asked to do, and of which daemon."""
        return [
            ((said or "start").strip(), pipes)
            for (_, _, said), pipes in zip(self.calls, self.pipes, strict=True)
        ]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which a socket's name fits, wherever the tests run."""
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_daemon_for_each_set_of_gpus(short_path: Path) -> None:
    """Started with the first job on it, told to quit when the last is gone."""
    control = Control()
    mps = MpsDaemons(short_path, "/bin/mps", control)
    first = mps.join("a", ["GPU-1", "GPU-2"], OWN)
    assert first == mps.join("b", ["GPU-2", "GPU-1"], OWN)
    other = mps.join("c", ["GPU-3"], OWN)
    assert other["CUDA_MPS_PIPE_DIRECTORY"] != first["CUDA_MPS_PIPE_DIRECTORY"]
    starts = [(["/bin/mps", "-d"], "GPU-1,GPU-2", None), (["/bin/mps", "-d"], "GPU-3", None)]
    assert control.calls == starts
    mps.leave("a")
    assert control.calls == starts
    mps.leave("b")
    mps.leave("b")
    mps.leave("never there")
    assert control.calls[2:] == [(["/bin/mps"], None, "quit\n")]


def test_a_daemon_outlives_the_agent_with_its_clients(short_path: Path) -> None:
    """The next agent does not stop it under a job that still runs, and does stop it in the end."""
    first = MpsDaemons(short_path, "/bin/mps", Control())
    pipes = {"old": first.join("old", ["GPU-1"], OWN)[PIPES]}
    first.join("gone", ["GPU-2"], OWN)
    control = Control()
    mps = MpsDaemons(short_path, "/bin/mps", control)
    mps.take_up(pipes | {"alone": ""})
    mps.quit_unused()
    assert control.said() == [("quit", f"{short_path}/GPU-2.own")]
    assert (mps.serves("old"), mps.serves("alone")) == (True, False)
    mps.join("new", ["GPU-1"], OWN)
    mps.leave("new")
    assert control.said()[1:] == []
    mps.leave("old")
    assert control.said()[1:] == [("quit", pipes["old"])]


def test_a_directory_that_cannot_be_read_ends_no_agent(caplog: pytest.LogCaptureFixture) -> None:
    """Unused daemons are left where they are, and that is said."""
    MpsDaemons(Path("/tmp", "x" * 300), "/bin/mps", Control()).quit_unused()
    assert "cannot look for unused MPS daemons" in caplog.text


def test_a_daemon_that_does_not_start(short_path: Path) -> None:
    """Is an error with its words; one that runs already is not."""
    with pytest.raises(OSError, match="ended with 1: no driver"):
        MpsDaemons(short_path, "/bin/mps", Control(1, "no driver\n")).join("a", ["GPU-1"], OWN)
    running = Control(1, "An instance of this daemon is already running")
    assert MpsDaemons(short_path, "/bin/mps", running).join("a", ["GPU-1"], OWN)


def test_a_socket_needs_a_short_path(tmp_path: Path) -> None:
    """Said beforehand, instead of a daemon that fails in its own words."""
    with pytest.raises(OSError, match="too long for a socket"):
        MpsDaemons(tmp_path / ("x" * 100), "/bin/mps", Control()).join("a", ["GPU-1"], OWN)


# --------------------------------------------------------------------------------------------- gavel.training


def package(tmp_path: Path, text: str = "answer = 42\n") -> Path:
    """An installation of ours."""
    part = tmp_path / "gavel" / "training"
    (part / "__pycache__").mkdir(parents=True, exist_ok=True)
    (part / "__init__.py").write_text(text)
    (part / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "gavel" / "cli.py").write_text("")
    return tmp_path / "gavel"


def test_jobs_get_the_training_library_and_nothing_else(tmp_path: Path) -> None:
    """First on PYTHONPATH; what else a job has of Gavel by itself stays importable."""
    source = package(tmp_path / "agent")
    (source.parent / "theirs" / "gavel").mkdir(parents=True)
    (source.parent / "theirs" / "gavel" / "__init__.py").write_text("")
    (source.parent / "theirs" / "gavel" / "client.py").write_text("name = 'client'")
    library = install(tmp_path / "library", source)
    assert {str(path.relative_to(library)) for path in library.rglob("*.*")} == {
        *("gavel/__init__.py", "gavel/training/__init__.py")
    }
    code = "import gavel.training, gavel.client; print(gavel.training.answer, gavel.client.name)"
    path = f"{library}:{source.parent / 'theirs'}"
    said = subprocess.run(
        [sys.executable, "-S", "-B", "-c", code],
        cwd="/",
        env={"PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    assert said.stdout == b"42 client\n"


def test_a_new_release_does_not_change_the_library_of_a_running_job(tmp_path: Path) -> None:
    """Same content, same directory; other content, another one."""
    first = install(tmp_path / "library", package(tmp_path / "a"))
    assert install(tmp_path / "library", package(tmp_path / "a")) == first
    assert install(tmp_path / "library", package(tmp_path / "a", "answer = 43\n")) != first
    assert len(list((tmp_path / "library").iterdir())) == 2


def test_an_installation_without_the_library(tmp_path: Path) -> None:
    """Is said, not found out by the first job."""
    (tmp_path / "gavel").mkdir()
    with pytest.raises(LibraryMissing, match="installation is incomplete"):
        install(tmp_path / "library", tmp_path / "gavel")
