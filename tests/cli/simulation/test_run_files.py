"""Files given to `gavel simulate` that cannot be right: told with file, line and field, before anything runs."""

from pathlib import Path

import pytest

from tests.cli.conftest import Gavel

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("--costs", "job_type,restart_s,checkpoint_s\nresnet50,1,-2\n", ":2: checkpoint_s: is -2.0"),
        (
            "--costs",
            "job_type,restart_s,checkpoint_s\ndlrm,1,2\ndlrm,1,2\n",
            ":3: job_type: 'dlrm' appears twice",
        ),
        (
            "--costs",
            "job_type,restart_s,checkpoint_s\ndlrm,1,2\nresnet5,1,2\n",
            ":3: job_type: 'resnet5' is not in",
        ),
        ("--costs", "job_type,restart_s,checkpoint_s\ndlrm,1,1e300\n", ":2: checkpoint_s: is 1e+300"),
        ("--config", "round_secs = 5\n", ", line 1"),
        ("--config", "round_s = -5\n", "round_s"),
    ],
)
def test_a_file_that_cannot_be_right_is_told_with_its_place(
    file: str, text: str, line: str, gavel: Gavel, tmp_path: Path
) -> None:
    """File, line, field, and nothing is run."""
    path = tmp_path / ("a.toml" if file == "--config" else "a.csv")
    path.write_text(text)
    result = gavel("simulate", *TWELVE, file, str(path))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert line in result.stderr


