"""`gavel replay` and `gavel compare`: what happened beside what would have, and one result beside another."""

import json
from pathlib import Path

import pytest

from scheduler.core.facts import Fact, LeasesResumed
from scheduler.journal.store import SqliteJournal
from tests.cli.conftest import Gavel

RUN = ("--workload", "mixed-day", "--rate", "6", "--jobs", "15", "--cluster", "t4=4,a100=8")


def told_twice(gavel: Gavel, folder: Path, *options: str) -> list[list[tuple[float, Fact]]]:
    """The facts of a simulation, and those of its replay, which has nothing to note."""
    paths = [folder / "first", folder / "again"]
    gavel("simulate", *RUN, *options, "--journal", str(paths[0]))
    result = gavel("replay", str(paths[0]), "--journal", str(paths[1]))
    assert (result.exit_code, "note" in result.stderr) == (0, False), result.stderr
    told = []
    for path in paths:
        with SqliteJournal(path, read_only=True) as journal:
            told.append(list(journal.read()))
    return told


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--policy", "las+packing", "--restart", "45"),
        ("--comparison", "--policy", "fifo"),
        ("--mtbf", "30"),
        ("--noise", "0.1"),
        ("--rate-error", "0.3", "--policy", "las+packing"),
        ("--rate-error", "0.3", "--noise", "0.1", "--seed", "4"),
        ("--solver-latency", "20", "--report-interval", "100"),
    ],
)
def test_replay_under_its_own_policy_reproduces_the_journal(
    options: tuple[str, ...], gavel: Gavel, tmp_path: Path
) -> None:
    """The same facts at the same times, whatever the policy, restarts and failures were."""
    told = told_twice(gavel, tmp_path, *options)
    assert told[0] == told[1]


def test_replay_knows_costs_by_type_and_links_that_came_back(gavel: Gavel, tmp_path: Path) -> None:
    """Each job type's own restart and checkpoint, a node that died and one whose jobs went on: fact for fact."""
    costs, failures = tmp_path / "costs", tmp_path / "failures"
    costs.write_text("job_type,restart_s,checkpoint_s\ndlrm,100,50\nresnet50,5,2\n")
    lines = ["3600,t4-0,crash", "7000,a100-0,cut", "7060,a100-0,mend", "9000,t4-0,repair"]
    failures.write_text("\n".join(["t_s,node,event", *lines]) + "\n")
    told = told_twice(gavel, tmp_path, "--costs", str(costs), "--failures", str(failures))
    assert any(isinstance(fact, LeasesResumed) for _, fact in told[0])
    assert told[0] == told[1]


def test_replay_under_another_policy(gavel: Gavel, tmp_path: Path) -> None:
    """Both columns: what happened, and what would have."""
    journal, answer = tmp_path / "journal", tmp_path / "answer.json"
    gavel("simulate", *RUN, "--journal", str(journal))
    result = gavel("replay", str(journal), "--policy", "fifo", "--json", str(answer))
    assert result.exit_code == 0
    assert "A: what happened" in result.stdout
    assert "B: fifo" in result.stdout
    figures = json.loads(answer.read_text())
    assert (figures["policy"], figures["completed"]) == ("fifo", 15)
    assert figures["cluster"] == {"t4": 4, "a100": 8}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("missing",), "missing: there is no such journal"),
        (("text",), "text: is not a journal; give a file that "),
        (("empty",), "empty: holds no jobs"),
        (("empty", "--policy", "lass"), "--policy: "),
        (("empty", "--restart", "1e300"), "invalid value for '--restart': is 1e300, must be"),
        (("empty", "--policy", ""), "invalid value for '--policy': is empty; leave it out"),
        (("empty", "--restart", "nan"), "invalid value for '--restart': is nan, must be"),
    ],
)
def test_what_cannot_be_replayed(
    arguments: tuple[str, ...], line: str, gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("not a journal at all\n" * 500)
    with SqliteJournal("empty"):
        pass
    result = gavel("replay", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel replay: {line}"), result.stderr


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (0, "is an empty file, no journal; was it ever written?"),
        (100, "was cut off after 100 bytes, and nothing of a journal is left in it; take a backup"),
        (16_384, "is cut off or damaged, and what is left holds no jobs; take a backup"),
    ],
)
@pytest.mark.parametrize("command", [("replay",), ("explain", "1", "--journal")])
def test_a_journal_that_was_cut_off_is_called_so(
    command: tuple[str, ...], kept: int, words: str, gavel: Gavel, tmp_path: Path
) -> None:
    """Not "holds no jobs", as if nothing had happened, nor "there is no such job"."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gavel("simulate", *RUN, "--journal", str(whole))
    cut.write_bytes(whole.read_bytes()[:kept])
    result = gavel(*command, str(cut))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel {command[0]}: {cut}: {words}"), result.stderr
    assert len(cut.read_bytes()) == kept


@pytest.mark.parametrize("command", [("replay",), ("explain", "1", "--journal")])
def test_what_is_left_of_a_journal_is_told_from_the_whole(
    command: tuple[str, ...], gavel: Gavel, tmp_path: Path
) -> None:
    """A journal whose end is gone is still read, and a note says that it is not whole."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gavel("simulate", *RUN, "--journal", str(whole))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 8 // 4096 * 4096 * 7])
    result = gavel(*command, str(cut))
    assert result.exit_code == 0, result.stderr
    assert f"note: {cut}: is cut off or damaged" in result.stderr


