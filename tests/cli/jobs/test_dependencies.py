"""Jobs that wait for others by name: which is taken, and what is said where nobody can know."""

from pathlib import Path

from gavel.client.transport.channels import user_name
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.support.live_thread import LiveThread

RUN = ("--", "true")


def waits_for(live: LiveThread, job: str) -> list[tuple[str, str]]:  # noqa: F811
    """What the scheduler knows of it."""
    return [(one.job, one.when) for one in live.daemon.world.state.jobs[job].spec.after]


def test_a_name_that_one_unfinished_job_has(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """Its id is taken, and said; those that ended, and those of others, do not count. An array is one."""
    gavel("submit", "-n", "prepare", *RUN)
    gavel("cancel", "1")
    gavel("submit", "-n", "prepare", "--start", "1h", *RUN)
    gavel("submit", "-n", "prepare", "--start", "1h", "--user", "bob", *RUN)
    gavel("submit", "-n", "sweep", "--start", "1h", "--array", "0-2", *RUN)
    said = gavel("submit", "--after", "prepare:ended", "--after", "sweep", *RUN)
    assert (said.exit_code, said.stdout) == (0, "submitted job 5\n")
    assert said.stderr == "after 'prepare': job 2\nafter 'sweep': job 4\n"
    assert waits_for(live, "5") == [("2", "ended"), ("4", "succeeded")]
    gavel("submit", "--user", "bob", "--after", "prepare", *RUN)
    assert waits_for(live, "6") == [("3", "succeeded")]


def test_a_name_in_a_job_file(live: LiveThread, gavel: Gavel, tmp_path: Path) -> None:  # noqa: F811
    """The same; what is wrong is told with its line. A job may follow an older one of its own name."""
    gavel("submit", "-n", "train", "--start", "1h", *RUN)
    path = tmp_path / "job.yaml"
    path.write_text("name: train\ncommand: [a]\nafter: train\n")
    assert gavel("submit", str(path)).stdout == "submitted job 2\n"
    assert waits_for(live, "2") == [("1", "succeeded")]
    said = gavel("submit", str(path))
    assert (said.exit_code, said.stdout) == (2, "")
    assert said.stderr == (
        f"gavel submit: {path}: line 3: after: 2 unfinished jobs of {user_name()} are called 'train'; "
        "name one by its id: 2 (queued), 1 (queued)\n"
    )
    path.write_text("jobs:\n- {name: x, command: [a]}\n- {name: y, command: [b], after: x}\n")
    words = "line 3: after: 'x' is submitted together with this job and has no id yet: submit it before\n"
    assert gavel("submit", str(path)).stderr == f"gavel submit: {path}: {words}"
    assert len(live.daemon.world.state.jobs) == 2


def test_a_name_beside_a_key(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """The same submission may be said again when the name means another job: an id is wanted."""
    gavel("submit", "-n", "train", "--start", "1h", *RUN)
    said = gavel("submit", "--key", "k", "--after", "train", *RUN)
    words = "must be the id of a job beside --key: the name 'train' may mean another job next time"
    assert (said.exit_code, said.stderr) == (2, f"gavel submit: --after: {words}\n")
    for _ in range(2):
        assert gavel("submit", "--key", "k", "--after", "1", *RUN).stdout == "submitted job 2\n"


def test_a_name_that_nobody_has(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """What may have been meant is listed, by id and name."""
    words = (
        f"gavel submit: --after: must be the id of a job, or the name of an unfinished one of {user_name()}; "
    )
    said = gavel("submit", "--after", "prepare", *RUN)
    assert (said.exit_code, said.stderr) == (2, words + "none is called 'prepare'\n")
    for name in ("prepare-1", "other"):
        gavel("submit", "-n", name, "--start", "1h", *RUN)
    said = gavel("submit", "--dry-run", "--after", "prepare", *RUN)
    assert (said.exit_code, said.stderr) == (
        2,
        words + "none is called 'prepare'; there are 1 (prepare-1)\n",
    )
    assert (
        "none is called '3x'; there are 2 (other), 1 (prepare-1)"
        in gavel("submit", "--after", "3x", *RUN).stderr
    )
