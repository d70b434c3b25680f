"""Job files: right fields are read, wrong ones refused with line and remedy."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gavel.client.errors import InvalidJob
from gavel.client.jobs.fields import json_schema
from gavel.client.jobs.file import parse_jobs, read_job_file
from gavel.client.jobs.spec import BY_NAME, FIELDS, After, Container, JobSpec, Notify
from tests.support.wording import Wording

FOLDER = Path("/shared/project")
NOW_S = datetime(2030, 1, 1, 12, tzinfo=UTC).timestamp()
RUN = "command: [run]\n"


def read(text: str) -> tuple[JobSpec, ...]:
    """Return the jobs in a text, read at noon of the first of January 2030."""
    return parse_jobs(text, "job.yaml", FOLDER, NOW_S)


def fault(text: str) -> InvalidJob:
    """Return the error for a text."""
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
    ("outputs: results/**", "outputs", ("results/**",)),
    ("outputs: ['*.pt', out]", "outputs", ("*.pt", "out")),
    ("env_from: {HF_TOKEN: hub-token}", "env_from", {"HF_TOKEN": "hub-token"}),
    ("gpus: 4", "gpus", 4),
    ("ranks: per_node", "ranks", "per_node"),
    ("checkpoints: per_attempt", "checkpoints", "per_attempt"),
    ("container: python:3.12", "container", Container("python:3.12")),
    (
        "container: {image: /x.sif, runtime: apptainer, mounts: [/a, '/b:/c:ro'], env: {PATH: /bin, N: 1}}",
        "container",
        Container("/x.sif", "apptainer", ("/a", "/b:/c:ro"), {"PATH": "/bin", "N": "1"}),
    ),
    ("container: {image: x, mounts: /a}", "container", Container("x", mounts=("/a",))),
    ("setup_limit: 90m", "setup_limit_s", 5400.0),
    ("gpus_together: 4", "gpus_together", 4),
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
    ("idle_ok: true", "idle_ok", True),
    ("checkpoint_dir: /shared/ck", "checkpoint_dir", "/shared/ck"),
    ("plan: none", "plans", ()),
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
    ("notify: ops", "notify", (Notify("ops"),)),
    ("notify: ops:failed,held", "notify", (Notify("ops", ("failed", "held")),)),
    ("notify: {on: [failed], to: ops}", "notify", (Notify("ops", ("failed",)),)),
    ("notify: [{to: ops, on: held}, ml]", "notify", (Notify("ops", ("held",)), Notify("ml"))),
    ("array: 0-3", "array", (0, 1, 2, 3)),
    ("array: 1,3,5-7", "array", (1, 3, 5, 6, 7)),
    ("array: 0-100:25", "array", (0, 25, 50, 75, 100)),
    ("array: [4, 2]", "array", (4, 2)),
    ("array: 4", "array", (4,)),
]


@pytest.mark.parametrize(("line", "field", "value"), RIGHT)
def test_every_field_is_read(line: str, field: str, value: object) -> None:
    """Each field, in each of its forms, has the value that is written."""
    (job,) = read(line if line.startswith("script") else RUN + line)
    assert getattr(job, field) == (pytest.approx(value) if isinstance(value, float) else value)


def test_every_field_is_tried() -> None:
    """Every field has a right value and a wrong one in the tables."""
    tried = {line.partition(":")[0] for line, _, _ in RIGHT} | {"command", "upload"}
    assert set(BY_NAME) == tried
    assert set(BY_NAME) == {line.partition(":")[0] for line in WRONG}


@pytest.mark.parametrize(
    ("value", "widths"),
    [("4", (4, None, None)), ("2-8", (2, 2, 8)), ("{min: 2, max: 8}", (2, 2, 8)), ("3 - 3", (3, 3, 3))],
)
def test_a_number_of_gpus_or_a_range(value: str, widths: tuple[int | None, ...]) -> None:
    """The lower end of a range is the number requested, and the upper end may be used."""
    (job,) = read(f"{RUN}gpus: {value}")
    assert widths == (job.gpus, job.gpus_min, job.gpus_max)


def test_arguments_are_used_as_they_are_written() -> None:
    """Numbers and truth values in a command need no quotes, and are neither rounded nor renamed."""
    (job,) = read(
        "command: [python, train.py, --lr, 0.10, -n, 1e-3, --big, 1_000, --on, yes, --off, False, '']"
    )
    assert job.command == (
        *("python", "train.py", "--lr", "0.10", "-n", "1e-3"),
        *("--big", "1_000", "--on", "yes", "--off", "False", ""),
    )


def test_an_upload_without_a_directory_is_that_of_the_file() -> None:
    """A job file beside its code needs only `upload: true`."""
    (job,) = read(f"{RUN}upload: true")
    assert (job.upload, job.workdir) == (True, "/shared/project")
    assert read(RUN)[0].workdir == ""


# Lines that are wrong, at least one for each field.
WRONG = [
    "name: ''",
    "name: [a]",
    f"name: {'x' * 257}",
    "command: python train.py",
    "command: []",
    "command: ['']",
    "command: [[a]]",
    "command: [a, {b: 1}]",
    "script: ' '",
    "script: {a: b}",
    "setup: ''",
    "setup_limit: 90",
    "venv: [a]",
    "workdir: ''",
    "upload: yes",
    "upload: 0",
    "env: [A]",
    "env: {2A: x}",
    "env: {A: [x]}",
    "env: {A: null}",
    "env: {A: 1, A: 2}",
    "env_from: {A-B: x}",
    "gpus: 0",
    "gpus: two",
    "gpus: 1.5",
    "gpus: true",
    "gpus: 8-2",
    "gpus: 0-2",
    "gpus: {min: 1}",
    "gpus: {min: 1, max: 2, best: 2}",
    "gpus: {min: x, max: 2}",
    "checkpoints: per_rank",
    "container: ''",
    "container: {runtime: podman}",
    "container: {image: a, runtime: lxc}",
    "container: {image: a, mounts: [{a: b}]}",
    "container: {image: a, env: {1A: x}}",
    "container: {image: a, gpus: 1}",
    "ranks: per_job",
    *("outputs: [a, ../b]", "outputs: /a", "outputs: []"),
    *("gpus_together: 0", "gpus_together: 2-4"),
    "cpus: -1",
    "cpus: .inf",
    *("memory: 16", "memory: 16 parsecs", "memory: 1e-400GB", "memory: -4GB"),
    "gpu_memory: '40'",
    "worker_types: []",
    "worker_types: [a, a]",
    "worker_types: {a: 1}",
    "exclude_worker_types: [[a]]",
    'nodes: ["a\\nb"]',
    "labels: x",
    "labels: {'': x}",
    "job_type: {}",
    "rates: {a100: 0}",
    "rates: {a100: .nan}",
    "steps: many",
    "steps: 1e999",
    "reports_steps: no",
    "idle_ok: sometimes",
    'checkpoint_dir: "a\\0b"',
    "plan: missing.json",
    "weight: .inf",
    "weight: '5'",
    "tenant: ''",
    "user: ''",
    "deadline: 3600",
    "deadline: 2029-12-31T23:00Z",
    "deadline: soon",
    "deadline: 0s",
    "start: '25:00'",
    "time_limit: .inf",
    "time_limit: 90",
    "time_limit: 01:30:00",
    "time_limit: 2-00:00:00",
    "time_limit: 1h30",
    "min_run: -5m",
    f"min_run: {'9' * 400}w",
    "max_cost: free",
    "preemptible: maybe",
    "packable: [true]",
    "restart_cost: {s: 1}",
    "retries: -1",
    "retries: 1.5",
    "retries_node: lots",
    "retries_preemption: 99999999999",
    "after: [{when: ended}]",
    "after: {job: 17, when: failed}",
    "after: 17:done",
    "after: [{job: 17, then: x}]",
    "notify: {on: [failed]}",
    "notify: {on: [fails], to: ops}",
    "notify: ':failed'",
    "notify: {to: ops, at: noon}",
    "notify: {to: ops, on: [failed, failed]}",
    "array: 0-9%2",
    "array: 9-0",
    "array: 1,1",
    "array: x",
    "array: 0-100000",
    "array: []",
    "array: 0-10:0",
    "array: [-1]",
]


def job_with(line: str) -> str:
    """Return the text of a job that runs, with this line."""
    return line if line.partition(":")[0] in ("command", "script") else RUN + line


@pytest.mark.parametrize("line", WRONG, ids=[f"{at}-{line[:30]}" for at, line in enumerate(WRONG)])
def test_every_field_wrong_in_turn(line: str) -> None:
    """The error is one line that begins with file, line and field."""
    field = line.partition(":")[0]
    text = job_with(line)
    error = fault(text)
    assert str(error).startswith(f"job.yaml: line {1 if text is line else 2}: {field}")
    assert "\n" not in str(error)
    assert (field, "job.yaml") == (error.field[: len(field)], error.file)


def test_the_wording_of_every_wrong_field(wording: Wording) -> None:
    """The error has the wrong value, and the values that are allowed."""
    wording("\n".join(f"{line[:60]!r}\n    {fault(job_with(line))}" for line in WRONG))


@pytest.mark.parametrize("field", [field.name for field in FIELDS])
def test_a_field_without_a_value_gets_an_example(field: str) -> None:
    """`gpus:` with nothing after it is refused, and the example in the message is a right value itself."""
    others = "" if field in ("command", "script") else RUN
    error = fault(f"{others}{field}:\n")
    example = str(error).partition("write for example ")[2]
    assert example, str(error)
    assert len(read(others + example)) == 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{RUN}gpu: 2", "line 2: gpu: "),
        (f"{RUN}Memory: 2GB", "line 2: Memory: "),
        (f"{RUN}worker-types: a", "line 2: worker-types: "),
        (f"{RUN}walltime: 2h", "line 2: walltime: "),
        (f"{RUN}zzz: 2", "line 2: zzz: "),
        (f"{RUN}gpus: 1\n{RUN}", "line 3: command: "),
        (f"{RUN}script: b", "line 2: script: "),
        ("gpus: 1", "line 1: command: "),
        ("- command: [a]", "line 1: "),
        ("just words", "line 1: "),
        ("", ""),
        ("# nothing\n---\n", ""),
        ("a: &x 1\nb: *x", "line 2: "),
        ("a: !!python/object:os.system x", "line 1: "),
        ("command: [a\n", "line 2: "),
        ("command: [a]\n\tgpus: 1", "line 2: "),
        ("command: [a]\nname: a\x07b", "line 2: "),
        ("[" * 100, "line 1: "),
        ("jobs: []", "line 1: jobs: "),
        ("jobs: 3", "line 1: jobs: "),
        ("jobs: [{command: [a], gpsu: 1}]", "line 1: jobs[0].gpsu: "),
        ("jobs: [{command: [a]}]\ngpus: 1", "line 2: gpus: "),
        ("defaults: {gpus: 1}", "line 1: defaults: "),
        ("defaults: {jobs: 1}\njobs: [{command: [a]}]", "line 1: defaults.jobs: "),
        ("? [a]\n: 1", "line 1: "),
        (f"{RUN}\x1b[31m: 1", "line 2: "),
    ],
)
def test_a_file_that_is_no_job(text: str, place: str, wording: Wording) -> None:
    """An error about the file as a whole also begins with its place."""
    error = str(fault(text))
    assert error.startswith(f"job.yaml: {place}")
    wording(error)


def test_several_documents_and_lists_with_defaults() -> None:
    """All jobs of a file are read in order; a job's field replaces the default as a whole."""
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
    jobs = read(text)
    assert [(job.name, job.gpus, job.env) for job in jobs] == [
        ("one", 2, {"A": "1", "B": "2"}),
        ("two", 4, {"A": "3"}),
        ("three", None, {}),
    ]
    assert jobs[0].source is not None
    assert jobs[0].source.lines == {"gpus": 3, "env": 4, "name": 6, "command": 6}


