"""Every way we know of to write a bad file, and the one line that it is answered with."""

import copy
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gavel.cli.io.document import LIMITS, BadFile, parse_json, parse_yaml
from gavel.cli.policies.problem_file import COLUMNS_MAX, read_problem, to_problem
from tests.cli.conftest import Gavel

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
COUNT = "must be a whole number from 0 to 1,000,000, got"

# path in the good file, what is put there (DELETE: nothing), what the error says after the name of the file
FAULTS: list[tuple[tuple[str | int, ...], Any, str]] = [
    # the whole
    ((), [], "must be a mapping, got a list"),
    ((), None, "must be a mapping, got null"),
    (("jobs",), DELETE, '"jobs" is missing'),
    (("worker_types",), DELETE, '"worker_types" is missing'),
    (("job",), [], 'job: unknown field; did you mean "jobs"?'),
    (("jobs",), {}, "jobs: must be a list, got a mapping"),
    (("jobs",), "a", 'jobs: must be a list, got "a"'),
    (("seed",), -1, "seed: must be a whole number from 0 to 9,223,372,036,854,775,807, got -1"),
    (("seed",), 1.5, "seed: must be a whole number from 0 to 9,223,372,036,854,775,807, got 1.5"),
    (("now_s",), "noon", 'now_s: must be a number, got "noon"'),
    # worker types
    (("worker_types",), {}, "worker_types: must name at least one type"),
    (("worker_types",), ["v100"], "worker_types: must be a mapping, got a list"),
    (("worker_types", "v100"), 8, "worker_types.v100: must be a mapping, got 8"),
    (("worker_types", "v100", "gpus"), DELETE, 'worker_types.v100: "gpus" is missing'),
    (("worker_types", "v100", "gpus"), -1, f"worker_types.v100.gpus: {COUNT} -1"),
    (("worker_types", "v100", "gpus"), 1.5, f"worker_types.v100.gpus: {COUNT} 1.5"),
    (("worker_types", "v100", "gpus"), True, f"worker_types.v100.gpus: {COUNT} true"),
    (
        ("worker_types", "v100", "price_per_gpu_hour"),
        "cheap",
        'worker_types.v100.price_per_gpu_hour: must be a number of at least 0 or null, got "cheap"',
    ),
    (
        ("worker_types", "v100", "price_per_gpu_hour"),
        -2,
        "worker_types.v100.price_per_gpu_hour: must be a number of at least 0 or null, got -2",
    ),
    (
        ("worker_types", "v100", "price"),
        2,
        'worker_types.v100.price: unknown field; did you mean "price_per_gpu_hour"?',
    ),
    # jobs
    (("jobs", 1), "b", 'jobs[1]: must be a mapping, got "b"'),
    (("jobs", 1, "id"), DELETE, 'jobs[1]: "id" is missing'),
    (("jobs", 1, "id"), 7, "jobs[1].id: must be text, in quotes, got 7"),
    (("jobs", 1, "id"), ["b"], "jobs[1].id: must be text, got a list"),
    (("jobs", 1, "id"), "", "jobs[1].id: must not be empty"),
    (("jobs", 1, "id"), "a", 'jobs[1].id: "a" is the id of jobs[0] already'),
    (("jobs", 1, "id"), "\ud800", 'jobs[1].id: "\\ud800" is not Unicode text (half of a surrogate pair)'),
    (("jobs", 1, "weigth"), 2, 'jobs[1].weigth: unknown field; did you mean "weight"?'),
    (("jobs", 1, "a\nb"), 2, 'jobs[1]["a\\nb"]: unknown field; known: '),
    (("jobs", 1, "gpus"), 0, "jobs[1].gpus: must be a whole number from 1 to 1,000,000, got 0"),
    (("jobs", 1, "gpus"), "2", 'jobs[1].gpus: must be a whole number from 1 to 1,000,000, got "2"'),
    (("jobs", 1, "gpus"), None, "jobs[1].gpus: must be a whole number from 1 to 1,000,000, got null"),
    (("jobs", 1, "gpus"), 10**30, f"jobs[1].gpus: must be a whole number from 1 to 1,000,000, got {10**30}"),
    (("jobs", 1, "weight"), 0, "jobs[1].weight: must be a number above 0, got 0"),
    (("jobs", 1, "weight"), False, "jobs[1].weight: must be a number above 0, got false"),
    (("jobs", 1, "waited_s"), -1, "jobs[1].waited_s: must be a number of at least 0, got -1"),
    (("jobs", 1, "isolated_s"), {}, "jobs[1].isolated_s: must be a number of at least 0, got a mapping"),
    (("jobs", 1, "steps_left"), 0, 'jobs[1].steps_left: must be a number above 0, null or "inf", got 0'),
    (
        ("jobs", 1, "steps_left"),
        "many",
        'jobs[1].steps_left: must be a number above 0, null or "inf", got "many"',
    ),
    (
        ("jobs", 1, "steps_left"),
        1e20,
        'jobs[1].steps_left: must be a number above 0 and of at most 1e+15, null or "inf", got 1e+20',
    ),
    (("jobs", 1, "deadline_s"), "soon", 'jobs[1].deadline_s: must be a number, null or "inf", got "soon"'),
    (
        ("jobs", 1, "tenant"),
        "reserch",
        'jobs[1].tenant: "reserch" is not among the tenants; did you mean "research"?',
    ),
    (
        ("jobs", 1, "tenant"),
        DELETE,
        'jobs[1]: "tenant" is missing, and the file lists tenants; known: "research", "product"',
    ),
    (("jobs", 1, "tenant"), 3, "jobs[1].tenant: must be text, in quotes, got 3"),
    # rates and variants
    (("jobs", 0, "rates"), DELETE, 'jobs[0]: must have "rates" or "variants": how fast the job runs where'),
    (("jobs", 0, "rates"), 3, "jobs[0].rates: must be a mapping, got 3"),
    (("jobs", 0, "rates", "v100"), "fast", 'jobs[0].rates.v100: must be a number of at least 0, got "fast"'),
    (("jobs", 0, "rates", "v100"), -1.0, "jobs[0].rates.v100: must be a number of at least 0, got -1"),
    (("jobs", 0, "rates", "v100"), True, "jobs[0].rates.v100: must be a number of at least 0, got true"),
    (
        ("jobs", 0, "rates", "v100"),
        float("nan"),
        "jobs[0].rates.v100: must be a number of at least 0, got nan",
    ),
    (
        ("jobs", 0, "rates", "v100"),
        float("inf"),
        "jobs[0].rates.v100: must be a number of at least 0, got inf",
    ),
    (("jobs", 0, "rates", "v10"), 1, 'jobs[0].rates.v10: unknown worker type "v10"; did you mean "v100"?'),
    (("jobs", 0, "rates", "V100"), 1, 'jobs[0].rates.V100: unknown worker type "V100"; did you mean "v100"?'),
    (("jobs", 1, "variants"), {}, "jobs[1].variants: must be a list, got a mapping"),
    (("jobs", 1, "variants", 0), 1, "jobs[1].variants[0]: must be a mapping, got 1"),
    (("jobs", 1, "variants", 0, "rate"), DELETE, 'jobs[1].variants[0]: "rate" is missing'),
    (
        ("jobs", 1, "variants", 0, "rate"),
        -1,
        "jobs[1].variants[0].rate: must be a number of at least 0, got -1",
    ),
    (
        ("jobs", 1, "variants", 0, "gpus"),
        0,
        "jobs[1].variants[0].gpus: must be a whole number from 1 to 1,000,000, got 0",
    ),
    (("jobs", 1, "variants", 0, "label"), 1, "jobs[1].variants[0].label: must be text, in quotes, got 1"),
    (("jobs", 1, "variants", 0, "worker_type"), DELETE, 'jobs[1].variants[0]: "worker_type" is missing'),
    (
        ("jobs", 1, "variants", 0, "worker_type"),
        "k8",
        'jobs[1].variants[0].worker_type: unknown worker type "k8"; did you mean "k80"?',
    ),
    (
        ("jobs", 1, "variants", 0, "worker_type"),
        "v100",
        "jobs[1].variants[0]: repeats a way of running the job: same worker type, GPUs and label",
    ),
    # pairs
    (("pairs",), {}, "pairs: must be a list, got a mapping"),
    (("pairs", 0, "jobs"), ["a"], "pairs[0].jobs: must name two jobs, got 1"),
    (("pairs", 0, "jobs"), "ab", 'pairs[0].jobs: must be a list, got "ab"'),
    (("pairs", 0, "jobs", 1), "wid", 'pairs[0].jobs[1]: no job has the id "wid"; did you mean "wide"?'),
    (("pairs", 0, "jobs", 1), 1, "pairs[0].jobs[1]: must be the id of a job, got 1"),
    (("pairs", 0, "jobs", 1), "a", 'pairs[0].jobs: pairs "a" with itself'),
    (
        ("pairs", 0, "jobs", 1),
        "wide",
        'pairs[0].jobs: only jobs of as many GPUs can share them: "a" wants 1, "wide" 2',
    ),
    (("pairs", 0, "rates"), DELETE, 'pairs[0]: "rates" is missing'),
    (("pairs", 0, "rates", "v100"), 3, "pairs[0].rates.v100: must be a list, got 3"),
    (("pairs", 0, "rates", "v100"), [3], "pairs[0].rates.v100: must be two rates, one for each job, got 1"),
    (
        ("pairs", 0, "rates", "v100", 1),
        "x",
        'pairs[0].rates.v100[1]: must be a number of at least 0, got "x"',
    ),
    (
        ("pairs", 1),
        {"jobs": ["b", "a"], "rates": {"v100": [1, 1]}},
        "pairs[1].rates.v100: pairs[0] gives rates of these two jobs on this type already",
    ),
    # tenants
    (("tenants",), {}, "tenants: must be a list, got a mapping"),
    (("tenants",), [], 'jobs[0].tenant: "research" is not among the tenants'),
    (("tenants", 1, "name"), "research", 'tenants[1].name: "research" appears twice'),
    (("tenants", 1, "name"), "", "tenants[1].name: must not be empty"),
    (("tenants", 1, "weight"), 0, "tenants[1].weight: must be a number above 0, got 0"),
    (("tenants", 1, "policy"), "lifo", 'tenants[1].policy: must be "fairness" or "fifo", got "lifo"'),
    (("tenants", 1, "share"), 1, "tenants[1].share: unknown field; known: "),
]


