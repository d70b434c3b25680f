"""`gavel tenant` against a real daemon: declarations, what is used of quotas, and the refusal of wide jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest

from gavel.client import Client
from gavel.client import results as r
from tests.cli.conftest import Gavel, keys
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording


def test_tenants_are_declared_listed_and_removed(live: LiveThread, gavel: Gavel) -> None:
    """`set` changes what it is given and leaves the rest; `list` has tenants that only jobs name, too."""
    assert gavel("tenant", "list").stdout == ""
    assert gavel("tenant", "set", "org", "--weight", "2", "--gpus", "v100=2", "--gpus", "*=8").exit_code == 0
    text = gavel("tenant", "set", "org", "--gpus", "*=none", "--each-user-gpus", "v100=1").stdout
    assert text == "org: weight 2, at most v100 2; each user at most v100 1\n"
    gavel("submit", "--tenant", "lab", "--", "true")
    live.do(live.daemon.run_job("1"))
    head, lab, org = gavel("tenant", "list").stdout.splitlines()
    assert head.split()[:2] == ["tenant", "weight"]
    assert lab.split() == ["lab", "1", "1", "1"]
    assert org.split() == ["org", "2", "0", "0", "v100", "0/2", "v100", "1"]
    for tenant in json.loads(gavel("tenant", "list", "--json").stdout):
        assert set(tenant) == keys(r.Tenant)
    assert gavel("tenant", "remove", "org").stdout == "org: no longer declared\n"
    assert [line.split()[0] for line in gavel("tenant", "list").stdout.splitlines()] == ["tenant", "lab"]
    assert gavel("tenant", "show", "org").exit_code == 3


def test_what_users_use_of_a_quota_is_shown(live: LiveThread, gavel: Gavel) -> None:
    """`show` has the limits of the tenant and of each of its users, and GPUs that are held count."""
    gavel("tenant", "set", "org", "--gpus", "v100=2", "--each-user-gpus", "*=1")
    gavel("submit", "--tenant", "org/a", "--", "true")
    live.do(live.daemon.run_job("1"))
    (tenant,) = json.loads(gavel("tenant", "show", "org", "--json").stdout)
    user = tenant["limits"][1]["user"]
    assert tenant["limits"] == [
        {
            "user": "",
            "resource": "gpus",
            "of": "v100",
            "limit": 2.0,
            "used": 1.0,
            "renews_at": None,
            "committed": 0.0,
        },
        {
            "user": user,
            "resource": "gpus",
            "of": "*",
            "limit": 1.0,
            "used": 1.0,
            "renews_at": None,
            "committed": 0.0,
        },
    ]
    lines = gavel("tenant", "show", "org").stdout.splitlines()
    assert lines[0] == "org: weight 1, fairness; 1 unfinished job, 1 running"
    assert lines[-1].split() == ["user", user, "*", "1", "1"]


def test_a_job_that_no_quota_admits_is_refused(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """The error names the field, whose quota it is, and the numbers; `--dry-run` says the same."""
    gavel("tenant", "set", "org", "--gpus", "v100=1")
    for more in ((), ("--dry-run",)):
        result = gavel("submit", *more, "--tenant", "org", "-g", "2", "--", "true")
        assert result.exit_code == 2
        wording(result.stdout + result.stderr)


def test_limits_on_jobs_are_set_and_lifted(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`set`, `list` and `show` have them; a submission beyond is refused with the numbers, also as `--dry-run`."""
    limits = ("--jobs-running", "1", "--jobs-unfinished", "2", "--each-user-jobs-running", "1")
    text = gavel("tenant", "set", "org", *limits, "--each-user-jobs-unfinished", "5").stdout
    assert text == (
        "org: weight 1, at most running jobs 1, unfinished jobs 2; "
        "each user at most running jobs 1, unfinished jobs 5\n"
    )
    gavel("submit", "--tenant", "org", "--", "true")
    live.do(live.daemon.run_job("1"))
    for more in ((), ("--dry-run",)):
        result = gavel("submit", *more, "--tenant", "org/a", "--array", "1-2", "--", "true")
        assert result.exit_code == (2 if more else 6)
        wording(result.stdout + result.stderr)
    (_, row) = gavel("tenant", "list").stdout.splitlines()
    assert "running jobs 1/1, unfinished jobs 1/2" in row
    assert gavel("tenant", "show", "org").stdout.splitlines()[-1].split()[-4:] == [
        "unfinished",
        "jobs",
        "1",
        "5",
    ]
    gavel("tenant", "set", "org", "--jobs-unfinished", "none")
    (org,) = json.loads(gavel("tenant", "show", "org", "--json").stdout)
    assert (org["quota"]["jobs_running"], org["quota"]["jobs_unfinished"]) == (1, None)
    assert gavel("submit", "--tenant", "org/a", "--array", "1-2", "--", "true").exit_code == 0


