"""A job file as tired people write it: what is right is read, what is wrong is told with its line and a remedy."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.fields import SYNONYMS, json_schema
from gavel.client.jobs.file import parse_jobs, read_job_file
from gavel.client.jobs.spec import BY_NAME, FIELDS, After, JobSpec

FOLDER = Path("/shared/project")
NOW_S = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()
RUN = "command: [run]\n"


def read(text: str) -> tuple[JobSpec, ...]:
    """The jobs in a text, at noon of the first of January 2030."""
    return parse_jobs(text, "job.yaml", FOLDER, NOW_S)


def fault(text: str) -> InvalidJob:
    """What is wrong with a text."""
    with pytest.raises(InvalidJob) as raised:
        read(text)
    return raised.value


RIGHT = [
    ("name: chat", "name", "chat"),
    ("name: 7", "name", "7"),
    ("script: 'echo a && echo b'", "script", "echo a && echo b"),
    ("setup: |\n  pip install .\n  make\n", "setup", "pip install .\nmake\n"),
    ("venv: /shared/env", "venv", "/shared/env"),
    ("workdir: sub/dir", "workdir", "/shared/project/sub/dir"),
    ("workdir: /data", "workdir", "/data"),
    ("workdir: ../data/../train", "workdir", "/shared/train"),
    ("workdir: /data/../..", "workdir", "/"),
    (
        "env: {SEED: 7, ON: true, RATE: 1e-3, EMPTY: ''}",
        "env",
        {"SEED": "7", "ON": "true", "RATE": "1e-3", "EMPTY": ""},
    ),
    ("env_from: {HF_TOKEN: hub-token}", "env_from", {"HF_TOKEN": "hub-token"}),
    ("gpus: 4", "gpus", 4),
    ("ranks: per_node", "ranks", "per_node"),
    ("checkpoints: per_attempt", "checkpoints", "per_attempt"),
    ("setup_limit: 90m", "setup_limit_s", 5400.0),
    ("cpus: 1.5", "cpus", 1.5),
    ("memory: 16GB", "memory_gb", 16.0),
    ("memory: 16 G", "memory_gb", 16.0),
    ("memory: 512MiB", "memory_gb", 0.536870912),
    ("memory: 1.5TB", "memory_gb", 1500.0),
    ("gpu_memory: 40GiB", "gpu_memory_gb", 42.94967296),
    ("worker_types: a100", "worker_types", ("a100",)),
    ("worker_types: [a100, h100]", "worker_types", ("a100", "h100")),
    ("exclude_worker_types: [k80]", "excluded_worker_types", ("k80",)),
    ("nodes: [gpu-7, 8]", "nodes", ("gpu-7", "8")),
    ("labels: {rack: r2, nvlink: true}", "labels", {"rack": "r2", "nvlink": "true"}),
    ("job_type: resnet50", "job_type", "resnet50"),
    ("rates: {a100: 12.5, v100: 4}", "rates", {"a100": 12.5, "v100": 4.0}),
    ("steps: 1e6", "steps", 1e6),
    ("reports_steps: false", "reports_steps", False),
    ("checkpoint_dir: /shared/ck", "checkpoint_dir", "/shared/ck"),
    ("weight: 0.5", "weight", 0.5),
    ("tenant: vision/detection", "tenant", "vision/detection"),
    ("user: ada", "user", "ada"),
    ("deadline: 8h", "deadline_s", 28_800.0),
    ("deadline: 2030-01-01T14:00Z", "deadline_s", 7200.0),
    ("start: 1h30m", "earliest_start_s", 5400.0),
    ("start: '2030-01-02 12:00+00:00'", "earliest_start_s", 86_400.0),
    ("time_limit: 2 d 3h", "time_limit_s", 183_600.0),
    ("min_run: 90m", "min_run_s", 5400.0),
    ("max_cost: 250", "max_cost", 250.0),
    ("preemptible: false", "preemptible", False),
    ("packable: true", "packable", True),
    ("restart_cost: 90s", "restart_cost_s", 90.0),
    ("retries: 2", "retries", 2),
    ("retries_node: 0", "retries_node", 0),
    ("retries_preemption: 5", "retries_preemption", 5),
    ("after: 17", "after", (After("17"),)),
    ("after: 17:ended", "after", (After("17", "ended"),)),
    ("after: [17_2, {job: 18, when: ended}]", "after", (After("17_2"), After("18", "ended"))),
    ("array: 0-3", "array", (0, 1, 2, 3)),
    ("array: 1,3,5-7", "array", (1, 3, 5, 6, 7)),
    ("array: 0-100:25", "array", (0, 25, 50, 75, 100)),
    ("array: [4, 2]", "array", (4, 2)),
    ("array: 4", "array", (4,)),
]


@pytest.mark.parametrize(("line", "field", "value"), RIGHT)
def test_every_field_is_read(line: str, field: str, value: object) -> None:
    """Each field, in each of its forms, is the value that it says."""
    (job,) = read(line if line.startswith("script") else RUN + line)
    assert (
        value == pytest.approx(getattr(job, field))
        if isinstance(value, float)
        else value == getattr(job, field)
    )


def test_every_field_is_tried() -> None:
    """No field without a right value and a wrong one."""
    tried = {line.partition(":")[0] for line, _, _ in RIGHT} | {"command", "upload"}
    assert set(BY_NAME) == tried
    assert set(BY_NAME) == {line.partition(":")[0] for line, _ in WRONG}


@pytest.mark.parametrize(
    ("said", "widths"),
    [("4", (4, None, None)), ("2-8", (2, 2, 8)), ("{min: 2, max: 8}", (2, 2, 8)), ("3 - 3", (3, 3, 3))],
)
def test_a_number_of_gpus_or_a_range(said: str, widths: tuple[int | None, ...]) -> None:
    """Of a range the least is asked for, and the rest may be used."""
    (job,) = read(f"{RUN}gpus: {said}")
    assert widths == (job.gpus, job.gpus_min, job.gpus_max)


def test_arguments_are_taken_as_they_are_written() -> None:
    """Numbers and truths on a command line need no quotes, and are not rounded or renamed."""
    (job,) = read(
        "command: [python, train.py, --lr, 0.10, -n, 1e-3, --big, 1_000, --on, yes, --off, False, '']"
    )
    assert job.command == (
        *("python", "train.py", "--lr", "0.10", "-n", "1e-3"),
        *("--big", "1_000", "--on", "yes", "--off", "False", ""),
    )


def test_an_upload_without_a_directory_is_that_of_the_file() -> None:
    """So a job file beside its code needs to say nothing more."""
    (job,) = read(f"{RUN}upload: true")
    assert (job.upload, job.workdir) == (True, "/shared/project")
    assert read(RUN)[0].workdir == ""


# a wrong line → what stands in the message behind file, line and field
WRONG = [
    ("name: ''", "must be a name"),
    ("name: [a]", ["must be a name", " without line breaks or other control signs", " got a list"][0]),
    (f"name: {'x' * 257}", "must be at most 256 characters"),
    ("command: python train.py", "must be a list such as [python, train.py]"),
    ("command: []", "must begin with a program"),
    ("command: ['']", "must begin with a program"),
    ("command: [[a]]", "[0]: must be text, got a list"),
    ("command: [a, {b: 1}]", "[1]: must be text, got a mapping"),
    ("script: ' '", "is empty"),
    ("script: {a: b}", "must be text, got a mapping"),
    ("setup: ''", "is empty"),
    ("setup_limit: 90", "90"),
    ("venv: [a]", "must be a name"),
    ("workdir: ''", "must be a name"),
    ("upload: yes", 'must be true or false, got "yes"; say true'),
    ("upload: 0", "must be true or false, got 0; say false"),
    ("env: [A]", "must be a mapping, got a list"),
    ("env: {2A: x}", "cannot be the name of a variable"),
    ("env: {A: [x]}", "A: must be text, got a list"),
    ("env: {A: null}", "A: must be text, got nothing"),
    ("env: {A: 1, A: 2}", "A: appears twice (first in line 2)"),
    ("env_from: {A-B: x}", "cannot be the name of a variable"),
    ("gpus: 0", "must be a whole number from 1 to 1,000,000, or a range such as 2-8, got 0"),
    ("gpus: two", "must be a whole number from 1 to 1,000,000"),
    ("gpus: 1.5", "must be a whole number from 1 to 1,000,000"),
    ("gpus: true", "must be a whole number from 1 to 1,000,000"),
    ("gpus: 8-2", 'must be a range such as 2-8, within 1 to 1,000,000, got "8-2"'),
    ("gpus: 0-2", "must be a range such as 2-8, within 1 to 1,000,000"),
    ("gpus: {min: 1}", "max is missing: {min: 2, max: 8}"),
    ("gpus: {min: 1, max: 2, best: 2}", "best: must have min and max only"),
    ("gpus: {min: x, max: 2}", "min: must be a whole number"),
    ("checkpoints: per_rank", 'must be per_job or per_attempt, got "per_rank"'),
    ("ranks: per_job", 'must be per_gpu or per_node, got "per_job"'),
    ("cpus: -1", "must be a number from 0 up, got -1"),
    ("cpus: .inf", "must be a number from 0 up, got .inf"),
    ("memory: 16", "must be a size such as 16GB or 512MiB, got 16; with its unit, 16GB"),
    ("memory: 16 parsecs", "must be a size"),
    ("memory: 1e-400GB", "must be 0GB or more than a byte"),
    ("memory: -4GB", "must be a size"),
    ("gpu_memory: '40'", "must be a size"),
    ("worker_types: []", "must be from 1 to 10,000 names, or left out"),
    ("worker_types: [a, a]", "'a' stands twice"),
    ("worker_types: {a: 1}", "must be a name"),
    ("exclude_worker_types: [[a]]", "[0]: must be a name"),
    ('nodes: ["a\\nb"]', "[0]: must be a name, without line breaks"),
    ("labels: x", 'must be a mapping, got "x"'),
    ("labels: {'': x}", "must be a name"),
    ("job_type: {}", "must be a name"),
    ("rates: {a100: 0}", "a100: must be a number above 0, got 0"),
    ("rates: {a100: .nan}", "a100: must be a number above 0, got .nan"),
    ("steps: many", 'must be a number above 0, got "many"'),
    ("steps: 1e999", "must be a number above 0"),
    ("reports_steps: no", 'must be true or false, got "no"; say false'),
    ('checkpoint_dir: "a\\0b"', "has a NUL character"),
    ("weight: .inf", "must be a number above 0"),
    ("weight: '5'", 'must be a number above 0, got "5"'),
    ("tenant: ''", "must be a name"),
    ("user: ''", "must be a name"),
    (
        "deadline: 3600",
        "must be a duration such as 2h, or a time such as 2030-12-31T18:00, got 3600; with its unit, 3600s",
    ),
    ("deadline: 2029-12-31T23:00Z", "is in the past"),
    ("deadline: soon", "must be a duration such as 2h, or a time"),
    ("deadline: 0s", "must be a duration such as 2h, or a time"),
    ("start: '25:00'", "must be a duration such as 2h, or a time"),
    ("time_limit: .inf", "must be a duration above 0 such as 90m or 1h30m, got .inf"),
    ("time_limit: 90", "must be a duration above 0 such as 90m or 1h30m, got 90; with its unit, 90s"),
    (
        "time_limit: 01:30:00",
        'must be a duration above 0 such as 90m or 1h30m, got "01:30:00"; here that is 1h30m',
    ),
    ("time_limit: 2-00:00:00", "here that is 2d"),
    ("time_limit: 1h30", "must be a duration"),
    ("min_run: -5m", "must be a duration"),
    (f"min_run: {'9' * 400}w", "is larger than any number that can be sent"),
    ("max_cost: free", "must be a number above 0"),
    ("preemptible: maybe", 'must be true or false, got "maybe"'),
    ("packable: [true]", "must be true or false, got a list"),
    ("restart_cost: {s: 1}", "must be a duration"),
    ("retries: -1", "must be a whole number from 0"),
    ("retries: 1.5", "must be a whole number from 0"),
    ("retries_node: lots", "must be a whole number from 0"),
    ("retries_preemption: 99999999999", "must be a whole number from 0 to 1,000,000,000"),
    ("after: [{when: ended}]", "[0]: job is missing: {job: 17, when: ended}"),
    ("after: {job: 17, when: failed}", 'when must be "succeeded" or "ended", got "failed"'),
    ("after: 17:done", 'when must be "succeeded" or "ended", got "done"'),
    ("after: [{job: 17, then: x}]", "then: must have job and when only"),
    ("array: 0-9%2", "%N limits how many run at once"),
    ("array: 9-0", "must count upward, to at most 1,000,000,000, got 9-0"),
    ("array: 1,1", "index 1 stands twice"),
    ("array: x", "must be indices such as 0-9"),
    ("array: 0-100000", "must be at most 100,000 indices"),
    ("array: []", "must be from 1 to 100,000 indices"),
    ("array: 0-10:0", "must count upward"),
    ("array: [-1]", "[0]: must be a whole number from 0"),
]


@pytest.mark.parametrize(
    ("line", "words"), WRONG, ids=[f"{at}-{line[:30]}" for at, (line, _) in enumerate(WRONG)]
)
def test_every_field_wrong_in_turn(line: str, words: str) -> None:
    """The error names file, line and field, and says what would be right; on one line."""
    field = line.partition(":")[0]
    text = line if field in ("command", "script") else RUN + line
    error = fault(text)
    assert str(error).startswith(f"job.yaml: line {1 if text is line else 2}: {field}")
    assert words in str(error)
    assert "\n" not in str(error)
    assert (field, "job.yaml") == (error.field[: len(field)], error.file)


def test_every_field_has_its_turn() -> None:
    """A field that comes anew needs a wrong line in the table above."""
    assert {line.partition(":")[0] for line, _ in WRONG} == {field.name for field in FIELDS}


@pytest.mark.parametrize("field", [field.name for field in FIELDS])
def test_a_field_without_a_value_is_told_with_an_example(field: str) -> None:
    """`gpus:` and nothing behind it was not meant; the example in the message is a right value itself."""
    others = "" if field in ("command", "script") else RUN
    error = fault(f"{others}{field}:\n")
    example = str(error).partition("say for example ")[2]
    assert example, str(error)
    assert len(read(others + example)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{RUN}gpu: 2", "line 2: gpu: there is no such field; did you mean gpus?"),
        (f"{RUN}Memory: 2GB", "line 2: Memory: there is no such field; did you mean memory?"),
        (f"{RUN}worker-types: a", "line 2: worker-types: there is no such field; did you mean worker_types?"),
        (f"{RUN}walltime: 2h", "line 2: walltime: there is no such field; did you mean time_limit?"),
        (f"{RUN}zzz: 2", "line 2: zzz: there is no such field; `gavel submit --schema` lists them all"),
        (f"{RUN}gpus: 1\n{RUN}", "line 3: command: appears twice (first in line 1)"),
        (f"{RUN}script: b", "line 2: script: and command cannot both be given: leave one out"),
        ("gpus: 1", "line 1: command: is missing: say what to run, such as [python, train.py]"),
        ("- command: [a]", "line 1: must be a job: fields such as command and gpus, got a list"),
        ("just words", 'line 1: must be a job: fields such as command and gpus, got "just words"'),
        ("", "is empty: there is no job in it"),
        ("# nothing\n---\n", "is empty: there is no job in it"),
        ("a: &x 1\nb: *x", "line 2: an alias (*) is not supported here: write its value out"),
        (
            "a: !!python/object:os.system x",
            "line 1: the tag tag:yaml.org,2002:python/object:os.system is not supported",
        ),
        ("command: [a\n", "line 2: not valid YAML: a bracket that is opened in line 1 is not closed"),
        ("command: [a]\n\tgpus: 1", "not valid YAML"),
        ("command: [a]\nname: a\x07b", "line 2: not valid YAML"),
        ("[" * 100, "line 1: nested too deeply"),
        ("jobs: []", "line 1: jobs: must be a list of jobs, got a list"),
        ("jobs: 3", "line 1: jobs: must be a list of jobs, got 3"),
        (
            "jobs: [{command: [a], gpsu: 1}]",
            "line 1: jobs[0].gpsu: there is no such field; did you mean gpus?",
        ),
        (
            "jobs: [{command: [a]}]\ngpus: 1",
            "line 2: gpus: beside jobs only defaults may stand: put it there",
        ),
        ("defaults: {gpus: 1}", "line 1: defaults: stands without jobs"),
        ("defaults: {jobs: 1}\njobs: [{command: [a]}]", "line 1: defaults.jobs: there is no such field"),
        ("? [a]\n: 1", "line 1: a list or mapping cannot be a key"),
        (f"{RUN}\x1b[31m: 1", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_job(text: str, message: str) -> None:
    """What is wrong with the file as a whole is told with its place as well."""
    assert f"job.yaml: {message}" in str(fault(text)) or message in str(fault(text))


def test_what_people_write_elsewhere_leads_to_our_fields() -> None:
    """Each word of other schedulers is answered with the field of ours; none of them is one."""
    assert set(SYNONYMS.values()) <= set(BY_NAME)
    assert not set(SYNONYMS) & set(BY_NAME)
    assert [
        word for word, field in SYNONYMS.items() if f"mean {field}?" not in str(fault(f"{RUN}{word}: 1"))
    ] == []


def test_several_documents_and_lists_with_defaults() -> None:
    """All jobs of a file in their order; a field of a job goes before the default as a whole."""
    text = """
