"""Every command with output has `--json`, in which every time is in ISO 8601."""

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import Result

from gavel.cli.jobs.explain import TIMES, dated
from scheduler.explain import Explanation
from scheduler.explain.answer import Change, Holder, Way
from tests.cli.conftest import Gavel
from tests.cli.service.upkeep import directory
from tests.journal.test_history import GOOD
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

pytestmark = pytest.mark.usefixtures("own_home")

# The fields of an explanation that are durations.
LENGTHS = {"entitled_s", "received_s"}
# A number between these two is a present-day time, in seconds since 1970.
SINCE_1970_S = (1e9, 1e10)


def numbers(value: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Iterate over every number with its place."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(part, f"{at}.{key}")
    elif isinstance(value, int | float):
        yield at, value


@pytest.mark.parametrize(
    "command",
    [
        ("queue", "--all"),
        ("show", "1"),
        ("explain", "1"),
        ("explain", "2"),
        ("submit", "--dry-run", "--", "true"),
        ("nodes",),
        ("usage",),
        ("policy", "get"),
        ("status",),
    ],
    ids=" ".join,
)
def test_no_moment_is_a_number(live: LiveThread, gavel: Gavel, command: tuple[str, ...]) -> None:
    """No output has a time in seconds since 1970, neither for a running job nor for a waiting one."""
    for _ in range(2):
        gavel("submit", "--gpus", "2", "--steps", "1000", "--", "true")
    live.do(live.daemon.run_job("1"))
    at = command.index("--") if "--" in command else len(command)
    result = gavel(*command[:at], "--json", *command[at:])
    assert result.exit_code == 0, result.stderr
    earliest, latest = SINCE_1970_S
    moments = [place for place, number in numbers([json.loads(result.stdout)]) if earliest < number < latest]
    assert moments == []


def test_moments_of_an_explanation(live: LiveThread, gavel: Gavel) -> None:
    """Points in time become ISO 8601 at any depth, under names without a unit; durations stay seconds."""
    gavel("submit", "--", "true")
    answer = json.loads(gavel("explain", "1", "--json").stdout)
    assert datetime.fromisoformat(answer["at"]).utcoffset() is not None
    deep = dated({"evidence": [{"share": 0.5, "entitled_s": 2.0, "held_by": [{"until_s": 0.0, "gpus": 1}]}]})
    (way,) = deep["evidence"]
    assert way["entitled_s"] == 2.0
    assert way["held_by"][0]["until"].year == 1970
    assert "until_s" not in way["held_by"][0]


def test_every_time_of_an_explanation_is_a_moment_or_a_length() -> None:
    """A new field in seconds has to be listed in TIMES, if it is a point in time, or in LENGTHS."""
    kinds: tuple[type[msgspec.Struct], ...] = (Explanation, Way, Holder, Change)
    in_seconds = {name for kind in kinds for name in kind.__struct_fields__ if name.endswith("_s")}
    assert in_seconds == set(TIMES) | LENGTHS


def data_of(result: Result) -> Any:
    """Return standard output, which is JSON and nothing else."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_json_of_a_live_scheduler(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`top` prints one picture, bare `policy` the output of `policy get`, `login` the identity."""
    gavel("submit", "-n", "one", "--", "true")
    picture = data_of(gavel("top", "--json"))
    assert [job["spec"]["name"] for job in picture["jobs"]] == ["one"]
    assert datetime.fromisoformat(picture["at"]).utcoffset() is not None
    assert data_of(gavel("policy", "--json")) == data_of(gavel("policy", "get", "--json"))
    misplaced = gavel("policy", "--json", "get")
    assert misplaced.exit_code == 2
    wording(misplaced.stderr)
    context = data_of(gavel("login", "lab", live.address, "--token-stdin", "--json"))
    assert (context["name"], context["address"]) == ("lab", live.address)
    assert context["identity"]["role"] == "admin"


def test_json_of_files_and_directories(gavel: Gavel, tmp_path: Path) -> None:
    """Setting a scheduler up, checking its settings, backing up and restoring all print JSON."""
    data, token = tmp_path / "data", tmp_path / "token"
    new_setup = data_of(gavel("init", str(data), "--user", "ann", "--json"))
    assert (new_setup["user"], new_setup["role"], new_setup["token"][:6]) == ("ann", "admin", "gavel_")
    assert datetime.fromisoformat(new_setup["expires"]).utcoffset() is not None
    assert "expires" in data_of(gavel("init", str(data), "--renew", "--json"))
    again = data_of(gavel("init", str(data), "--token", "--token-file", str(token), "--json"))
    assert (again["token_file"], "token" in again) == (str(token), False)
    assert data_of(gavel("config", "--check", new_setup["settings"], "--json"))["right"] is True
    assert "--check" in gavel("config", "--example", "--json").stderr
    archive, full = tmp_path / "gavel.tar.gz", directory(tmp_path / "full", *GOOD)
    backup = data_of(gavel("backup", str(archive), "--data-dir", str(full), "--json"))
    assert backup == {"archive": str(archive), "size_bytes": archive.stat().st_size, "made_by": None}
    restored = data_of(gavel("restore", str(archive), "--data-dir", str(tmp_path / "new"), "--json"))
    assert restored == {"data_dir": str(tmp_path / "new"), "records": 14}


def test_json_of_simulations(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare `--json` and `--json -` print, `--json FILE` writes; related commands print."""
    monkeypatch.chdir(tmp_path)
    trace = data_of(gavel("generate", "day.csv", "--rate", "10", "--jobs", "3", "--json"))
    assert (trace["file"], trace["jobs"]) == ("day.csv", 3)
    run = ("simulate", "day.csv", "--cluster", "h100=16")
    bare = data_of(gavel(*run, "--json", "--journal", "run.db"))
    assert gavel(*run, "--json", "a.json").exit_code == 0
    written = json.loads(Path("a.json").read_text())
    dash = data_of(gavel(*run, "--json", "-"))
    assert bare["mean_jct_h"] == dash["mean_jct_h"] == written["mean_jct_h"]
    assert data_of(gavel("replay", "run.db", "--json"))["jobs"] == 3
    assert data_of(gavel("compare", "a.json", "a.json", "--json"))["ratio"]["mean_jct_h"] == 1.0
    swept = data_of(gavel("sweep", "day.csv", "--policy", "fifo,las", "--cluster", "h100=16", "--json"))
    assert [(run["policy"], run["figures"]["jobs"]) for run in swept["runs"]] == [("fifo", 3), ("las", 3)]


def test_lists_leave_out_what_they_do_not_have(live: LiveThread, gavel: Gavel) -> None:
    """Jobs in lists have no key for the command: an empty value would look like a job without a command."""
    gavel("submit", "--env", "A=1", "--", "true")
    (listed,) = data_of(gavel("queue", "--all", "--json"))
    (pictured,) = data_of(gavel("top", "--json"))["jobs"]
    whole = data_of(gavel("show", "1", "--json"))
    for job in (listed, pictured):
        assert set(whole) - set(job) == {"last_lines"}
        assert {"command", "env", "labels"} <= set(whole["spec"]) - set(job["spec"])
