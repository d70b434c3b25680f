"""Commands, options and states of other schedulers, typed out of habit, are answered with Gavel's own."""

import click
import pytest

from gavel.cli.io.options import JOB_STATES as OUR_STATES
from gavel.cli.io.other_schedulers import COMMANDS, NOT_NEEDED, OPTIONS, STATES
from gavel.cli.main import main
from tests.cli.conftest import Gavel, as_words
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

RUN = ("--", "true")


@pytest.mark.parametrize(
    ("arguments", "equivalent"),
    [
        (("sbatch", "x.sh"), "`gavel submit`"),
        (("sacct", "-j", "17"), "`gavel queue --ended"),
        (("sacctmgr", "show", "assoc"), "`gavel tenant`"),
        (("sreport", "cluster", "utilization"), "`gavel usage`"),
        (("sshare",), "`gavel shares`"),
        (("sprio",), "`gavel explain JOB`"),
        (("queue", "-t", "R"), "--state"),
        (("update", "1", "--time", "4h"), "--time-limit"),
        (("launch", "task.yaml"), "`gavel submit`"),
        (("stop", "1"), "`gavel cancel`"),
        (("submit", "--working-dir", ".", *RUN), "--upload"),
        (("jobs", "launch", "task.yaml"), "`gavel submit`"),
        (("job", "status", "1"), "`gavel show JOB`"),
        (("job", "--help-me"), "`gavel queue`"),
        (("autostop", "x"), "when it ends"),
        (("submit", "-c", "mycluster", "x.yaml"), "not needed"),
    ],
    ids=as_words,
)
def test_they_are_answered(
    gavel: Gavel, arguments: tuple[str, ...], equivalent: str, wording: Wording
) -> None:
    """The answer is one line that names the equivalent. Exit code 2."""
    result = gavel(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert (equivalent in result.stderr, "docs/coming-from.md" in result.stderr) == (True, True)
    wording(result.stderr)


def test_other_unknown_words_get_a_suggestion(gavel: Gavel, wording: Wording) -> None:
    """A typo gets the nearest command; a missing argument and an unknown subcommand get the possible ones."""
    for arguments, suggestion in (
        (("submt",), "'submit'"),
        (("policy", "ls"), "get, set"),
        (("completion",), "zsh"),
    ):
        result = gavel(*arguments)
        assert (result.exit_code, suggestion in result.stderr) == (2, True)
        wording(result.stderr)


def test_every_equivalent_exists() -> None:
    """Each answer names a real command, option or state of Gavel, and no word of another scheduler is also Gavel's."""
    assert not {*COMMANDS, *NOT_NEEDED} & set(main.commands)
    assert not set(COMMANDS) & set(NOT_NEEDED)
    assert {line.split()[0] for line in COMMANDS.values()} <= set(main.commands)
    assert set(STATES.values()) <= set(OUR_STATES)
    assert not set(STATES) & set(OUR_STATES)
    for name, table in OPTIONS.items():
        command = main.commands[name]
        options = {
            word for option in command.params if isinstance(option, click.Option) for word in option.opts
        }
        options |= {word for parameter in command.params for word in parameter.secondary_opts}
        assert not set(table) & options
        equivalents = {word.strip("`,") for line in table.values() for word in line.split()}
        assert {word for word in equivalents - {"--"} if word.startswith("--")} <= options


@pytest.mark.parametrize("jobs", ["1,2", "1-3", "1_[0-1]", "1..2"])
def test_several_jobs_in_one_word(live: LiveThread, gavel: Gavel, jobs: str, wording: Wording) -> None:
    """Lists and ranges in one word are refused, with the way to name several jobs."""
    gavel("submit", *RUN)
    result = gavel("cancel", jobs)
    assert (result.exit_code, result.stdout, f"'{jobs}'" in result.stderr) == (3, "", True)
    wording(result.stderr)


def test_an_empty_id_names_no_job(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`gavel cancel "$job"` with an unset variable is refused, and not taken for a job without a name."""
    gavel("submit", *RUN)
    result = gavel("cancel", "")
    assert result.exit_code == 2
    wording(result.stderr)
    assert live.daemon.world.state.jobs["1"].state != "cancelled"


def test_states_by_other_names(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """States are accepted in capitals and by the names of other schedulers."""
    gavel("submit", "--start", "1h", *RUN)
    for word in ("queued", "QUEUED", "PD", "pending"):
        assert gavel("queue", "--state", word).stdout.splitlines()[1].split()[0] == "1"
    result = gavel("queue", "--state", "xx")
    assert (result.exit_code, "'xx'" in result.stderr, "'queued'" in result.stderr) == (2, True, True)
    wording(result.stderr)
