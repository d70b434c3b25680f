"""Metrics of runs whose facts are written by hand, so that every figure can be checked in the head."""

import json
import math

import pytest

from scheduler.core import facts as f
from scheduler.core.messages import Shares
from scheduler.model.cluster import NodeState
from scheduler.model.jobs import Move
from scheduler.model.settings import Settings
from scheduler.sim.figures.gpu_time import SAMPLES_MAX, GpuTime
from scheduler.sim.figures.summary import KEYS, summarise
from tests.support.story import Outcome, Story, lease


@pytest.fixture
def two_jobs() -> Story:
    """Two jobs on one V100 and one K80. a: 0 to 4 h, all of it on the V100. b: waits an hour, runs 1 to 3 h on the K80,
    is preempted, runs 5 to 7 h on the V100."""
    story = Story()
    story.tell(0.0, f.Configured(settings=Settings(policy="las", seed=7)))
    story.node(0.0, "n1", "v100")
    story.node(0.0, "n2", "k80")
    story.prices(0.0, v100=2.0, k80=0.5)
    story.rates(("x", 1, "v100", 3.0), ("x", 1, "k80", 1.0))
    story.submit(0.0, "a", job_type="x", steps=4 * 3600 * 3.0, name="first")
    story.submit(0.0, "b", job_type="x", steps=8 * 3600, deadline_s=6 * 3600.0)
    story.plan(0.0, lease("1", "a", "v100", "n1:0"))
    story.start(0.0, "1")
    story.plan(1.0, lease("2", "b", "k80", "n2:0"))
    story.start(1.0, "2")
    story.close(3.0, "2", steps=1.5 * 3600, ran_h=2.0, outcome="yielded", restart_h=0.5)
    story.close(4.0, "1", steps=4 * 3600 * 3.0, ran_h=4.0, outcome="finished")
    story.run(5.0, 7.0, lease("3", "b", "v100", "n1:0"), 8 * 3600, "finished")
    return story


def test_times_of_jobs(two_jobs: Story) -> None:
    """Completion, waiting and running times come from the facts; a lease that finishes completes its job."""
    a, b = two_jobs.rows().values()
    assert (a["state"], a["jct_h"], a["queue_h"], a["ran_h"]) == ("completed", 4.0, 0.0, 4.0)
    assert (b["state"], b["jct_h"], b["queue_h"], b["ran_h"]) == ("completed", 7.0, 3.0, 4.0)
    assert (a["start_h"], b["start_h"], a["name"]) == (0.0, 1.0, "first")
    assert b["received_h"] == {"v100": 2.0, "k80": 2.0}


def test_preemptions_restarts_and_deadlines(two_jobs: Story) -> None:
    """A lease that yields is a preemption; time with processes but without steps is restart time."""
    a, b = two_jobs.rows().values()
    assert (a["preemptions"], b["preemptions"]) == (0, 1)
    assert (a["restart_h"], b["restart_h"]) == (0.0, 0.5)
    assert (a["deadline_missed"], b["deadline_missed"]) == (None, True)


def test_cost_is_time_on_gpus_at_their_price(two_jobs: Story) -> None:
    """a pays for 4 h of V100, b for 2 h of each type."""
    a, b = two_jobs.rows().values()
    assert (a["cost_usd"], b["cost_usd"]) == pytest.approx((8.0, 5.0))


def test_rho_is_time_against_an_equal_slice(two_jobs: Story) -> None:
    """With two jobs each has half of both GPUs: 1.5 + 0.5 steps/s. Alone, a job has one GPU at a time."""
    a, b = two_jobs.rows().values()
    assert a["rho"] == pytest.approx(4.0 / (4 * 3.0 / 2.0))
    # b does 1.5 h of steps beside a, then 6.5 h of steps alone in the cluster of two GPUs, where one job of one GPU
    # takes no more than all of its time: half of it on each.
    assert b["rho"] == pytest.approx(7.0 / (1.5 / 2.0 + 6.5 / 2.0))


def test_the_summary_has_every_key_in_order(two_jobs: Story) -> None:
    """The summary, computed from facts alone, has the keys that --json promises."""
    figures = summarise(two_jobs.metrics, wall_s=1.5)
    assert tuple(figures) == KEYS
    assert (figures["policy"], figures["seed"], figures["cluster"]) == ("las", 7, {"v100": 1, "k80": 1})
    assert (figures["jobs"], figures["completed"], figures["rounds"]) == (2, 2, 3)
    assert (figures["mean_jct_h"], figures["median_jct_h"]) == (5.5, 5.5)
    assert (figures["p99_jct_h"], figures["makespan_h"]) == (pytest.approx(6.97), 7.0)
    assert figures["utilization"] == {"v100": pytest.approx(6 / 7), "k80": pytest.approx(2 / 7)}
    assert (figures["cost_usd"], figures["deadline_misses"]) == (pytest.approx(13.0), 1)
    assert figures["max_rho"] == pytest.approx(7 / 4)
    assert (figures["unfair_fraction"], figures["preemptions_per_job"]) == (0.5, 0.5)
    assert (figures["restart_h"], figures["wall_s"]) == (0.5, 1.5)


