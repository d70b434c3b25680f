"""`gavel explain` on a journal: reason, evidence and possible changes at any moment of it."""

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
from tests.support.wording import Wording

RUN = ("--workload", "mixed-day", "--rate", "30", "--jobs", "40", "--cluster", "t4=8,a100=8", "--seed", "3")


@pytest.fixture
def journal(gavel: Gavel, tmp_path: Path) -> str:
    """A journal of a run with more jobs than GPUs."""
    path = str(tmp_path / "journal")
    assert gavel("simulate", *RUN, "--journal", path).exit_code == 0
    return path


def test_the_reason_of_every_job_at_any_moment(journal: str, gavel: Gavel) -> None:
    """Text and JSON give the same reason, one that the job's state can have."""
    waiting = 0
    for job in range(1, 41, 3):
        result = gavel("explain", str(job), "--journal", journal, "--at", "7200", "--json")
        if result.exit_code:
            assert f"'{job}'" in result.stderr
            continue
        answer = json.loads(result.stdout)
        assert answer["reason"] in REASONS[JobState(answer["state"])]
        text = gavel("explain", str(job), "--journal", journal, "--at", "7200").stdout
        name = rf"job {job} \([a-z]+-\d+\)"
        reason = "" if answer["reason"] == answer["state"] else rf" \({answer['reason']}\)"
        assert re.match(rf"{name}: {answer['state']}{reason}\n", text), text
        waiting += answer["state"] in ("queued", "preempted")
    assert waiting


def test_at_its_end_all_jobs_are_completed(journal: str, gavel: Gavel) -> None:
    """Without `--at`, `explain` explains the end of the journal."""
    assert "completed" in gavel("explain", "7", "--journal", journal).stdout


def test_a_job_by_its_name(journal: str, gavel: Gavel, wording: Wording) -> None:
    """A name means the only job that has it."""
    answer = json.loads(gavel("explain", "7", "--journal", journal, "--json").stdout)
    assert answer["job"] == "7"
    name = re.match(r"job 7 \((\S+)\)", gavel("explain", "7", "--journal", journal).stdout)[1]
    assert json.loads(gavel("explain", name, "--journal", journal, "--json").stdout)["job"] == "7"
    unknown = gavel("explain", "unknown", "--journal", journal)
    assert (unknown.exit_code, "'unknown'" in unknown.stderr) == (2, True)
    wording(unknown.stderr, journal=journal)


def test_other_jobs_are_named_too(journal: str, gavel: Gavel) -> None:
    """Sentences and the table name other jobs, and the columns of the table stay aligned."""
    text = gavel("explain", "30", "--journal", journal, "--at", "7200").stdout
    table = [line for line in text.splitlines() if line.startswith("  ") and "%" in line]
    assert table
    for line in table:
        assert re.search(r"jobs \d+ \([a-z]+-\d+\), \d+ \([a-z]+-\d+\) and \d others$", line), line
    header = next(line for line in text.splitlines() if line.endswith("held by"))
    assert {line.index("jobs ") for line in table} == {header.index("held by")}


def test_names_in_sentences() -> None:
    """Ids get their names but other numbers do not; a job named by its own number is not repeated."""
    names = {"17": "resnet-50", "18": "b", "34": "c", "2": "2"}
    answer = Explanation(
        job="17",
        state=JobState.QUEUED,
        at_s=0.0,
        reason=Reason.TURN_OF_OTHERS,
        text="held by jobs 17, 18 and 34 others; job 2 ends; jobs 17 and 34 wait; jobs waiting: 18",
        would_change=(Change(what="job_ends", text="job 34 ends (in 6 min)"),),
    )
    named = with_names(answer, names)
    assert named.job == "17 (resnet-50)"
    assert named.text == (
        "held by jobs 17 (resnet-50), 18 (b) and 34 others; "
        "job 2 ends; jobs 17 (resnet-50) and 34 (c) wait; jobs waiting: 18"
    )
    assert named.would_change[0].text == "job 34 (c) ends (in 6 min)"


def test_a_number_that_is_also_a_name(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """The scheduler's number goes before the trace's id, and a note gives the number of the other job."""
    trace, journal = tmp_path / "a.csv", str(tmp_path / "journal")
    trace.write_text("id,arrival_s,job_type,gpus,steps\n2,0,resnet50,1,9\n3,0,dlrm,1,9\n4,0,dlrm,1,9\n")
    gavel("simulate", str(trace), "--cluster", "a100=4", "--journal", journal)
    numbers = {}
    with SqliteJournal(journal, read_only=True) as history:
        for _, fact in history.read():
            if isinstance(fact, JobSubmitted):
                numbers[fact.spec.name] = fact.job
    both = next(name for name, number in numbers.items() if name in numbers.values() and name != number)
    result = gavel("explain", both, "--journal", journal)
    assert result.stdout.startswith(f"job {both} (")
    assert (result.stderr.count("\n"), numbers[both] in result.stderr) == (1, True)
    wording(result.stderr)


@pytest.fixture
def compacted(journal: str, tmp_path: Path) -> str:
    """The same history with its first third in a snapshot only, and another snapshot at two thirds."""
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


def test_a_moment_in_a_compacted_journal(
    journal: str, compacted: str, gavel: Gavel, wording: Wording
) -> None:
    """A snapshot replaces the deleted records and gives the same answer; a time before the snapshot is refused."""
    for at in ("7200", "12000"):
        whole, less = (gavel("explain", "30", "--journal", path, "--at", at) for path in (journal, compacted))
        assert (less.exit_code, less.stdout, less.stderr) == (0, whole.stdout, "")
    early = gavel("explain", "30", "--journal", compacted, "--at", "600")
    assert (early.exit_code, early.stderr.startswith("gavel explain: --at: 600: ")) == (2, True)
    wording(early.stderr)


def test_a_moment_in_a_damaged_journal(journal: str, gavel: Gavel, wording: Wording) -> None:
    """Facts that depend on lost ones are skipped, as in a recovery, and the loss is reported."""
    with closing(sqlite3.connect(journal)) as database, database:
        database.execute("update records set payload = x'00' where seq between 5 and 20")
    result = gavel("explain", "30", "--journal", journal, "--at", "7200")
    assert result.exit_code in (0, 2)
    (note,) = [line for line in result.stderr.splitlines() if "5 to 5" in line]
    wording(note, journal=journal)


def test_a_moment_long_after_the_end(journal: str, gavel: Gavel, wording: Wording) -> None:
    """A moment after the end means the end, with a note."""
    at_its_end = gavel("explain", "7", "--journal", journal)
    late = gavel("explain", "7", "--journal", journal, "--at", "1e300")
    assert late.stdout == at_its_end.stdout
    assert (late.stderr.count("\n"), "1e+300" in late.stderr) == (1, True)
    wording(late.stderr, journal=journal, end=re.compile(r"(?<=ends at )[\d,]+"))


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--journal", "missing"), "missing: "),
        (("--journal", "."), ".: "),
        (("--journal", ""), ""),
        (("--journal", "README.md"), "README.md: "),
        (("--journal", "README.md", "--at", "nan"), "invalid value for '--at': "),
    ],
    ids=["missing", "directory", "empty", "no journal", "no number"],
)
def test_wrong_input_is_one_line(
    options: tuple[str, ...], place: str, gavel: Gavel, wording: Wording
) -> None:
    """The line begins with the file or option, and has a remedy. Exit code 2."""
    result = gavel("explain", "1", *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel explain: {place}")
    wording(result.stderr)
