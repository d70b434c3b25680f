"""`gavel simulate`: figures, files, notes, and every wrong input."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from matplotlib.image import imread

from gavel.cli.simulation.values import Listed
from scheduler.core.facts import Configured
from scheduler.journal.store import SqliteJournal
from scheduler.sim.figures.summary import KEYS
from tests.cli.conftest import Gavel, as_words
from tests.support.wording import Wording

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


def test_figures_are_printed(gavel: Gavel, wording: Wording) -> None:
    """Without any file, the output is a headline and a table, and standard error is empty."""
    result = gavel("simulate", *TWELVE)
    assert (result.exit_code, result.stderr) == (0, "")
    headline, *table = [line for line in result.stdout.splitlines() if line.strip()]
    assert [word in headline for word in ("las", "12 jobs", "12 GPUs")] == [True] * 3
    assert [line for line in table if "utilisation a100" in line]
    wording(headline, length=re.compile(r"(?<= · )\S+ h(?= )"), time=re.compile(r"(?<=simulated in ).*"))


def test_json_alone_has_the_promised_keys(gavel: Gavel) -> None:
    """With `--json -` standard output is JSON and nothing else."""
    figures = json.loads(gavel("simulate", *TWELVE, "--json", "-").stdout)
    assert tuple(figures) == KEYS
    assert (figures["jobs"], figures["completed"], figures["policy"]) == (12, 12, "las")
    assert (figures["cluster"], figures["seed"]) == ({"t4": 4, "a100": 8}, 0)
    assert set(figures["utilization"]) == {"t4", "a100"}


def test_every_output_is_written(gavel: Gavel, tmp_path: Path) -> None:
    """JSON, a line per job, the journal and four pictures are written, and standard error names each."""
    names = {option: tmp_path / option for option in ("json", "jobs-csv", "journal", "plots")}
    options = [word for option, path in names.items() for word in (f"--{option}", str(path))]
    result = gavel("simulate", *TWELVE, *options)
    assert result.exit_code == 0
    assert json.loads(names["json"].read_text())["completed"] == 12
    with names["jobs-csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert [row["number"] for row in rows] == [str(number) for number in range(12)]
    assert {"id", "jct_h", "rho", "received_h:a100", "allocated_h:t4"} <= set(rows[0])
    assert names["journal"].stat().st_size > 0
    pictures = sorted(names["plots"].iterdir())
    assert [picture.name for picture in pictures] == [
        f"{name}.{form}" for name in ("jct", "shares", "timeline", "utilisation") for form in ("png", "svg")
    ]
    assert all(imread(picture).std() > 0.02 for picture in pictures if picture.suffix == ".png")
    assert all(str(path) in result.stderr for path in (*list(names.values())[:3], *pictures))


def test_same_seed_same_figures(gavel: Gavel, tmp_path: Path) -> None:
    """The same command gives the same journal fact for fact; another seed gives other jobs."""
    from scheduler.journal.store import SqliteJournal

    histories = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        gavel("simulate", *TWELVE, "--seed", seed, "--noise", "0.1", "--journal", str(tmp_path / name))
        with SqliteJournal(tmp_path / name, read_only=True) as journal:
            histories.append(list(journal.read()))
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


def test_a_trace_file_is_run(gavel: Gavel, tmp_path: Path) -> None:
    """A trace that `gavel generate` wrote gives the same figures as the workload itself."""
    trace = str(tmp_path / "twelve.csv")
    assert gavel("generate", trace, "--rate", "6", "--jobs", "12").exit_code == 0
    by_trace, by_name = (
        json.loads(gavel("simulate", *source, "--json", "-").stdout) for source in ((trace, *CLUSTER), TWELVE)
    )
    by_trace["wall_s"] = by_name["wall_s"] = None
    assert by_trace == by_name


def test_only_some_jobs_are_measured(gavel: Gavel) -> None:
    """Of an endless workload jobs 5 to 9 are measured, and the run stops by itself."""
    options = ("--workload", "mixed-day", "--rate", "6", "--measure", "5:10", *CLUSTER)
    figures = json.loads(gavel("simulate", *options, "--json", "-").stdout)
    assert (figures["jobs"], figures["completed"]) == (5, 5)


def test_an_ideal_run_is_no_worse(gavel: Gavel) -> None:
    """With exact shares at every moment, all jobs complete, on average no later than with rounds and restarts."""
    rounds, ideal = (
        json.loads(gavel("simulate", *TWELVE, *more, "--json", "-").stdout) for more in ((), ("--ideal",))
    )
    assert ideal["completed"] == 12
    assert ideal["mean_jct_h"] <= rounds["mean_jct_h"] * 1.05
    assert 0 < ideal["utilization"]["a100"] <= 1
    assert ideal["cost_usd"] > 0


@pytest.mark.parametrize(
    "options",
    [
        ("--comparison",),
        ("--gpus-per-node", "8", "--round", "60", "--restart", "5", "--checkpoint", "1"),
        ("--solver-latency", "30", "--report-interval", "600", "--rate-error", "0.3"),
        ("--mtbf", "20", "--repair-time", "0.5"),
        ("--prices", "t4=0.1,a100=9", "--policy", "min_cost(premium=0.2)"),
        ("--policy", "las+packing", "--min-reallocation", "1920"),
    ],
)
def test_options_change_the_simulated_world(options: tuple[str, ...], gavel: Gavel) -> None:
    """All jobs complete with any of these options."""
    result = gavel("simulate", *TWELVE, *options, "--json", "-")
    assert json.loads(result.stdout)["completed"] == 12, result.stderr


def test_jobs_share_the_cpus_of_their_node(gavel: Gavel, tmp_path: Path) -> None:
    """The job that is faster with more CPUs gets those that the other one leaves idle, unless CPUs are fixed."""
    jobs, rates = tmp_path / "jobs.csv", tmp_path / "rates.csv"
    jobs.write_text("id,arrival_s,job_type,gpus,steps\na,0,images,1,36000\nb,0,text,1,36000\n")
    curve = "images,1,v100,,3\nimages,1,v100,6,6\ntext,1,v100,,3\ntext,1,v100,1,3\n"
    rates.write_text("job_type,gpus,worker_type,cpus_per_gpu,steps_per_s\n" + curve)
    cluster = ("--cluster", "v100=2", "--gpus-per-node", "2", "--cpus-per-node", "6", "--restart", "0")
    steps_per_s = []
    for more in ((), ("--fixed-cpus",)):
        result = gavel("simulate", str(jobs), "--throughputs", str(rates), *cluster, *more, "--jobs-csv", "-")
        assert result.exit_code == 0, result.stderr
        rows = csv.DictReader(result.stdout.splitlines())
        steps_per_s.append([36_000 / (3600 * float(row["jct_h"])) for row in rows])
    assert steps_per_s == [pytest.approx([5.0, 3.0], rel=1e-3), pytest.approx([3.0, 3.0], rel=1e-3)]


def test_failures_capacity_and_prices_come_from_files(gavel: Gavel, tmp_path: Path) -> None:
    """All jobs complete while nodes fail, GPUs come and go and prices change at the times in the files."""
    files = {
        "--failures": "t_s,node,event\n3600,a100-0,crash\n7200,a100-0,repair\n",
        "--capacity-file": "t_s,worker_type,gpus\n1800,t4,0\n9000,t4,8\n",
        "--prices-file": "t_s,worker_type,price_per_gpu_hour\n0,t4,0\n3600,t4,100\n",
    }
    options = []
    for option, text in files.items():
        path = tmp_path / option.strip("-")
        path.write_text(text)
        options += [option, str(path)]
    plain, changed = (
        json.loads(gavel("simulate", *TWELVE, *more, "--json", "-").stdout) for more in ((), options)
    )
    assert changed["completed"] == 12
    assert changed["cost_usd"] != plain["cost_usd"]


def test_costs_and_settings_come_from_files(gavel: Gavel, tmp_path: Path) -> None:
    """The run has the settings of its file, and its leases allow for checkpoints that take minutes."""
    costs, config = tmp_path / "costs.csv", tmp_path / "gavel.toml"
    costs.write_text("job_type,restart_s,checkpoint_s\nllama-7b-lora,120,300\nbert-base,20,5\n")
    config.write_text('policy = "fifo"\nround_s = 900.0\nstay_rounds = 4.0\n')
    options = ("--costs", str(costs), "--config", str(config), "--journal", str(tmp_path / "journal"))
    plain, changed = (
        json.loads(gavel("simulate", *TWELVE, *more, "--json", "-").stdout) for more in ((), options)
    )
    assert (changed["completed"], changed["policy"]) == (12, "fifo")
    assert changed["rounds"] < plain["rounds"]
    assert changed["restart_h"] != plain["restart_h"]
    with SqliteJournal(tmp_path / "journal", read_only=True) as journal:
        settings = next(fact.settings for _, fact in journal.read() if isinstance(fact, Configured))
    assert (settings.round_s, settings.stay_rounds) == (900.0, 4.0)
    assert settings.lease_margin_s > 1.5 * 300


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--cluster", "t4=0"), "invalid value for '--cluster': "),
        (("--cluster", "t4=4", "--cluster", "t4=8"), "invalid value for '--cluster': "),
        (("--cluster", "t4=-1"), "invalid value for '--cluster': "),
        (("--cluster", "t4"), "invalid value for '--cluster': "),
        (("--cluster", ""), "invalid value for '--cluster': "),
        (("--cluster", "t4=1,t4=2"), "invalid value for '--cluster': "),
        (("--cluster", "t4=٣"), "invalid value for '--cluster': "),
        (("--cluster", "tpu=4"), "--cluster: "),
        (("--cluster", "t4=1"), "--cluster: "),
        (("--rate", "nan"), "invalid value for '--rate': "),
        (("--rate", "-1"), "invalid value for '--rate': "),
        (("--measure", "5:5"), "invalid value for '--measure': "),
        (("--measure", "5"), "invalid value for '--measure': "),
        (("--measure", "-1:3"), "invalid value for '--measure': "),
        (("--measure", "10:20"), "--measure: "),
        (("--jobs", "0"), "invalid value for '--jobs': "),
        (("--policy", "lass"), "--policy: "),
        (("--policy", "(" * 500), "--policy: "),
        (("--workload", "mixed-dya"), "--workload: "),
        (("--workload", "published-single"), "--throughputs: "),
        (("--hours", "0"), "invalid value for '--hours': "),
        (("--round", "0"), "invalid value for '--round': "),
        (("--round", "0.1"), "invalid value for '--round': "),
        (("--noise", "9"), "invalid value for '--noise': "),
        (("--jobs", "6000000"), "invalid value for '--jobs': "),
        (("--restart", "inf"), "invalid value for '--restart': "),
        (("--gpus-per-node", "0"), "invalid value for '--gpus-per-node': "),
        (("--prices", "t4=-1"), "invalid value for '--prices': "),
        (("--prices", "k80=1"), "--prices: "),
        (("--mtbf", "0.0001"), "--mtbf: "),
        (("--throughputs", "missing.json"), "missing.json: "),
        (("--believed", "missing.json"), "missing.json: "),
        (("--failures", "missing.csv"), "missing.csv: "),
        (("--prices-file", "missing.csv"), "missing.csv: "),
        (("--capacity-file", "missing.csv"), "missing.csv: "),
        (("--seed", "-1"), "invalid value for '--seed': "),
        (("--json", "no/such/dir/a.json"), "--json: "),
        (("--jobs-csv", "."), "--jobs-csv: "),
        (("--journal", "/dev/null/x"), "--journal: "),
        (("--plots", "/dev/null/x"), "--plots: "),
        (("--ideal", "--mtbf", "5"), "--ideal: "),
        (("--ideal", "--journal", "a"), "--journal: "),
        (("--config", ""), "invalid value for '--config': "),
        (("--policy", ""), "invalid value for '--policy': "),
        (("--jobs", "9" * 30), "invalid value for '--jobs': "),
        (("--cluster", "t4=4,a100=1000000"), "--cluster: "),
        (("--json", ""), "--json: "),
        (("--json", "-", "--jobs-csv", "-"), "--json and --jobs-csv: "),
        (("--journal", "-"), "--journal: "),
        (("--plots", "-"), "--plots: "),
        (("--restart", "1e300"), "invalid value for '--restart': "),
        (("--min-reallocation", "1e9"), "invalid value for '--min-reallocation': "),
        (("--solver-latency", "1e9"), "invalid value for '--solver-latency': "),
        (("--cpus-per-node", "0"), "invalid value for '--cpus-per-node': "),
        (("--cpus-per-node", "nan"), "invalid value for '--cpus-per-node': "),
        (("--cpus-per-node", "24"), "--cpus-per-node: "),
        (("--fixed-cpus",), "--fixed-cpus: "),
    ],
    ids=as_words,
)
def test_wrong_input_is_one_line(
    options: tuple[str, ...], place: str, gavel: Gavel, wording: Wording
) -> None:
    """The line begins with the option or the file, nothing is run and nothing printed. Exit code 2."""
    few = TWELVE[: -len(CLUSTER)] if "--cluster" in options else TWELVE
    result = gavel("simulate", *few, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {place}")
    wording(result.stderr)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (CLUSTER, "--workload: "),
        (("a.csv", *TWELVE), "--workload: "),
        (("a.csv", *CLUSTER), "a.csv: "),
        (("-", *CLUSTER), "TRACE: "),
        (("a.csv", "--rate", "3", *CLUSTER), "--rate: "),
        (("--workload", "mixed-day", "--jobs", "3", *CLUSTER), "--rate: "),
        (("--workload", "mixed-day", "--rate", "3", *CLUSTER), "--jobs: "),
        (("--workload", "mixed-day", "--rate", "inf", "--hours", "3", *CLUSTER), "--hours: "),
        (("--workload", "mixed-day", "--rate", "inf", "--measure", "0:3", *CLUSTER), "--jobs: "),
        (("--workload", "mixed-day", "--rate", "3", "--jobs", "1"), "missing option '--cluster'"),
    ],
    ids=as_words,
)
def test_a_run_needs_jobs_and_a_cluster(
    arguments: tuple[str, ...], place: str, gavel: Gavel, wording: Wording
) -> None:
    """A missing or superfluous option is reported in one line that begins with its name."""
    result = gavel("simulate", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel simulate: {place}")
    wording(result.stderr)


def test_jobs_on_standard_output(
    gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """`--jobs-csv -` prints only the line of each job; the figures go to their file."""
    monkeypatch.chdir(tmp_path)
    result = gavel("simulate", *TWELVE, "--jobs-csv", "-", "--json", "a.json")
    assert len(list(csv.DictReader(result.stdout.splitlines()))) == 12
    assert (result.stderr.count("\n"), "a.json" in result.stderr) == (1, True)
    wording(result.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_jobs_at_all(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A run without jobs gives figures and empty pictures, not an error."""
    csv_file, plots = tmp_path / "jobs.csv", tmp_path / "plots"
    options = ("--workload", "mixed-day", "--rate", "6", "--hours", "0.001", *CLUSTER)
    result = gavel("simulate", *options, "--jobs-csv", str(csv_file), "--plots", str(plots))
    assert result.exit_code == 0, result.stderr
    assert " 0 jobs " in result.stdout
    headline = next(line for line in result.stdout.splitlines() if " 0 jobs " in line)
    wording(headline, time=re.compile(r"(?<=simulated in ).*"))
    assert csv_file.read_text().count("\n") == 1
    assert len(list(plots.iterdir())) == 8