def test_an_empty_run_has_null_and_no_nan() -> None:
    """Figures that do not exist are null, so the summary is valid JSON."""
    figures = json.loads(json.dumps(summarise(Story().metrics), allow_nan=False))
    assert (figures["jobs"], figures["completed"], figures["mean_jct_h"], figures["max_rho"]) == (
        0,
        0,
        None,
        None,
    )
    assert (figures["makespan_h"], figures["unfair_fraction"], figures["utilization"]) == (None, None, {})


def test_an_interrupted_run_has_the_figures_so_far() -> None:
    """A running job has its time and cost so far, but no end and no fairness; the makespan is null."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.prices(0.0, v100=1.0)
    story.submit(0.0, "a", deadline_s=3600.0)
    story.plan(0.5, lease("1", "a", "v100", "n:0"))
    story.start(0.5, "1")
    story.plan(2.5)
    row = story.rows()["a"]
    assert (row["state"], row["end_h"], row["jct_h"], row["rho"]) == ("running", None, None, None)
    assert (row["ran_h"], row["queue_h"], row["cost_usd"]) == (2.0, 0.5, 2.0)
    assert row["deadline_missed"] is True
    figures = summarise(story.metrics)
    assert (figures["makespan_h"], figures["utilization"]) == (None, {"v100": pytest.approx(2 / 2.5)})
    assert figures == summarise(story.metrics), "a second summary charges no job twice"


def test_packed_jobs_use_their_gpus_once_and_share_the_bill() -> None:
    """a runs alone for one hour, with b for two, b alone for one: two GPUs for four hours, 4 each."""
    story = Story()
    story.node(0.0, "n", "v100", gpus=2)
    story.prices(0.0, v100=1.0)
    story.submit(0.0, "a")
    story.submit(0.0, "b")
    story.plan(0.0, lease("1", "a", "v100", "n:0", "n:1"))
    story.start(0.0, "1")
    story.plan(1.0, lease("2", "b", "v100", "n:1", "n:0", with_job="a"))
    story.start(1.0, "2")
    story.close(3.0, "1", steps=1.0, ran_h=3.0, outcome="finished")
    story.close(4.0, "2", steps=1.0, ran_h=3.0, outcome="finished")
    a, b = story.rows().values()
    assert (a["cost_usd"], b["cost_usd"]) == (4.0, 4.0)
    assert (a["ran_h"], b["ran_h"]) == (3.0, 3.0)
    assert summarise(story.metrics)["utilization"] == {"v100": 1.0}


def test_prices_change_while_jobs_run() -> None:
    """A job that runs an hour at 1 and an hour at 5 costs 6."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.prices(0.0, v100=1.0)
    story.submit(0.0, "a")
    story.plan(0.0, lease("1", "a", "v100", "n:0"))
    story.start(0.0, "1")
    story.prices(1.0, v100=5.0)
    story.close(2.0, "1", steps=1.0, ran_h=2.0, outcome="finished")
    assert story.rows()["a"]["cost_usd"] == 6.0


def test_capacity_follows_the_nodes() -> None:
    """Capacity is two GPUs for an hour, one while a node is lost, then two again; broken GPUs do not count."""
    story = Story()
    story.node(0.0, "n1", "v100")
    story.node(0.0, "n2", "v100", gpus=2)
    story.tell(0.0, f.GpusBroken(node="n2", gpus=(1,)))
    story.submit(0.0, "a")
    story.plan(0.0, lease("1", "a", "v100", "n1:0"))
    story.start(0.0, "1")
    story.node_moves(1.0, "n2", NodeState.LOST)
    story.node_moves(2.0, "n2", NodeState.UP)
    story.tell(3.0, f.NodeRemoved(node="n2"))
    story.tell(3.0, f.NodeRemoved(node="unknown"))
    story.close(4.0, "1", steps=1.0, ran_h=4.0, outcome="finished")
    assert summarise(story.metrics)["utilization"] == {"v100": pytest.approx(4 / (2 + 1 + 2 + 1))}


