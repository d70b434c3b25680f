"""Bad files of every kind, and the error of one line that each gives."""

import copy
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gavel.cli.io.document import LIMITS, parse_json, parse_yaml
from gavel.cli.policies.problem_file import read_problem, to_problem
from protos.files.errors import BadInput
from protos.files.errors import words as place_in_words
from tests.cli.conftest import Gavel
from tests.support.wording import Wording

GOOD: dict[str, Any] = {
    "worker_types": {"v100": {"gpus": 2, "price_per_gpu_hour": 2.5}, "k80": {"gpus": 4}},
    "jobs": [
        {"id": "a", "tenant": "research", "rates": {"v100": 4.0, "k80": 1.0}},
        {"id": "b", "tenant": "research", "rates": {"v100": 2.0}, "variants": [{"worker_type": "k80", "rate": 1.0}]},
        {"id": "wide", "tenant": "product", "gpus": 2, "rates": {"v100": 3.0}},
    ],
    "pairs": [{"jobs": ["a", "b"], "rates": {"v100": [3.0, 1.5]}}],
    "tenants": [{"name": "research", "weight": 2}, {"name": "product"}],
}  # fmt: skip
DELETE = object()

# The path in the good file, its new value (or DELETE), and the place in the error.
FAULTS: list[tuple[tuple[str | int, ...], Any, str]] = [
    ((), [], ""),
    ((), None, ""),
    (("jobs",), DELETE, "jobs"),
    (("worker_types",), DELETE, "worker_types"),
    (("job",), [], "job"),
    (("jobs",), {}, "jobs"),
    (("jobs",), "a", "jobs"),
    (("seed",), -1, "seed"),
    (("seed",), 1.5, "seed"),
    (("now_s",), "noon", "now_s"),
    (("worker_types",), {}, "worker_types"),
    (("worker_types",), ["v100"], "worker_types"),
    (("worker_types", "v100"), 8, "worker_types.v100"),
    (("worker_types", "v100", "gpus"), DELETE, "worker_types.v100.gpus"),
    (("worker_types", "v100", "gpus"), -1, "worker_types.v100.gpus"),
    (("worker_types", "v100", "gpus"), 1.5, "worker_types.v100.gpus"),
    (("worker_types", "v100", "gpus"), True, "worker_types.v100.gpus"),
    (("worker_types", "v100", "price_per_gpu_hour"), "cheap", "worker_types.v100.price_per_gpu_hour"),
    (("worker_types", "v100", "price_per_gpu_hour"), -2, "worker_types.v100.price_per_gpu_hour"),
    (("worker_types", "v100", "price"), 2, "worker_types.v100.price"),
    (("worker_types", "v100", "cpus"), 0, "worker_types.v100.cpus"),
    (("worker_types", "v100", "cpus"), -1, "worker_types.v100.cpus"),
    (("worker_types", "v100", "cpus"), float("nan"), "worker_types.v100.cpus"),
    (("jobs", 1, "variants", 0, "cpus"), -1, "jobs[1].variants[0].cpus"),
    (("jobs", 1, "variants", 0, "cpus"), float("nan"), "jobs[1].variants[0].cpus"),
    (("jobs", 1, "variants", 0, "cpus"), 2, "jobs[1].variants[0].cpus"),
    (("worker_types", "k80"), {"gpus": 4, "cpus": -8}, "worker_types.k80.cpus"),
    (("jobs", 1), "b", "jobs[1]"),
    (("jobs", 1, "id"), DELETE, "jobs[1].id"),
    (("jobs", 1, "id"), 7, "jobs[1].id"),
    (("jobs", 1, "id"), ["b"], "jobs[1].id"),
    (("jobs", 1, "id"), "", "jobs[1].id"),
    (("jobs", 1, "id"), "a", "jobs[1].id"),
    (("jobs", 1, "weigth"), 2, "jobs[1].weigth"),
    (("jobs", 1, "a\nb"), 2, 'jobs[1]["a\\nb"]'),
    (("jobs", 1, "gpus"), 0, "jobs[1].gpus"),
    (("jobs", 1, "gpus"), "2", "jobs[1].gpus"),
    (("jobs", 1, "gpus"), None, "jobs[1].gpus"),
    (("jobs", 1, "gpus"), 10**30, "jobs[1].gpus"),
    (("jobs", 1, "weight"), 0, "jobs[1].weight"),
    (("jobs", 1, "weight"), False, "jobs[1].weight"),
    (("jobs", 1, "waited_s"), -1, "jobs[1].waited_s"),
    (("jobs", 1, "isolated_s"), {}, "jobs[1].isolated_s"),
    (("jobs", 1, "steps_left"), 0, "jobs[1].steps_left"),
    (("jobs", 1, "steps_left"), "many", "jobs[1].steps_left"),
    (("jobs", 1, "steps_left"), 1e20, "jobs[1].steps_left"),
    (("jobs", 1, "deadline_s"), "soon", "jobs[1].deadline_s"),
    (("jobs", 1, "tenant"), "reserch", "jobs[1].tenant"),
    (("jobs", 1, "tenant"), DELETE, "jobs[1].tenant"),
    (("jobs", 1, "tenant"), 3, "jobs[1].tenant"),
    (("jobs", 0, "rates"), DELETE, "jobs[0]"),
    (("jobs", 0, "rates"), 3, "jobs[0].rates"),
    (("jobs", 0, "rates", "v100"), "fast", "jobs[0].rates.v100"),
    (("jobs", 0, "rates", "v100"), -1.0, "jobs[0].rates.v100"),
    (("jobs", 0, "rates", "v100"), True, "jobs[0].rates.v100"),
    (("jobs", 0, "rates", "v100"), float("nan"), "jobs[0].rates.v100"),
    (("jobs", 0, "rates", "v100"), float("inf"), "jobs[0].rates.v100"),
    (("jobs", 0, "rates", "v10"), 1, "jobs[0].rates.v10"),
    (("jobs", 0, "rates", "V100"), 1, "jobs[0].rates.V100"),
    (("jobs", 1, "variants"), {}, "jobs[1].variants"),
    (("jobs", 1, "variants", 0), 1, "jobs[1].variants[0]"),
    (("jobs", 1, "variants", 0, "rate"), DELETE, "jobs[1].variants[0].rate"),
    (("jobs", 1, "variants", 0, "rate"), -1, "jobs[1].variants[0].rate"),
    (("jobs", 1, "variants", 0, "gpus"), 0, "jobs[1].variants[0].gpus"),
    (("jobs", 1, "variants", 0, "label"), 1, "jobs[1].variants[0].label"),
    (("jobs", 1, "variants", 0, "worker_type"), DELETE, "jobs[1].variants[0].worker_type"),
    (("jobs", 1, "variants", 0, "worker_type"), "k8", "jobs[1].variants[0].worker_type"),
    (("jobs", 1, "variants", 0, "worker_type"), "v100", "jobs[1].variants[0]"),
    (("pairs",), {}, "pairs"),
    (("pairs", 0, "jobs"), ["a"], "pairs[0].jobs"),
    (("pairs", 0, "jobs"), "ab", "pairs[0].jobs"),
    (("pairs", 0, "jobs", 1), "wid", "pairs[0].jobs[1]"),
    (("pairs", 0, "jobs", 1), 1, "pairs[0].jobs[1]"),
    (("pairs", 0, "jobs", 1), "a", "pairs[0].jobs"),
    (("pairs", 0, "jobs", 1), "wide", "pairs[0].jobs"),
    (("pairs", 0, "rates"), DELETE, "pairs[0].rates"),
    (("pairs", 0, "rates", "v100"), 3, "pairs[0].rates.v100"),
    (("pairs", 0, "rates", "v100"), [3], "pairs[0].rates.v100"),
    (("pairs", 0, "rates", "v100", 1), "x", "pairs[0].rates.v100[1]"),
    (("pairs", 1), {"jobs": ["b", "a"], "rates": {"v100": [1, 1]}}, "pairs[1].rates.v100"),
    (("tenants",), {}, "tenants"),
    (("tenants",), [], "jobs[0].tenant"),
    (("tenants", 1, "name"), "research", "tenants[1].name"),
    (("tenants", 1, "name"), "", "tenants[1].name"),
    (("tenants", 1, "weight"), 0, "tenants[1].weight"),
    (("tenants", 1, "policy"), "lifo", "tenants[1].policy"),
    (("tenants", 1, "share"), 1, "tenants[1].share"),
]


