"""`--json`: every command that prints something has it, and every moment in it is ISO 8601."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
import pytest

from gavel.cli.live_explain import TIMES, dated
from scheduler.core.explain import Explanation
from scheduler.core.explain.answer import Change, Holder, Way
from tests.cli.conftest import Gavel
from tests.cli.live import live  # noqa: F401
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
