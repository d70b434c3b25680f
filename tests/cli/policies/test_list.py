"""`gavel policies`, the command group itself, and what both cost before they answer."""

import json
import subprocess
import sys
from importlib.metadata import version

import click

import gavel as package
from gavel.cli.io.units import duration
from gavel.cli.policies.answer_table import VALUE_WORDS
from gavel.cli.policies.list import FACTS, complete_policy
from policies.registry import entry, names, resolve
from tests.cli.conftest import Gavel


def test_every_policy_is_listed(gavel: Gavel) -> None:
    """Name, aliases, objective, facts and parameters of each registered policy, in the table and as data."""
    listed = json.loads(gavel("policies", "--json").stdout)
    assert [policy["name"] for policy in listed] == list(names())
    shown = gavel("policies").stdout
    for policy in listed:
        for word in (
            policy["name"],
            *policy["aliases"],
            policy["objective"].split()[0],
            *policy["parameters"],
        ):
            assert word in shown
    needs = {policy["name"]: policy["needs"] for policy in listed}
    assert needs["shortest_job_first"] == ["steps_left"]
    assert needs["min_cost"] == ["deadline_s", "price_per_gpu_hour"]
    assert needs["max_min_fairness"] == []


def test_words_fit_what_is_registered(gavel: Gavel) -> None:
    """Words for policies that do not exist, and facts without words, would go unnoticed otherwise."""
    assert set(VALUE_WORDS) <= set(names())
    assert {fact for name in names() for fact in entry(name).facts} <= set(FACTS)
    for modifier in ("packing", "blind"):
        assert f"+{modifier}" in gavel("policies").stdout
        resolve(f"las+{modifier}")


def test_completion_knows_policies_and_modifiers() -> None:
    """What Tab offers after --policy."""
    context = click.Context(click.Command("allocate"))

    def completions(begun: str) -> list[str]:
        return complete_policy(context, click.Option(["--policy"]), begun)

    assert completions("finish") == ["finish_time_fairness"]
    assert "las" in completions("l")
    assert completions("las+p") == ["las+packing"]
    assert completions("las+packing+") == ["las+packing+packing", "las+packing+blind"]


def test_help_and_version(gavel: Gavel) -> None:
    """The group says what there is; the version is that of the package."""
    assert ("allocate" in gavel("--help").stdout, "policies" in gavel("--help").stdout) == (True, True)
    assert gavel("--version").stdout == f"gavel, version {version('gavel-scheduler')}\n"
    assert package.__version__ == version("gavel-scheduler")


def test_the_package_imports_no_command() -> None:
    """`import gavel` in a training script needs no click."""
    bare = [sys.executable, "-c", "import sys, gavel; print('click' in sys.modules)"]
    assert subprocess.run(bare, capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"


def test_durations_read_well() -> None:
    """Seconds in the unit that people would use."""
    lengths_s = [0, 2e-4, 0.0042, 1.5, 90, 7_200, 100_000, 400_000]
    shown = [duration(length_s) for length_s in lengths_s]
    assert shown == ["0 s", "0.0002 s", "4.2 ms", "1.5 s", "1.5 min", "2 h", "27.8 h", "4.63 days"]
