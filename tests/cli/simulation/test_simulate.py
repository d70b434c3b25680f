"""`gavel simulate` as a user meets it: figures, files, notes, and every way of asking for what cannot be."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matplotlib.image import imread

from gavel.cli.simulation.values import split_outside_parentheses
from scheduler.core.facts import Configured
from scheduler.journal.store import SqliteJournal
from scheduler.sim.figures.summary import KEYS
from tests.cli.conftest import Gavel

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


def test_figures_are_printed(gavel: Gavel) -> None:
    """Without any file: a headline and a table, and nothing on standard error."""
    result = gavel("simulate", *TWELVE)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("las · 12 jobs on 12 GPUs of 2 types", "mean job completion time (h)", "utilisation a100"):
        assert words in result.stdout


def test_json_alone_has_the_promised_keys(gavel: Gavel) -> None:
    """With `--json -` standard output is JSON and nothing else."""
    figures = json.loads(gavel("simulate", *TWELVE, "--json", "-").stdout)
    assert tuple(figures) == KEYS
    assert (figures["jobs"], figures["completed"], figures["policy"]) == (12, 12, "las")
    assert (figures["cluster"], figures["seed"]) == ({"t4": 4, "a100": 8}, 0)
    assert set(figures["utilization"]) == {"t4", "a100"}


def test_every_output_is_written(gavel: Gavel, tmp_path: Path) -> None:
    """JSON, a line per job, the journal and four pictures; standard error says where they are."""
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
        "jct.png",
        "shares.png",
        "timeline.png",
        "utilisation.png",
    ]
    assert all(imread(picture).std() > 0.02 for picture in pictures)
    assert all(str(path) in result.stderr for path in (*list(names.values())[:3], *pictures))


def test_same_seed_same_figures(gavel: Gavel, tmp_path: Path) -> None:
    """Twice the same command: the same journal, fact for fact; another seed, other jobs."""
    from scheduler.journal.store import SqliteJournal

    told = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        gavel("simulate", *TWELVE, "--seed", seed, "--noise", "0.1", "--journal", str(tmp_path / name))
        with SqliteJournal(tmp_path / name, read_only=True) as journal:
            told.append(list(journal.read()))
    assert told[0] == told[1]
    assert told[0] != told[2]


def test_a_trace_file_is_run(gavel: Gavel, tmp_path: Path) -> None:
    """What `gavel generate` writes is what `gavel simulate` reads, the same as the workload itself."""
    trace = str(tmp_path / "twelve.csv")
    assert gavel("generate", trace, "--rate", "6", "--jobs", "12").exit_code == 0
    by_trace, by_name = (
        json.loads(gavel("simulate", *source, "--json", "-").stdout) for source in ((trace, *CLUSTER), TWELVE)
    )
    by_trace["wall_s"] = by_name["wall_s"] = None
    assert by_trace == by_name


def test_only_some_jobs_are_measured(gavel: Gavel) -> None:
    """Of an endless workload, jobs 5 to 9; it stops by itself."""
    options = ("--workload", "mixed-day", "--rate", "6", "--measure", "5:10", *CLUSTER)
    figures = json.loads(gavel("simulate", *options, "--json", "-").stdout)
    assert (figures["jobs"], figures["completed"]) == (5, 5)


def test_an_ideal_run_is_no_worse(gavel: Gavel) -> None:
    """Exact shares at every moment: all jobs done, no later on average than with rounds and restarts."""
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
def test_the_world_can_be_changed(options: tuple[str, ...], gavel: Gavel) -> None:
    """Whatever the circumstances, all jobs are done."""
    result = gavel("simulate", *TWELVE, *options, "--json", "-")
    assert json.loads(result.stdout)["completed"] == 12, result.stderr


def test_what_happens_over_time_comes_from_files(gavel: Gavel, tmp_path: Path) -> None:
    """Nodes fail, GPUs come and go, prices change: all by file, and all jobs are done in the end."""
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
    """A checkpoint of minutes is waited for; the scheduler behaves as its file says, and the options before it."""
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
    ("options", "line"),
    [
        (
            ("--cluster", "t4=0"),
            "invalid value for '--cluster': t4: is 0, must be a whole number between 1 and 1,000,000",
        ),
        (("--cluster", "t4=-1"), "invalid value for '--cluster': t4: is -1, must be"),
        (("--cluster", "t4"), "invalid value for '--cluster': 't4' is not of the form v100=36,k80=36"),
        (("--cluster", ""), "invalid value for '--cluster': '' is not of the form"),
        (("--cluster", "t4=1,t4=2"), "invalid value for '--cluster': 't4' stands twice"),
        (("--cluster", "t4=٣"), "invalid value for '--cluster': t4: '٣' is not a whole number"),
        (("--cluster", "tpu=4"), "--cluster: 'tpu' is not in our own throughput table; "),
        (("--cluster", "t4=1"), "--cluster: job 'language-0' ("),
        (("--rate", "nan"), "invalid value for '--rate': is nan, must be"),
        (("--rate", "-1"), "invalid value for '--rate': is -1, must be"),
        (("--measure", "5:5"), "invalid value for '--measure': '5:5' is empty"),
        (("--measure", "5"), "invalid value for '--measure': '5' is not a range of jobs such as 4000:5000"),
        (("--measure", "-1:3"), "invalid value for '--measure': '-1:3' is not a range"),
        (("--measure", "10:20"), "--measure: ends at job 20, but there are only 12"),
        (("--jobs", "0"), "invalid value for '--jobs': is 0, must be"),
        (("--policy", "lass"), "--policy: unknown policy 'lass'; did you mean 'las'?"),
        (("--policy", "(" * 500), "--policy: "),
        (("--workload", "mixed-dya"), "--workload: 'mixed-dya' is not a workload; did you mean 'mixed-day'?"),
        (("--workload", "published-single"), "--throughputs: "),
        (("--hours", "0"), "invalid value for '--hours': is 0, must be"),
        (("--round", "0"), "invalid value for '--round': is 0, must be"),
        (("--round", "0.1"), "invalid value for '--round': is 0.1, must be"),
        (("--noise", "9"), "invalid value for '--noise': is 9, must be"),
        (("--jobs", "6000000"), "invalid value for '--jobs': is 6,000,000, must be"),
        (("--restart", "inf"), "invalid value for '--restart': is inf, must be"),
        (("--gpus-per-node", "0"), "invalid value for '--gpus-per-node': is 0, must be"),
        (("--prices", "t4=-1"), "invalid value for '--prices': t4: is -1, must be 0 or between"),
        (("--prices", "k80=1"), "--prices: 'k80' is not in the cluster; "),
        (("--mtbf", "0.0001"), "--mtbf: is 0.0001: some "),
        (("--throughputs", "missing.json"), "missing.json: cannot be read: "),
        (("--believed", "missing.json"), "missing.json: cannot be read: "),
        (("--failures", "missing.csv"), "missing.csv: cannot be read: "),
        (("--prices-file", "missing.csv"), "missing.csv: cannot be read: "),
        (("--capacity-file", "missing.csv"), "missing.csv: cannot be read: "),
        (("--seed", "-1"), "invalid value for '--seed': is -1, must be"),
        (("--json", "no/such/dir/a.json"), "--json: no/such/dir/a.json: no such file or directory"),
        (("--jobs-csv", "."), "--jobs-csv: .: is a directory"),
        (("--journal", "/dev/null/x"), "--journal: /dev/null/x: not a directory"),
        (("--plots", "/dev/null/x"), "--plots: /dev/null/x: not a directory"),
        (("--ideal", "--mtbf", "5"), "--ideal: knows nothing that happens over time"),
        (("--ideal", "--journal", "a"), "--journal: an ideal run has no rounds"),
        (("--config", ""), "invalid value for '--config': is empty; leave it out, or give a value"),
        (("--policy", ""), "invalid value for '--policy': is empty"),
        (("--jobs", "9" * 30), "invalid value for '--jobs': is about 2^99, must be"),
        (("--cluster", "t4=4,a100=1000000"), "--cluster: are 250,001 nodes of 4 GPUs; at most 100,000"),
        (("--json", ""), "--json: is empty, must be the name of a file"),
        (
            ("--json", "-", "--jobs-csv", "-"),
            "--json and --jobs-csv: only one of them can be standard output",
        ),
        (("--journal", "-"), "--journal: cannot be written to standard output; give the name of a file"),
        (("--plots", "-"), "--plots: cannot be written to standard output"),
        (
            ("--restart", "1e300"),
            "invalid value for '--restart': is 1e300, must be a number between 0 and 604,800 s",
        ),
        (("--min-reallocation", "1e9"), "invalid value for '--min-reallocation': is 1,000,000,000, must be"),
        (("--solver-latency", "1e9"), "invalid value for '--solver-latency': is 1,000,000,000, must be"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """The option, or the file, and what to do; exit code 2; nothing is run and nothing printed."""
    result = gavel("simulate", *TWELVE, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel simulate: {line}")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (CLUSTER, "--workload: give either a trace or --workload, one of published-single, "),
        (("a.csv", *TWELVE), "--workload: give either a trace or --workload"),
        (("a.csv", *CLUSTER), "a.csv: cannot be read: "),
        (("-", *CLUSTER), "TRACE: cannot be standard input; write it into a file first"),
        (("a.csv", "--rate", "3", *CLUSTER), "--rate: belongs to --workload"),
        (("--workload", "mixed-day", "--jobs", "3", *CLUSTER), "--rate: is missing: jobs per hour"),
        (
            ("--workload", "mixed-day", "--rate", "3", *CLUSTER),
            "--jobs: is missing: a workload never ends by itself",
        ),
        (("--workload", "mixed-day", "--rate", "inf", "--hours", "3", *CLUSTER), "--hours: cannot bound"),
        (
            ("--workload", "mixed-day", "--rate", "inf", "--measure", "0:3", *CLUSTER),
            "--jobs: is missing: at an",
        ),
        (("--workload", "mixed-day", "--rate", "3", "--jobs", "1"), "missing option '--cluster'"),
    ],
)
def test_a_run_needs_jobs_and_a_cluster(arguments: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """What is missing, or too much, is said in one line."""
    result = gavel("simulate", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel simulate: {line}")


def test_jobs_on_standard_output(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is no file: the lines alone, in UTF-8, and the figures to where they were wanted."""
    monkeypatch.chdir(tmp_path)
    result = gavel("simulate", *TWELVE, "--jobs-csv", "-", "--json", "a.json")
    assert len(list(csv.DictReader(result.stdout.splitlines()))) == 12
    assert result.stderr == "written: a.json\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_no_jobs_at_all(gavel: Gavel, tmp_path: Path) -> None:
    """Nobody came: figures that say so, pictures that are empty, no error."""
    csv_file, plots = tmp_path / "jobs.csv", tmp_path / "plots"
    options = ("--workload", "mixed-day", "--rate", "6", "--hours", "0.001", *CLUSTER)
    result = gavel("simulate", *options, "--jobs-csv", str(csv_file), "--plots", str(plots))
    assert result.exit_code == 0, result.stderr
    assert "0 jobs on 12 GPUs" in result.stdout
    assert csv_file.read_text().count("\n") == 1
    assert len(list(plots.iterdir())) == 4