def test_measuring_some_jobs_leaves_the_others_out() -> None:
    """Only the second of three jobs is measured, and GPUs only between its submission and its end."""
    story = Story(measure=(1, 2))
    story.node(0.0, "n", "v100")
    for at_h, job in ((0.0, "a"), (1.0, "b"), (2.0, "c")):
        story.submit(at_h, job)
    story.run(2.0, 3.0, lease("1", "a", "v100", "n:0"), 1.0, "finished")
    assert not story.metrics.all_ended
    story.run(3.0, 5.0, lease("2", "b", "v100", "n:0"), 1.0, "finished")
    assert story.metrics.all_ended
    story.plan(9.0)
    assert list(story.rows()) == ["b"]
    assert story.rows()["b"]["number"] == 1
    figures = summarise(story.metrics)
    assert (figures["jobs"], figures["mean_jct_h"], figures["makespan_h"]) == (1, 4.0, 4.0)
    assert figures["utilization"] == {"v100": pytest.approx(3 / 4)}


def test_shares_promised_against_time_received() -> None:
    """Half of the V100 for two hours and a quarter for one are 1.25 h; nothing is promised after the end."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.node(0.0, "m", "k80")
    story.submit(0.0, "a")
    story.submit(0.0, "b")
    story.adopt(0.0, {("a", "v100"): 0.5, ("a", "k80"): 0.25, ("b", "v100"): 0.5})
    story.adopt(2.0, {("a", "v100"): 0.25, ("gone", "v100"): 0.75})
    story.run(2.0, 3.0, lease("1", "a", "v100", "n:0"), 1.0, "finished")
    story.adopt(9.0, {("a", "v100"): 1.0})
    a, b = story.rows().values()
    assert a["allocated_h"] == {"v100": 1.25, "k80": 0.5}
    assert a["received_h"] == {"v100": 1.0, "k80": 0.0}
    assert b["allocated_h"] == {"v100": 1.0, "k80": 0.0}


def test_many_jobs_and_types_find_room() -> None:
    """Promised time is kept for any number of jobs at once."""
    story = Story()
    jobs = [f"j{number}" for number in range(1000)]
    for job in jobs:
        story.submit(0.0, job)
    story.adopt(0.0, {(job, f"t{number % 5}"): 0.5 for number, job in enumerate(jobs)})
    story.tell(2.0, f.AllocationFailed(number=2, why="no answer"))
    rows = story.rows()
    assert [rows[job]["allocated_h"].get(f"t{number % 5}") for number, job in enumerate(jobs)] == [1.0] * 1000


def test_a_job_of_unknown_rates_is_measured_by_the_adopted_ones() -> None:
    """If no table has its type, the isolated rate of the adopted allocation is used."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.submit(0.0, "a", job_type="unheard of")
    story.adopt(0.0, {("a", "v100"): 1.0}, isolated=2.0)
    story.run(1.0, 2.0, lease("1", "a", "v100", "n:0"), 7200.0, "finished")
    assert story.rows()["a"]["rho"] == 2.0


def test_without_any_rate_fairness_is_null() -> None:
    """Without a table and an allocation, ρ is null instead of a guess."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.submit(0.0, "a", job_type="unheard of")
    story.run(1.0, 2.0, lease("1", "a", "v100", "n:0"), 7200.0, "finished")
    assert story.rows()["a"]["rho"] is None
    assert summarise(story.metrics)["unfair_fraction"] is None


def test_work_done_twice_counts_once() -> None:
    """A node fails after 100 steps, and the job continues to 200; ρ counts each of the 200 steps once."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.rates(("x", 1, "v100", 0.1))
    story.submit(0.0, "a", job_type="x")
    story.plan(0.0, lease("1", "a", "v100", "n:0"))
    story.start(0.0, "1")
    story.close(1.0, "1", steps=100.0, ran_h=1.0, outcome="node_failed")
    story.run(1.0, 2.0, lease("2", "a", "v100", "n:0"), 200.0, "finished")
    row = story.rows()["a"]
    assert row["rho"] == pytest.approx(7200 / 2000)
    assert row["preemptions"] == 0


