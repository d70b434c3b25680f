"""`gavel generate`: traces from named workloads and from the user's own."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel, as_words
from tests.support.wording import Wording
from traces.formats import read_trace
from traces.roofline import default_throughputs

SPEC = "rate_per_h: 2\nwidths: {1: 1, 2: 1}\ndurations:\n- {chance: 1, from_s: 600, to_s: 6000}\n"


@pytest.mark.parametrize("name", ["a.csv", "a.trace"])
def test_a_named_workload_becomes_a_trace(name: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The trace has twenty jobs and can be read back; only the same seed gives the same bytes."""
    path = tmp_path / name
    traces = []
    for seed in ("3", "3", "4"):
        result = gavel("generate", str(path), "--rate", "2", "--jobs", "20", "--seed", seed)
        assert result.exit_code == 0
        assert (str(path) in result.stderr, " 20 jobs " in result.stderr) == (True, True)
        assert len(read_trace(path, throughputs=default_throughputs())) == 20
        traces.append(path.read_bytes())
    assert traces[0] == traces[1] != traces[2]
    wording(result.stderr, folder=tmp_path, length=re.compile(r"(?<= in ).*"))


def test_the_jobs_of_some_hours(gavel: Gavel, tmp_path: Path) -> None:
    """`--hours` ends the trace instead of a number of jobs."""
    path = tmp_path / "a.csv"
    assert gavel("generate", str(path), "--rate", "20", "--hours", "5").exit_code == 0
    arrivals = [job.arrival_s for job in read_trace(path)]
    assert 50 < len(arrivals) < 150
    assert max(arrivals) < 5 * 3600


def test_a_workload_from_a_file(gavel: Gavel, tmp_path: Path) -> None:
    """Widths and durations come from the file; `--rate` replaces its rate."""
    spec, path = tmp_path / "spec.yaml", tmp_path / "a.csv"
    spec.write_text(SPEC)
    assert gavel("generate", str(path), "--spec", str(spec), "--jobs", "30", "--rate", "inf").exit_code == 0
    jobs = read_trace(path).jobs
    assert {job.gpus for job in jobs} == {1, 2}
    assert all(600 <= (job.duration_s or 0) <= 6000 for job in jobs)
    assert {job.arrival_s for job in jobs} == {0.0}


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("a.txt", "--jobs", "3"), "OUTPUT: "),
        (("a.csv",), "--jobs: "),
        (("a.csv", "--jobs", "3"), "--rate: "),
        (("a.csv", "--jobs", "3", "--rate", "0"), "invalid value for '--rate': "),
        (("a.csv", "--hours", "3", "--rate", "inf"), "--hours: "),
        (("a.csv", "--rate", "1", "--jobs", "3000000000"), "invalid value for '--jobs': "),
        (("a.csv", "--rate", "1e6", "--hours", "1000"), "--hours: "),
        (("a.csv", "--rate", "1e308", "--hours", "100"), "--hours: "),
        (("a.csv", "--rate", "0.001", "--jobs", "5000000"), "--rate: "),
        (("a.csv", "--rate", "1e-320", "--jobs", "2"), "invalid value for '--rate': "),
        (("a.csv", "--rate", "0.01", "--hours", "0.01"), "--hours: "),
        (("a.csv", "--jobs", "3", "--workload", "mixed-day", "--spec", "a.yaml"), "--spec: "),
        (("a.csv", "--jobs", "3", "--workload", "x"), "--workload: "),
        (("no/dir/a.csv", "--jobs", "3", "--rate", "1"), "OUTPUT: "),
        (("a.csv", "--jobs", "3", "--spec", "missing.yaml"), "missing.yaml: "),
    ],
    ids=as_words,
)
def test_wrong_options(
    options: tuple[str, ...],
    place: str,
    gavel: Gavel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    """A wrong option leads to one line that begins with the option, and to exit code 2; no file is written."""
    monkeypatch.chdir(tmp_path)
    result = gavel("generate", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel generate: {place}")
    assert list(tmp_path.iterdir()) == []
    wording(result.stderr)


def test_the_rate_of_a_spec_is_limited_too(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The limit on the number of jobs also holds for the rate of a file."""
    spec = tmp_path / "spec.yaml"
    spec.write_text("rate_per_h: 1000000\n")
    result = gavel("generate", str(tmp_path / "a.csv"), "--spec", str(spec), "--hours", "1000")
    assert result.exit_code == 2
    assert result.stderr.startswith("gavel generate: --hours: ")
    assert ("1e+09" in result.stderr, "5,000,000" in result.stderr) == (True, True)
    wording(result.stderr)
    assert list(tmp_path.iterdir()) == [spec]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[1]", ""),
        ("rate: 3", "rate_per_h"),
        ("widths: {1: 1}", "rate_per_h"),
        ("{rate_per_h: 2, durations: []}", "durations"),
        ("{rate_per_h: 2, widths: wide}", "widths"),
        ("{rate_per_h: .nan}", "rate_per_h"),
        ("{rate_per_h: -3}", "rate_per_h"),
        ("{rate_per_h: 2, id_prefix: ' a'}", "id: ' a0'"),
        ("{rate_per_h: 2, job_types: {bert: 1}}", "job_types"),
    ],
    ids=as_words,
)
def test_a_wrong_workload(text: str, field: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The line begins with the file and names the field at fault."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    result = gavel("generate", str(tmp_path / "a.csv"), "--spec", str(spec), "--jobs", "3")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel generate: {spec}: "), result.stderr
    assert field in result.stderr
    wording(result.stderr, file=spec)