def test_a_journal_is_never_added_to(gavel: Gavel, tmp_path: Path) -> None:
    """A file that is there already is refused before the run, and stays as it is."""
    path = tmp_path / "journal"
    path.write_text("mine")
    result = gavel("simulate", *TWELVE, "--journal", str(path))
    assert (result.exit_code, path.read_text()) == (2, "mine")
    assert (
        result.stderr
        == f"gavel simulate: --journal: {path}: is there already; give another name, or delete it\n"
    )


def test_a_policy_that_has_no_answer_is_noted(gavel: Gavel) -> None:
    """allox takes jobs of one GPU only: the run goes on first come, first served, and says so."""
    result = gavel("simulate", *TWELVE, "--policy", "allox")
    assert result.exit_code == 0
    assert "note: the policy had no answer for " in result.stderr


def test_control_c_leaves_what_there_is(tmp_path: Path) -> None:
    """Interrupted in the middle: the figures until then are written, it says where, and ends with 130."""
    path, journal = tmp_path / "a.json", tmp_path / "journal"
    command = [sys.executable, "-m", "gavel", "simulate", "--workload", "mixed-day", "--rate", "8"]
    command += ["--measure", "100000:100001", *CLUSTER, "--json", str(path), "--journal", str(journal)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(2400):
        if journal.exists() and journal.stat().st_size > 20_000:
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert json.loads(path.read_text())["completed"] == 0
    assert "interrupted on day " in said
    assert f"written: {path}, {journal}" in said


def test_commas_in_parentheses_belong_to_the_policy() -> None:
    """`a(x=1,y=2),b` are two."""
    assert split_outside_parentheses("a(x=1,y=2),b") == ["a(x=1,y=2)", "b"]
    assert split_outside_parentheses("a)b,c") == ["a)b", "c"]


@pytest.mark.parametrize(
    "text",
    ["lm\t\t\t\t0\t100\t1\t1.0\t-1\t0\n", "subtrace,job_id,arrival_s,num_gpus,job_type\none,1,0,1,lm\n"],
)
def test_a_trace_of_another_system_wants_its_own_table(tmp_path: Path, gavel: Gavel, text: str) -> None:
    """To advise a type of our own table would lead astray."""
    (tmp_path / "small.trace").write_text(text)
    said = gavel("simulate", str(tmp_path / "small.trace"), "--cluster", "v100=36,p100=36")
    assert (said.exit_code, "'p100'" in said.stderr, "--throughputs" in said.stderr) == (2, True, True)
    assert "did you mean" not in said.stderr
