"""`gavel explain`: a reason, its evidence and what would change it, at any moment of a journal."""

import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gavel.cli.simulation.explain_journal import with_names
from scheduler.core.apply import apply
from scheduler.core.facts import JobSubmitted
from scheduler.core.state import SchedulerState
from scheduler.explain import REASONS, Change, Explanation, Reason
from scheduler.journal.store import SqliteJournal
from scheduler.model.jobs import JobState
from tests.cli.conftest import Gavel

RUN = ("--workload", "mixed-day", "--rate", "30", "--jobs", "40", "--cluster", "t4=8,a100=8", "--seed", "3")


@pytest.fixture
def journal(gavel: Gavel, tmp_path: Path) -> str:
    """A history with more jobs than GPUs."""
    path = str(tmp_path / "journal")
    assert gavel("simulate", *RUN, "--journal", path).exit_code == 0
    return path


def test_the_reason_of_every_job_at_any_moment(journal: str, gavel: Gavel) -> None:
    """For people and for programs: the reason is one that the job's state can have."""
    waiting = 0
    for job in range(1, 41, 3):
        result = gavel("explain", str(job), "--journal", journal, "--at", "7200", "--json")
        if result.exit_code:
            assert f"there is no job '{job}'" in result.stderr
            continue
        told = json.loads(result.stdout)
        assert told["reason"] in REASONS[JobState(told["state"])]
        people = gavel("explain", str(job), "--journal", journal, "--at", "7200").stdout
        name = rf"job {job} \([a-z]+-\d+\)"
        reason = "" if told["reason"] == told["state"] else rf" \({told['reason']}\)"
        assert re.match(rf"{name}: {told['state']}{reason}\n", people), people
        waiting += told["state"] in ("queued", "preempted")
    assert waiting


def test_at_its_end_all_jobs_are_completed(journal: str, gavel: Gavel) -> None:
    """Without a moment, the end of the journal is meant."""
    assert "completed" in gavel("explain", "7", "--journal", journal).stdout


def test_a_job_by_its_name(journal: str, gavel: Gavel) -> None:
    """A name will do where only one job has it."""
    told = json.loads(gavel("explain", "7", "--journal", journal, "--json").stdout)
    assert told["job"] == "7"
    assert "there is no job 'nobody'" in gavel("explain", "nobody", "--journal", journal).stderr


def test_other_jobs_are_named_too(journal: str, gavel: Gavel) -> None:
    """In sentences and in the table, whose columns stay aligned."""
    said = gavel("explain", "30", "--journal", journal, "--at", "7200").stdout
    table = [line for line in said.splitlines() if line.startswith("  ") and "%" in line]
    assert table
    for line in table:
        assert re.search(r"jobs \d+ \([a-z]+-\d+\), \d+ \([a-z]+-\d+\) and \d others$", line), line
    header = next(line for line in said.splitlines() if line.endswith("held by"))
    assert {line.index("jobs ") for line in table} == {header.index("held by")}


def test_names_in_sentences() -> None:
    """Ids get their names, numbers of others do not; a job called by its own number is not said twice."""
    names = {"17": "resnet-50", "18": "b", "34": "c", "2": "2"}
    found = Explanation(
        job="17",
        state=JobState.QUEUED,
        at_s=0.0,
        reason=Reason.TURN_OF_OTHERS,
        text="GPUs are held by jobs 17, 18 and 34 others; job 2 ends; jobs 17 and 34 wait; jobs that wait, 18 of them",
        would_change=(Change(what="job_ends", text="job 34 ends (in about 6 min)"),),
    )
    told = with_names(found, names)
    assert told.job == "17 (resnet-50)"
    assert told.text == (
        "GPUs are held by jobs 17 (resnet-50), 18 (b) and 34 others; job 2 ends; "
        "jobs 17 (resnet-50) and 34 (c) wait; jobs that wait, 18 of them"
    )
    assert told.would_change[0].text == "job 34 (c) ends (in about 6 min)"


