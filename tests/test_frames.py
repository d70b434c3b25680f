"""`gavel.frames`: files of Gavel's commands as DataFrames with the columns that docs/frames.md describes."""

import importlib
import json
import sqlite3
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from gavel import frames
from gavel.client.results import UsageRow
from scheduler.journal.errors import NotAJournal
from scheduler.sim.figures.summary import KEYS
from tests.cli.conftest import run

TRACE = """id,arrival_s,job_type,gpus,steps,deadline_s
NA,0,resnet50,2,200000,
chat,600,llama-7b-lora,4,40000,
null,1200,dlrm,1,300000,14400
"""
CLUSTER = ("--cluster", "v100=4,h100=4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one simulation, and of a small sweep."""
    folder = tmp_path_factory.mktemp("frames")
    (folder / "trace.csv").write_text(TRACE)
    names = ("--json", "a.json"), ("--jobs-csv", "jobs.csv"), ("--journal", "run.db")
    outputs = [part for option, name in names for part in (option, str(folder / name))]
    trace = str(folder / "trace.csv")
    assert run("simulate", trace, *CLUSTER, *outputs).exit_code == 0
    options = (
        "--policy",
        "las,fifo",
        "--restart",
        "30",
        "--results",
        str(folder / "sweep"),
        "--processes",
        "1",
    )
    assert run("sweep", trace, *CLUSTER, *options).exit_code == 0
    return folder


def test_results(folder: Path) -> None:
    """There is a row per file, in the given order, with every figure; utilisation has a column per type."""
    finished = next((folder / "sweep").glob("*.json"))
    frame = frames.results(folder / "a.json", finished)
    figures = json.loads((folder / "a.json").read_text())
    assert list(frame["file"]) == [str(folder / "a.json"), str(finished)]
    assert frame.loc[0, "mean_jct_h"] == figures["mean_jct_h"]
    assert frame.loc[0, "utilization:h100"] == figures["utilization"]["h100"]
    assert frame.loc[0, "cluster"] == "v100=4,h100=4"
    assert list(dict.fromkeys(name.partition(":")[0] for name in frame)) == ["file", *KEYS, "interrupted"]
    assert list(frame["interrupted"]) == [False, False]


def test_an_interrupted_result_is_marked(folder: Path) -> None:
    """Figures of an interrupted run are marked, unlike those of a complete one."""
    figures = json.loads((folder / "a.json").read_text())
    path = folder / "stopped.json"
    path.write_text(json.dumps({**figures, "interrupted": True}))
    assert list(frames.results(path)["interrupted"]) == [True]


def test_a_sweep_has_the_columns_of_its_table(folder: Path) -> None:
    """The frame has the columns of `results.csv`, then the runs' options, the varied ones first."""
    frame = frames.sweep(folder / "sweep")
    table = pd.read_csv(folder / "sweep" / "results.csv").sort_values("policy", ignore_index=True)
    assert_frame_equal(frame[table.columns], table)
    assert list(frame.columns.difference(table.columns, sort=False)) == ["run:trace", "run:restart_s"]
    assert list(frame["run:restart_s"]) == [30.0, 30.0]


def test_a_run_that_was_not_written_whole_is_no_result(folder: Path, tmp_path: Path) -> None:
    """An incomplete file is left out, as by `gavel sweep`; a directory without finished runs is refused."""
    (tmp_path / "half.json").write_text('{"run": {')
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match="no finished run"):
        frames.sweep(tmp_path)
    finished = next((folder / "sweep").glob("*.json"))
    (tmp_path / "whole.json").write_bytes(finished.read_bytes())
    assert len(frames.sweep(tmp_path)) == 1


def test_all_jobs_at_once_is_an_infinite_rate(folder: Path, tmp_path: Path) -> None:
    """The word "inf", which means infinity in our JSON, becomes an infinite float."""
    content = json.loads(next((folder / "sweep").glob("*.json")).read_text())
    content["run"]["rate_per_h"] = "inf"
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert list(frames.sweep(tmp_path)["rate_per_h"]) == [float("inf")]