def test_budgets_are_set_and_lifted(live: LiveThread, gavel: Gavel, wording: Wording) -> None:
    """`set` changes the budgets it names and leaves the rest; `list` and `show` have the limits and what was spent."""
    budgets = (
        "--gpu-hours",
        "week=500",
        "--gpu-hours",
        "day=100.5",
        "--cost",
        "month=2000",
        "--beyond",
        "backfill",
    )
    of_users = ("--each-user-gpu-hours", "day=8", "--each-user-cost", "week=0", "--each-user-beyond", "wait")
    wording(gavel("tenant", "set", "org", *budgets, *of_users).stdout)
    (org,) = json.loads(gavel("tenant", "show", "org", "--json").stdout)
    assert (org["quota"]["gpu_hours"], org["quota"]["cost"]) == (
        {"day": 100.5, "week": 500.0},
        {"month": 2000.0},
    )
    assert (org["quota"]["beyond"], org["each_user"]["beyond"]) == ("backfill", "wait")
    wording(gavel("tenant", "list").stdout)
    wording(gavel("tenant", "show", "org").stdout, date=re.compile(r"\d{4}-\d\d-\d\d"))
    wording(gavel("tenant", "set", "org", "--gpu-hours", "week=none", "--cost", "month=2e3").stdout)
    (org,) = json.loads(gavel("tenant", "show", "org", "--json").stdout)
    assert (org["quota"]["gpu_hours"], org["quota"]["cost"]) == ({"day": 100.5}, {"month": 2000.0})
    assert org["each_user"]["gpu_hours"] == {"day": 8.0}


def test_a_change_beside_another_keeps_both(
    live: LiveThread, gavel: Gavel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another operator changes the tenant between reading and writing, `set` reads it again."""
    read, others = Client.tenants, [("--weight", "3"), ("--gpus", "v100=2")]

    def tenants(client: Client, names: Sequence[str] = ()) -> tuple[r.Tenant, ...]:
        known = read(client, names)
        if others:
            gavel("tenant", "set", "org", *others.pop())
        return known

    gavel("tenant", "set", "org", "--jobs-running", "4")
    monkeypatch.setattr(Client, "tenants", tenants)
    assert gavel("tenant", "set", "org", "--each-user-gpus", "*=1").exit_code == 0
    (org,) = json.loads(gavel("tenant", "show", "org", "--json").stdout)
    assert (org["weight"], org["quota"]["gpus"], org["quota"]["jobs_running"]) == (3.0, {"v100": 2}, 4)
    assert org["each_user"]["gpus"] == {"*": 1}


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "org", "--gpus", "v100"),
        ("set", "org", "--gpus", "v100=-1"),
        ("set", "org", "--gpus", "v100=nan"),
        ("set", "org", "--gpus", "=3"),
        ("set", "org", "--gpus", "v100=1", "--gpus", "v100=2"),
        ("set", "org", "--gpus", "h10=1"),
        ("set", "org", "--each-user-gpus", "v100=99999999"),
        ("set", "org", "--gpus", "v100=99999999999999"),
        ("set", "org", "--jobs-running", "-1"),
        ("set", "org", "--jobs-unfinished", "many"),
        ("set", "org", "--each-user-jobs-running", "1.5"),
        ("set", "org", "--each-user-jobs-unfinished", ""),
        ("set", "org", "--jobs-unfinished", "1000000001"),
        ("set", "org", "--jobs-unfinished", "99999999999999"),
        ("set", "org", "--gpu-hours", "week"),
        ("set", "org", "--gpu-hours", "week="),
        ("set", "org", "--gpu-hours", "week=nan"),
        ("set", "org", "--gpu-hours", "week=-1"),
        ("set", "org", "--gpu-hours", "week=1e"),
        ("set", "org", "--gpu-hours", "year=500"),
        ("set", "org", "--gpu-hours", "=500"),
        ("set", "org", "--gpu-hours", "week=1", "--gpu-hours", "week=2"),
        ("set", "org", "--gpu-hours", "week=1000000000001"),
        ("set", "org", "--gpu-hours", "week=" + "9" * 400),
        ("set", "org", "--cost", "month=inf"),
        ("set", "org", "--cost", "month=1.2.3"),
        ("set", "org", "--cost", "month=2000 EUR"),
        ("set", "org", "--cost", "Month=2000"),
        ("set", "org", "--each-user-gpu-hours", "day=-0.5"),
        ("set", "org", "--each-user-cost", "decade=1"),
        ("set", "org", "--each-user-cost", "day=5000000000000"),
        ("set", "org", "--beyond", "stop"),
        ("set", "org", "--each-user-beyond", ""),
        ("set", "org", "--weight", "nan"),
        ("set", "org", "--weight", "-1"),
        ("set", ""),
        ("remove", "nobody"),
        ("show", "nobody"),
    ],
)
def test_wrong_input_changes_nothing(
    live: LiveThread, gavel: Gavel, arguments: tuple[str, ...], wording: Wording
) -> None:
    """The error is one line that names what is wrong."""
    result = gavel("tenant", *arguments)
    assert result.exit_code == (3 if "nobody" in arguments else 2)
    wording(result.stderr)
    assert json.loads(gavel("tenant", "list", "--json").stdout) == []
