"""`gavel allocate` on good files: tables, JSON, plots and options."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from gavel.cli.policies.problem_file import to_problem
from policies.audit import audit
from policies.registry import resolve
from tests.cli.conftest import Gavel, run
from tests.support.wording import Wording

ROOT = Path(__file__).parents[3]
MIXED = str(ROOT / "examples" / "mixed_cluster.yaml")


def as_json(result: Any) -> Any:
    """Return the output of a command, read as strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=refuse)


def test_the_table_of_a_small_problem(gavel: Gavel, small: Any, problem_file: Any, wording: Wording) -> None:
    """The plain output equals the golden file, except for the solver's time."""
    wording(gavel("allocate", problem_file(small)).stdout, time=re.compile(r"(?<=solved in )\S+ \S+"))


def test_json_has_the_stated_shape(gavel: Gavel, small: Any, problem_file: Any, wording: Wording) -> None:
    """The answer has every documented key and type, and its shares explain its rates."""
    small["jobs"].append({"id": "idle", "rates": {}})
    answer = as_json(gavel("allocate", problem_file(small), "--policy", "isolated", "--json"))
    keys = ["policy", "value", "optimal", "solve_s", "shares", "effective_rates", "prices", "notes"]
    assert keys == list(answer)
    assert (answer["policy"], answer["optimal"]) == ("isolated", True)
    assert answer["prices"] == {"v100": None, "k80": None}
    (note,) = answer["notes"]
    assert "'idle'" in note
    wording(note)
    assert {"jobs", "worker_type", "gpus", "label", "share"} == set(answer["shares"][0])
    rates = {job["id"]: 0.0 for job in small["jobs"]}
    for way in answer["shares"]:
        (job,) = way["jobs"]
        rates[job] += (
            way["share"] * next(j for j in small["jobs"] if j["id"] == job)["rates"][way["worker_type"]]
        )
    assert answer["effective_rates"] == pytest.approx(rates)


def test_defaults_are_the_documented_ones() -> None:
    """Fields that a file leaves out have the documented values."""
    problem = to_problem({"worker_types": {"v": {"gpus": 1}}, "jobs": [{"id": "a", "rates": {"v": 1}}]})
    jobs = problem.jobs
    assert (
        jobs.gpus[0],
        jobs.weight[0],
        jobs.tenant[0],
        jobs.waited_s[0],
        jobs.isolated_s[0],
    ) == (1, 1.0, "", 0.0, 0.0)
    assert [np.inf, np.inf] == [jobs.steps_left[0], jobs.deadline_s[0]]
    assert np.isnan(problem.price_per_gpu_hour[0])
    assert (problem.seed, problem.now_s, problem.tenants) == (0, 0.0, ())


def test_pairs_and_variants_are_visible(gavel: Gavel) -> None:
    """Pairs, other widths and labels have a table of their own; a plus in the first table refers to it."""
    data: Any = {
        "worker_types": {"v": {"gpus": 1}},
        "jobs": [{"id": "a", "rates": {"v": 1.0}}, {"id": "b", "rates": {"v": 1.0}}],
        "pairs": [{"jobs": ["a", "b"], "rates": {"v": [0.9, 0.9]}}],
    }
    packed = gavel("allocate", "-", "--policy", "las+packing", input=json.dumps(data)).stdout
    assert packed.count("100.0%+") == 2
    assert ["a", "with", "b", "v", "1", "100.0%"] in [line.split() for line in packed.splitlines()]
    plain = gavel("allocate", "-", input=json.dumps(data)).stdout
    assert ("+ of which" in plain, "50.0%+" in plain) == (False, False)
    data = {**data, "pairs": [], "jobs": [{"id": "a", "gpus": 2}]}
    data["jobs"][0]["variants"] = [{"worker_type": "v", "gpus": 1, "rate": 1, "label": "tp1"}]
    labelled = gavel("allocate", "-", input=json.dumps(data)).stdout
    assert ["a", "v", "1", "tp1", "100.0%"] in [line.split() for line in labelled.splitlines()]