def spoilt(path: tuple[str | int, ...], value: Any) -> Any:
    """Return the good file with one change."""
    data: Any = copy.deepcopy(GOOD)
    if not path:
        return value
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    if value is DELETE:
        del inner[path[-1]]
    elif isinstance(inner, list) and path[-1] == len(inner):
        inner.append(value)
    else:
        inner[path[-1]] = value
    return data


def refused(gavel: Gavel, *arguments: str, input: Any = None) -> str:
    """Run the command, check that it ends with exit code 2 and one line on stderr, and return that line."""
    result = gavel("allocate", *arguments, input=input)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return str(result.stderr).rstrip("\n")


def test_the_good_file_is_good() -> None:
    """The problem of which the table below has spoilt versions has every kind of entry."""
    problem = to_problem(GOOD)
    assert (len(problem.jobs), len(problem.columns), len(problem.tenants)) == (3, 6, 2)


@pytest.mark.parametrize(("path", "value", "place"), FAULTS)
def test_a_fault_is_named_by_its_place(path: Any, value: Any, place: str) -> None:
    """An error begins with the place of the fault, on one line."""
    with pytest.raises(BadInput) as caught:
        to_problem(spoilt(path, value))
    assert place_in_words(caught.value.place) == place
    assert str(caught.value).startswith(place or "the file is ")
    assert str(caught.value).isprintable()


