"""`gavel replay` and `gavel compare`: a history beside its replay, and one result beside another."""

import json
from pathlib import Path

import pytest

from scheduler.core.facts import Fact, LeasesResumed
from scheduler.journal.store import SqliteJournal
from tests.cli.conftest import Gavel, as_words
from tests.support.wording import Wording

RUN = ("--workload", "mixed-day", "--rate", "6", "--jobs", "15", "--cluster", "t4=4,a100=8")


def facts_and_replayed(gavel: Gavel, folder: Path, *options: str) -> list[list[tuple[float, Fact]]]:
    """Return the facts of a simulation and those of its replay, which prints no note."""
    paths = [folder / "first", folder / "again"]
    gavel("simulate", *RUN, *options, "--journal", str(paths[0]))
    result = gavel("replay", str(paths[0]), "--journal", str(paths[1]))
    assert (result.exit_code, "note" in result.stderr) == (0, False), result.stderr
    histories = []
    for path in paths:
        with SqliteJournal(path, read_only=True) as journal:
            histories.append(list(journal.read()))
    return histories


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
    """The replay has the same facts at the same times, for any policy, restarts and failures."""
    histories = facts_and_replayed(gavel, tmp_path, *options)
    assert histories[0] == histories[1]


def test_replay_knows_costs_by_type_and_links_that_came_back(gavel: Gavel, tmp_path: Path) -> None:
    """The replay has each job type's restart and checkpoint costs, a node that died, and one whose jobs resumed."""
    costs, failures = tmp_path / "costs", tmp_path / "failures"
    costs.write_text("job_type,restart_s,checkpoint_s\ndlrm,100,50\nresnet50,5,2\n")
    lines = ["3600,t4-0,crash", "7000,a100-0,cut", "7060,a100-0,mend", "9000,t4-0,repair"]
    failures.write_text("\n".join(["t_s,node,event", *lines]) + "\n")
    histories = facts_and_replayed(gavel, tmp_path, "--costs", str(costs), "--failures", str(failures))
    assert any(isinstance(fact, LeasesResumed) for _, fact in histories[0])
    assert histories[0] == histories[1]


def test_replay_under_another_policy(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """One column has what happened, the other what would have happened under the other policy."""
    journal, answer = tmp_path / "journal", tmp_path / "answer.json"
    gavel("simulate", *RUN, "--journal", str(journal))
    result = gavel("replay", str(journal), "--policy", "fifo", "--json", str(answer))
    assert result.exit_code == 0
    (heading,) = [line for line in result.stdout.splitlines() if "A: " in line]
    assert "B: fifo" in heading
    wording(" ".join(heading.split()))
    figures = json.loads(answer.read_text())
    assert (figures["policy"], figures["completed"]) == ("fifo", 15)
    assert figures["cluster"] == {"t4": 4, "a100": 8}


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("missing",), "missing: "),
        (("text",), "text: "),
        (("empty",), "empty: "),
        (("empty", "--policy", "lass"), "--policy: "),
        (("empty", "--restart", "1e300"), "invalid value for '--restart': "),
        (("empty", "--policy", ""), "invalid value for '--policy': "),
        (("empty", "--restart", "nan"), "invalid value for '--restart': "),
    ],
    ids=as_words,
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...],
    place: str,
    gavel: Gavel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wording: Wording,
) -> None:
    """The line begins with the file or option. Exit code 2."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("not a journal at all\n" * 500)
    with SqliteJournal("empty"):
        pass
    result = gavel("replay", *arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert result.stderr.startswith(f"gavel replay: {place}"), result.stderr
    wording(result.stderr)


@pytest.mark.parametrize(
    "size",
    [0, 100, 16_384],
)
@pytest.mark.parametrize("command", [("replay",), ("explain", "1", "--journal")], ids=as_words)
def test_a_journal_that_was_cut_off_is_damaged(
    command: tuple[str, ...], size: int, gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """The journal is reported as cut off, not as one without jobs, nor is the job reported as unknown."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gavel("simulate", *RUN, "--journal", str(whole))
    cut.write_bytes(whole.read_bytes()[:size])
    result = gavel(*command, str(cut))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert result.stderr.startswith(f"gavel {command[0]}: {cut}: "), result.stderr
    wording(result.stderr, journal=cut)
    assert len(cut.read_bytes()) == size


