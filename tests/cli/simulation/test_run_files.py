"""Wrong files given to `gavel simulate` are refused with file, line and field before the run."""

from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.wording import Wording

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("--costs", "job_type,restart_s,checkpoint_s\nresnet50,1,-2\n", ":2: checkpoint_s: "),
        ("--costs", "job_type,restart_s,checkpoint_s\ndlrm,1,2\ndlrm,1,2\n", ":3: job_type: "),
        ("--costs", "job_type,restart_s,checkpoint_s\ndlrm,1,2\nresnet5,1,2\n", ":3: job_type: "),
        ("--costs", "job_type,restart_s,checkpoint_s\ndlrm,1,1e300\n", ":2: checkpoint_s: "),
        ("--config", "round_secs = 5\n", ", line 1"),
        ("--config", "round_s = -5\n", "round_s"),
        ("--config", '[[tenants]]\nname = "org"\nquota = {gpus = {h201 = 1}}\n', "tenants.org.quota.gpus"),
        ("--config", '[[tenants]]\nname = "org"\neach_user = {cost = {day = -1}}\n', "each_user.cost.day"),
    ],
    ids=[
        *("negative", "twice", "unknown type", "too large", "unknown setting", "negative setting"),
        *("quota on an unknown type", "negative budget"),
    ],
)
def test_a_wrong_file_of_costs_or_settings(
    file: str, text: str, place: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """The line names file, line and field, and no job is run."""
    path = tmp_path / ("a.toml" if file == "--config" else "a.csv")
    path.write_text(text)
    result = gavel("simulate", *TWELVE, file, str(path))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert (path.name in result.stderr, place in result.stderr) == (True, True)
    wording(result.stderr, file=path)


@pytest.mark.parametrize(
    ("option", "text", "place"),
    [
        ("--failures", "t_s,node,event\n5,unknown,crash\n", ":2: node: "),
        ("--failures", "t_s,node,event\n5,a100-0,burns\n", ":2: event: "),
        ("--capacity-file", "t_s,worker_type,gpus\n5,k80,4\n", ":2: worker_type: 'k80'"),
        ("--prices-file", "t_s,worker_type,price_per_gpu_hour\n0,t4,1\n5,t5,4\n", ":3: worker_type: 't5'"),
        ("--capacity-file", "t_s,worker_type,gpus\n5,t4,-4\n", ":2: gpus: "),
        ("--prices-file", "t_s,worker_type,price_per_gpu_hour\n9,t4,1\n5,t4,1\n", ":3: t_s: 5 "),
        ("--throughputs", "{}", ": "),
        (
            "--believed",
            "job_type,gpus,worker_type,steps_per_s\nresnet50,1,a100,nan\n",
            ":2: steps_per_s: 'nan'",
        ),
        (
            "--plans",
            "job_type,worker_type,gpus,plan,steps_per_s\ngpt,t4,2,p2,1\ngpt,t5,2,p2,1\n",
            ":3: worker_type: 't5'",
        ),
    ],
    ids=["node", "event", "capacity type", "price type", "negative", "order", "empty table", "rate", "plan"],
)
def test_a_wrong_file_of_events_or_rates(
    option: str, text: str, place: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """The line begins with file, line and field."""
    path = tmp_path / "file"
    path.write_text(text)
    result = gavel("simulate", *TWELVE, option, str(path))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {path}{place}"), result.stderr
    wording(result.stderr, file=path)


def test_jobs_that_can_never_end_are_counted(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """If the only node fails and never comes back, a note counts the unfinished jobs and names the first."""
    trace, failures = tmp_path / "a.csv", tmp_path / "f.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,9\nb,0,dlrm,1,9e6\nc,1,dlrm,1,9e6\n")
    failures.write_text("t_s,node,event\n600,a100-0,crash\n")
    options = ("simulate", str(trace), "--cluster", "a100=4", "--failures", str(failures))
    result = gavel(*options)
    assert (result.stderr.count("\n"), " 2 jobs " in result.stderr) == (1, True)
    wording(result.stderr)
    for module in ("scheduler.sim.simulate", "gavel.cli.simulation.running"):
        monkeypatch.setattr(f"{module}.STARVED_S", 722.0)
    failures.write_text("t_s,node,event\n9e8,a100-0,crash\n")
    wording(gavel(*options).stderr)


def test_a_job_without_steps_is_refused(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A job without steps is refused, because it would run without end."""
    trace = tmp_path / "a.csv"
    trace.write_text("id,arrival_s,job_type,gpus\na,0,resnet50,1\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"{trace}:2: job 'a' " in result.stderr
    wording(result.stderr, trace=trace)


@pytest.mark.parametrize("steps", ["1e15", "1e11"])
def test_a_job_of_centuries_is_refused(steps: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A job whose steps would take centuries, probably a slip, is refused; the error has its name and the limit."""
    trace = tmp_path / "a.csv"
    trace.write_text(f"id,arrival_s,job_type,gpus,steps\nshort,0,resnet50,1,9\nlong,0,resnet50,1,{steps}\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}:3: job 'long' ")
    assert " 10 " in result.stderr
    wording(result.stderr, trace=trace)


@pytest.mark.parametrize(
    ("line", "job"), [("wide,5,dlrm,8,9", "'wide'"), ("late,4e8,dlrm,1,9", "'late'")], ids=["wide", "late"]
)
def test_a_job_that_cannot_end_is_named_with_its_line(
    line: str, job: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """The error has the line in the file, even if `--repair` puts the jobs in another order."""
    trace = tmp_path / "a.csv"
    trace.write_text(f"id,arrival_s,job_type,gpus,steps\n\n{line}\nshort,0,resnet50,1,9\n")
    result = gavel("simulate", str(trace), "--cluster", "a100=4", "--repair")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}:3: job {job} "), result.stderr
    wording(result.stderr, trace=trace)


def test_a_job_type_without_any_rate(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The job type is in the table, so the error asks for a rate instead of suggesting another name."""
    trace, rates = tmp_path / "a.csv", tmp_path / "rates.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,9\n")
    rates.write_text("job_type,gpus,worker_type,steps_per_s\nresnet50,1,v100,0\ndlrm,1,v100,1\n")
    result = gavel("simulate", str(trace), "--cluster", "v100=1", "--throughputs", str(rates))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"gavel simulate: {trace}:2: job_type: 'resnet50' "), result.stderr
    wording(result.stderr, trace=trace)


def test_the_published_jobs_need_the_published_table(gavel: Gavel, wording: Wording) -> None:
    """The command of the published experiments without its table names the missing option, not a similar job type."""
    options = ("--workload", "published-single", "--rate", "4", "--jobs", "5", "--cluster", "v100=36,p100=36")
    result = gavel("simulate", *options)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("gavel simulate: --throughputs: ")
    wording(result.stderr)


def test_failures_out_of_order_get_a_note(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """Failures count by time, so a repair that was meant to follow its crash precedes it: a note names the line."""
    failures = tmp_path / "f.csv"
    failures.write_text("t_s,node,event\n3600,a100-0,crash\n10,a100-0,repair\n5,t4-0,cut\n")
    result = gavel("simulate", *TWELVE, "--failures", str(failures))
    (note,) = [line for line in result.stderr.splitlines() if line.startswith(f"note: {failures}: ")]
    assert "line 3 " in note
    wording(note, failures=failures)


@pytest.mark.parametrize(
    "text", ["id,arrival_s,job_type,gpus,steps\n", "subtrace,job_id,arrival_s,num_gpus,job_type\n"]
)
def test_a_header_is_no_trace(text: str, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A trace of a header alone is refused instead of giving figures of no jobs."""
    trace = tmp_path / "a.csv"
    trace.write_text(text)
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel simulate: {trace}: ")
    wording(result.stderr, trace=trace)


def test_repairs_get_a_note(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A disordered trace is refused, and with `--repair` it runs and a note counts the changes."""
    trace = tmp_path / "a.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,9,resnet50,1,10\na,0,resnet50,1,10\n")
    refused = gavel("simulate", str(trace), *CLUSTER)
    assert (refused.exit_code, "--repair" in refused.stderr) == (2, True)
    wording(refused.stderr, trace=trace)
    result = gavel("simulate", str(trace), *CLUSTER, "--repair")
    assert result.exit_code == 0
    notes = [line for line in result.stderr.splitlines() if line.startswith(f"note: {trace}: ")]
    assert len(notes) == 2
    wording("\n".join(notes), trace=trace)
