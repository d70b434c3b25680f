"""What is wrong with a job file, told in words that help: slips of YAML, words of others, several faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.packing import without_uploads
from gavel.client.jobs.spec import JobSpec


def wrong(text: str) -> InvalidJob:
    """The error for a file with this text."""
    with pytest.raises(InvalidJob) as raised:
        parse_jobs(text, "job.yaml", Path("/here"))
    return raised.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: [a]\n\tgpus: 1\n", "line 2: not valid YAML: the line is indented with a tab"),
        ("gpus: 1\n  command: [a]\n", "line 2: not valid YAML: the line is indented deeper"),
        ("command:\n  - a\n gpus: 1\n", "line 3: not valid YAML: the line begins in another column"),
        ("jobs:\n- command: [a]\n   gpus: 2\n", "line 3: not valid YAML: the line begins in another column"),
        ("name: a: b\n", "line 1: not valid YAML: a second colon"),
        ("command: [a\ngpus: 1\n", "line 2: not valid YAML: a bracket that is opened in line 1"),
        ('name: "abc\ngpus: 1\n', "line 3: not valid YAML: a quote that is opened in line 1"),
        (
            "resources:\n  accelerators: V100:1\n",
            "line 1: resources: there is no such field; as in a SkyPilot task?",
        ),
    ],
)
def test_common_slips_are_told_in_our_own_words(text: str, words: str) -> None:
    """Tabs, columns, colons, brackets and quotes; and a task of SkyPilot."""
    assert str(wrong(text)).removeprefix("job.yaml: ").startswith(words)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            "command: [a]\ngpus: x\nmemory: 64\ntime_limit: '1:00:00'\n",
            [("gpus", 2), ("memory", 3), ("time_limit", 4)],
        ),
        ("command: [a]\ngpu: 1\nmem: 64\n", [("gpu", 2), ("mem", 3)]),
        ("command: a\ngpu: 1\nmemory: 64\n", [("command", 1), ("gpu", 2), ("memory", 3)]),
    ],
)
def test_all_faults_of_a_job_are_told_at_once(text: str, places: list[tuple[str, int]]) -> None:
    """Each with its line; whoever mends one need not wait for the next."""
    first = wrong(text)
    assert [(one.field, one.line) for one in (first, *first.more)] == places


def test_a_script_that_is_missing_is_noticed_before_it_is_sent(tmp_path: Path) -> None:
    """Where the directory is uploaded and it is certain; what `setup` may make, or other programs read, is let be."""
    (tmp_path / "there.py").write_text("")
    where = {"workdir": str(tmp_path), "upload": True}
    for command in (
        ("python", "no.py"),
        ("/usr/bin/python3.11", "a/no.py", "x"),
        ("bash", "no.sh"),
        ("./no",),
    ):
        with pytest.raises(InvalidJob) as raised:
            without_uploads([JobSpec(command=command, **where)])
        assert raised.value.field == "command"
    for spec in (
        JobSpec(command=("python", "there.py"), **where),
        JobSpec(command=("python", "-m", "no"), **where),
        JobSpec(command=("python", "/opt/no.py"), **where),
        JobSpec(command=("train", "no.py"), **where),
        JobSpec(command=("python", "no.py"), setup="touch no.py", **where),
        JobSpec(script="python no.py", **where),
        JobSpec(command=("python", "no.py"), workdir=str(tmp_path)),
    ):
        without_uploads([spec])