defaults:
  gpus: 2
  env: {A: 1, B: 2}
jobs:
  - {name: one, command: [a]}
  - {name: two, script: b, gpus: 4, env: {A: 3}}
---
name: three
command: [c]
"""
    one, two, three = read(text)
    assert [(job.name, job.gpus, job.env) for job in (one, two, three)] == [
        ("one", 2, {"A": "1", "B": "2"}),
        ("two", 4, {"A": "3"}),
        ("three", None, {}),
    ]
    assert one.source is not None
    assert one.source.lines == {"gpus": 3, "env": 4, "name": 6, "command": 6}


def test_a_default_that_a_job_contradicts_names_the_job(tmp_path: Path) -> None:
    """Where command and script meet through defaults, the line is the script's."""
    text = "defaults:\n  script: x\njobs:\n  - command: [a]\n"
    assert "line 2: script: and command cannot both be given" in str(fault(text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """No file, a directory, not text, far too large: one line each, with the name."""
    missing, binary, large = tmp_path / "missing.yaml", tmp_path / "binary.yaml", tmp_path / "large.yaml"
    binary.write_bytes(b"name: a\nxx: \xff\n")
    large.write_bytes(b"#" * (16 * 2**20 + 1))
    for path, words in (
        (missing, "no such file or directory"),
        (tmp_path, "is a directory"),
        (binary, "line 2: not UTF-8 text (byte 0xff)"),
        (large, "is larger than 16 MiB"),
    ):
        with pytest.raises(InvalidJob, match=rf"^{path}: ") as raised:
            read_job_file(str(path))
        assert words in str(raised.value)
    with pytest.raises(InvalidJob, match="null"):
        read_job_file("a\0b")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """Editors that write one are forgiven."""
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + RUN.encode())
    assert read_job_file(str(path))[0].command == ("run",)


def test_the_schema_has_every_field_and_is_json() -> None:
    """What `--schema` prints names each field with its meaning, and allows no others."""
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    job = schema["$defs"]["fields"]
    assert set(BY_NAME) == set(job["properties"])
    assert job["additionalProperties"] is False
    assert all(field["description"] for field in job["properties"].values())


def test_no_number_is_endless() -> None:
    """Whatever was read is finite: the protocol would carry NaN and infinity, the scheduler must not get them."""
    for field in FIELDS:
        for word in (".nan", ".inf", "-.inf", "1e400"):
            try:
                (job,) = read(f"{'' if field.name in ('command', 'script') else RUN}{field.name}: {word}")
            except InvalidJob:
                continue
            value = getattr(job, field.target)
            assert not isinstance(value, float) or math.isfinite(value), field.name