def test_an_existing_journal_is_refused(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A file in the journal's place is refused before the run and stays unchanged."""
    path = tmp_path / "journal"
    path.write_text("a user's text")
    result = gavel("simulate", *TWELVE, "--journal", str(path))
    assert (result.exit_code, path.read_text()) == (2, "a user's text")
    assert result.stderr.startswith(f"gavel simulate: --journal: {path}: ")
    wording(result.stderr, path=path)


def test_a_policy_that_has_no_answer_is_noted(gavel: Gavel, wording: Wording) -> None:
    """allox takes jobs of one GPU only: the run continues first come, first served, with a note."""
    result = gavel("simulate", *TWELVE, "--policy", "allox")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: ")
    wording(result.stderr, count=re.compile(r"(?<=no answer for )\d+"))


def test_ctrl_c_keeps_the_figures_so_far(tmp_path: Path) -> None:
    """Ctrl-C during a run writes the figures until then, and prints the simulated day. Exit code 130."""
    path, journal = tmp_path / "a.json", tmp_path / "journal"
    command = [sys.executable, "-m", "gavel", "simulate", "--workload", "mixed-day", "--rate", "8"]
    command += ["--measure", "100000:100001", *CLUSTER, "--json", str(path), "--journal", str(journal)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(2400):
        if journal.exists() and journal.stat().st_size > 20_000:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert json.loads(path.read_text())["completed"] == 0
    assert re.search(r"^interrupted on day \d", stderr, re.MULTILINE)
    (outputs,) = [line for line in stderr.splitlines() if str(path) in line]
    assert str(journal) in outputs


def test_commas_in_parentheses_belong_to_the_policy() -> None:
    """`a(x=1,y=2),b` are two policies."""
    specs = Listed(click.STRING)
    assert specs.convert("a(x=1,y=2),b(z=3)", None, None) == ["a(x=1,y=2)", "b(z=3)"]
    assert specs.convert("a)b,c", None, None) == ["a)b", "c"]


@pytest.mark.parametrize(
    "text",
    ["lm\t\t\t\t0\t100\t1\t1.0\t-1\t0\n", "subtrace,job_id,arrival_s,num_gpus,job_type\none,1,0,1,lm\n"],
)
def test_a_trace_of_another_system_needs_its_own_table(
    tmp_path: Path, gavel: Gavel, text: str, wording: Wording
) -> None:
    """The error asks for `--throughputs`; suggesting a type of our own table would mislead."""
    (tmp_path / "small.trace").write_text(text)
    result = gavel("simulate", str(tmp_path / "small.trace"), "--cluster", "v100=36,p100=36")
    assert (result.exit_code, "'p100'" in result.stderr, "--throughputs" in result.stderr) == (2, True, True)
    assert "did you mean" not in result.stderr
    wording(result.stderr, folder=tmp_path)


def test_jobs_run_by_the_plans_of_a_file(gavel: Gavel, tmp_path: Path) -> None:
    """Jobs of a type with plans run by them, beside others; the table of jobs names the plans."""
    (tmp_path / "plans.csv").write_text(
        "job_type,worker_type,gpus,plan,steps_per_s\ngpt,t4,4,p4,0.1\ngpt,a100,2,t2,0.5\n"
    )
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,gpt,2,900\nb,0,resnet50,1,9000\n")
    options = ("--plans", str(tmp_path / "plans.csv"), "--jobs-csv", "-")
    result = gavel("simulate", str(trace), *CLUSTER, *options)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert [(row["type"], row["state"], row["plans"]) for row in rows] == [
        ("gpt", "completed", "a100×2 t2"),
        ("resnet50", "completed", ""),
    ]
