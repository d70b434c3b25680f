"""The job files of examples/jobs: each is taken as it stands, and found by whoever looks for one."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.support.live_thread import LiveThread

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))


def test_there_are_some() -> None:
    """For the commonest wishes."""
    assert {"after", "digits", "environment", "two-ranks", "upload"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_would_be_accepted(live: LiveThread, gavel: Gavel, file: Path) -> None:  # noqa: F811
    """By a cluster of two V100 and some K80; what it waits for is submitted before it."""
    live.do(live.daemon.node("n2", worker_type="k80"))
    if file.stem == "after":
        said = gavel("submit", "--dry-run", str(file))
        assert said.exit_code != 0, "it waits for a job that is not there"
        assert gavel("submit", str(file.with_name("digits.yaml"))).exit_code == 0
    said = gavel("submit", "--dry-run", str(file))
    assert (said.exit_code, "would be accepted" in said.stdout) == (0, True), said.stdout + said.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_says_how_it_is_submitted(file: Path) -> None:
    """Its first line is the command, with a path that is right from the top of the repository."""
    first = file.read_text().partition("\n")[0]
    command = re.search(r"gavel submit (examples/jobs/\S+\.yaml)", first)
    assert command, first
    assert (ROOT / command[1]).exists()


def test_each_is_named_where_job_files_are_explained() -> None:
    """docs/job-file.md lists them all, and the README leads there."""
    page = (ROOT / "docs" / "job-file.md").read_text()
    for file in FILES:
        assert f"(../examples/jobs/{file.name})" in page, file.name
    assert "docs/job-file.md#examples" in (ROOT / "README.md").read_text()