def test_no_figure_is_cut_off(gavel: Gavel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every share is printed in full, however narrow the window."""
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    documented = gavel("allocate", MIXED, "--policy", "las+packing").stdout
    assert ("\x1b[" in documented, "…" in documented) == (True, False)


def test_formats_are_recognised_on_standard_input(gavel: Gavel, small: Any) -> None:
    """JSON is recognised by its first brace, anything else is YAML; a byte order mark does not matter."""
    from_json = as_json(gavel("allocate", "-", "--json", input=b"\xef\xbb\xbf" + json.dumps(small).encode()))
    yaml = "# small\nworker_types: {v100: {gpus: 1}, k80: {gpus: 1}}\njobs:\n"
    for job in small["jobs"]:
        yaml += (
            f"- {{id: {job['id']}, rates: {{v100: {job['rates']['v100']}, k80: {job['rates']['k80']}}}}}\n"
        )
    assert from_json["shares"] == as_json(gavel("allocate", "-", "--json", input=yaml))["shares"]


def test_long_lists_are_cut_with_a_note(gavel: Gavel, wording: Wording) -> None:
    """The table has the first forty jobs and counts the others, unless all are asked for; JSON has all."""
    data = {
        "worker_types": {"v": {"gpus": 3}},
        "jobs": [{"id": f"job-{i:03}", "rates": {"v": 1.0 + i}} for i in range(100)],
    }
    text = json.dumps(data)
    table = gavel("allocate", "-", input=text).stdout
    (note,) = [line for line in table.splitlines() if "--all-jobs" in line]
    assert (table.count("job-"), " 60 " in note) == (40, True)
    wording(note)
    assert gavel("allocate", "-", "--all-jobs", input=text).stdout.count("job-") == 100
    assert len(as_json(gavel("allocate", "-", "--json", input=text))["effective_rates"]) == 100


def test_names_cannot_touch_the_terminal(gavel: Gavel) -> None:
    """Escape sequences, markup, line breaks and paths in names are printed as harmless text, also in a plot."""
    names = [
        "\x1b[2Jx",
        "[red]x[/red]",
        "a\nb",
        "../../etc",
        "a$b$c",
        "\u202egnp",
        "\x9b31m",
        "{0}%s",
        "日本",
    ]
    data = {
        "worker_types": {"_\x1b[31m$v$": {"gpus": 2}},
        "jobs": [{"id": n, "rates": {"_\x1b[31m$v$": 1}} for n in names],
    }
    result = gavel("allocate", "-", input=json.dumps(data))
    assert {"\n"} == {c for c in result.stdout if not c.isprintable()}
    for escaped in (r"\x1b[2Jx", "[red]x[/red]", r"a\nb", "../../etc", r"\u202egnp", r"_\x1b[31m$v$"):
        assert escaped in result.stdout


def test_nothing_to_allocate(gavel: Gavel) -> None:
    """A cluster without jobs is an answer, not an error."""
    for policy in ("las", "makespan", "fifo"):
        answer = as_json(
            gavel(
                "allocate",
                "-",
                "--policy",
                policy,
                "--json",
                input='{"worker_types": {"v": {"gpus": 1}}, "jobs": []}',
            )
        )
        assert (answer["shares"], answer["effective_rates"]) == ([], {})


def test_the_seed_can_be_replaced(gavel: Gavel, small: Any) -> None:
    """`--seed` replaces the seed of the file, and decides which pairs are drawn."""
    pair = {"rates": {"v100": [4.0, 4.0]}}
    data = {
        "worker_types": {"v100": {"gpus": 1}},
        "jobs": [{"id": c, "rates": {"v100": 5.0}} for c in "abcdefgh"],
        "pairs": [{"jobs": [a, b], **pair} for a in "abcdefgh" for b in "abcdefgh" if a < b],
        "seed": 1,
    }

    def drawn(*options: str) -> Any:
        return as_json(
            gavel("allocate", "-", "--policy", "gandiva", "--json", *options, input=json.dumps(data))
        )["shares"]

    assert drawn() == drawn("--seed", "1")
    assert any(drawn() != drawn("--seed", str(seed)) for seed in range(2, 6))


@pytest.mark.parametrize(
    ("spec", "place", "hints"),
    [
        ("lass", "--policy: ", ("'las'",)),
        ("las+pack", "--policy: ", ("'pack'", "'packing'")),
        ("min_cost(premum=1)", "--policy: ", ("'premum'", "premium)")),
        ("", "--policy: ", ("'las+packing'",)),
        ("las" + "+las" * 5000, "--policy: ", ()),
        ("-" * 20_000 + "1", "--policy: ", ()),
        ("sjf", "standard input: ", ("steps_left", "'fast', 'medium', 'slow'")),
        ("min_cost", "standard input: ", ("price_per_gpu_hour", "'k80'")),
    ],
    ids=[
        "name",
        "modifier",
        "parameter",
        "empty",
        "long",
        "deep",
        "jobs without steps",
        "type without price",
    ],
)
def test_a_problem_that_the_policy_refuses(
    spec: str, place: str, hints: tuple[str, ...], gavel: Gavel, small: Any, wording: Wording
) -> None:
    """An unknown name or parameter, or a missing fact, is reported in one line. Exit code 2."""
    result = gavel("allocate", "-", "--policy", spec, input=json.dumps(small))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel allocate: {place}")
    assert [hint for hint in hints if hint not in result.stderr] == []
    wording(result.stderr)


def test_an_unproven_answer_is_marked(gavel: Gavel, wording: Wording) -> None:
    """After the time limit the exit code is 0, JSON has `optimal: false`, and a note on stderr reports it."""
    result = gavel("allocate", MIXED, "--time-limit", "1e-9", "--json")
    assert as_json(result)["optimal"] is False
    wording(result.stderr)
    table = gavel("allocate", MIXED, "--time-limit", "1e-9").stdout
    (remark,) = re.findall(r"\bnot proven optimal\b", table)
    wording(remark)


@pytest.mark.parametrize("jobs", [0, 1, 20, 61, 2_000])
def test_plots_of_any_size(jobs: int, gavel: Gavel, tmp_path: Path) -> None:
    """A plot of none to thousands of jobs is neither blank nor absurdly large."""
    types = {f"t{i}": {"gpus": 1 + jobs // 5} for i in range(10)}
    data = {
        "worker_types": types,
        "jobs": [
            {
                "id": f"$job_{i}",
                "gpus": 1 + i % 2,
                "rates": {t: 1.0 + (i * 7 + k) % 5 for k, t in enumerate(types)},
            }
            for i in range(jobs)
        ],
    }
    file = tmp_path / "answer.png"
    result = gavel("allocate", "-", "--plot", str(file), input=json.dumps(data))
    assert (0, f"plot: {file}\n") == (result.exit_code, result.stderr)
    pixels = imread(file)
    assert max(pixels.shape) <= 4_000
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10


@pytest.mark.parametrize(
    "name", ["no/such/a.png", "a.jpg", "a.png/"], ids=["no folder", "unknown format", "directory"]
)
def test_a_plot_that_cannot_be_written_is_refused_first(
    name: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """The name of the plot is checked before the problem is read, and no file is left behind."""
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    file = str(tmp_path / name).rstrip("/")
    result = gavel("allocate", "missing.json", "--plot", file)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel allocate: --plot: {file}: ")
    wording(result.stderr, folder=tmp_path)
    assert gavel("allocate", "missing.json", "--plot", str(tmp_path / "b.png")).exit_code == 2
    assert not (tmp_path / "b.png").exists()


def test_the_documented_example_runs(gavel: Gavel) -> None:
    """The file and command of docs/problem-format.md give the answer that the page shows."""
    page = (ROOT / "docs" / "problem-format.md").read_text()
    problem = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    (answer,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    documented = json.loads(answer)
    real = as_json(gavel("allocate", "-", "--policy", "las+packing", "--json", input=problem))
    assert list(documented) == list(real)
    assert set(documented["shares"][0]) == set(real["shares"][0])
    assert documented["value"] == pytest.approx(real["value"], rel=1e-3)
    assert documented["effective_rates"] == pytest.approx(real["effective_rates"], rel=1e-3)
    assert documented["prices"] == pytest.approx(real["prices"], rel=1e-3, abs=1e-6)


RATES = st.one_of(st.just(0.0), st.floats(1e-3, 1e3), st.sampled_from([1e-300, 1e-15, 1e15]))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), RATES, st.text(max_size=4), st.just([]), st.just({})
)


@st.composite
def files(draw: st.DrawFn) -> Any:
    """Draw problems of a few jobs with figures at the limits of the format; some have a fault."""
    types = draw(st.lists(st.sampled_from(["v100", "k80", "\x1b[31m", "$"]), min_size=1, unique=True))
    job = st.fixed_dictionaries(
        {"rates": st.dictionaries(st.sampled_from(types), RATES)},
        optional={
            "gpus": st.sampled_from([1, 2, 8, 1_000_000]),
            "weight": st.sampled_from([1e-15, 0.5, 1, 1e15]),
            "steps_left": st.sampled_from([1, 1e6, 1e15, None, "inf"]),
            "waited_s": RATES,
            "deadline_s": st.sampled_from([-5.0, 0, 1e-9, 100, None]),
        },
    )
    data: Any = {
        "worker_types": {
            name: {"gpus": draw(st.sampled_from([0, 1, 7, 1_000_000])), "price_per_gpu_hour": 1.0}
            for name in types
        },
        "jobs": [{"id": f"job {i}", **draw(job)} for i in range(draw(st.integers(0, 5)))],
    }
    if len(data["jobs"]) > 1 and draw(st.booleans()):
        data["pairs"] = [{"jobs": ["job 0", "job 1"], "rates": {types[0]: [draw(RATES), draw(RATES)]}}]
    if draw(st.booleans()):
        inner: Any = data
        while isinstance(inner, dict | list) and inner and draw(st.booleans()):
            key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
            if not isinstance(inner[key], dict | list) or not inner[key]:
                inner[key] = draw(VALUES)
                break
            inner = inner[key]
        else:
            if isinstance(inner, dict):
                inner[draw(st.text(max_size=4))] = draw(VALUES)
    return data


@given(
    files(),
    st.sampled_from(
        ["las", "las+packing", "max_throughput", "makespan", "ftf+blind", "fifo", "min_cost", "gandiva"]
    ),
)
def test_no_file_makes_it_stumble(data: Any, policy: str) -> None:
    """Any file gives an answer that passes the audit, or exit code 2 and one line; never a traceback."""
    result = run("allocate", "-", "--policy", policy, "--json", input=json.dumps(data))
    if result.exit_code == 2:
        assert (result.stderr.count("\n"), result.stdout) == (1, "")
        assert result.stderr.startswith("gavel allocate: standard input: ")
        return
    as_json(result)
    assert run("allocate", "-", "--policy", policy, input=json.dumps(data)).exit_code == 0
    problem = to_problem(json.loads(json.dumps(data)))
    assert audit(problem, resolve(policy)(problem)) == []


def process(*command: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run this command in a process of its own, in the project's folder."""
    return subprocess.run(
        command, input=input, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )


def test_as_a_process(small: Any, wording: Wording) -> None:
    """`python -m gavel` has the exit codes and streams that a shell expects."""
    command = (sys.executable, "-m", "gavel", "allocate", "-")
    done = process(*command, "--json", input=json.dumps(small))
    assert (done.returncode, done.stderr, json.loads(done.stdout)["policy"]) == (0, "", "las")
    bad = process(*command, input="[]")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    wording(bad.stderr)


def test_a_terminal_of_few_letters(small: Any) -> None:
    """A substitute is printed for a character that the terminal's encoding lacks."""
    command = ("env", "PYTHONIOENCODING=ascii", sys.executable, "-m", "gavel", "allocate", "-")
    done = process(*command, input=json.dumps(small))
    assert (done.returncode, done.stderr, "fast" in done.stdout) == (0, "", True)


def test_a_reader_that_leaves_early() -> None:
    """`gavel policies | head -1` ends without a traceback."""
    with subprocess.Popen(
        [sys.executable, "-m", "gavel", "policies"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