def test_compare_shows_ratios(gavel: Gavel, tmp_path: Path) -> None:
    """Each figure of both, and how many times A's B's is; other circumstances are pointed out."""
    paths = [str(tmp_path / f"{policy}.json") for policy in ("las", "fifo")]
    for path, policy, seed in zip(paths, ("las", "fifo"), ("0", "1"), strict=True):
        gavel("simulate", *RUN, "--policy", policy, "--seed", seed, "--json", path)
    result = gavel("compare", *paths)
    assert result.exit_code == 0
    a, b = (json.loads(Path(path).read_text()) for path in paths)
    assert f"{b['mean_jct_h'] / a['mean_jct_h']:.3f}" in result.stdout
    assert "A: las.json" in result.stdout
    assert "note: not the same seed" in result.stdout


def test_compare_what_is_not_known(gavel: Gavel, problem_file) -> None:
    """null against a number, a type that only one has, and zero: a dash, and no error."""
    a = problem_file(
        {"jobs": 0, "mean_jct_h": None, "cost_usd": 0, "utilization": {"a": 0.5, "c": None}}, "a.json"
    )
    b = problem_file({"jobs": 3, "mean_jct_h": 2.5, "cost_usd": 9, "utilization": {"b": 0.25}}, "b.json")
    result = gavel("compare", a, b)
    assert result.exit_code == 0
    assert "utilisation a" in result.stdout
    assert "utilisation b" in result.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "is no result of `gavel simulate --json`"),
        ("[1]", "is no result of `gavel simulate --json`"),
        ("{", "line 1: not valid JSON"),
        ('{"jobs": 3, "means": 4}', '"means" is no figure'),
        ('{"jobs": "three"}', "jobs: is not what `gavel simulate --json` writes there"),
        ('{"jobs": true}', "jobs: is not what `gavel simulate --json` writes there"),
        ('{"jobs": 1e400}', "jobs: is not what `gavel simulate --json` writes there"),
        ('{"jobs": 1, "interrupted": 1}', "interrupted: is not what `gavel simulate --json` writes there"),
        ('{"jobs": 1%s}' % ("0" * 5000), "a number has thousands of digits"),
        ('{"jobs": NaN}', "line 1: NaN is not a number in JSON"),
        ('{"utilization": {"a": []}}', "utilization: is not what `gavel simulate --json` writes there"),
    ],
)
def test_files_that_are_no_results(content: str, words: str, gavel: Gavel, problem_file) -> None:
    """The file and what is wrong with it."""
    bad, good = problem_file(content, "bad.json"), problem_file({"jobs": 1}, "good.json")
    result = gavel("compare", good, bad)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel compare: {bad}: {words}"), result.stderr


def test_standard_input_is_read_once(gavel: Gavel) -> None:
    """`- -` cannot be."""
    result = gavel("compare", "-", "-")
    assert result.exit_code == 2
    assert "read only once" in result.stderr