def test_the_wording_of_every_fault(wording: Wording) -> None:
    """An error has the place, the value there, and the values that are allowed."""
    lines = []
    for path, value, _ in FAULTS:
        with pytest.raises(BadInput) as caught:
            to_problem(spoilt(path, value))
        lines.append(str(caught.value))
    wording("\n".join(lines))


@pytest.mark.parametrize(
    ("path", "value", "hints"),
    [
        (("jobs", 1, "gpus"), 0, ("jobs[1].gpus", " 0;", " 1 to 1,000,000")),
        (("jobs", 1, "weight"), 0, ("jobs[1].weight", " 0;", " 1e+15")),
        (("jobs", 1, "weigth"), 2, ("jobs[1].weigth", '"weight"')),
        (("jobs", 0, "rates", "V10"), 1, ("jobs[0].rates.V10", '"V10"', '"v100"')),
    ],
    ids=["gpus", "weight", "weigth", "rates"],
)
def test_an_error_gives_the_limits_or_the_nearest_name(
    path: Any, value: Any, hints: tuple[str, ...], gavel: Gavel, problem_file: Any, wording: Wording
) -> None:
    """One line begins with the file and has the value with its limits, or the most similar name."""
    file = problem_file(spoilt(path, value))
    line = refused(gavel, file)
    assert line.startswith(f"gavel allocate: {file}: {hints[0]}")
    assert [hint for hint in hints if hint not in line] == []
    wording(line, file=file)


def test_in_yaml_a_fault_has_its_line(gavel: Gavel, problem_file: Any) -> None:
    """An error about a YAML file has the line, even if two entries contradict each other."""
    text = "worker_types: {v: {gpus: 1}}\njobs:\n- {id: a, rates: {v: 1}}\n- rates: {v: 1}\n  id: a\n"
    assert ": line 5: jobs[1].id is " in refused(gavel, problem_file(text, "a.yaml"))


# The fault, the name of the file, its content, and the line or key with which the error begins.
TEXTS: list[tuple[str, str, str | bytes, str]] = [
    ("empty JSON", "a.json", "", ""),
    ("empty YAML", "a.yaml", " \n\n", ""),
    ("missing value", "a.json", '{"jobs": [\n  {"id": }\n]}', "line 2: "),
    ("YAML in a JSON file", "a.json", "jobs: []", "line 1: "),
    ("text after the end", "a.json", '{"jobs": []} x', "line 1: "),
    ("a huge number in JSON", "a.json", '{"jobs": [' + "9" * 5000 + "]}", ""),
    ("deep JSON", "a.json", "[" * 200_000, ""),
    ("not UTF-8", "a.json", b'{"jobs": "\xff"}', "line 1: "),
    ("a key twice", "a.json", '{"jobs": [],\n "jobs": []}', 'line 2: key "jobs"'),
    ("an inner key twice", "a.json", '{"a": {"v": 1, "w": 2,\n "w": 2}}', 'line 2: key "w"'),
    ("NaN", "a.json", '{"a":\n NaN}', "line 2: NaN"),
    ("-Infinity", "a.json", '{"a": -Infinity}', "line 1: -Infinity"),
    ("half a pair in a value", "a.json", '{"a": "\\ud83d\\ude00", "b": "\\ud800"}', ""),
    ("half a pair in a key", "a.json", '{"\\udc00": 1}', ""),
    ("deep flow YAML", "a.yaml", '{"a":' * 200_000, "line 1: "),
    ("deep block YAML", "a.yaml", "- " * 100_000, "line 1: "),
    (
        "a key twice in YAML",
        "a.yaml",
        "worker_types: {v: {gpus: 1, gpus: 2}}\njobs: []",
        "line 1: worker_types.v.gpus",
    ),
    ("an open bracket", "a.yaml", "jobs: [a\n", "line 2: "),
    ("a second colon", "a.yaml", "a: b: c", "line 1: "),
    ("a second document", "a.yaml", "jobs: []\n---\njobs: []", "line 3: "),
    ("an unknown alias", "a.yaml", "jobs: *unknown", "line 1: alias *unknown"),
    ("a list as a key", "a.yaml", "? [a]\n: 1", "line 1: "),
    ("a Python tag", "a.yaml", "jobs: !!python/object/apply:os.getcwd []", "line 1: "),
    ("a control character", "a.yaml", "a: \x07", "line 1: "),
    ("hexadecimal", "a.yaml", "worker_types: {v: {gpus: 0x10}}\njobs: []", "line 1: worker_types.v.gpus"),
    ("infinite GPUs", "a.yaml", "jobs: []\nworker_types: {v: {gpus: .inf}}", "line 2: worker_types.v.gpus"),
    (
        "a huge number in YAML",
        "a.yaml",
        "worker_types: {v: {gpus: " + "9" * 5000 + "}}\njobs: []",
        "line 1: worker_types.v.gpus",
    ),
]