def test_a_default_that_a_job_contradicts_names_the_job(tmp_path: Path) -> None:
    """If a job's command contradicts the script of the defaults, the error has the script's line."""
    text = "defaults:\n  script: x\njobs:\n  - command: [a]\n"
    assert "line 2: script: and command " in str(fault(text))


def test_files_that_cannot_be_read(tmp_path: Path, wording: Wording) -> None:
    """A missing file, a directory, a binary or a huge file gives one line that begins with the name."""
    missing, binary, large = tmp_path / "missing.yaml", tmp_path / "binary.yaml", tmp_path / "large.yaml"
    binary.write_bytes(b"name: a\nxx: \xff\n")
    large.write_bytes(b"#" * (16 * 2**20 + 1))
    for path, place in ((missing, ""), (tmp_path, ""), (binary, "line 2: "), (large, "")):
        with pytest.raises(InvalidJob, match=rf"^{path}: {place}") as raised:
            read_job_file(str(path))
        wording(raised.value, folder=tmp_path)
    with pytest.raises(InvalidJob, match="null"):
        read_job_file("a\0b")


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """A byte order mark, which some editors write, is skipped."""
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + RUN.encode())
    assert read_job_file(str(path))[0].command == ("run",)


def test_the_schema_has_every_field_and_is_json() -> None:
    """`--schema` names every field with its meaning, and allows no others."""
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    job = schema["$defs"]["fields"]
    assert set(BY_NAME) == set(job["properties"])
    assert job["additionalProperties"] is False
    assert all(field["description"] for field in job["properties"].values())


def test_every_number_is_finite() -> None:
    """The protocol would carry NaN and infinity, but the scheduler must not get them."""
    for field in FIELDS:
        for word in (".nan", ".inf", "-.inf", "1e400"):
            try:
                (job,) = read(f"{'' if field.name in ('command', 'script') else RUN}{field.name}: {word}")
            except InvalidJob:
                continue
            value = getattr(job, field.target)
            assert not isinstance(value, float) or math.isfinite(value), field.name
