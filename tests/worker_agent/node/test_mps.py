"""Two jobs on the same GPUs share them by MPS if possible, else by time slices; and the library that jobs get."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.wording import Wording
from worker_agent.node.job_library import LibraryMissing, install
from worker_agent.node.mps import PIPES, MpsDaemons, decide
from worker_agent.node.users import Account

OWN = Account(name="ada", home=Path("/"), login_shell="/bin/sh")


@pytest.mark.parametrize(
    ("facts", "mps"),
    [
        ({"packed": False}, False),
        ({}, True),
        ({"devices": []}, False),
        ({"daemon": None}, False),
        ({"without_mps": True}, False),
    ],
    ids=["alone", "together", "declared", "no program", "without MPS"],
)
def test_packed_jobs_share_by_mps_if_possible(facts: dict[str, Any], mps: bool, wording: Wording) -> None:
    """The agent decides from facts alone, and gives the reason for the job's log."""
    sharing = decide(**{"packed": True, "devices": ["GPU-a"], "daemon": "/bin/mps"} | facts)
    assert sharing.by_mps == mps
    assert bool(sharing.note) == facts.get("packed", True)
    wording(sharing.note)


class Control:
    """A stand-in for nvidia-cuda-mps-control that records its calls."""

    def __init__(self, code: int = 0, stderr: str = "") -> None:
        self.code, self.stderr = code, stderr
        self.calls: list[tuple[list[str], str | None, str | None]] = []
        self.pipes: list[str] = []

    def __call__(self, argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        assert more["timeout"] > 0
        self.pipes.append(more["env"][PIPES])
        self.calls.append((argv, more["env"].get("CUDA_VISIBLE_DEVICES"), more.get("input")))
        return subprocess.CompletedProcess(argv, self.code, "", self.stderr)

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands that were called, each with its daemon."""
        return [
            ((command or "start").strip(), pipes)
            for (_, _, command), pipes in zip(self.calls, self.pipes, strict=True)
        ]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_each_set_of_gpus_has_a_daemon(short_path: Path) -> None:
    """The daemon starts with the first job on its GPUs, and quits when the last is gone."""
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
    """The next agent stops the daemon only after its last job."""
    first = MpsDaemons(short_path, "/bin/mps", Control())
    pipes = {"old": first.join("old", ["GPU-1"], OWN)[PIPES]}
    first.join("gone", ["GPU-2"], OWN)
    control = Control()
    mps = MpsDaemons(short_path, "/bin/mps", control)
    mps.adopt(pipes | {"alone": ""})
    mps.quit_unused()
    assert control.commands() == [("quit", f"{short_path}/GPU-2.own")]
    assert (mps.serves("old"), mps.serves("alone")) == (True, False)
    mps.join("new", ["GPU-1"], OWN)
    mps.leave("new")
    assert control.commands()[1:] == []
    mps.leave("old")
    assert control.commands()[1:] == [("quit", pipes["old"])]


def test_a_directory_that_cannot_be_read_ends_no_agent(
    caplog: pytest.LogCaptureFixture, wording: Wording
) -> None:
    """Unused daemons keep running, with a warning in the log."""
    MpsDaemons(Path("/tmp", "x" * 300), "/bin/mps", Control()).quit_unused()
    (record,) = caplog.records
    wording(record.getMessage(), folder="x" * 300)


def test_a_daemon_that_does_not_start_is_an_error(short_path: Path) -> None:
    """The error has the daemon's output; a daemon that already runs is no error."""
    with pytest.raises(OSError, match=r"1\b.*no driver"):
        MpsDaemons(short_path, "/bin/mps", Control(1, "no driver\n")).join("a", ["GPU-1"], OWN)
    running = Control(1, "An instance of this daemon is already running")
    assert MpsDaemons(short_path, "/bin/mps", running).join("a", ["GPU-1"], OWN)


def test_a_socket_needs_a_short_path(tmp_path: Path, wording: Wording) -> None:
    """The agent refuses beforehand, instead of a daemon that fails obscurely."""
    with pytest.raises(OSError, match="x" * 100) as refused:
        MpsDaemons(tmp_path / ("x" * 100), "/bin/mps", Control()).join("a", ["GPU-1"], OWN)
    wording(refused.value, folder=tmp_path)


# --------------------------------------------------------------------------------------------- gavel.training


def package(tmp_path: Path, text: str = "answer = 42\n") -> Path:
    """Return a folder with an installation of Gavel."""
    part = tmp_path / "gavel" / "training"
    (part / "__pycache__").mkdir(parents=True, exist_ok=True)
    (part / "__init__.py").write_text(text)
    (part / "__pycache__" / "x.pyc").write_text("x")
    (tmp_path / "gavel" / "cli.py").write_text("")
    return tmp_path / "gavel"


def test_jobs_get_the_training_library_and_nothing_else(tmp_path: Path) -> None:
    """The library is first on PYTHONPATH; the rest of the job's own Gavel stays importable."""
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
    printed = subprocess.run(
        [sys.executable, "-S", "-B", "-c", code],
        cwd="/",
        env={"PYTHONPATH": path},
        capture_output=True,
        check=True,
    )
    assert printed.stdout == b"42 client\n"


def test_a_new_release_does_not_change_the_library_of_a_running_job(tmp_path: Path) -> None:
    """Each version of the library's files has its own directory."""
    first = install(tmp_path / "library", package(tmp_path / "a"))
    assert install(tmp_path / "library", package(tmp_path / "a")) == first
    assert install(tmp_path / "library", package(tmp_path / "a", "answer = 43\n")) != first
    assert len(list((tmp_path / "library").iterdir())) == 2


def test_an_installation_without_the_library_is_refused(tmp_path: Path) -> None:
    """The agent's start fails, instead of the first job."""
    (tmp_path / "gavel").mkdir()
    with pytest.raises(LibraryMissing, match="installation is incomplete"):
        install(tmp_path / "library", tmp_path / "gavel")
