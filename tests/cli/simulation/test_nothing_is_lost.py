"""Files of the user are not overwritten, and input that is surely wrong is not simulated."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Gavel
from tests.support.wording import Wording

CLUSTER = ("--cluster", "t4=4,a100=8")
TWELVE = ("--workload", "mixed-day", "--rate", "6", "--jobs", "12", *CLUSTER)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--json", "{trace}"), "--json: "),
        (("--jobs-csv", "{folder}/./jobs.csv"), "--jobs-csv: "),
        (("--json", "{folder}/same", "--jobs-csv", "{folder}/same"), "--jobs-csv: "),
        (("--json", "{folder}/same", "--journal", "{folder}/same"), "--journal: "),
    ],
)
def test_inputs_and_other_outputs_are_not_overwritten(
    options: tuple[str, ...], place: str, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """Two outputs in one file, or an output over an input, are refused, and the file stays unchanged."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,0,resnet50,1,1000\n")
    before = trace.read_text()
    filled = [option.format(trace=trace, folder=tmp_path) for option in options]
    result = gavel("simulate", str(trace), *CLUSTER, *filled)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gavel simulate: {place}")
    wording(result.stderr, folder=tmp_path)
    assert trace.read_text() == before
    assert list(tmp_path.iterdir()) == [trace]


def test_unix_times_are_refused(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """A trace with Unix times is refused: fifty idle years would be simulated before its first job."""
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,arrival_s,job_type,gpus,steps\na,1700000000,resnet50,1,1000\n")
    result = gavel("simulate", str(trace), *CLUSTER)
    assert (result.exit_code, f"{trace}:2: " in result.stderr) == (2, True)
    wording(result.stderr, trace=trace)


@pytest.mark.parametrize("policy", ["min_cost(premium=-1)", "las+blind(reference=tpu)"])
def test_parameters_of_a_policy_are_checked_before_the_run(
    policy: str, gavel: Gavel, wording: Wording
) -> None:
    """A wrong parameter is refused at once, not when the first allocation fails."""
    result = gavel("simulate", *TWELVE, "--policy", policy)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("gavel simulate: --policy: ")
    wording(result.stderr)


def test_lost_records_of_a_journal_are_reported(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """Every command that reads a damaged journal reports the records that are lost."""
    path = tmp_path / "journal"
    gavel("simulate", *TWELVE, "--journal", str(path))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update records set payload = x'00' where seq = 9")
    for command in (("replay", str(path), "--policy", "fifo"), ("explain", "1", "--journal", str(path))):
        (note,) = [line for line in gavel(*command).stderr.splitlines() if "9 to 9" in line]
        wording(note, journal=path)