def spoilt(path: tuple[str | int, ...], value: Any) -> Any:
    """The good file with one thing changed."""
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
    """The one line on stderr of a command that ends with exit code 2 and prints nothing else."""
    result = gavel("allocate", *arguments, input=input)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return str(result.stderr).rstrip("\n")


def test_the_good_file_is_good() -> None:
    """What the table below spoils is a problem in which every kind of entry occurs."""
    problem = to_problem(GOOD)
    assert (len(problem.jobs), len(problem.columns), len(problem.tenants)) == (3, 6, 2)


@pytest.mark.parametrize(("path", "value", "error"), FAULTS)
def test_a_fault_is_named_by_its_place(
    path: Any, value: Any, error: str, gavel: Gavel, problem_file: Any
) -> None:
    """Exit code 2 and one line: the file, the path in it, what belongs there and what stands there."""
    file = problem_file(spoilt(path, value))
    line = refused(gavel, file)
    expected = f"gavel allocate: {file}: {error}"
    assert expected == (line if not error.endswith(": ") else line[: len(expected)])


# name of the file, its content, the error
TEXTS: list[tuple[str, str | bytes, str]] = [
    ("a.json", "", "is empty"),
    ("a.yaml", " \n\n", "is empty"),
    ("a.json", '{"jobs": [\n  {"id": }\n]}', "line 2, column 10: not valid JSON: expecting value"),
    ("a.json", "jobs: []", "line 1, column 1: not valid JSON: expecting value"),
    ("a.json", '{"jobs": []} x', "line 1, column 14: not valid JSON: extra data"),
    ("a.json", '{"jobs": [' + "9" * 5000 + "]}", "a number has thousands of digits"),
    ("a.json", "[" * 200_000, "nested too deeply"),
    ("a.yaml", '{"a":' * 200_000, "nested too deeply"),
    ("a.yaml", "- " * 100 + "x", "must be a mapping, got a list"),
    ("a.json", b'{"jobs": "\xff"}', "line 1: not UTF-8 text (byte 0xff)"),
    ("a.json", '{"jobs": [], "jobs": []}', 'key "jobs" appears twice'),
    (
        "a.json",
        '{"worker_types": {"v": {"gpus": 1}}, "jobs": [{"id": "a", "rates": {"v": 1, "v": 2}}]}',
        'jobs[0].rates: key "v" appears twice',
    ),
    (
        "a.yaml",
        "worker_types: {v: {gpus: 1, gpus: 2}}\njobs: []",
        'worker_types.v: key "gpus" appears twice',
    ),
    (
        "a.yaml",
        "jobs: [a\n",
        "line 2, column 1: not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'",
    ),
    ("a.yaml", "a: b: c", "line 1, column 5: not valid YAML: mapping values are not allowed in this context"),
    ("a.yaml", "jobs: []\n---\njobs: []", "line 2, column 1: not valid YAML: a second document begins"),
    (
        "a.yaml",
        "jobs: *nobody",
        "line 1, column 7: not valid YAML: alias *nobody stands for nothing that ends before it",
    ),
    (
        "a.yaml",
        "jobs: &a [*a]",
        "line 1, column 11: not valid YAML: alias *a stands for nothing that ends before it",
    ),
    ("a.yaml", "? [a]\n: 1", "line 1, column 1: not valid YAML: a list or mapping cannot be a key"),
    (
        "a.yaml",
        "jobs: !!python/object/apply:os.getcwd []",
        "line 1, column 7: not valid YAML: tag 'tag:yaml.org,2002:python/object/apply:os.getcwd' is not supported",
    ),
    (
        "a.yaml",
        "a: !!float 3",
        "line 1, column 4: not valid YAML: tag 'tag:yaml.org,2002:float' is not supported",
    ),
    ("a.yaml", "jobs: {<<: 3}", "line 1, column 7: not valid YAML: << takes a mapping or a list of mappings"),
    ("a.yaml", "a: " + "9" * 5000, "line 1, column 4: not valid YAML: a number of thousands of digits"),
    ("a.yaml", "a: \x07", "line 1: not valid YAML: control characters are not allowed"),
    ("a.yaml", "- " * 100_000, "nested too deeply"),
    ("a.yaml", "1: 2", "key 1 must be text, in quotes"),
    ("a.yaml", "worker_types: {v: {gpus: 0x10}}\njobs: []", f'worker_types.v.gpus: {COUNT} "0x10"'),
    ("a.yaml", "worker_types: {v: {gpus: .inf}}\njobs: []", f"worker_types.v.gpus: {COUNT} inf"),
]