def test_a_lease_whose_start_was_never_reported() -> None:
    """If only its exit is reported, the lease's time and cost count all the same."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.prices(0.0, v100=3.0)
    story.submit(0.0, "a")
    story.plan(0.0, lease("1", "a", "v100", "n:0"))
    story.close(2.0, "1", steps=5.0, ran_h=1.0, outcome="finished")
    row = story.rows()["a"]
    assert (row["ran_h"], row["cost_usd"], row["state"]) == (1.0, 3.0, "completed")


def test_ends_that_users_cause() -> None:
    """A cancelled job has ended, but its GPUs are in use until the exit; facts about unknown leases change nothing."""
    story = Story()
    story.node(0.0, "n", "v100")
    story.prices(0.0, v100=1.0)
    story.submit(0.0, "a", deadline_s=60.0)
    story.submit(0.0, "b", deadline_s=60.0)
    story.plan(0.0, lease("1", "a", "v100", "n:0"), lease("2", "b", "v100", "n:0"))
    story.start(0.0, "1", "unknown")
    story.move(1.0, "a", Move.CANCEL)
    story.move(1.0, "b", Move.FAIL)
    story.close(2.0, "1", steps=1.0, ran_h=2.0, outcome="yielded")
    story.close(2.0, "2", steps=0.0, ran_h=0.0, outcome="yielded")
    story.move(3.0, "a", Move.FAIL)
    a, b = story.rows().values()
    assert (a["state"], a["end_h"], a["ran_h"], a["cost_usd"]) == ("cancelled", 1.0, 2.0, 2.0)
    assert (b["state"], a["deadline_missed"], b["deadline_missed"]) == ("failed", None, True)
    assert summarise(story.metrics)["completed"] == 0


def test_a_held_job_that_finishes_is_completed() -> None:
    """A held job whose processes finish first is completed; one that yields stays held."""
    story = Story()
    story.node(0.0, "n", "v100", gpus=2)
    outcomes: dict[str, Outcome] = {"a": "finished", "b": "yielded"}
    for number, outcome in outcomes.items():
        story.submit(0.0, number)
        story.plan(0.0, lease(number, number, "v100", f"n:{'ab'.index(number)}"))
        story.start(0.0, number)
        story.move(0.5, number, Move.HOLD)
        story.close(1.0, number, steps=1.0, ran_h=1.0, outcome=outcome)
    assert [row["state"] for row in story.rows().values()] == ["completed", "held"]
    story.move(2.0, "b", Move.RELEASE)
    assert story.rows()["b"]["state"] == "queued"


def test_the_time_series_stays_short_and_exact() -> None:
    """However many rounds there are, a limited number of samples is kept, in order and up to the end."""
    time = GpuTime()
    kind = time.kind("v100")
    assert kind == 0
    for number in range(3 * SAMPLES_MAX):
        time.sample(float(number), running=1, waiting=0)
    times = [sample.at_s for sample in time.samples]
    assert len(times) < SAMPLES_MAX
    assert times == sorted(times)
    assert math.isclose(times[-1], 3 * SAMPLES_MAX, rel_tol=0.01)


def test_the_timeline_has_each_lease() -> None:
    """A stretch of the timeline is a lease from its start to its end, with its GPUs in the order of ranks."""
    story = Story()
    story.node(0.0, "n", "v100", gpus=2)
    story.submit(0.0, "a", gpus=2)
    story.run(1.0, 2.0, lease("1", "a", "v100", "n:1", "n:0"), 1.0, "finished")
    assert story.metrics.stretches == [("a", "v100", ("n:1", "n:0"), 3600.0, 7200.0)]


def test_failed_allocations_are_counted() -> None:
    """The metrics count solver failures and keep the first reason, since such figures are not the policy's."""
    story = Story()
    story.tell(0.0, f.AllocationFailed(number=1, why="first reason"))
    story.tell(1.0, f.AllocationFailed(number=2, why="second reason"))
    assert (story.metrics.fallbacks, story.metrics.fallback_why) == (2, "first reason")


def test_an_ideal_run_has_exactly_its_shares() -> None:
    """Without leases, time, cost and utilisation are those promised, half of a pair's GPUs for each job."""
    story = Story(measure=(0, 1))
    story.node(0.0, "n", "v100", gpus=2)
    story.prices(0.0, v100=3.0)
    story.rates(("x", 2, "v100", 1.0))
    story.submit(0.0, "a", job_type="x", gpus=2, steps=3600.0)
    story.submit(0.0, "b", job_type="x", gpus=2, steps=3600.0)
    pair = Shares(
        jobs=("a", "b"), worker_types=("v100",), first=[0], second=[1], worker_type=[0], gpus=[2], share=[0.5]
    )
    story.tell(0.0, f.AllocationAdopted(number=1, policy="las", shares=pair))
    story.move(2.0, "b", Move.COMPLETE)
    story.move(2.0, "a", Move.COMPLETE)
    row = story.rows()["a"]
    assert (row["ran_h"], row["queue_h"], row["cost_usd"]) == (1.0, 1.0, 3.0)
    assert row["rho"] == pytest.approx(2.0 / 2.0)
    assert summarise(story.metrics)["utilization"] == {"v100": 0.5}
