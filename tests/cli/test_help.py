"""`gavel --help` and the options of `gavel submit` are complete, and take next to no time."""

import subprocess
import sys

import pytest

from gavel.cli.main import COMMANDS, main
from gavel.client.jobs.spec import FIELDS
from tests.cli.conftest import Gavel

NO_OPTION = {"command": "goes after --", "script": "goes into a file, or after -- bash -c"}


TABLE = [(name, summary) for commands in COMMANDS.values() for name, (_, summary) in commands.items()]


@pytest.mark.parametrize(("name", "summary"), TABLE)
def test_the_table_of_commands_agrees_with_them(name: str, summary: str) -> None:
    """`gavel --help` prints names and summaries from a table, so that it imports no command."""
    command = main.commands[name]
    assert (command.name, command.get_short_help_str(limit=1000)) == (name, summary)


def test_every_command_has_its_place_in_the_help(gavel: Gavel) -> None:
    """Every command is listed once, in one group."""
    assert [name for name, _ in TABLE] == list(main.commands)
    titles = [
        line[:-1] for line in gavel("--help").stdout.splitlines() if line.endswith(":") and line[0] != " "
    ]
    assert titles == ["Options", *COMMANDS]


def test_help_imports_nothing_heavy() -> None:
    """`gavel COMMAND --help` and completion import no heavy library; `gavel --help` imports no command."""
    code = """
import sys
from gavel.cli.main import main
main(["--help"], standalone_mode=False)
listed = {name for name in sys.modules if name.startswith("gavel.cli")}
list(main.commands.values())
libraries = {"numpy", "scipy", "grpc", "google", "rich", "matplotlib", "yaml"}
heavy = {*libraries, "policies", "scheduler.core", "scheduler.live", "scheduler.sim.runs", "worker_agent"}
print(sorted(listed), sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "['gavel.cli', 'gavel.cli.faults', 'gavel.cli.main'] []"


@pytest.mark.parametrize("command", [(), ("submit",), ("token", "create")], ids=str)
def test_help_is_also_a_command(gavel: Gavel, command: tuple[str, ...]) -> None:
    """`gavel help submit` prints what `gavel submit --help` does."""
    assert gavel("help", *command).stdout == gavel(*command, "--help").stdout


def test_every_field_of_a_job_file_is_an_option() -> None:
    """A field of the job file is an option by its name or that of one of its entries, as docs/job-file.md promises."""
    options = {parameter.name for parameter in main.commands["submit"].params}
    assert {field.name for field in FIELDS} - options == set(NO_OPTION)
