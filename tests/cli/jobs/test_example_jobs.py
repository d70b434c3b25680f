"""Every job file of examples/jobs is accepted unchanged and is easy to find."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.live_thread import LiveThread

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "examples" / "jobs").glob("*.yaml"))


def test_there_are_some() -> None:
    """The commonest kinds of job have an example."""
    assert {"after", "digits", "environment", "two-ranks", "upload"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_would_be_accepted(live: LiveThread, gavel: Gavel, file: Path) -> None:
    """A cluster of two V100 and a K80 accepts each file, once the job that it waits for is submitted."""
    live.do(live.daemon.node("n2", worker_type="k80"))
    if file.stem == "after":
        # This job waits for one that does not exist yet.
        assert gavel("submit", "--dry-run", str(file)).exit_code != 0
        assert gavel("submit", str(file.with_name("digits.yaml"))).exit_code == 0
    result = gavel("submit", "--dry-run", str(file))
    assert (result.exit_code, "would be accepted" in result.stdout) == (0, True), (
        result.stdout + result.stderr
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_has_the_command_that_submits_it(file: Path) -> None:
    """The first line of a file is the command that submits it, with a path from the top of the repository."""
    first = file.read_text().partition("\n")[0]
    command = re.search(r"gavel submit (examples/jobs/\S+\.yaml)", first)
    assert command, first
    assert (ROOT / command[1]).exists()


def test_each_is_named_where_job_files_are_explained() -> None:
    """docs/job-file.md links every file, and the README links that section."""
    page = (ROOT / "docs" / "job-file.md").read_text()
    for file in FILES:
        assert f"(../examples/jobs/{file.name})" in page, file.name
    assert "docs/job-file.md#examples" in (ROOT / "README.md").read_text()