def test_jobs_of_a_table_and_of_a_journal_are_the_same(folder: Path) -> None:
    """Names such as NA and null stay names, and the journal's rows are those of `--jobs-csv`."""
    jobs = frames.jobs(folder / "jobs.csv")
    assert list(jobs["name"]) == ["NA", "chat", "null"]
    assert list(jobs["deadline_missed"].isna()) == [True, True, False]
    assert_frame_equal(jobs, frames.jobs(folder / "run.db"))


def test_a_table_of_jobs_of_the_first_release_has_no_plans(folder: Path, tmp_path: Path) -> None:
    """The column is added, empty, in its place."""
    jobs = frames.jobs(folder / "jobs.csv")
    jobs.drop(columns="plans").to_csv(tmp_path / "old.csv", index=False)
    assert_frame_equal(frames.jobs(tmp_path / "old.csv"), jobs)


def test_leases_add_up_to_the_time_of_jobs(folder: Path) -> None:
    """Every lease has its job, place and times, and the times of a job's leases sum to its running time."""
    leases, jobs = frames.leases(folder / "run.db"), frames.jobs(folder / "run.db")
    assert tuple(leases.columns) == frames.LEASE_COLUMNS
    ran_h = leases.groupby("job")["ran_h"].sum()
    assert ran_h.to_dict() == pytest.approx(dict(zip(jobs["id"], jobs["ran_h"], strict=True)))
    assert (leases["closed_h"] >= leases["started_h"]).all()
    assert sorted(leases["outcome"].unique()) == ["finished", "yielded"]
    assert list(leases["gpu_ids"].map(len)) == list(leases["gpus"])


def test_facts(folder: Path) -> None:
    """All facts, or those of some types, are rows with their times, jobs and fields."""
    all_facts, submitted = frames.facts(folder / "run.db"), frames.facts(folder / "run.db", "JobSubmitted")
    assert tuple(all_facts.columns) == tuple(submitted.columns) == frames.FACT_COLUMNS
    assert set(submitted["fact"]) == {"JobSubmitted"}
    assert list(submitted["job"]) == ["1", "2", "3"]
    assert list(submitted["at_h"]) == pytest.approx([0, 600 / 3600, 1200 / 3600])
    assert submitted.loc[0, "fields"]["spec"]["name"] == "NA"
    assert len(frames.facts(folder / "run.db", "NodeRemoved")) == 0


def test_missing_records_are_reported(folder: Path, tmp_path: Path) -> None:
    """Reading a damaged journal warns of the missing records."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frames.facts(folder / "run.db")
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes((folder / "run.db").read_bytes())
    with sqlite3.connect(damaged) as database:
        database.execute("UPDATE records SET crc = crc + 1 WHERE seq = 3")
    database.close()
    with pytest.warns(UserWarning, match="records 3 to 3"):
        frames.facts(damaged)


def test_usage_of_a_client_and_of_a_file(tmp_path: Path) -> None:
    """Usage has GPU seconds by type, 0 for a type that the user did not use."""
    rows = (UsageRow("ann", {"h100": 7200.0}, 14.0, 2, 1, 0), UsageRow("bob", {"t4": 60.0}, 0.1, 1, 0, 1))
    frame = frames.usage(rows)
    assert list(frame.columns) == ["who", "gpu_s:h100", "gpu_s:t4", "cost", "jobs", "completed", "failed"]
    assert list(frame["gpu_s:t4"]) == [0.0, 60.0]
    file = tmp_path / "usage.json"
    file.write_text(json.dumps([{name: getattr(row, name) for name in frames.USAGE_COLUMNS} for row in rows]))
    assert_frame_equal(frames.usage(file), frame)
    assert list(frames.usage([]).columns) == ["who", "cost", "jobs", "completed", "failed"]


def test_other_files_are_refused(folder: Path) -> None:
    """The error has the file and the expected option; a missing file is not created."""
    trace = folder / "trace.csv"
    for read, problem in ((frames.results, "--json"), (frames.jobs, "--jobs-csv")):
        with pytest.raises(ValueError, match=f"{trace}.*{problem}"):
            read(trace)
    with pytest.raises(NotAJournal):
        frames.leases(trace)
    with pytest.raises(FileNotFoundError):
        frames.facts(folder / "none.db")
    assert not (folder / "none.db").exists()


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pandas the import fails with the command that installs it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "gavel.frames")
    with pytest.raises(ImportError, match=r"pip install 'gavel-scheduler\[frames\]'$"):
        importlib.import_module("gavel.frames")
