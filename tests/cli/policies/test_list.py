"""`gavel policies`, and the help, the version and the completion of the command group."""

import json
import subprocess
import sys
from importlib.metadata import version

import click

import gavel as package
from gavel.cli.policies.answer_table import VALUE_WORDS
from gavel.cli.policies.list import FACTS, complete_policy
from gavel.client.views.units import duration
from policies.registry import entry, names, resolve
from tests.cli.conftest import Gavel


def test_every_policy_is_listed(gavel: Gavel) -> None:
    """Table and JSON give name, aliases, objective, facts and parameters of every registered policy."""
    listed = json.loads(gavel("policies", "--json").stdout)
    assert [policy["name"] for policy in listed] == list(names())
    table = gavel("policies").stdout
    for policy in listed:
        for word in (
            policy["name"],
            *policy["aliases"],
            policy["objective"].split()[0],
            *policy["parameters"],
        ):
            assert word in table
    needs = {policy["name"]: policy["needs"] for policy in listed}
    assert needs["shortest_job_first"] == ["steps_left"]
    assert needs["min_cost"] == ["deadline_s", "price_per_gpu_hour"]
    assert needs["max_min_fairness"] == []


def test_words_fit_what_is_registered(gavel: Gavel) -> None:
    """Every description belongs to a registered policy, and every fact that policies need has a description."""
    assert set(VALUE_WORDS) <= set(names())
    assert {fact for name in names() for fact in entry(name).facts} <= set(FACTS)
    for modifier in ("packing", "blind"):
        assert f"+{modifier}" in gavel("policies").stdout
        resolve(f"las+{modifier}")


def test_completion_offers_policies_and_modifiers() -> None:
    """Tab after --policy offers policies, then modifiers."""
    context = click.Context(click.Command("allocate"))

    def completions(prefix: str) -> list[str]:
        return complete_policy(context, click.Option(["--policy"]), prefix)

    assert completions("finish") == ["finish_time_fairness"]
    assert "las" in completions("l")
    assert completions("las+p") == ["las+packing"]
    assert completions("las+packing+") == ["las+packing+packing", "las+packing+blind"]


def test_help_and_version(gavel: Gavel) -> None:
    """The help lists the commands, and the version is that of the package."""
    assert ("allocate" in gavel("--help").stdout, "policies" in gavel("--help").stdout) == (True, True)
    assert gavel("--version").stdout.split()[-1] == package.__version__ == version("gavel-scheduler")


def test_the_package_imports_no_command() -> None:
    """`import gavel` in a training script does not import click."""
    bare = [sys.executable, "-c", "import sys, gavel; print('click' in sys.modules)"]
    assert subprocess.run(bare, capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"


def test_durations_read_well() -> None:
    """A duration has the usual unit for its length."""
    lengths_s = [0, 2e-4, 0.0042, 1.5, 90, 7_200, 100_000, 400_000]
    durations = [duration(length_s) for length_s in lengths_s]
    assert durations == ["0 s", "0.0002 s", "4.2 ms", "1.5 s", "1.5 min", "2 h", "27.8 h", "4.63 days"]