@pytest.mark.parametrize(("name", "content", "error"), TEXTS)
def test_a_broken_text_is_named_by_its_line(
    name: str, content: Any, error: str, gavel: Gavel, problem_file: Any
) -> None:
    """What is no JSON or YAML at all is shown by line and column; what is lost in a repeated key is not accepted."""
    file = problem_file(content, name)
    assert f"gavel allocate: {file}: {error}" == refused(gavel, file)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing.json", "no such file or directory"),
        (".", "is a directory"),
        ("a\nb.json", "no such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read(name: str, error: str, gavel: Gavel, tmp_path: Path) -> None:
    """The system's reason, on one line even if the name of the file has two."""
    file = str(tmp_path / name)
    assert f"gavel allocate: {file}: {error}".replace("\n", "\\n") == refused(gavel, file)


def test_standard_input_is_called_by_its_name(gavel: Gavel) -> None:
    """Errors in what came through a pipe say so."""
    assert refused(gavel, "-", input="[]") == "gavel allocate: standard input: must be a mapping, got a list"


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_huge_file_is_refused_unread(name: str, gavel: Gavel, tmp_path: Path) -> None:
    """Beyond the stated limit a file is refused rather than read for minutes."""
    form = "JSON" if name.endswith("json") else "YAML"
    with open(tmp_path / name, "wb") as file:
        file.truncate(LIMITS[form] + 1)
    line = refused(gavel, str(tmp_path / name))
    assert f"larger than {LIMITS[form] // 2**20} MiB, the limit for {form}" in line


def test_an_alias_bomb_stays_small() -> None:
    """Nine lists of nine aliases each, nine deep, cost no more than their text, and the error does not print them."""
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
    with pytest.raises(BadFile, match=r"^jobs\[0\]: must be a mapping, got a list$"):
        to_problem({"worker_types": {"v": {"gpus": 1}}, "jobs": parse_yaml(bomb)["a9"]})
    merges = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10)
    )
    assert parse_yaml(merges)["a9"] == {"x": 1}  # fmt: skip
    many = "a: &a {" + ", ".join(f"k{i}: {i}" for i in range(33)) + "}\nb: {<<: *a}"
    with pytest.raises(BadFile, match="<< brings in more than 32 entries"):
        parse_yaml(many)


