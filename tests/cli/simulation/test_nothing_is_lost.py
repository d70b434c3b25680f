"""What people have is not overwritten, and what cannot be meant is not simulated as if it were."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--json", "{trace}"), "--json: "),
        (("--jobs-csv", "{folder}/./jobs.csv"), "--jobs-csv: "),
        (("--json", "{folder}/same", "--jobs-csv", "{folder}/same"), "--jobs-csv: "),
        (("--json", "{folder}/same", "--journal", "{folder}/same"), "--journal: "),
    ],
)
def test_nothing_is_overwritten_that_is_read_or_written_besides(
    options: tuple[str, ...], line: str, gavel: Gavel, tmp_path: Path
) -> None:
    """Two outputs in one file, or an output over an input: refused, and the file is as it was."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,1000\n")
    before = trace.read_text()
    filled = [option.format(trace=trace, folder=tmp_path) for option in options]
    result = gavel("simulate", str(trace), *CLUSTER, *filled)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel simulate: {line}")
    assert trace.read_text() == before
    assert list(tmp_path.iterdir()) == [trace]


def test_times_of_day_are_not_taken_for_seconds_from_the_start(gavel: Gavel, tmp_path: Path) -> None:
    """A trace with Unix times would be simulated for fifty idle years, and nothing of it seen."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,1700000000,resnet50,1,1000\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert result.exit_code == 2
    assert "seconds from the start" in result.stderr


@pytest.mark.parametrize("policy", ["min_cost(premium=-1)", "las+blind(reference=tpu)"])
def test_parameters_of_a_policy_are_looked_at_before_the_run(policy: str, gavel: Gavel) -> None:
    """Not when the first allocation fails, in the middle of it."""
    result = gavel("simulate", *TWELVE, "--policy", policy)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("gavel simulate: --policy: ")


def test_a_damaged_journal_is_not_taken_for_a_whole_one(gavel: Gavel, tmp_path: Path) -> None:
    """What is lost of it is said, by whoever reads it."""
    path = tmp_path / "journal"
    gavel("simulate", *TWELVE, "--journal", str(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update records set payload = x'00' where seq = 9")
    for command in (("replay", str(path), "--policy", "fifo"), ("explain", "1", "--journal", str(path))):
        assert "records 9 to 9 are lost" in gavel(*command).stderr
