"""Errors about job files that help: slips of YAML, fields of other schedulers, several faults at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.fields import ELSEWHERE, SYNONYMS
from gavel.client.jobs.file import parse_jobs
from gavel.client.jobs.spec import BY_NAME, JobSpec
from gavel.client.jobs.uploads import without_uploads
from tests.support.wording import Wording


def wrong(text: str) -> InvalidJob:
    """Return the error for a file with this text."""
    with pytest.raises(InvalidJob) as raised:
        parse_jobs(text, "job.yaml", Path("/here"))
    return raised.value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("command: [a]\n\tgpus: 1\n", 2),
        ("gpus: 1\n  command: [a]\n", 2),
        ("command:\n  - a\n gpus: 1\n", 3),
        ("jobs:\n- command: [a]\n   gpus: 2\n", 3),
        ("name: a: b\n", 1),
        ("command: [a\ngpus: 1\n", 2),
        ('name: "abc\ngpus: 1\n', 3),
        ("resources:\n  accelerators: V100:1\n", 1),
    ],
    ids=["tab", "deeper", "column", "column in a list", "colon", "bracket", "quote", "SkyPilot"],
)
def test_common_slips_are_explained_in_our_own_words(text: str, line: int, wording: Wording) -> None:
    """Slips of indentation, colons, brackets and quotes, and a task of SkyPilot, have messages of their own."""
    error = str(wrong(text))
    assert error.startswith(f"job.yaml: line {line}: ")
    wording(error)


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
def test_all_faults_of_a_job_are_reported_at_once(text: str, places: list[tuple[str, int]]) -> None:
    """Each fault has its line, so that the user can mend all faults before the next try."""
    first = wrong(text)
    assert [(fault.field, fault.line) for fault in (first, *first.more)] == places


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("command:\n- a\n- [b]\n", ("command[1]", 3)),
        ("command: [a]\nenv:\n  A: 1\n  B: [2]\n", ("env.B", 4)),
        ("command: [a]\nenv:\n  A: 1\n  B-C: 2\n", ("env", 4)),
        ("command: [a]\ngpus:\n  min: 1\n  most: 2\n", ("gpus.most", 4)),
        ("command: [a]\ngpus:\n  min: 1\n  max: x\n", ("gpus.max", 4)),
        ("command: [a]\nafter:\n- 1\n- job: 2\n  when: never\n", ("after[1]", 4)),
        ("command: [a]\nworker_types:\n- a\n- a\n", ("worker_types", 3)),
    ],
)
def test_a_fault_within_a_value_has_its_own_line(text: str, place: tuple[str, int]) -> None:
    """The error has the line of the entry at fault or of its key; with several wrong entries, that of the value."""
    error = wrong(text)
    assert place == (error.field, error.line)


def test_a_script_that_is_missing_is_noticed_before_it_is_sent(tmp_path: Path) -> None:
    """A script that is certainly missing is refused, but not one that `setup` or another program may provide."""
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


def test_fields_of_other_schedulers_lead_to_ours() -> None:
    """A field of another scheduler is answered with Gavel's own field; no such name is also a field of Gavel."""
    assert set(SYNONYMS.values()) <= set(BY_NAME)
    assert not set(SYNONYMS) & set(BY_NAME)
    assert [
        word
        for word, field in SYNONYMS.items()
        if f"mean {field}?" not in str(wrong(f"command: [run]\n{word}: 1"))
    ] == []
    assert not {*SYNONYMS, *BY_NAME} & set(ELSEWHERE)
    assert [
        word for word, answer in ELSEWHERE.items() if answer not in str(wrong(f"command: [run]\n{word}: 1"))
    ] == []
    assert "worker_types" in str(wrong("command: [run]\ngpus: V100:4"))
