"""docs/cli.md and docs/job-file.md are what the command and the table of fields say; what they show is right."""

import re
from pathlib import Path

import click
import pytest

from docs.cli_reference import CHANGES, JSON, NO_JSON, limits, reference, submit_fields, with_table
from gavel.cli.jobs import field_table
from gavel.cli.main import main
from gavel.client.jobs.file import parse_jobs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "job-file.md").read_text(encoding="utf-8")
SLURM = (DOCS / "from-slurm.md").read_text(encoding="utf-8")


def test_the_reference_is_fresh() -> None:
    """It is written by `python -m docs.cli_reference`."""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference(), "run: python -m docs.cli_reference"
    assert with_table(PAGE) == PAGE, "run: python -m docs.cli_reference"
    assert Path(field_table.__file__).read_text(encoding="utf-8") == submit_fields()
    operations = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert with_table(operations, limits()) == operations, "run: python -m docs.cli_reference"


def commands(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """Every command by its words."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        found[f"{prefix}{name}"] = command
        if isinstance(command, click.Group):
            found |= commands(command, f"{prefix}{name} ")
    return found


def test_every_command_has_json_and_the_page_says_its_keys() -> None:
    """Or a reason why not; and there are no words about commands that are gone."""
    with_json = {
        name
        for name, command in commands(main).items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json == set(JSON) | set(CHANGES)
    assert set(commands(main)) - with_json == set(NO_JSON)


@pytest.mark.parametrize("text", re.findall(r"\n\n((?:    .*\n)+)", PAGE)[:2], ids=["one job", "several"])
def test_job_files_on_the_page_are_right(text: str) -> None:
    """Each example is read as it stands there."""
    lines = "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True))
    assert parse_jobs(lines, "page", Path("/shared"))


@pytest.mark.parametrize("page", ["job-file.md", "from-slurm.md"])
def test_commands_on_the_pages_are_there(page: str) -> None:
    """Each `gavel …` names a command, with options that it has."""
    known = commands(main)
    for said in re.findall(r"`(gavel [^`]*)`", (DOCS / page).read_text(encoding="utf-8")):
        words = said.partition(" -- ")[0].split()[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert name in known, said
        parameters = known[name].get_params(click.Context(known[name]))
        options = {option for parameter in parameters for option in parameter.opts}
        assert {word for word in words if word.startswith("-") and word != "--"} <= options, said


def test_fields_in_the_phrasebook_are_there() -> None:
    """What stands in its second table can be written into a job file."""
    for said in re.findall(r"^\| `--[^|]*\| `([a-z_]+: [^`]*)`", SLURM, re.MULTILINE):
        if "..." not in said:
            fields = said if said.startswith(("command", "script")) else f"command: [a]\n{said}"
            assert parse_jobs(fields, "page", Path("/shared")), said
