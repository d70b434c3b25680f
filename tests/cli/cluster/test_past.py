"""Commands about the past: shares, the matrix, leases, rounds and usage."""

import json
from pathlib import Path

from gavel.client import results as r
from tests.cli.conftest import Gavel, keys
from tests.cli.live import finish
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording


def test_shares(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`shares` prints what each tenant was due and received, also step by step; --json has all fields."""
    empty = gavel("shares", "--since", "1h")
    assert (empty.exit_code, empty.stdout) == (0, "")
    wording(empty.stderr)
    gavel("submit", "-g", "2", "--steps", "1000", "--tenant", "org/a", "--", "true")
    live.do(live.daemon.run_job("1"))
    head, line = gavel("shares").stdout.splitlines()
    assert head.split() == ["tenant", "type", "due", "received", "gap", "received/due"]
    assert line.split()[:2] == ["org/a", "v100"]
    assert gavel("shares", "--step", "1h", "--tenant", "org").stdout.startswith("from")
    printed = json.loads(gavel("shares", "--since", "1h", "--json").stdout)
    assert keys(r.Shares) == set(printed)
    assert [set(account) for account in printed["accounts"]] == [keys(r.Account)]
    for options in (("--since", "1h", "--until", "2h"), ("--step", "x"), ("--step", "1s", "--since", "9d")):
        result = gavel("shares", *options)
        assert (result.exit_code, result.stdout) == (2, "")
        wording(result.stderr)


def test_matrix(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`matrix` prints what each job, or tenant, was due and received lately; --json has all fields."""
    empty = gavel("matrix")
    assert (empty.exit_code, empty.stdout) == (0, "")
    wording(empty.stderr)
    gavel("submit", "-g", "2", "--tenant", "org/a", "--name", "big", "--", "true")
    live.do(live.daemon.run_job("1"))
    head, line = gavel("matrix").stdout.splitlines()
    assert head.split() == ["job", "name", "tenant", "gap", "v100"]
    assert (line.split()[:3], line.split()[-1]) == (["1", "big", "org/a"], "+2")
    head, line = gavel("matrix", "--by", "tenant", "--tenant", "org").stdout.splitlines()
    assert head.split() == ["tenant", "jobs", "gap", "v100"]
    assert line.split()[:2] == ["org/a", "1"]
    (row,) = json.loads(gavel("matrix", "--json").stdout)
    assert keys(r.MatrixRow) == set(row)
    assert [set(cell) for cell in row["cells"]] == [keys(r.MatrixCell)]


def test_leases(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`leases` prints a line for each turn of a job, also of one node only; --json has all fields."""
    empty = gavel("leases", "--since", "1h")
    assert (empty.exit_code, empty.stdout) == (0, "")
    wording(empty.stderr)
    gavel("submit", "--", "true")
    finish(live, "1")
    gavel("submit", "-g", "2", "--", "true")
    live.do(live.daemon.run_job("2"))
    head, running, ended = gavel("leases").stdout.splitlines()
    assert head.split() == ["job", "attempt", "started", "ran", "on", "nodes", "end"]
    assert (running.split()[:2], running.split()[-2:]) == (["2", "1"], ["n1", "running"])
    assert (ended.split()[:2], ended.split()[-2:]) == (["1", "1"], ["n1", "finished"])
    printed = json.loads(gavel("leases", "--node", "n1", "--json").stdout)
    assert [set(lease) for lease in printed] == [keys(r.LeaseRecord)] * 2
    assert gavel("leases", "--node", "n2").stdout == ""
    result = gavel("leases", "--since", "1h", "--until", "2h")
    assert (result.exit_code, result.stdout) == (2, "")
    wording(result.stderr)


def test_rounds(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`rounds` prints a line for each round, the latest first; --json has all fields."""
    gavel("submit", "-g", "2", "--", "true")
    live.do(live.daemon.run_job("1"))
    lines = gavel("rounds").stdout.splitlines()
    assert lines[0].split() == [
        *("round", "starts", "length", "new", "renewed", "ended", "skipped", "solved", "in", "policy"),
    ]
    assert int(lines[1].split()[0]) == len(lines) - 1
    printed = json.loads(gavel("rounds", "--json", "--limit", "1").stdout)
    assert [set(entry) for entry in printed] == [keys(r.RoundRecord)]
    assert printed[0]["number"] == len(lines) - 1
    none = gavel("rounds", "--until", "2001-01-01T00:00")
    assert (none.exit_code, none.stdout) == (0, "")
    wording(none.stderr)
    result = gavel("rounds", "--since", "1h", "--until", "2h")
    assert result.exit_code == 2
    wording(result.stderr)


def test_rounds_as_a_trace(live: LiveThread, gavel: Gavel, tmp_path: Path, wording: Wording) -> None:
    """`rounds --trace` writes the rounds, and the leases on their GPUs; no file is written if there are no rounds."""
    gavel("submit", "-g", "2", "--", "true")
    live.do(live.daemon.run_job("1"))
    file = tmp_path / "rounds.json"
    assert gavel("rounds", "--until", "2001-01-01T00:00", "--trace", str(file)).exit_code == 0
    assert not file.exists()
    result = gavel("rounds", "--trace", str(file))
    assert result.stdout == gavel("rounds").stdout
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
    assert [name for name in names if name.startswith("job")] == ["job 1"] * 2
    assert len([name for name in names if name.startswith("round")]) == len(result.stdout.splitlines()) - 1
    for path in ("-", str(tmp_path), str(tmp_path / "none" / "x.json")):
        result = gavel("rounds", "--trace", path)
        assert (result.exit_code, result.stdout) == (2, "")
        wording(result.stderr.replace(str(tmp_path), "DIR"))


def test_usage(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`usage` prints a row for each user and a column for each type, or a note if nothing was used."""
    empty = gavel("usage", "--since", "1h")
    assert (empty.exit_code, empty.stdout) == (0, "")
    wording(empty.stderr)
    gavel("submit", "--", "true")
    finish(live, "1")
    live.do(live.daemon.people.usage.catch_up())
    lines = gavel("usage", "--since", "1h").stdout.splitlines()
    assert lines[0].split() == ["user", "v100", "GPU", "time", "cost", "jobs", "completed", "failed"]
    assert lines[1].split()[-3:] == ["1", "1", "0"]
    (row,) = json.loads(gavel("usage", "--by", "job_type", "--json").stdout)
    assert keys(r.UsageRow) == set(row)
    result = gavel("usage", "--since", "1h", "--until", "2h")
    assert (result.exit_code, "until" in result.stderr) == (2, True)
    assert gavel("usage", "--since", "x").exit_code == 2


def test_usage_by_kind(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`usage --kind` divides GPU time; by type, node or day there is also the time that nobody held."""
    gavel("submit", "--", "true")
    finish(live, "1")
    lines = gavel("usage", "--kind").stdout.splitlines()
    assert lines[0].split() == ["user", "held", "useful", "restart", "lost", "idle", "useful", "%"]
    assert len(lines) == 2
    for by in ("type", "node", "day"):
        heads, _ = (line.split() for line in gavel("usage", "--by", by).stdout.splitlines())
        assert (heads[0], heads[-4:]) == (by, ["free", "drained", "broken", "unreachable"])
    (row,) = json.loads(gavel("usage", "--by", "node", "--json").stdout)
    assert keys(r.GpuTimeRow) == set(row)
    assert keys(r.WholeTime) == set(row["whole"])
    header, values = gavel("usage", "--by", "node", "--csv").stdout.splitlines()
    kinds = dict(zip(header.split(","), values.split(","), strict=True))
    assert kinds.pop("node") == row["name"]
    assert set(kinds) == {name for name in (*row, *row["whole"]) if name.endswith("_s")}
    header, values = gavel("usage", "--csv").stdout.splitlines()
    assert header == "user,gpu_s:v100,cost,jobs,completed,failed"
    both = gavel("usage", "--csv", "--json")
    assert both.exit_code == 2
    wording(both.stderr)
    empty = gavel("usage", "--kind", "--since", "2h", "--until", "1h")
    assert (empty.exit_code, empty.stdout) == (0, "")