def test_a_number_that_is_also_a_name(gavel: Gavel, tmp_path: Path) -> None:
    """The scheduler's number goes before the trace's id, and a note says so and how to ask for the other."""
    trace, journal = tmp_path / "a.csv", str(tmp_path / "journal")
    trace.write_text("id,arrival_s,job_type,gpus,steps\n2,0,resnet50,1,9\n3,0,dlrm,1,9\n4,0,dlrm,1,9\n")
    gavel("simulate", str(trace), "--cluster", "a100=4", "--journal", journal)
    numbers = {}
    with SqliteJournal(journal, read_only=True) as told:
        for _, fact in told.read():
            if isinstance(fact, JobSubmitted):
                numbers[fact.spec.name] = fact.job
    both = next(name for name, number in numbers.items() if name in numbers.values() and name != number)
    result = gavel("explain", both, "--journal", journal)
    assert result.stdout.startswith(f"job {both} (")
    assert result.stderr == (
        f"note: '{both}' is taken as the scheduler's number; the job that is called '{both}' has "
        f"the number {numbers[both]}\n"
    )


@pytest.fixture
def compacted(journal: str, tmp_path: Path) -> str:
    """The same history, the first third of it in a snapshot only; and another snapshot at two thirds."""
    path = tmp_path / "compacted"
    shutil.copy(journal, path)
    with SqliteJournal(path) as store:
        records = list(store.records())
        thirds = {len(records) // 3, 2 * len(records) // 3}
        state = SchedulerState()
        for number, record in enumerate(records, 1):
            for fact in record.facts:
                apply(state, record.now_s, fact)
            if number in thirds:
                store.write_snapshot(record.seq, state.snapshot())
        assert store.compact() == len(records) // 3
    return str(path)


def test_a_moment_in_a_compacted_journal(journal: str, compacted: str, gavel: Gavel) -> None:
    """A snapshot stands for what was deleted: the same answer, and no word of loss. Before it nothing is known."""
    for at in ("7200", "12000"):
        whole, less = (gavel("explain", "30", "--journal", path, "--at", at) for path in (journal, compacted))
        assert (less.exit_code, less.stdout, less.stderr) == (0, whole.stdout, "")
    early = gavel("explain", "30", "--journal", compacted, "--at", "600")
    assert early.exit_code == 2
    assert early.stderr == (
        "gavel explain: --at: 600: what was then is compacted away; ask for a later moment\n"
    )


def test_a_moment_in_a_damaged_journal(journal: str, gavel: Gavel) -> None:
    """Facts that need what is lost are passed over, as in a recovery; the loss is said, and nothing breaks."""
    with closing(sqlite3.connect(journal)) as database, database:
        database.execute("update records set payload = x'00' where seq between 5 and 20")
    result = gavel("explain", "30", "--journal", journal, "--at", "7200")
    assert result.exit_code in (0, 2)
    assert "records 5 to 5 are lost" in result.stderr


def test_a_moment_long_after_the_end(journal: str, gavel: Gavel) -> None:
    """The end is taken, and a note says so; shortly after it, nothing has happened since."""
    at_its_end = gavel("explain", "7", "--journal", journal)
    late = gavel("explain", "7", "--journal", journal, "--at", "1e300")
    assert late.stdout == at_its_end.stdout
    assert re.fullmatch(r"note: \S+ ends at [\d,]+ s, which is taken instead of 1e\+300 s\n", late.stderr)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--journal", "missing"), "missing: there is no such journal"),
        (("--journal", "."), ".: is a directory; name the journal's file in it"),
        (("--journal", ""), "the name of the journal is empty; give a file"),
        (("--journal", "README.md"), "README.md: "),
        (("--journal", "README.md", "--at", "nan"), "invalid value for '--at': is nan, must be a number"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], line: str, gavel: Gavel) -> None:
    """Exit code 2, and what to do."""
    result = gavel("explain", "1", *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert line in result.stderr.lower() or line in result.stderr