@pytest.mark.parametrize(
    ("name", "content", "place"), [text[1:] for text in TEXTS], ids=[text[0] for text in TEXTS]
)
def test_a_broken_text_is_named_by_its_line(
    name: str, content: Any, place: str, gavel: Gavel, problem_file: Any, wording: Wording
) -> None:
    """Text that is not JSON or YAML is refused with its line, and so is a repeated key, which would lose a value."""
    file = problem_file(content, name)
    line = refused(gavel, file)
    assert line.startswith(f"gavel allocate: {file}: {place}")
    wording(line, file=file)


@pytest.mark.parametrize(
    "name", ["missing.json", ".", "a\nb.json"], ids=["missing", "directory", "two lines"]
)
def test_a_file_that_cannot_be_read(name: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The system's reason is given on one line, even if the name of the file has two."""
    file = str(tmp_path / name)
    line = refused(gavel, file)
    assert line.startswith(f"gavel allocate: {file}: ".replace("\n", "\\n"))
    wording(line, folder=tmp_path)


def test_standard_input_is_called_by_its_name(gavel: Gavel, wording: Wording) -> None:
    """An error in a problem that came through a pipe names standard input."""
    line = refused(gavel, "-", input="[]")
    assert line.startswith("gavel allocate: standard input: ")
    wording(line)


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_huge_file_is_refused_unread(name: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A file beyond the limit is refused instead of being read for minutes."""
    form = "JSON" if name.endswith("json") else "YAML"
    with open(tmp_path / name, "wb") as file:
        file.truncate(LIMITS[form] + 1)
    line = refused(gavel, str(tmp_path / name))
    assert f" {LIMITS[form] // 2**20} MiB" in line
    wording(line, folder=tmp_path)


def test_aliases_that_multiply_columns_are_stopped(gavel: Gavel, problem_file: Any, wording: Wording) -> None:
    """If many jobs share a list of variants, the list counts once for each job."""
    variants = ", ".join(f"{{worker_type: v, rate: 1, label: l{i}}}" for i in range(2_000))
    jobs = "".join(f"- {{id: j{i}, variants: *all}}\n" for i in range(500))
    text = f"worker_types: {{v: {{gpus: 1}}}}\njobs:\n- {{id: a, variants: &all [{variants}]}}\n{jobs}"
    file = problem_file(text, "a.yaml")
    line = refused(gavel, file)
    assert "aliases" in line
    wording(line, file=file)


def test_yaml_means_what_json_means(problem_file: Any) -> None:
    """The same data in both formats is the same problem; aliases, merges and scalars of YAML 1.2 are understood."""
    text = """
        worker_types: {v100: {gpus: 2}, no: {gpus: 012}}
        defaults: &defaults {weight: 2, steps_left: 1e3}
        jobs:
          - {<<: *defaults, id: yes, rates: &fast {v100: 4, no: .5}}
          - {id: '12', rates: *fast, <<: *defaults, weight: 3, steps_left: .inf, deadline_s: ~}
    """
    data = parse_yaml(textwrap.dedent(text)).data
    del data["defaults"]
    rates = {"v100": 4, "no": 0.5}
    expected = {
        "worker_types": {"v100": {"gpus": 2}, "no": {"gpus": 12}},
        "jobs": [
            {"weight": 2, "steps_left": 1000.0, "id": "yes", "rates": rates},
            {"weight": 3, "steps_left": float("inf"), "id": "12", "rates": rates, "deadline_s": None},
        ],
    }
    assert expected == data
    with pytest.raises(BadInput, match="Infinity"):
        parse_json(json.dumps(expected))
    expected["jobs"][1]["steps_left"] = "inf"  # type: ignore[index]
    assert (
        read_problem(problem_file(expected)).jobs.steps_left.tolist()
        == to_problem(data).jobs.steps_left.tolist()
    )
