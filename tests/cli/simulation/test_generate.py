"""`gavel generate`: traces out of named workloads and of one's own."""

from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from traces.formats import read_trace
from traces.roofline import default_throughputs

SPEC = "rate_per_h: 2\nwidths: {1: 1, 2: 1}\ndurations:\n- {chance: 1, from_s: 600, to_s: 6000}\n"


@pytest.mark.parametrize("name", ["a.csv", "a.trace"])
def test_a_named_workload_becomes_a_trace(name: str, gavel: Gavel, tmp_path: Path) -> None:
    """Twenty jobs, which can be read again; the same twice, others with another seed."""
    path = tmp_path / name
    made = []
    for seed in ("3", "3", "4"):
        result = gavel("generate", str(path), "--rate", "2", "--jobs", "20", "--seed", seed)
        assert result.exit_code == 0
        assert result.stderr.startswith(f"written: {path}, 20 jobs in ")
        assert len(read_trace(path, throughputs=default_throughputs())) == 20
        made.append(path.read_bytes())
    assert made[0] == made[1] != made[2]


def test_the_jobs_of_some_hours(gavel: Gavel, tmp_path: Path) -> None:
    """`--hours` ends it instead of a number of jobs."""
    path = tmp_path / "a.csv"
    assert gavel("generate", str(path), "--rate", "20", "--hours", "5").exit_code == 0
    arrivals = [job.arrival_s for job in read_trace(path)]
    assert 50 < len(arrivals) < 150
    assert max(arrivals) < 5 * 3600


def test_a_workload_of_ones_own(gavel: Gavel, tmp_path: Path) -> None:
    """Widths and durations from a file; its rate may be replaced."""
    spec, path = tmp_path / "spec.yaml", tmp_path / "a.csv"
    spec.write_text(SPEC)
    assert gavel("generate", str(path), "--spec", str(spec), "--jobs", "30", "--rate", "inf").exit_code == 0
    jobs = read_trace(path).jobs
    assert {job.gpus for job in jobs} == {1, 2}
    assert all(600 <= (job.duration_s or 0) <= 6000 for job in jobs)
    assert {job.arrival_s for job in jobs} == {0.0}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("a.txt", "--jobs", "3"), "OUTPUT: a.txt: must end in .csv or .trace"),
        (("a.csv",), "--jobs: is missing: a workload never ends by itself; give --jobs or --hours"),
        (("a.csv", "--jobs", "3"), "--rate: is missing: jobs per hour"),
        (("a.csv", "--jobs", "3", "--rate", "0"), "invalid value for '--rate': is 0, must be"),
        (("a.csv", "--hours", "3", "--rate", "inf"), "--hours: cannot bound an infinite rate: give --jobs"),
        (
            ("a.csv", "--rate", "1", "--jobs", "3000000000"),
            "invalid value for '--jobs': is 3,000,000,000, must be",
        ),
        (
            ("a.csv", "--rate", "1e6", "--hours", "1000"),
            "--hours: is 1000: some 1e+09 jobs, of at most 5,000,000",
        ),
        (("a.csv", "--rate", "1e308", "--hours", "100"), "--hours: is 100: some inf jobs, of at most"),
        (
            ("a.csv", "--rate", "0.001", "--jobs", "5000000"),
            "--rate: is 0.001: the last job would arrive after 5.7",
        ),
        (("a.csv", "--rate", "1e-320", "--jobs", "2"), "invalid value for '--rate': is "),
        (
            ("a.csv", "--rate", "0.01", "--hours", "0.01"),
            "--hours: is 0.01: no job arrives in so short a time",
        ),
        (
            ("a.csv", "--jobs", "3", "--workload", "mixed-day", "--spec", "a.yaml"),
            "--spec: is a workload of its own",
        ),
        (("a.csv", "--jobs", "3", "--workload", "x"), '--workload: there is no "x"; there are '),
        (("no/dir/a.csv", "--jobs", "3", "--rate", "1"), "OUTPUT: no/dir/a.csv: no such file or directory"),
        (("a.csv", "--jobs", "3", "--spec", "missing.yaml"), "missing.yaml: no such file or directory"),
    ],
)
def test_what_cannot_be_generated(
    options: tuple[str, ...], line: str, gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, and no file."""
    monkeypatch.chdir(tmp_path)
    result = gavel("generate", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel generate: {line}")
    assert list(tmp_path.iterdir()) == []


def test_the_rate_of_a_spec_is_limited_too(gavel: Gavel, tmp_path: Path) -> None:
    """Its own rate × hours is no way around the limit."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("rate_per_h: 1000000\n")
    result = gavel("generate", str(tmp_path / "a.csv"), "--spec", str(spec), "--hours", "1000")
    assert result.exit_code == 2
    assert result.stderr.startswith("gavel generate: --hours: is 1000: some 1e+09 jobs, of at most 5,000,000")
    assert list(tmp_path.iterdir()) == [spec]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "must be a mapping of the fields of a workload"),
        ("rate: 3", 'rate is no field of a workload; did you mean "rate_per_h"?'),
        ("widths: {1: 1}", "rate_per_h is missing; it can be given as --rate, too"),
        ("{rate_per_h: 2, durations: []}", "durations: is empty"),
        ("{rate_per_h: 2, widths: wide}", "expected `object`, got `str` - at `widths`"),
        ("{rate_per_h: .nan}", "rate_per_h: is nan"),
        ("{rate_per_h: -3}", "rate_per_h: is -3"),
        ("{rate_per_h: 2, id_prefix: ' a'}", "job 0: id: ' a0' has control characters or spaces around it"),
        ("{rate_per_h: 2, job_types: {bert: 1}}", "job_types: 'bert' is not in the throughput table"),
    ],
)
def test_a_spec_that_cannot_be(text: str, words: str, gavel: Gavel, tmp_path: Path) -> None:
    """The file and the field at fault."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    result = gavel("generate", str(tmp_path / "a.csv"), "--spec", str(spec), "--jobs", "3")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel generate: {spec}: {words}"), result.stderr
