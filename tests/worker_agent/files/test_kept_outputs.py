"""The outputs of a run survive its run directory, and are removed by age and size."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from worker_agent.files.kept_outputs import KeptOutputs
from worker_agent.runs.retention import Retention, remove_old_runs
from worker_agent.shim.run_directory import ACKNOWLEDGED, EXIT, START

ENDED_S = 1000.0


def ended_run(runs: Path, lease: str, outputs: list[str], ended_s: float = ENDED_S) -> Path:
    """Return the directory of an ended run with a work directory."""
    run = runs / lease
    (run / "work/out").mkdir(parents=True)
    (run / "work/out/model.pt").write_bytes(b"m" * 5000)
    (run / "work/log.txt").write_text("log")
    start = {"job": f"job-{lease}", "attempt": 2, "cwd": f"{run}/work", "outputs": outputs, "groups": []}
    (run / START).write_text(json.dumps({"uid": None, "gid": None, **start}))
    for name in (EXIT, ACKNOWLEDGED):
        (run / name).touch()
        os.utime(run / name, (ended_s, ended_s))
    return run


@pytest.fixture
def outputs(tmp_path: Path) -> KeptOutputs:
    """Outputs that are kept for 500 s, and up to 1 MB."""
    return KeptOutputs(tmp_path / "outputs", 500.0, 1e6)


def test_declared_outputs_survive_the_run_directory(tmp_path: Path, outputs: KeptOutputs) -> None:
    """They are moved with their paths; links become files; the rest of the directory is removed."""
    run = ended_run(tmp_path / "runs", "17", ["out/**", "latest"])
    (run / "work/latest").symlink_to("out/model.pt")
    os.utime(run / "work/out/model.pt", (5, 5))
    removed = remove_old_runs(tmp_path / "runs", (), Retention(keep_s=10), ENDED_S + 11, outputs.keep)
    assert removed == [run]
    kept = outputs.find("17", "job-17", 2)
    assert kept is not None
    place, until_s = kept
    files = sorted(path for path in Path(place.path).rglob("*") if path.is_file())
    assert [str(path.relative_to(place.path)) for path in files] == ["latest", "out/model.pt"]
    assert [(path.stat().st_size, path.stat().st_mtime) for path in files] == [(5000, 5.0), (5000, 5.0)]
    assert until_s == ENDED_S + 500.0
    assert outputs.find("17", "job-of-an-earlier-scheduler", 2) is None


def test_a_run_without_outputs_leaves_nothing(tmp_path: Path, outputs: KeptOutputs) -> None:
    """Neither a run that declares none, nor one whose patterns match nothing, nor one that removed its files."""
    ended_run(tmp_path / "runs", "1", [])
    ended_run(tmp_path / "runs", "2", ["none"])
    (ended_run(tmp_path / "runs", "3", ["out"]) / "work").rename(tmp_path / "away")
    remove_old_runs(tmp_path / "runs", (), Retention(keep_s=10), ENDED_S + 11, outputs.keep)
    assert list((tmp_path / "runs").iterdir()) == []
    assert list(outputs.path.glob("*")) == []


def test_files_in_read_only_directories_are_copied(tmp_path: Path, outputs: KeptOutputs) -> None:
    """A job may have taken the right to write from its own directory."""
    run = ended_run(tmp_path / "runs", "17", ["out"])
    (run / "work/out").chmod(0o500)
    outputs.keep(run)
    (run / "work/out").chmod(0o700)
    assert (outputs.path / "17/files/out/model.pt").read_bytes() == b"m" * 5000


def test_a_run_whose_outputs_cannot_be_moved_stays_for_a_while(tmp_path: Path) -> None:
    """It stays for twice the time; a full disk takes it earlier."""

    def fail(run: Path) -> None:
        raise OSError("disk full")

    run = ended_run(tmp_path / "runs", "17", ["out"])
    keep = Retention(keep_s=10)
    assert remove_old_runs(tmp_path / "runs", (), keep, ENDED_S + 20, fail) == []
    assert remove_old_runs(tmp_path / "runs", (), keep, ENDED_S + 21, fail) == [run]
    run = ended_run(tmp_path / "runs", "18", ["out"])
    assert remove_old_runs(tmp_path / "runs", (), Retention(total_bytes_max=1), ENDED_S + 1, fail) == [run]


def test_the_oldest_outputs_are_removed_first(tmp_path: Path) -> None:
    """Those that are too old, and the oldest until the rest fits."""
    outputs = KeptOutputs(tmp_path / "outputs", 500.0, 2 * 8192.0)
    for lease, ended_s in (("1", 100.0), ("2", 900.0), ("3", 901.0), ("4", 902.0)):
        outputs.keep(ended_run(tmp_path / "runs", lease, ["out"], ended_s))
    assert [path.name for path in outputs.remove_old(now_s=601.0)] == ["1", "2", "3"]
    assert [path.name for path in outputs.remove_old(now_s=1403.0)] == ["4"]