def test_aliases_that_multiply_columns_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of variants that many jobs share is read job by job, up to a stated number of columns."""
    assert COLUMNS_MAX >= 1_000_000
    monkeypatch.setattr("gavel.cli.policies.problem_file.COLUMNS_MAX", 50)
    variants = [{"worker_type": "v", "rate": 1.0, "label": str(i)} for i in range(10)]
    jobs = [{"id": str(i), "variants": variants} for i in range(6)]
    with pytest.raises(
        BadFile, match=r"^jobs\[5\]\.variants\[0\]: more than 50 ways of running jobs in one file$"
    ):
        to_problem({"worker_types": {"v": {"gpus": 1}}, "jobs": jobs})


def test_yaml_means_what_json_means(problem_file: Any) -> None:
    """The same data in both formats is the same problem; aliases, merges and 1.2 scalars are read as written."""
    text = """
        worker_types: {v100: {gpus: 2}, no: {gpus: 012}}
        defaults: &defaults {weight: 2, steps_left: 1e3}
        jobs:
          - {<<: *defaults, id: yes, rates: &fast {v100: 4, no: .5}}
          - {id: '12', rates: *fast, <<: *defaults, weight: 3, steps_left: .inf, deadline_s: ~}
    """
    data = parse_yaml(textwrap.dedent(text))
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
    with pytest.raises(BadFile, match=r"^jobs\[1\]\.steps_left: must be .* got inf$"):  # JSON has no infinity
        to_problem(parse_json(json.dumps(expected)))
    expected["jobs"][1]["steps_left"] = "inf"  # type: ignore[index]
    assert (
        read_problem(problem_file(expected)).jobs.steps_left.tolist()
        == to_problem(data).jobs.steps_left.tolist()
    )
