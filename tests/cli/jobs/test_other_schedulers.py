"""Words of other schedulers, typed out of habit: they are answered with ours."""

import click
import pytest

from gavel.cli.io.options import JOB_STATES as OURS
from gavel.cli.io.other_schedulers import COMMANDS, OPTIONS, STATES
from gavel.cli.main import main
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
from tests.support.live_thread import LiveThread

RUN = ("--", "true")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            ("sbatch", "x.sh"),
            "gavel: no such command 'sbatch'; here it is `gavel submit` (docs/from-slurm.md)\n",
        ),
        (("queue", "-t", "R"), "gavel queue: no such option '-t'; here it is --state (docs/from-slurm.md)\n"),
    ],
)
def test_they_are_answered(gavel: Gavel, said: tuple[str, ...], line: str) -> None:
    """One line, exit code 2."""
    result = gavel(*said)
    assert (result.exit_code, result.stderr) == (2, line)


def test_what_is_none_of_theirs_is_left_to_guessing(gavel: Gavel) -> None:
    """Typos, and words below a command."""
    assert "no such command 'submt'. Did you mean 'submit'?" in gavel("submt").stderr
    assert gavel("policy", "ls").stderr == "gavel policy: no such command 'ls'; there are get, set\n"
    missing = "gavel completion: missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish\n"
    assert gavel("completion").stderr == missing


def test_what_is_named_is_there() -> None:
    """Commands, options and states; and nothing of ours is called as theirs is."""
    assert not set(COMMANDS) & set(main.commands)
    assert {line.split()[0] for line in COMMANDS.values()} <= set(main.commands)
    assert set(STATES.values()) <= set(OURS)
    assert not set(STATES) & set(OURS)
    for name, table in OPTIONS.items():
        command = main.commands[name]
        ours = {word for one in command.params if isinstance(one, click.Option) for word in one.opts}
        ours |= {word for one in command.params for word in one.secondary_opts}
        assert not set(table) & ours
        assert {line for line in table.values() if line.startswith("--")} <= ours


@pytest.mark.parametrize("said", ["1,2", "1-3", "1_[0-1]", "1..2"])
def test_several_in_one_word(live: LiveThread, gavel: Gavel, said: str) -> None:  # noqa: F811
    """Not known here, and it is said how several are named."""
    gavel("submit", *RUN)
    result = gavel("cancel", said)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"gavel cancel: there is no job '{said}'; list several one by one: 3 4 5, or {{3..5}}\n"
    )


def test_an_empty_id_names_no_job(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """`gavel cancel "$job"`, with a variable that is not set, is no job without a name."""
    gavel("submit", *RUN)
    result = gavel("cancel", "")
    assert (result.exit_code, result.stderr) == (2, "gavel cancel: the id of a job is empty\n")
    assert live.daemon.world.state.jobs["1"].state != "cancelled"


def test_states_by_other_names(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """In capitals, and as other schedulers call them."""
    gavel("submit", "--start", "1h", *RUN)
    for word in ("queued", "QUEUED", "PD", "pending"):
        assert gavel("queue", "--state", word).stdout.splitlines()[1].split()[0] == "1"
    assert "is not one of 'queued', " in gavel("queue", "--state", "xx").stderr
