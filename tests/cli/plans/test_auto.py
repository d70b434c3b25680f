"""Automatic plans on a real daemon: computed at submission, shown by a dry run, refreshed for another cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gavel.client import AsyncClient, AutoPlans, Client, JobSpec
from tests.cli.conftest import Gavel
from tests.client.plans.test_planning import PROFILE, SHAPE
from tests.support.live_thread import LiveThread
from tests.support.wording import Wording

JOB = """\
command: [python, train.py]
job_type: gpt
plan: {auto: model.profile.json, batch: 64, max_tensor: 1}
start: 1h
"""


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    """A job file beside the profile of its model."""
    (tmp_path / "model.profile.json").write_text(json.dumps(PROFILE), encoding="utf-8")
    path = tmp_path / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    return str(path)


def places(live: LiveThread, job: str = "1") -> set[tuple[str, int]]:
    """The types and widths of a job's plans, as the scheduler has them."""
    return {(plan.worker_type, plan.gpus) for plan in live.daemon.world.state.jobs[job].spec.plans}


def test_a_job_gets_plans_for_the_cluster(live: LiveThread, gavel: Gavel, job_file: str) -> None:
    """The scheduler has nodes with two V100, so the job has plans for these, and knows how they were made."""
    assert gavel("submit", job_file).exit_code == 0
    spec = live.daemon.world.state.jobs["1"].spec
    assert places(live) <= {("v100", 1), ("v100", 2)}
    assert json.loads(spec.plans_from)["model"] == PROFILE
    listed = json.loads(gavel("queue", "--json").stdout)[0]["spec"]
    assert {"plans", "plans_from"} & set(listed) == set()


def test_options_name_a_profile(live: LiveThread, gavel: Gavel, job_file: str) -> None:
    """`--plan auto=…` has the parts of the field in a job file."""
    profile = str(Path(job_file).with_name("model.profile.json"))
    submit = ("submit", "--start", "1h", "--job-type", "gpt", "-g", "2")
    assert gavel(*submit, "--plan", f"auto={profile},batch=64,max_tensor=1", "--", "true").exit_code == 0
    assert places(live) == {("v100", 2)}


@pytest.mark.parametrize(
    "plan",
    ["auto", "auto=", "auto=x.json", "auto=x.json,batch", "auto=x.json,batch=0", "auto=x.json,batch=8"],
)
def test_a_wrong_option_is_named(
    gavel: Gavel, plan: str, wording: Wording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the part that is wrong."""
    monkeypatch.chdir(tmp_path)
    result = gavel("submit", "--plan", plan, "--", "true")
    assert result.exit_code == 2
    wording(result.stderr)


def test_a_dry_run_shows_the_plans(live: LiveThread, gavel: Gavel, job_file: str, wording: Wording) -> None:
    """Each place has the plan by which the job would run there, and nothing is submitted."""
    result = gavel("submit", "--dry-run", job_file)
    assert result.exit_code == 0
    assert "t1·p" in result.stdout
    assert live.daemon.world.state.jobs == {}
    plans = "{auto: {layers: 24, hidden: 1024, heads: 16, seq: 2048, vocab: 51200}, batch: 3}"
    Path(job_file).write_text(
        JOB.replace("{auto: model.profile.json, batch: 64, max_tensor: 1}", plans) + "gpus: 64\n"
    )
    result = gavel("submit", "--dry-run", job_file)
    assert result.exit_code == 2
    wording(result.stderr, folder=Path(job_file).parent)


def test_a_refresh_follows_the_cluster(
    live: LiveThread, gavel: Gavel, job_file: str, wording: Wording
) -> None:
    """A type joins: plans for it are added. The file of the profile is gone by then, and is not needed."""
    gavel("submit", job_file)
    Path(job_file).with_name("model.profile.json").unlink()
    result = gavel("plan", "--refresh", "1")
    assert (result.exit_code, "all as before" in result.stdout) == (0, True)
    live.do(live.daemon.node("h1", gpus=4, worker_type="h100"))
    answer = json.loads(gavel("plan", "--refresh", "1", "--json").stdout)
    assert {change["outcome"] for change in answer["jobs"][0]["changes"]} == {"added"}
    assert ("h100", 4) in places(live)
    assert live.daemon.world.state.jobs["1"].spec.widest == 4
    assert "plan is" in gavel("show", "1").stdout


def test_an_array_is_refreshed_as_a_whole(live: LiveThread, gavel: Gavel, job_file: str) -> None:
    """All its unfinished jobs get the new plans, and are reported together."""
    gavel("submit", "--array", "0-1", job_file)
    live.do(live.daemon.node("h1", gpus=4, worker_type="h100"))
    result = gavel("plan", "--refresh", "1")
    assert (result.exit_code, result.stdout.splitlines()[0].partition(":")[0]) == (0, "jobs 1_0 and 1_1")
    assert places(live, "1_0") == places(live, "1_1")


def test_a_job_that_ends_meanwhile_is_left_out(
    live: LiveThread, gavel: Gavel, job_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other jobs of the array are refreshed."""
    gavel("submit", "--array", "0-1", job_file)
    with Client(live.address) as client:
        members = client.members("1")
        client.cancel("1_0")
        monkeypatch.setattr(client, "members", lambda job: members)
        assert [result.job for result in client.refresh_plans("1")] == ["1_1"]


def test_a_running_job_keeps_its_plan_and_its_gpus(live: LiveThread, gavel: Gavel, job_file: str) -> None:
    """Its type is the only one; a refresh changes nothing about its lease, and `queue` names its plan."""
    Path(job_file).write_text(JOB.replace("start: 1h\n", "gpus: 2\n"), encoding="utf-8")
    gavel("submit", job_file)
    lease = live.do(live.daemon.run_job("1"))
    live.do(live.daemon.node("h1", gpus=4, worker_type="h100"))
    assert gavel("plan", "--refresh", "1").exit_code == 0
    assert places(live) == {("v100", 2), ("h100", 2)}
    assert live.daemon.world.state.jobs["1"].lease == lease
    heads, row = gavel("queue").stdout.splitlines()[:2]
    assert ("plan" in heads.split(), "t1·p" in row) == (True, True)


def test_the_queue_has_no_plans_without_jobs_that_run_by_them(live: LiveThread, gavel: Gavel) -> None:
    """The column is there only if it has something to show."""
    gavel("submit", "--", "true")
    assert "plan" not in gavel("queue").stdout.split()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("1",), 6), (("99",), 3), (("1", "--batch", "3"), 2), (("1", "profile.json"), 2)],
)
def test_what_cannot_be_refreshed(
    live: LiveThread, gavel: Gavel, arguments: tuple[str, ...], code: int, wording: Wording
) -> None:
    """A job without automatic plans, a job that does not exist, and options that have no effect."""
    gavel("submit", "--start", "1h", "--", "true")
    result = gavel("plan", "--refresh", *arguments)
    assert result.exit_code == code
    wording(result.stderr)


