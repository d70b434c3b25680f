"""`--json`: every command that prints something has it, and every moment in it is ISO 8601."""

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
from tests.cli.live import live  # noqa: F401
from tests.cli.service.upkeep import directory, nobody_else  # noqa: F401
from tests.journal.test_history import GOOD
from tests.support.live_thread import LiveThread

LENGTHS = {"entitled_s", "received_s"}
SINCE_1970_S = (1e9, 1e10)  # a number between these is a moment of our days


def numbers(value: Any, at: str = "") -> Iterator[tuple[str, float]]:
    """Every number with its place."""
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
def test_no_moment_is_a_number(live: LiveThread, gavel: Gavel, command: tuple[str, ...]) -> None:  # noqa: F811
    """One job runs, and another one waits for it."""
    for _ in range(2):
        gavel("submit", "--gpus", "2", "--steps", "1000", "--", "true")
    live.do(live.daemon.run_job("1"))
    at = command.index("--") if "--" in command else len(command)
    said = gavel(*command[:at], "--json", *command[at:])
    assert said.exit_code == 0, said.stderr
    found = list(numbers([json.loads(said.stdout)]))
    assert not [one for one in found if SINCE_1970_S[0] < one[1] < SINCE_1970_S[1]]


def test_moments_of_an_explanation(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """They are times under the names without a unit; what lies deep within as well."""
    gavel("submit", "--", "true")
    said = json.loads(gavel("explain", "1", "--json").stdout)
    assert datetime.fromisoformat(said["at"]).utcoffset() is not None
    deep = dated({"evidence": [{"share": 0.5, "entitled_s": 2.0, "held_by": [{"until_s": 0.0, "gpus": 1}]}]})
    (way,) = deep["evidence"]
    assert way["entitled_s"] == 2.0
    assert way["held_by"][0]["until"].year == 1970
    assert "until_s" not in way["held_by"][0]


def test_every_time_of_an_explanation_is_a_moment_or_a_length() -> None:
    """A field that comes anew has to be sorted in."""
    kinds: tuple[type[msgspec.Struct], ...] = (Explanation, Way, Holder, Change)
    said = {name for kind in kinds for name in kind.__struct_fields__ if name.endswith("_s")}
    assert said == set(TIMES) | LENGTHS


def said_by(result: Result) -> Any:
    """Standard output, which is JSON and nothing else."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_of_a_live_scheduler(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """`top` is one picture, `policy` alone is `policy get`, `login` says who one is."""
    gavel("submit", "-n", "one", "--", "true")
    picture = said_by(gavel("top", "--json"))
    assert [job["spec"]["name"] for job in picture["jobs"]] == ["one"]
    assert datetime.fromisoformat(picture["at"]).utcoffset() is not None
    assert said_by(gavel("policy", "--json")) == said_by(gavel("policy", "get", "--json"))
    assert (
        gavel("policy", "--json", "get").stderr == "gavel policy: options stand behind get, not before it\n"
    )
    found = said_by(gavel("login", "lab", live.address, "--token-stdin", "--json"))
    assert (found["name"], found["address"]) == ("lab", live.address)
    assert found["identity"]["role"] == "admin"


def test_of_files_and_directories(gavel: Gavel, tmp_path: Path) -> None:
    """A scheduler is set up, its settings checked, backed up and restored."""
    data, token = tmp_path / "data", tmp_path / "token"
    made = said_by(gavel("init", str(data), "--user", "ann", "--json"))
    assert (made["user"], made["role"], made["token"][:6]) == ("ann", "admin", "gavel_")
    assert datetime.fromisoformat(made["expires"]).utcoffset() is not None
    assert "expires" in said_by(gavel("init", str(data), "--renew", "--json"))
    again = said_by(gavel("init", str(data), "--token", "--token-file", str(token), "--json"))
    assert (again["token_file"], "token" in again) == (str(token), False)
    assert said_by(gavel("config", "--check", made["settings"], "--json"))["right"] is True
    assert "--check" in gavel("config", "--example", "--json").stderr
    archive, full = tmp_path / "gavel.tar.gz", directory(tmp_path / "full", *GOOD)
    kept = said_by(gavel("backup", str(archive), "--data-dir", str(full), "--json"))
    assert kept == {"archive": str(archive), "size_bytes": archive.stat().st_size, "made_by": None}
    there = said_by(gavel("restore", str(archive), "--data-dir", str(tmp_path / "new"), "--json"))
    assert there == {"data_dir": str(tmp_path / "new"), "records": 14}


def test_of_simulations(gavel: Gavel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare `--json` and `--json -` print, `--json FILE` writes; the relatives print."""
    monkeypatch.chdir(tmp_path)
    made = said_by(gavel("generate", "day.csv", "--rate", "10", "--jobs", "3", "--json"))
    assert (made["file"], made["jobs"]) == ("day.csv", 3)
    run = ("simulate", "day.csv", "--cluster", "h100=16")
    bare = said_by(gavel(*run, "--json", "--journal", "run.db"))
    assert gavel(*run, "--json", "a.json").exit_code == 0
    written = json.loads(Path("a.json").read_text())
    dash = said_by(gavel(*run, "--json", "-"))
    assert bare["mean_jct_h"] == dash["mean_jct_h"] == written["mean_jct_h"]
    assert said_by(gavel("replay", "run.db", "--json"))["jobs"] == 3
    assert said_by(gavel("compare", "a.json", "a.json", "--json"))["ratio"]["mean_jct_h"] == 1.0
    swept = said_by(gavel("sweep", "day.csv", "--policy", "fifo,las", "--cluster", "h100=16", "--json"))
    assert [(one["policy"], one["figures"]["jobs"]) for one in swept["runs"]] == [("fifo", 3), ("las", 3)]


def test_lists_leave_out_what_they_do_not_have(live: LiveThread, gavel: Gavel) -> None:  # noqa: F811
    """An empty command in a list would look like a job without one."""
    gavel("submit", "--env", "A=1", "--", "true")
    (listed,) = said_by(gavel("queue", "--all", "--json"))
    (pictured,) = said_by(gavel("top", "--json"))["jobs"]
    shown = said_by(gavel("show", "1", "--json"))
    for job in (listed, pictured):
        assert set(shown) - set(job) == {"last_lines"}
        assert {"command", "env", "labels"} <= set(shown["spec"]) - set(job["spec"])
