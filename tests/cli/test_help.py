"""What `gavel --help` and the options of `gavel submit` leave out: nothing."""

from collections import Counter

import pytest

from gavel.cli.main import GROUPS, main
from gavel.client.jobs.fields import FIELDS
from tests.cli.conftest import Gavel

NO_FLAG = {"command": "stands behind --", "script": "lines of shell belong into a file, or behind -- bash -c"}


def test_every_command_has_its_place_in_the_help(gavel: Gavel) -> None:
    """In one group, with a summary that is not cut."""
    listed = Counter(name for names in GROUPS.values() for name in names)
    assert dict(listed) == dict.fromkeys(main.commands, 1)
    said = gavel("--help").stdout
    assert "..." not in said.partition("Jobs:")[2]
    assert [line[:-1] for line in said.splitlines() if line.endswith(":") and line[0].isupper()][1:] == list(
        GROUPS
    )


@pytest.mark.parametrize("command", [(), ("submit",), ("token", "create")], ids=str)
def test_help_is_a_word_too(gavel: Gavel, command: tuple[str, ...]) -> None:
    """`gavel help submit` for those who know it from elsewhere."""
    assert gavel("help", *command).stdout == gavel(*command, "--help").stdout


def test_every_field_of_a_job_file_is_an_option() -> None:
    """By its name, or that of one of its entries; docs/job-file.md says so."""
    options = {parameter.name for parameter in main.commands["submit"].params}
    assert {field.name for field in FIELDS} - options == set(NO_FLAG)