@pytest.mark.parametrize(
    ("option", "text", "place"),
    [
        ("--failures", "t_s,node,event\n5,nobody,crash\n", ":2: node: "),
        ("--failures", "t_s,node,event\n5,a100-0,burns\n", ":2: event: "),
        (
            "--capacity-file",
            "t_s,worker_type,gpus\n5,k80,4\n",
            ":2: worker_type: 'k80' is not in the cluster",
        ),
        (
            "--prices-file",
            "t_s,worker_type,price_per_gpu_hour\n0,t4,1\n5,t5,4\n",
            ":3: worker_type: 't5' is not in",
        ),
        ("--capacity-file", "t_s,worker_type,gpus\n5,t4,-4\n", ":2: gpus: is "),
        ("--prices-file", "t_s,worker_type,price_per_gpu_hour\n9,t4,1\n5,t4,1\n", ":3: t_s: 5 is before"),
        ("--throughputs", "{}", ": "),
        (
            "--believed",
            "job_type,gpus,worker_type,steps_per_s\nresnet50,1,a100,nan\n",
            ":2: steps_per_s: 'nan'",
        ),
    ],
)
def test_files_that_cannot_be_right(option: str, text: str, place: str, gavel: Gavel, tmp_path: Path) -> None:
    """File, line and field, in one line."""
    path = tmp_path / "file"
    path.write_text(text)
    result = gavel("simulate", *TWELVE, option, str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {path}{place}"), result.stderr


def test_jobs_that_wait_for_ever_are_told(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that does not come back: how many have not ended, and which is the first of them."""
    trace, failures = tmp_path / "a.csv", tmp_path / "f.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,9\nb,0,dlrm,1,9e6\nc,1,dlrm,1,9e6\n")
    failures.write_text("t_s,node,event\n600,a100-0,crash\n")
    options = ("simulate", str(trace), "--cluster", "a100=4", "--failures", str(failures))
    result = gavel(*options)
    assert result.stderr == "note: 2 jobs had not ended when nothing could happen any more; the first is b\n"
    for module in ("scheduler.sim.simulate", "gavel.cli.simulation.running"):
        monkeypatch.setattr(f"{module}.STARVED_S", 722.0)
    failures.write_text("t_s,node,event\n9e8,a100-0,crash\n")
    assert "had not ended when the run was stopped after 0 simulated years" in gavel(*options).stderr


def test_a_job_that_never_says_when_it_is_done(gavel: Gavel, tmp_path: Path) -> None:
    """Without steps it would run for ever."""
    trace = tmp_path / "a.csv"
    trace.write_text("id,arrival_s,job_type,gpus\na,0,resnet50,1\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{trace}:2: job 'a' has no steps" in result.stderr


@pytest.mark.parametrize("steps", ["1e15", "1e11"])
def test_a_job_of_centuries_is_refused(steps: str, gavel: Gavel, tmp_path: Path) -> None:
    """A slip of the keyboard would be simulated for ever: which job it is, and what can be."""
    trace = tmp_path / "a.csv"
    trace.write_text(f"id,arrival_s,job_type,gpus,steps\nshort,0,resnet50,1,9\nlong,0,resnet50,1,{steps}\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}:3: job 'long' has 1e+")
    assert "years at its fastest on this cluster; at most 10 can be simulated" in result.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "wide,5,dlrm,8,9",
            "job 'wide' ('dlrm' on 8 GPUs) can run nowhere on the cluster; too few GPUs of a type",
        ),
        (
            "late,4e8,dlrm,1,9",
            "job 'late' arrives at 4e+08 s, after more than 10 years; arrivals are seconds",
        ),
    ],
)
def test_a_job_that_cannot_end_is_told_with_its_line(
    line: str, said: str, gavel: Gavel, tmp_path: Path
) -> None:
    """Also in a trace that had to be put in order: the line where it stands."""
    trace = tmp_path / "a.csv"
    trace.write_text(f"id,arrival_s,job_type,gpus,steps\n\n{line}\nshort,0,resnet50,1,9\n")
    result = gavel("simulate", str(trace), "--cluster", "a100=4", "--repair")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}:3: {said}"), result.stderr


def test_a_type_without_any_rate_is_called_so(gavel: Gavel, tmp_path: Path) -> None:
    """It is in the table; to ask whether it was meant helps nobody."""
    trace, rates = tmp_path / "a.csv", tmp_path / "rates.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,9\n")
    rates.write_text("job_type,gpus,worker_type,steps_per_s\nresnet50,1,v100,0\ndlrm,1,v100,1\n")
    result = gavel("simulate", str(trace), "--cluster", "v100=1", "--throughputs", str(rates))
    words = f"{trace}:2: job_type: 'resnet50' has no rate above 0 in the throughput table; give one"
    assert result.stderr.startswith(f"gavel simulate: {words}"), result.stderr


def test_the_published_jobs_need_the_published_table(gavel: Gavel) -> None:
    """The issue's own command, without the file: what is missing, and not a type that may be meant."""
    options = ("--workload", "published-single", "--rate", "4", "--jobs", "5", "--cluster", "v100=36,p100=36")
    result = gavel("simulate", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(
        "gavel simulate: --throughputs: is missing: the jobs of 'published-single' are"
    )


def test_failures_out_of_order_are_told(gavel: Gavel, tmp_path: Path) -> None:
    """Times count, and a repair that was meant to come after its crash is seen to come before it."""
    failures = tmp_path / "f.csv"
    failures.write_text("t_s,node,event\n3600,a100-0,crash\n10,a100-0,repair\n5,t4-0,cut\n")
    result = gavel("simulate", *TWELVE, "--failures", str(failures))
    said = f"note: {failures}: line 3 is earlier than the one above: what counts is the time, not the line\n"
    assert result.stderr.count("earlier") == 1
    assert said in result.stderr


@pytest.mark.parametrize(
    "text", ["id,arrival_s,job_type,gpus,steps\n", "subtrace,job_id,arrival_s,num_gpus,job_type\n"]
)
def test_a_header_is_no_trace(text: str, gavel: Gavel, tmp_path: Path) -> None:
    """One line instead of figures of nothing."""
    trace = tmp_path / "a.csv"
    trace.write_text(text)
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}: has no jobs; ")


def test_what_was_mended_is_told(gavel: Gavel, tmp_path: Path) -> None:
    """A sloppy trace is refused, and run with --repair: a note says what was done."""
    trace = tmp_path / "a.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,9,resnet50,1,10\na,0,resnet50,1,10\n")
    refused = gavel("simulate", str(trace), *CLUSTER)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("or read it with --repair\n")
    result = gavel("simulate", str(trace), *CLUSTER, "--repair")
    assert result.exit_code == 0
    assert f"note: {trace}: jobs put in order of arrival: 1" in result.stderr
