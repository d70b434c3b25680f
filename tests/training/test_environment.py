"""The environment and `lease.json` from the agent, right and wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gavel.training.environment import Run, available_cpus, cpus, ranks_of, run_of, speed_of, steps_of
from gavel.training.errors import EnvironmentFault
from gavel.training.lease import Lease, LeaseFile, parse
from gavel.training.progress import Progress
from tests.training.leases import RunDirectory


def test_a_rank_reads_its_place_from_the_environment(tmp_path: Path) -> None:
    """The rank's place is read from the variables of docs/job-directory.md."""
    environ = RunDirectory(tmp_path).environ(1, 2, GAVEL_STEPS="50", GAVEL_COORDINATOR="[::1]:29400")
    assert run_of(environ) == Run(tmp_path, "12", "2", 3, 2, 1, 2, 50, ("::1", 29400))


def test_without_a_run_directory_there_is_no_run() -> None:
    """Under another launcher there may be ranks without a run directory."""
    environ = {"RANK": "1", "WORLD_SIZE": "4"}
    assert run_of(environ) is None
    assert ranks_of(environ) == (1, 4)
    assert ranks_of({}) == (0, 1)
    assert (steps_of({}), speed_of({})) == (None, 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GAVEL_STEPS", "many"),
        ("GAVEL_STEPS", "-1"),
        ("GAVEL_STEPS", "1e3"),
        ("GAVEL_STEPS", "9" * 19),
        ("GAVEL_EPOCH", "three"),
        ("GAVEL_ATTEMPT", "²"),
        ("RANK", "2"),
        ("WORLD_SIZE", "two"),
        ("GAVEL_COORDINATOR", "10.0.0.5"),
        ("GAVEL_COORDINATOR", ":1"),
        ("GAVEL_COORDINATOR", "host:0"),
        ("GAVEL_COORDINATOR", "host:70000"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, name: str, value: str) -> None:
    """The error has the variable, its value, and what was expected."""
    environ = {**RunDirectory(tmp_path).environ(1, 2), name: value}
    with pytest.raises(EnvironmentFault, match=f"{name} is '?{value}"):
        run_of(environ)


@pytest.mark.parametrize("value", ["0", "-1", "fast", "inf", "nan"])
def test_a_wrong_speed_is_named(value: str) -> None:
    """A GPU of speed zero, or of infinite speed, must be a mistake."""
    with pytest.raises(EnvironmentFault, match=f"GAVEL_SPEED is '{value}'"):
        speed_of({"GAVEL_SPEED": value})


GOOD = {"ask_s": 1.0, "signal_s": 2, "kill_s": 3.5, "why": "drained", "later": [1]}


def test_a_lease_is_three_times_and_a_reason() -> None:
    """Unknown keys are ignored; a missing reason is empty."""
    assert parse(json.dumps(GOOD).encode()) == Lease(1.0, 2.0, 3.5, "drained")
    assert parse(b'{"ask_s": 1, "signal_s": 2, "kill_s": 3, "why": 7}') == Lease(1.0, 2.0, 3.0, "")
    for text, mtbf_s in (("86400", 86400.0), ("0", None), ('"1"', None), ("NaN", None), ("1e999", None)):
        data = f'{{"ask_s": 1, "signal_s": 2, "kill_s": 3, "mtbf_s": {text}}}'
        assert parse(data.encode()) == Lease(1.0, 2.0, 3.0, "", mtbf_s)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[1]", b'"x"', b"\xff\xfe", b"[" * 60_000, *(
        json.dumps({**GOOD, "ask_s": value}).encode() for value in (None, "1", True, float("nan"), float("inf"))
    )],
)  # fmt: skip
def test_a_malformed_file_is_no_lease(data: bytes) -> None:
    """A truncated file, other data, and times that are no numbers are ignored."""
    assert parse(data) is None


def test_the_last_lease_that_was_read_holds(tmp_path: Path) -> None:
    """A file that vanishes or is damaged changes nothing; a new one counts at once."""
    path = tmp_path / "lease.json"
    file = LeaseFile(path)
    assert file.read() is None
    path.write_text(json.dumps(GOOD))
    assert file.read() == Lease(1.0, 2.0, 3.5, "drained")
    path.write_text("nonsense")
    assert file.read() == Lease(1.0, 2.0, 3.5, "drained")
    path.unlink()
    assert file.read() == Lease(1.0, 2.0, 3.5, "drained")
    path.write_text(json.dumps({**GOOD, "ask_s": 1.5}))
    assert file.read() == Lease(1.5, 2.0, 3.5, "drained")


def test_progress_is_written_at_most_once_a_second_and_not_after_the_end(tmp_path: Path) -> None:
    """The last report is final."""
    progress = Progress(tmp_path, 0, 3, 2)
    progress.write_if_due(100.0, 1)
    assert list(tmp_path.iterdir()) == []
    progress.begin(saved=0)
    for now_s, steps in ((100.0, 1), (100.9, 2), (101.0, 3)):
        progress.write_if_due(now_s, steps)
        words = json.loads((tmp_path / "progress-0.json").read_text())
        assert words["steps"] == (1 if now_s < 101 else 3)
    progress.end("yielded", 4)
    progress.write_if_due(1e9, 5)
    assert json.loads((tmp_path / "progress-0.json").read_text())["steps"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["progress-0.json"]


def test_progress_is_not_written_through_a_link(tmp_path: Path) -> None:
    """A symbolic link in the file's place is not followed; training continues, and the log has the reason."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "progress-0.json.new").symlink_to(victim)
    progress = Progress(tmp_path, 0, 3, 2)
    progress.begin(saved=0)
    progress.write(100.0, 1)
    assert victim.read_text() == "precious"


def test_a_rank_has_loader_workers_from_its_environment() -> None:
    """Processes that torchrun has started share those of their rank, and each has at least one."""
    assert cpus({"GAVEL_CPUS": "6"}) == 6
    assert cpus({"GAVEL_CPUS": "6", "LOCAL_WORLD_SIZE": "4"}) == 6
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "4"}
    assert [cpus({"GAVEL_CPUS": text, **torchrun}) for text in ("12", "6", "1")] == [3, 2, 1]
    with pytest.raises(EnvironmentFault, match="GAVEL_CPUS is 'many': expected a whole number, such as 100"):
        cpus({"GAVEL_CPUS": "many"})


def test_elsewhere_loader_workers_are_the_cpus_of_the_process() -> None:
    """Those on which it may run, which taskset and containers limit."""
    assert cpus({}) == available_cpus() == len(os.sched_getaffinity(0))
