"""Jobs that wait for other jobs by name: which job a name means, and which names are refused."""

from pathlib import Path

from gavel.client.transport.channels import user_name
from tests.cli.conftest import Gavel
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

RUN = ("--", "true")


def waits_for(live: LiveThread, job: str) -> list[tuple[str, str]]:
    """Return the dependencies of the job in the scheduler's state."""
    return [(dependency.job, dependency.when) for dependency in live.daemon.world.state.jobs[job].spec.after]


def test_a_name_that_one_unfinished_job_has(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """A name means the caller's one unfinished job or array of that name; its id is reported."""
    gavel("submit", "-n", "prepare", *RUN)
    gavel("cancel", "1")
    gavel("submit", "-n", "prepare", "--start", "1h", *RUN)
    gavel("submit", "-n", "prepare", "--start", "1h", "--user", "bob", *RUN)
    gavel("submit", "-n", "sweep", "--start", "1h", "--array", "0-2", *RUN)
    result = gavel("submit", "--after", "prepare:ended", "--after", "sweep", *RUN)
    assert (result.exit_code, result.stdout) == (0, "submitted job 5\n")
    wording(result.stderr)
    assert waits_for(live, "5") == [("2", "ended"), ("4", "succeeded")]
    gavel("submit", "--user", "bob", "--after", "prepare", *RUN)
    assert waits_for(live, "6") == [("3", "succeeded")]


def test_a_name_in_a_job_file(live: LiveThread, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A name in a job file means the same as one on the command line; an error names the line."""
    gavel("submit", "-n", "train", "--start", "1h", *RUN)
    path = tmp_path / "job.yaml"
    path.write_text("name: train\ncommand: [a]\nafter: train\n")
    assert gavel("submit", str(path)).stdout == "submitted job 2\n"
    assert waits_for(live, "2") == [("1", "succeeded")]
    result = gavel("submit", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"gavel submit: {path}: line 3: after: ")
    wording(result.stderr, path=path, user=user_name())
    path.write_text("jobs:\n- {name: x, command: [a]}\n- {name: y, command: [b], after: x}\n")
    result = gavel("submit", str(path))
    assert result.stderr.startswith(f"gavel submit: {path}: line 3: after: ")
    wording(result.stderr, path=path)
    assert len(live.daemon.world.state.jobs) == 2


def test_a_name_beside_a_key(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """With a key, `--after` needs an id: at a repetition, the name might mean another job."""
    gavel("submit", "-n", "train", "--start", "1h", *RUN)
    result = gavel("submit", "--key", "k", "--after", "train", *RUN)
    assert (result.exit_code, result.stderr.startswith("gavel submit: --after: ")) == (2, True)
    wording(result.stderr)
    for _ in range(2):
        assert gavel("submit", "--key", "k", "--after", "1", *RUN).stdout == "submitted job 2\n"


def test_a_name_that_no_job_has(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """An unknown name is refused with the jobs it could mean, by id and name."""
    result = gavel("submit", "--after", "prepare", *RUN)
    assert (result.exit_code, result.stderr.startswith("gavel submit: --after: ")) == (2, True)
    wording(result.stderr, user=user_name())
    for name in ("prepare-1", "other"):
        gavel("submit", "-n", name, "--start", "1h", *RUN)
    result = gavel("submit", "--dry-run", "--after", "prepare", *RUN)
    assert (result.exit_code, "1 (prepare-1)" in result.stderr, "other" in result.stderr) == (2, True, False)
    wording(result.stderr, user=user_name())
    result = gavel("submit", "--after", "3x", *RUN)
    assert ("2 (other)" in result.stderr, "1 (prepare-1)" in result.stderr) == (True, True)
    wording(result.stderr, user=user_name())