def test_an_address_is_for_refreshing(gavel: Gavel, wording: Wording) -> None:
    """Without --refresh, `gavel plan` asks no scheduler."""
    result = gavel("plan", "--gpt", "layers=2,hidden=64,heads=2,seq=8,vocab=9", "--address", "a:1")
    assert result.exit_code == 2
    wording(result.stderr)


def test_programs_submit_and_refresh_as_well(live: LiveThread) -> None:
    """Both clients compute plans, of a file that need not be a file, and return what a refresh has changed."""
    spec = JobSpec(
        command=("a",), job_type="gpt", plans=AutoPlans(SHAPE, 64, max_tensor=1), earliest_start_s=3600.0
    )

    async def again() -> tuple[str, ...]:
        async with AsyncClient(live.address) as client:
            (job,) = await client.submit(spec)
            (result,) = await client.refresh_plans(job)
            (preview,) = await client.preview(spec)
            return job, str(result.plans), str(preview.accepted)

    with Client(live.address) as client:
        (job,) = client.submit(spec)
        assert client.with_plans(spec)[0].plans == client.get(job).spec.plans
        live.do(live.daemon.node("h1", gpus=2, worker_type="h100"))
        (result,) = client.refresh_plans(job)
    assert {change.worker_type for change in result.changes} == {"h100"}
    assert asyncio.run(again()) == ("2", str(result.plans), "True")


def test_given_plans_replace_automatic_ones(live: LiveThread, gavel: Gavel, job_file: str) -> None:
    """After `gavel update --plan FILE`, the job remembers no source of plans."""
    gavel("submit", "-g", "2", job_file)
    plans = Path(job_file).with_name("plans.json")
    plans.write_text(json.dumps([{"worker_type": "v100", "gpus": 2, "pipeline": 2, "step_s": 2.0}]), "utf-8")
    result = gavel("update", "1", "--plan", str(plans))
    assert (result.exit_code, result.stdout) == (0, "updated job 1\n")
    spec = live.daemon.world.state.jobs["1"].spec
    assert ([plan.label for plan in spec.plans], spec.plans_from) == (["t1·p2·d1"], "")
    assert gavel("update", "1", "--plan", "none").exit_code == 0
    assert live.daemon.world.state.jobs["1"].spec.plans == ()
