"""`gavel explain`: a reason, its evidence and what would change it, at any moment of a journal."""

import json
import re
from pathlib import Path

import pytest

from scheduler.core.explain import REASONS
from scheduler.model.jobs import JobState
from tests.cli.conftest import Gavel

RUN = ("--workload", "mixed-day", "--rate", "30", "--jobs", "40", "--cluster", "t4=8,a100=8", "--seed", "3")


@pytest.fixture
def journal(gavel: Gavel, tmp_path: Path) -> str:
    """A history with more jobs than GPUs."""
    path = str(tmp_path / "journal")
    assert gavel("simulate", *RUN, "--journal", path).exit_code == 0
    return path


def test_the_reason_of_every_job_at_any_moment(journal: str, gavel: Gavel) -> None:
    """For people and for programs: the reason is one that the job's state can have."""
    waiting = 0
    for job in range(1, 41, 3):
        result = gavel("explain", str(job), "--journal", journal, "--at", "7200", "--json")
        if result.exit_code:
            assert f"there is no job '{job}'" in result.stderr
            continue
        told = json.loads(result.stdout)
        assert told["reason"] in REASONS[JobState(told["state"])]
        people = gavel("explain", str(job), "--journal", journal, "--at", "7200").stdout
        name = rf"job {job} \([a-z]+-\d+\)"
        assert re.match(rf"{name}: {told['state']} \({told['reason']}\)\n", people), people
        waiting += told["state"] in ("queued", "preempted")
    assert waiting


def test_at_its_end_all_jobs_are_completed(journal: str, gavel: Gavel) -> None:
    """Without a moment, the end of the journal is meant."""
    assert "completed" in gavel("explain", "7", "--journal", journal).stdout


def test_a_job_by_its_name(journal: str, gavel: Gavel) -> None:
    """A name will do where only one job has it."""
    told = json.loads(gavel("explain", "7", "--journal", journal, "--json").stdout)
    assert told["job"] == "7"
    assert "there is no job 'nobody'" in gavel("explain", "nobody", "--journal", journal).stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--journal", "missing"), "missing: there is no such journal"),
        (("--journal", "README.md"), "README.md: "),
        (("--journal", "README.md", "--at", "nan"), "invalid value for '--at': 'nan' is not a number"),
        ((), "missing option '--journal'"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """Exit code 2, and what to do."""
    result = gavel("explain", "1", *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert line in result.stderr.lower() or line in result.stderr
