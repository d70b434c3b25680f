"""docs/cli.md and docs/job-file.md agree with the commands and the table of fields, and their examples are right."""

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
    """`python -m docs.cli_reference` writes the pages of the repository."""
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == reference(), "run: python -m docs.cli_reference"
    assert with_table(PAGE) == PAGE, "run: python -m docs.cli_reference"
    assert Path(field_table.__file__).read_text(encoding="utf-8") == submit_fields()
    operations = (DOCS / "operations.md").read_text(encoding="utf-8")
    assert with_table(operations, limits()) == operations, "run: python -m docs.cli_reference"


def commands(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """Return every command by its name, such as `token create`."""
    by_name: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        by_name[f"{prefix}{name}"] = command
        if isinstance(command, click.Group):
            by_name |= commands(command, f"{prefix}{name} ")
    return by_name


def test_every_command_has_json_and_its_keys_are_documented() -> None:
    """A command has `--json` and documented keys, or a reason for not having it; no entry is out of date."""
    with_json = {
        name
        for name, command in commands(main).items()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert with_json == set(JSON) | set(CHANGES)
    assert set(commands(main)) - with_json == set(NO_JSON)


@pytest.mark.parametrize("text", re.findall(r"\n\n((?:    .*\n)+)", PAGE)[:2], ids=["one job", "several"])
def test_job_files_on_the_page_are_right(text: str) -> None:
    """Each example can be parsed as it is printed."""
    lines = "".join(line.removeprefix("    ") for line in text.splitlines(keepends=True))
    assert parse_jobs(lines, "page", Path("/shared"))


@pytest.mark.parametrize("page", ["job-file.md", "from-slurm.md", "coming-from.md"])
def test_commands_on_the_pages_are_there(page: str) -> None:
    """Each `gavel …` on the pages names a command, with options that it has."""
    known = commands(main)
    for text in re.findall(r"`(gavel [^`]*)`", (DOCS / page).read_text(encoding="utf-8")):
        words = text.partition(" -- ")[0].split()[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        assert name in known, text
        parameters = known[name].get_params(click.Context(known[name]))
        options = {option for parameter in parameters for option in parameter.opts}
        assert {word for word in words if word.startswith("-") and word != "--"} <= options, text


def test_fields_in_the_phrasebook_are_there() -> None:
    """Each field in the second table of docs/from-slurm.md can be written into a job file."""
    for text in re.findall(r"^\| `--[^|]*\| `([a-z_]+: [^`]*)`", SLURM, re.MULTILINE):
        if "..." not in text:
            fields = text if text.startswith(("command", "script")) else f"command: [a]\n{text}"
            assert parse_jobs(fields, "page", Path("/shared")), text