@pytest.mark.parametrize("command", [("replay",), ("explain", "1", "--journal")])
def test_a_partial_journal_is_read_with_a_note(
    command: tuple[str, ...], gavel: Gavel, tmp_path: Path, wording: Wording
) -> None:
    """A journal whose end is gone is still read, and a note reports that it is incomplete."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    gavel("simulate", *RUN, "--journal", str(whole))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 8 // 4096 * 4096 * 7])
    result = gavel(*command, str(cut))
    assert result.exit_code == 0, result.stderr
    (note,) = [line for line in result.stderr.splitlines() if line.startswith(f"note: {cut}: ")]
    wording(note, journal=cut)


def test_compare_shows_ratios(gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """`compare` prints the figures of both results with their ratio B/A; a note names differences between the runs."""
    paths = [str(tmp_path / f"{policy}.json") for policy in ("las", "fifo")]
    for path, policy, seed in zip(paths, ("las", "fifo"), ("0", "1"), strict=True):
        gavel("simulate", *RUN, "--policy", policy, "--seed", seed, "--json", path)
    result = gavel("compare", *paths)
    assert result.exit_code == 0
    a, b = (json.loads(Path(path).read_text()) for path in paths)
    assert f"{b['mean_jct_h'] / a['mean_jct_h']:.3f}" in result.stdout
    assert "A: las.json" in result.stdout
    (note,) = [line for line in result.stdout.splitlines() if line.startswith("note: ")]
    assert "seed" in note
    wording(note)


def test_compare_unknown_figures(gavel: Gavel, problem_file) -> None:
    """If a figure is null or 0, or if only one result has a type, `compare` prints a dash and no error."""
    a = problem_file(
        {"jobs": 0, "mean_jct_h": None, "cost_usd": 0, "utilization": {"a": 0.5, "c": None}}, "a.json"
    )
    b = problem_file({"jobs": 3, "mean_jct_h": 2.5, "cost_usd": 9, "utilization": {"b": 0.25}}, "b.json")
    result = gavel("compare", a, b)
    assert result.exit_code == 0
    assert "utilisation a" in result.stdout
    assert "utilisation b" in result.stdout


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{}", ""),
        ("[1]", ""),
        ("{", "line 1: "),
        ('{"jobs": 3, "means": 4}', '"means"'),
        ('{"jobs": "three"}', "jobs: "),
        ('{"jobs": true}', "jobs: "),
        ('{"jobs": 1e400}', "jobs: "),
        ('{"jobs": 1, "interrupted": 1}', "interrupted: "),
        ('{"jobs": 1%s}' % ("0" * 5000), ""),
        ('{"jobs": NaN}', "line 1: NaN"),
        ('{"utilization": {"a": []}}', "utilization: "),
    ],
    ids=as_words,
)
def test_files_that_are_no_results(
    content: str, place: str, gavel: Gavel, problem_file, wording: Wording
) -> None:
    """The line begins with the file, and with the line or figure at fault."""
    bad, good = problem_file(content, "bad.json"), problem_file({"jobs": 1}, "good.json")
    result = gavel("compare", good, bad)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"gavel compare: {bad}: {place}"), result.stderr
    wording(result.stderr, file=bad)


def test_standard_input_is_read_once(gavel: Gavel, wording: Wording) -> None:
    """`compare - -` is refused."""
    result = gavel("compare", "-", "-")
    assert result.exit_code == 2
    wording(result.stderr)
